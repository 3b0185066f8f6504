"""The oracle: Table 3 term by term on one level with rings, limits, profiles, explicit contention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flat_machine import ALPHA, BETA, FLAT, RATE
from four_layers import CHAIN, OPERATIONS, WORDS

from synth.base.errors import InfeasibleError, InputError, UsageError
from synth.cli.main import main
from synth.machine.file import load_machine
from synth.machine.hierarchy import Machine
from synth.network.file import parse_network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.prediction.calibrate_profile import calibrate
from synth.prediction.oracle_model import split_stages
from synth.prediction.predict import NAMES, PLANNED, compare, predict
from synth.prediction.prediction import PredictionRequest
from synth.prediction.profile import NominalRate, load_profile

NET = parse_network(CHAIN, "four.yaml")
X = [16 * 144, 32 * 144, 32 * 144, 64 * 144]
Y = [32 * 144, 32 * 144, 64 * 144, 64 * 144]


def ask(procs: int, machine: Machine = FLAT, **changes: object) -> PredictionRequest:
    """A prediction as Table 3 makes it."""
    made = PredictionRequest(NET, machine, NominalRate(machine), procs, 64, table3=True)
    return replace(made, **changes)  # type: ignore[arg-type]


def ask_ours(procs: int, machine: Machine = FLAT, **changes: object) -> PredictionRequest:
    """A prediction in the model of plans."""
    return ask(procs, machine, **{"table3": False, **changes})


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_data_is_table_3(p: int) -> None:
    made = predict(ask(p), "data")
    compute = 64 / p * 3 * sum(OPERATIONS) / RATE + 3 * 4 * sum(WORDS) / 1e11
    assert made.total.compute == pytest.approx(compute)
    assert made.total.comm == pytest.approx(2 * (p - 1) * (ALPHA + 4 * sum(WORDS) / p * BETA))
    assert made.total.used_bytes == pytest.approx(
        4 * sum(2 * 64 / p * (x + y) + 2 * w for x, y, w in zip(X, Y, WORDS, strict=True))
    )


@pytest.mark.parametrize("name", ["filter", "channel"])
def test_filter_and_channel_are_table_3(name: str) -> None:
    p = 8
    made = predict(ask(p), name)
    assert made.total.comm == pytest.approx(3 * (p - 1) * sum(ALPHA + 64 * y / p * 4 * BETA for y in Y[:-1]))
    assert made.total.used_bytes == pytest.approx(
        4 * sum(2 * 64 * (x + y) + 2 * w / p for x, y, w in zip(X, Y, WORDS, strict=True))
    )


def test_hybrid_and_spatial_are_table_3() -> None:
    p1, p2 = 4, 4
    made = predict(ask(16, groups=p1), "data+filter")
    inside = 3 * (p2 - 1) * sum(ALPHA + 64 * y / 16 * 4 * BETA for y in Y[:-1])
    across = 2 * (p1 - 1) * (ALPHA + sum(WORDS) / 16 * 4 * BETA)
    assert made.total.comm == pytest.approx(inside + across)
    spatial = predict(ask(2), "spatial")
    faces = [12 * c for c in (16, 32, 32, 64)], [12 * c for c in (32, 32, 64, 64)]
    halo = 2 * sum(2 * ALPHA + 64 * (x + y) * 4 * BETA for x, y in zip(*faces, strict=True))
    assert spatial.total.comm == pytest.approx(halo + 2 * (ALPHA + sum(WORDS) / 2 * 4 * BETA))


def test_pipeline_is_gpipe() -> None:
    p, S = 2, 4
    made = predict(ask(p, segments=S), "pipeline")
    stages = split_stages([3 * o for o in OPERATIONS], p)
    assert stages == [[0, 1, 2], [3]]
    slowest = max(sum(OPERATIONS[i] for i in stage) for stage in stages) / RATE
    update = max(sum(12 * WORDS[i] for i in stage) for stage in stages) / 1e11
    assert made.total.compute == pytest.approx((p + S - 1) / S * 64 * 3 * slowest + update)
    assert made.total.comm == pytest.approx(2 * (p + S - 2) * (ALPHA + 64 / S * Y[2] * 4 * BETA))


def test_default_groups_have_a_sample_each() -> None:
    nodes = replace(FLAT, levels=(replace(FLAT.levels[0], ranks=4), *FLAT.levels))
    assert predict(ask(16, nodes), "data+filter").detail == " (4 groups of 4)"
    few = predict(ask(16, nodes, batch=2), "data+filter")
    assert few.detail == " (2 groups of 8)"
    assert few.total.comm == predict(ask(16, nodes, batch=2, groups=2), "data+filter").total.comm
    with pytest.raises(InfeasibleError, match="but has 2 and 32; choose other groups"):
        predict(ask(16, nodes, batch=2, groups=4), "data+filter")


@pytest.mark.parametrize(
    ("name", "procs", "limit"),
    [("data", 128, 64), ("filter", 64, 32), ("channel", 64, 32), ("pipeline", 5, 4), ("spatial", 256, 144)],
)
def test_scaling_limits_are_stated(name: str, procs: int, limit: int) -> None:
    with pytest.raises(InfeasibleError, match=f"scales to {limit} ranks"):
        predict(ask(procs), name)


def test_contention_is_an_input() -> None:
    base = FLAT.levels[0]
    crowded = Machine("m", (replace(base, links=1, contention=2.0),), FLAT.compute, algorithms=("ring",))
    slow, fast = (predict(ask(8, m, flows=1), "data").total.comm for m in (crowded, FLAT))
    assert slow > fast
    more = predict(ask(8, crowded, flows=4), "data").total.comm
    assert more > slow


def test_comparison_names_every_strategy_and_why_some_are_refused() -> None:
    made = compare(ask_ours(8))
    assert {p.strategy for p in made.predictions} | {name for name, _ in made.refused} == set(NAMES)
    assert "serial scales to 1 ranks" in str(made)
    assert "a pipeline puts layers on different ranks" in str(made)
    own = next(p for p in made.predictions if p.strategy == "plan")
    assert own.seconds <= min(p.seconds for p in made.predictions) * (1 + 1e-9)
    assert "Tflop/s per rank" in str(own)


def test_a_comparison_has_one_convention_of_overlap() -> None:
    ours, table3 = compare(ask_ours(8)), compare(ask(8))
    assert [p["overlap"] for p in ours.to_json()["made"]] == [True] * len(ours.predictions)
    assert [p["overlap"] for p in table3.to_json()["made"]] == [False] * len(table3.predictions)
    assert not {p.strategy for p in table3.predictions} & set(PLANNED)
    assert "one model for all rows" in str(ours)
    assert "nothing overlaps" in str(table3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": 2}, "are of table3"),
        ({"segments": 2}, "are of table3"),
        ({"flows": 2.0}, "are of table3"),
        ({"batch": 2}, "for the 64 samples"),
    ],
)
def test_what_only_table_3_has_is_refused_elsewhere(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compare(ask_ours(8, **changes))
    with pytest.raises(UsageError, match="stationary-x is not in Table 3"):
        predict(ask(8), "stationary-x")


def test_json_fields_of_a_layer() -> None:
    (first, *_), row = predict(ask(8), "data").to_json()["layers"], predict(ask(8), "data").rows[0]
    times = ["forward", "backward", "update", "comm_forward", "comm_backward", "exchange"]
    assert list(first) == ["name", *times, "memory"]
    assert first["memory"] == row.used_bytes


def test_memory_is_that_of_the_plan_and_marked_beyond_the_machine() -> None:
    asked = NetworkRequest(8, "time", True, machine=FLAT, batch_norm="local", whole_weights=True)
    made = plan_network(NET, asked)
    own = predict(ask_ours(8), "plan")
    assert (
        own.total.used_bytes
        == made.used_words * 4
        < sum(row.used_bytes for row in own.rows) + made.resident_words * 4
    )
    assert own.whole > 0
    tight = predict(ask_ours(8, replace(FLAT, limit_bytes=int(own.total.used_bytes) - 1)), "plan")
    assert tight.whole < own.whole  # whole weights need room
    small = replace(FLAT, limit_bytes=1000)
    line = next(each for each in str(compare(ask_ours(8, small))).splitlines() if each.startswith("plan "))
    assert " > " in line
    assert " > " not in str(compare(ask_ours(8)))


@pytest.mark.parametrize("reuse", [-0.1, 3.0, float("nan")])
def test_reuse_is_a_share(reuse: float) -> None:
    with pytest.raises(UsageError, match="must be from 0 to 1"):
        predict(ask(8, reuse=reuse), "data")
    with pytest.raises(UsageError, match="must be from 0 to 1"):
        compare(ask(8, reuse=reuse))


def test_unknown_strategy() -> None:
    with pytest.raises(UsageError, match="did you mean data"):
        predict(ask(8), "dat")


def test_profiles(tmp_path: Path) -> None:
    small = parse_network(CHAIN.replace("[64,", "[1,"), "four.yaml")
    file = tmp_path / "p.csv"
    file.write_text(calibrate(small, 1, 1, lambda text: None))
    profile = load_profile(file, NET)
    made = predict(replace(ask(4), compute_times=profile), "data")
    assert made.total.forward > 0
    assert "measured, from p.csv" in str(made)
    for text, message in (
        ("x\n", "first line must be layer,forward_s"),
        ("layer,forward_s,backward_s,update_s\na,1,2,3\n", "lacks 3 of the layers of four, the first is b"),
        ("layer,forward_s,backward_s,update_s\nq,1,2,3\n", "p.csv:2:1: four has no layer q"),
        ("layer,forward_s,backward_s,update_s\na,1,2,-3\n", "p.csv:2:1: '-3' is no time"),
        ("layer,forward_s,backward_s,update_s\na,1,2\n", "p.csv:2:1: the row has 3 columns"),
        ("layer,forward_s,backward_s,update_s\ra,1,2\r", "p.csv:2:1: the row has 3 columns"),
        (f"layer,forward_s,backward_s,update_s\n{'a' * 140_000},1\n", "p.csv:2:1: the line is no CSV"),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as fault:
            load_profile(file, NET)
        assert message in str(fault.value)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "four.yaml"
    file.write_text(CHAIN)
    assert main(["predict", str(file), "--procs", "8", "--machine", "abci-nccl", "--strategy", "data"]) == 0
    said = capsys.readouterr().out
    assert "scales to 64 ranks (samples)" in said
    assert main(["predict", str(file), "--procs", "128", "--machine", "abci-nccl", "--strategy", "data"]) == 4
    assert "use at most 64" in capsys.readouterr().err


@pytest.mark.slow
def test_gains_grow_with_width_as_in_sc19() -> None:
    """Dryden et al., Table 1: 1.7, 2.3 and 4.1 times; the order of the networks is ours, too."""
    gains = []
    root = Path(__file__).resolve().parents[2] / "examples/networks"
    machine = load_machine("lassen")
    for name in ("resnet50", "wrn50_2", "wrn50_4"):
        text = (root / f"{name}.yaml").read_text().replace("[32,", "[256,")
        network = parse_network(text, name)
        base = predict(PredictionRequest(network, machine, NominalRate(machine), 8, 256), "data").seconds
        asked = NetworkRequest(64, "time", True, machine=machine, batch_norm="local", whole_weights=True)
        made = plan_network(network, asked)
        singles = {single.name: single.cost for single in made.single_strategies}
        gains.append((base / (singles["stationary-w"] or 1e9), base / made.cost))
    assert gains == sorted(gains)
    assert all(own >= single for single, own in gains)


def test_above_the_limit_of_exact_counts_the_plan_stands_alone() -> None:
    machine, network = load_machine("a100"), parse_network(CHAIN, "chain.yaml")
    procs, batch = 1 + (1 << 15), network.input[0]
    found = compare(PredictionRequest(network, machine, NominalRate(machine), procs, batch))
    assert [each.strategy for each in found.predictions] == ["plan"]
    why = "2D is planned on at most 32768 processes, not on 32769; ask for the plan, or for fewer processes"
    assert ("2D", why) in found.refused
