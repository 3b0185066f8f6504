"""Convolutional sequence models on four real ranks that cut the positions: as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loop_models import Loop, Looped, backwards, in_place, late, nonlinear, number, twice
from rank_pool import RankPool, pool_of
from sequence_models import BETWEEN, Between, ChunkedScan, SelectiveScan

import synth
from synth.network.file import parse_network
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.tracing import recorder

WHOLE = ["lstm", "gru"]  # whose sequence stays whole, so that samples are divided
MANY = [name for name in BETWEEN if name not in WHOLE]


ranks = pool_of(__file__, "sequence_ranks.py", 4)


def assert_as_one_process(ranks: RankPool, names: list[str], *options: Any) -> None:
    for found in ranks.call("compared", names, *options):
        assert list(found) == names
        for name, each in found.items():
            assert each["error"] < 1e-9, (name, each)
            assert each["words"][0] == each["words"][1], (name, each)
            assert len({*each.get("forward", ())}) < 2, (name, each)
            assert each["gathered"] == [], (name, each)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "options"),
    [("scans", (19,)), ("mamba", (19,)), ("loops", (10, 1, "w", False)), ("lstm", (8, 4, "w", False))],
)
@pytest.mark.one_in(4)
def test_models_whose_positions_are_cut_are_those_of_one_process(
    name: str, options: tuple[Any, ...], ranks: RankPool
) -> None:
    """Two steps whose gradients are added, and inference; words are those of the plan."""
    assert_as_one_process(ranks, [name], *options)


@pytest.mark.ranks
def test_scans_of_zeros_equal_rows_and_what_is_no_number(ranks: RankPool) -> None:
    for found in ranks.call("hard_values"):
        assert found["scans"] == 25
        assert max(found["values"], found["gradients"]) < 1e-12


@pytest.mark.ranks
@pytest.mark.slow
def test_scans_under_autocast_are_as_precise_as_in_one_process(ranks: RankPool) -> None:
    for found in ranks.call("half", "mamba"):
        assert found["ours"] < max(3 * found["one process"], 0.01)
        assert found["gradients"] < 0.05


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize(("length", "batch", "axes"), [(44, 1, "w"), (64, 3, "wb"), (8, 2, "w"), (48, 2, "")])
def test_models_on_many_cuts(length: int, batch: int, axes: str, ranks: RankPool) -> None:
    assert_as_one_process(ranks, [*MANY, "documents", *(WHOLE if batch > 1 else ())], length, batch, axes)


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("length", [13, 19])
def test_loops_of_many_forms(length: int, ranks: RankPool) -> None:
    assert_as_one_process(ranks, ["loops of all forms"], length, 2)


@pytest.mark.parametrize(
    ("loop", "scans"), [(number, 1), (twice, 2), (backwards, 1), (nonlinear, 0), (late, 0), (in_place, 0)]
)
def test_recurrences_are_scans_where_no_factor_or_term_depends_on_a_state(loop: Loop, scans: int) -> None:
    graph = trace_model(Looped((loop,)), (1, 3, 9)).graph
    assert [operation_name(node) for node in graph.nodes].count("affine_scan") == scans


@pytest.mark.parametrize(("loop", "scans"), [(number, 1), (nonlinear, 0), (in_place, 0)])
def test_a_loop_of_more_turns_than_a_limit_is_refused_with_its_line(
    loop: Loop, scans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line may have several calls of a function in each turn."""
    monkeypatch.setattr(recorder, "MOST_TURNS", 40)
    graph = trace_model(Looped((loop,)), (1, 3, 40)).graph
    assert [operation_name(node) for node in graph.nodes].count("affine_scan") == scans
    with pytest.raises(ValueError, match=r"^a loop calls \w+ more than 40 times \(loop_models.py:\d+\), and"):
        trace_model(Looped((loop,)), (1, 3, 41))


def in_turn(place: int, ranks: int) -> int:
    """States that the rank at a place of a line receives, round by round."""
    known, received, distance = {rank: set[int]() for rank in range(ranks)}, 0, 1
    for rank in range(1, ranks):
        known[rank] = {rank - 1}
    received += place > 0
    while any(len(known[rank]) < rank for rank in known):
        before = {rank: set(each) for rank, each in known.items()}
        for rank in range(distance + 1, ranks):
            known[rank] |= before[rank - distance]
        received += place > distance
        distance *= 2
    assert known[place] == set(range(place))
    return received


@pytest.mark.parametrize("procs", [2, 3, 8])
def test_words_of_a_scan_are_those_of_its_rounds_at_any_length(procs: int) -> None:
    for length in (1 << 10, 1 << 16):
        plan = synth.plan_model(Between(BETWEEN["cumsum"](length)), (1, 3, length), procs, axes="w")
        there, back = plan.words.calls["cumsum"]
        assert list(there) == [8 * in_turn(place, procs) for place in range(procs)]
        assert back == there[::-1]


