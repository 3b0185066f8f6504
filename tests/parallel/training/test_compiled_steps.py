"""`Network.compile`: steps in one graph, with exchanges that all ranks make in one order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compiled_steps_ranks
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_pool import RankPool

from synth.runtime.comm import traced
from synth.runtime.comm.traced import Exchange, first_apart

HERE = Path(__file__)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    folder = tmp_path_factory.mktemp("ranks")
    with RankPool(HERE.with_name("compiled_steps_ranks.py"), request.param, folder) as pool:
        yield pool


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(HERE.with_name("compiled_steps_ranks.py"), 2, tmp_path_factory.mktemp("pair")) as pool:
        yield pool


LONG = ("resnet50", "cosmoflow", "cosmoflow, one volume", "unet3d", "wrn50_4")  # half a minute each
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in compiled_steps_ranks.CASES]


def require_equal(results: list[dict[str, Any]]) -> None:
    """Steps are those of one process and of the network as it is, and the exchanges of all ranks meet."""
    for found in results:
        assert found["alone"] < 1e-8, found["alone"]
        assert found["eager"] < 1e-8, found["eager"]
        assert found["log"]
        assert found["words"][0] == found["words"][1]
    assert not first_apart({found["rank"]: found["exchanges"] for found in results})
    assert any(found["exchanges"] for found in results)


@pytest.mark.ranks
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_steps_of_networks(name: str, ranks: RankPool) -> None:
    require_equal(ranks.call("steps", name, "aot_eager"))


@pytest.mark.ranks
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_steps_of_networks_with_an_empty_rank(name: str, ranks: RankPool) -> None:
    results = ranks.call("steps", name, "aot_eager", True)
    require_equal(results)
    assert any(found["empty"] for found in results)


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet3d", "vae decoder"])
def test_steps_by_inductor(name: str, ranks: RankPool) -> None:
    require_equal(ranks.call("steps", name, "inductor", True))


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("drawn whole", "2 draws from torch's generator, whose order a compiler changes"),
        ("words that torch may refuse", r"torch may refuse the words of one rank in rfloordiv \(compiled"),
        ("compiled wrongly by torch", r"\(torch compiles labels behind -1 as if they counted\)"),
        ("not compiled by torch", r"torch cannot compile steps \(.*storage"),
        ("checkpoint", "the model has regions of torch.utils.checkpoint"),
        ("check_finite", "check_finite=True looks at words between steps"),
        ("no_sync", r"gradients are added up in no_sync\(\)"),
        ("no_sync in the backward pass", r"gradients are added up in no_sync\(\)"),
        ("counted rate", "1 has no form that a compiler can trace"),
        ("dynamic", "each shape has layouts of its own"),
        ("compiled on one rank", r"net.compile\(\), or autocast, dtype"),
    ],
)
@pytest.mark.one_in(9)
def test_what_compiled_steps_cannot_do(what: str, sentence: str, pair: RankPool) -> None:
    for said, far in pair.call("refused", what):
        assert re.search(sentence, said), said
        if what not in ("dynamic", "compiled on one rank"):
            assert re.search(r"call net\.compile\(disable=True\), and compile a module around", said), said
        assert far < 1e-5


@pytest.mark.ranks
@pytest.mark.slow
def test_compiled_steps_follow_changes(pair: RankPool) -> None:
    for found in pair.call("changes"):
        assert found["passes"] == 2  # one for each mode
        assert max(found["far"].values()) < 1e-5, found["far"]


@pytest.mark.ranks
@pytest.mark.one_in(4)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.slow
def test_compiled_steps_in_replicas_and_with_whole_outputs(replicas: int, ranks: RankPool) -> None:
    assert max(ranks.call("elsewhere", replicas)) < 1e-6


# -- the chain of exchanges, without ranks -----------------------------------------------------------------


def named(name: str, made: list[str], *sizes: int) -> str:
    """An exchange that notes that it is made. sizes: of what arrives."""

    def call(rooms: Any, leaving: Any) -> list[Any]:
        made.append(name)
        for room, piece in zip(rooms, leaving, strict=False):
            room.copy_(piece)
        return []

    rooms = tuple(((size,), torch.float32) for size in sizes)
    traced.LAYOUTS[name] = traced.Layout(Exchange(name, "", (0, 1), {}, {}), rooms, call)
    return name


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("words", [0, 5])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
@pytest.mark.one_in(2)
def test_a_compiler_keeps_exchanges_and_their_order(backend: str, words: int) -> None:
    """Also those of no words, equal ones, and those of which nothing is read, whatever their sizes are."""
    traced.register()
    made: list[str] = []
    names = [named(f"test {words} {n}", made, size) for n, size in enumerate([words, 1000, words, 1])]

    def run(x: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, ...]:
        exchange: Any = torch.ops.synth.exchange
        kept = []
        for name in (*names, names[0], names[0]):
            piece = x.new_full((traced.LAYOUTS[name].rooms[0][0][0],), 2.0)
            arrived, after = exchange([piece], after, name)
            kept.append(arrived)
        return after, kept[1].sum()

    torch._dynamo.reset()
    step = torch.compile(run, backend=backend, fullgraph=True)
    after, total = step(torch.ones(3), torch.zeros(()))
    assert made == [*names, names[0], names[0]]
    assert float(total) == 2000
    assert int(after) == 6


@st.composite
def schedules(draw: st.DrawFn) -> dict[int, list[Exchange]]:
    """What ranks exchange that make the same calls in one order; some have no part in some."""
    size = draw(st.integers(2, 4))
    made: dict[int, list[Exchange]] = {rank: [] for rank in range(size)}
    for number in range(draw(st.integers(1, 6))):
        some = st.integers(0, 2) if draw(st.booleans()) else st.just(number + 1)
        words = {(a, b): draw(some) for a in range(size) for b in range(size) if a != b}
        for rank, each in made.items():
            sent = {b: (n, "float") for (a, b), n in words.items() if a == rank and n}
            received = {a: (n, "float") for (a, b), n in words.items() if b == rank and n}
            if sent or received:
                each.append(Exchange("messages", "all", tuple(range(size)), sent, received))
    return made


@given(schedules(), st.data())
def test_exchanges_of_ranks_meet_unless_one_is_dropped_or_changed(
    made: dict[int, list[Exchange]], data: st.DataObject
) -> None:
    assert not first_apart(made)
    rank = data.draw(st.sampled_from([rank for rank, each in made.items() if each] or [0]))
    if not made[rank]:
        return
    place = data.draw(st.integers(0, len(made[rank]) - 1))
    if data.draw(st.booleans()):
        del made[rank][place]
    else:
        each = made[rank][place]
        more = {peer: (n + 7, kind) for peer, (n, kind) in {**each.sent, **each.received}.items()}
        made[rank][place] = each._replace(sent=more)
    assert first_apart(made)


def test_exchanges_in_another_order_do_not_meet() -> None:
    one = {0: [_pair(1, 1), _pair(1, 2)], 1: [_pair(0, 1), _pair(0, 2)]}
    assert not first_apart(one)
    one[1].reverse()
    assert "exchange 0 of rank 0, messages of ranks (0, 1)" in first_apart(one)


def _pair(peer: int, words: int) -> Exchange:
    both = {peer: (words, "float")}
    return Exchange("messages", "all", (0, 1), both, both)
