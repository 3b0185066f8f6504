"""Network plans: never worse than one strategy everywhere, free edges found, memory kept, solvers agree."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from synth.base.errors import InfeasibleError, UsageError
from synth.cli.main import main
from synth.machine.file import load_machine
from synth.network.file import load_network, parse_network
from synth.network.planner.planner import plan_network
from synth.network.planner.request import NetworkRequest
from synth.prediction.replay import replay, run
from synth.prediction.task_graph import Task

NETWORKS = Path(__file__).resolve().parents[2] / "examples/networks"
LASSEN = load_machine("lassen")
SMALL = """
network: small
input: [8, 16, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - repeat: 2
    layers:
      - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
      - {name: c, conv2d: {out_channels: 32, kernel: 1}}
      - {name: s, add: {}, from: [c, entry]}
  - globalpool: {}
  - flatten: {}
  - linear: {out_features: 10}
"""


@pytest.mark.parametrize("name", ["resnet50", "wrn50_4", "vgg16", "cosmoflow"])
@pytest.mark.parametrize("procs", [16, 64])
def test_at_most_the_best_single_strategy_in_words(name: str, procs: int) -> None:
    made = plan_network(load_network(NETWORKS / f"{name}.yaml"), NetworkRequest(procs))
    assert made.best_single is not None
    assert made.best_single.cost is not None
    assert made.lower_bound <= made.cost <= made.best_single.cost
    assert made.solution.gap == 0
    assert made.free_edges


@pytest.mark.parametrize("name", ["vgg16", "cosmoflow"])
def test_at_most_the_best_single_strategy_in_time(name: str) -> None:
    made = plan_network(load_network(NETWORKS / f"{name}.yaml"), NetworkRequest(16, "time", machine=LASSEN))
    assert made.best_single is not None
    assert made.best_single.cost is not None
    assert made.lower_bound <= made.cost <= made.best_single.cost


@pytest.mark.filterwarnings("ignore")
def test_solvers_agree_on_residual_edges() -> None:
    network = parse_network(SMALL, "small.yaml")
    costs = {
        m: plan_network(network, NetworkRequest(4, options_per_layer=3), m).cost
        for m in ("elimination", "mip")
    }
    assert costs["mip"] == pytest.approx(costs["elimination"])


def test_training_counts_three_passes() -> None:
    network = parse_network(SMALL, "small.yaml")
    forward, training = (plan_network(network, NetworkRequest(8, training=t)).cost for t in (False, True))
    assert training > forward


def test_memory_is_respected_or_refused() -> None:
    network = parse_network(SMALL, "small.yaml")
    free = plan_network(network, NetworkRequest(4))
    limit = int(free.used_words * 4 * 0.8)
    tight = plan_network(network, NetworkRequest(4, limit_bytes=limit))
    assert tight.used_words * 4 <= limit
    with pytest.raises(InfeasibleError, match="would do"):
        plan_network(network, NetworkRequest(4, limit_bytes=2000))


@pytest.mark.parametrize(("name", "training"), [("vgg16", False), ("cosmoflow", True)])
def test_the_memory_that_would_do_does(name: str, training: bool) -> None:
    network = load_network(NETWORKS / f"{name}.yaml")
    with pytest.raises(InfeasibleError) as fault:
        plan_network(network, NetworkRequest(16, limit_bytes=10 << 10, training=training))
    told = re.search(r"--memory (\d+) would do", str(fault.value))
    assert told is not None
    made = plan_network(network, NetworkRequest(16, limit_bytes=int(told[1]), training=training))
    assert made.used_words * 4 <= int(told[1])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--strategy 2.5D", "--strategy 2.5D is for one layer"),
        ("--certify", "--certify is for one layer"),
        ("--explain", "--explain text is for one layer"),
        ("--stop-after grid", "--stop-after grid is for one layer"),
        ("--panels 3", "--panels 3 is for one layer"),
        ("--stationary in", "--stationary in is for one layer"),
        ("--pass backward-data", "--pass backward-data is for one layer"),
    ],
)
def test_flags_for_one_layer_are_refused(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["plan", str(file), "--procs", "4", *flags.split()]) == 2
    assert said in capsys.readouterr().err


def test_exact_procs_leaves_no_process_idle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["plan", str(file), "--procs", "7", "--exact-procs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    sizes = {row["name"]: math.prod(row["grid"].values()) for row in rows}
    assert {size for name, size in sizes.items() if name[0] in "abc"} == {7}


def test_contradicting_arguments() -> None:
    network = parse_network(SMALL, "small.yaml")
    with pytest.raises(UsageError, match="needs a machine"):
        plan_network(network, NetworkRequest(4, "time"))
    with pytest.raises(UsageError, match="nothing is to be planned"):
        plan_network(parse_network("input: [1, 2, 3]\nlayers:\n  - relu: {}", "n.yaml"), NetworkRequest(4))


def test_streams_overlap_and_collectives_wait_for_the_slower_rank() -> None:
    tasks = [
        Task("compute 0", "compute", (2.0, 1.0)),
        Task("gather", "network", (1.0, 1.0)),
        Task("reduce", "network", (1.0, 1.0), (0,)),
        Task("compute 1", "compute", (1.0, 1.0), (1, 2)),
    ]
    run(tasks)
    assert (tasks[1].start, tasks[1].end) == ([0, 0], [1, 1])
    assert tasks[2].start == [2, 2]  # the rank with less work waits
    assert tasks[3].end == [4, 4]


@pytest.mark.parametrize("training", [False, True])
def test_replay_agrees_with_the_plan(training: bool) -> None:
    network = parse_network(SMALL, "small.yaml")
    made = plan_network(network, NetworkRequest(8, "time", training, machine=LASSEN))
    played = replay(made)
    assert played.computing <= played.seconds
    assert played.seconds == pytest.approx(made.cost, rel=0.25)
    assert all(task.end[0] >= task.start[0] >= 0 for task in played.tasks)
    trace = played.chrome_trace()
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}
    assert len(played.link_bytes) == 3


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["plan", str(file), "--procs", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "synth.network-plan/1"
    assert data["cost"] <= min(s["cost"] for s in data["singles"] if s["cost"] is not None)
    trace = tmp_path / "t.json"
    assert main(["replay", str(file), "--procs", "8", "--machine", "lassen", "--trace", str(trace)]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    file.write_text(SMALL.replace("conv2d", "conf2d"))
    assert main(["plan", str(file), "--procs", "4"]) == 3
    assert "layer kind conf2d is unknown" in capsys.readouterr().err