@pytest.mark.parametrize("procs", [2, 4])
@pytest.mark.parametrize("length", [1 << 12, pytest.param(1 << 16, marks=pytest.mark.slow)])
def test_chunks_move_their_states_and_not_the_decays_between_them(length: int, procs: int) -> None:
    """Chunks and the zeros before them are uneven rows. A decay matrix has as many words as their square."""
    model = Between(ChunkedScan(loop=False, chunk=16))
    plan = synth.plan_model(model, (1, 3, length), procs, axes="w", mode="inference")
    chunks, heads, width, states = length // 16 + 1, 2, 4, 4
    most = max(plan.words.forward)
    assert most <= chunks * heads * (width * states + 1) + 64 * procs


def test_indices_of_extrema_carry_an_extremum_and_its_row() -> None:
    """Both where a scan of the extrema carries one word; indices have no gradient."""
    plan = synth.plan_model(Between(BETWEEN["indices"](1 << 16)), (1, 3, 1 << 16), 4, axes="w")
    there, back = plan.words.calls["cummax_1"]
    assert (list(there), set(back)) == ([2 * 8 * in_turn(place, 4) for place in range(4)], {0})


def test_a_scan_lies_as_its_input_in_plans_and_files() -> None:
    traced = trace_model(Between(BETWEEN["cumsum"](64)), (1, 3, 64))
    assert [node.kind for node in traced.network.nodes.values()] == ["conv1d", "scan", "conv1d"]
    assert traced.network.parts["cumsum"][0].node == "first"
    assert parse_network(traced.file_text(), "net.yaml").nodes["cumsum"].kind == "scan"


def test_a_loop_over_positions_is_a_scan_and_a_call_of_all_turns() -> None:
    graph = trace_model(Between(SelectiveScan()), (1, 3, 64)).graph
    words = [operation_name(node) for node in graph.nodes]
    assert words.count("affine_scan") == words.count("mapped_rows") == 1
    assert len(words) < 30


def squared(turns: int) -> Any:
    """Each row by itself, by calls that read what the one before made twice."""

    def call(x: torch.Tensor) -> torch.Tensor:
        made = []
        for row in x.unbind(2):
            for _ in range(turns):
                row = row * row.sigmoid() + row
            made.append(row)
        return torch.stack(made, 2)

    return call


@pytest.mark.parametrize(("turns", "calls"), [(20, 1), pytest.param(450, 0, marks=pytest.mark.slow)])
def test_long_turns_are_one_call_that_makes_every_value_once_or_stay(turns: int, calls: int) -> None:
    graph = trace_model(Between(squared(turns)), (1, 3, 4)).graph
    found = [node.target for node in graph.nodes if operation_name(node) == "mapped_rows"]
    assert len(found) == calls
    rows = torch.randn(1, 8, 4, dtype=torch.float64) / 9
    for each in found:
        torch.testing.assert_close(each(rows), squared(turns)(rows))


def scanned(combine: Any) -> Any:
    """Two rows of channels, scanned by torch's associative scan."""

    def call(x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.associative_scan import associative_scan

        rows = x[:, :4].sigmoid(), x[:, 4:]
        made: torch.Tensor = associative_scan(combine, rows, dim=2, combine_mode="generic")[1]
        return made

    return call


@pytest.mark.parametrize(
    "combine",
    [
        lambda one, other: (one[0] * other[0], other[0] * one[1] + other[1]),
        lambda one, other: (other[0] * one[0], torch.add(other[1], torch.mul(one[1], other[0]))),
        lambda one, other: (one[0] * other[0], torch.addcmul(other[1], other[0], one[1])),
    ],
)
def test_an_associative_scan_of_affine_maps_is_one_scan(combine: Any) -> None:
    graph = trace_model(Between(scanned(combine), 4), (1, 3, 1024)).graph
    assert [operation_name(node) for node in graph.nodes].count("affine_scan") == 1


@pytest.mark.parametrize(("combine", "word"), [(torch.add, "cumsum"), (torch.maximum, "cummax_0")])
def test_an_associative_scan_of_one_tensor_is_one_call(combine: Any, word: str) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.associative_scan import associative_scan

        made: torch.Tensor = associative_scan(lambda *each: combine(*each), x, 2, combine_mode="generic")
        return made

    graph = trace_model(Between(call), (1, 3, 64)).graph
    assert [operation_name(node) for node in graph.nodes].count(word) == 1


@pytest.mark.parametrize(
    "combine",
    [
        lambda one, other: (one[0] * other[0], one[0] * one[1] + other[1]),
        lambda one, other: (one[0] * other[0], other[0] * one[1] + 2 * other[1]),
        lambda one, other: (one[0] + other[0], other[0] * one[1] + other[1]),
        lambda one, other: (one[0] * other[0], other[0] * one[1] + one[1]),
        lambda one, other: (one[0] * other[0], torch.add(other[0] * one[1], other[1], alpha=2)),
    ],
)
def test_other_associative_scans_are_refused_with_their_line(combine: Any) -> None:
    with pytest.raises(ValueError, match=r"associative_scan combines rows in another way .*\(test_sequences"):
        trace_model(Between(scanned(combine), 4), (1, 3, 32))


def operation_name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target))
