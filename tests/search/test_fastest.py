"""The objective time of one layer: exact over its family, within memory, and on the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from effort import tried

import synth
from synth.base.errors import InfeasibleError
from synth.cli.main import main
from synth.layer.axes import ROW_MAJOR, TENSORS, PerAxis
from synth.layer.layer import Layer, load_layer
from synth.machine.file import PROFILES, load_machine
from synth.machine.hierarchy import Level, Machine
from synth.machine.layer_time import LayerTimer
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.training_memory import training_memory
from synth.search.branch_and_bound import search
from synth.search.fastest import SLACK, Fastest, bound, fastest
from synth.search.grids import Space, all_grids
from synth.search.request import Request

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LASSEN = load_machine("lassen")


@pytest.mark.parametrize("name", ["conv.yaml", "matmul.yaml", "resnet50/conv1_7x7.yaml"])
@pytest.mark.parametrize("machine", ["lassen", "abci-mpi", "h100"])
def test_the_fastest_grid_is_found_and_bounds_hold(name: str, machine: str) -> None:
    nest, where = load_layer(EXAMPLES / name).nest, load_machine(machine)
    request = Request(nest, 16)
    least = float("inf")
    for procs in (16, 8, 4, 2, 1):
        for grid in all_grids(Space(nest, procs, {}, True), procs):
            timer = LayerTimer(where, Footprints(Distribution(nest, grid)), ROW_MAJOR, sequence=("forward",))
            seconds = timer.passed("forward").total
            assert bound(request, where, grid) <= seconds * (1 + 1e-9)
            least = min(least, seconds)
    assert least * (1 - 1e-9) <= fastest(request, where).seconds <= least * (1 + SLACK)


def test_few_panels_unless_more_are_clearly_faster() -> None:
    """With slow memory few panels are faster: each panel reads the stationary tensor again."""
    layer = Layer.matmul(4096, 4096, 4096)
    slow = replace(LASSEN.compute, bandwidth=1e9)
    chosen = fastest(Request(layer.nest, 16), Machine("slow memory", LASSEN.levels, slow, overlap=1.0))
    assert [time.panels for time in chosen.times] == [1]
    quick = replace(LASSEN.compute, bandwidth=1e15)
    chosen = fastest(Request(layer.nest, 16), Machine("quick memory", LASSEN.levels, quick, overlap=1.0))
    assert chosen.times[0].panels > 1
    footprints = Footprints(Distribution(layer.nest, chosen.grid))
    one = LayerTimer(Machine("quick memory", LASSEN.levels, quick), footprints, ROW_MAJOR)
    assert chosen.seconds * (1 + SLACK) < one.passed("forward", chosen.times[0].stationary, 1).total


def test_panels_hide_communication_where_it_pays() -> None:
    layer = Layer.matmul(8192, 8192, 8192)
    grid = fastest(Request(layer.nest, 16), LASSEN).grid
    timer = LayerTimer(LASSEN, Footprints(Distribution(layer.nest, grid)), ROW_MAJOR)
    chosen = timer.passed("forward")
    assert chosen.panels > 1
    assert chosen.exposed < chosen.comm
    assert chosen.total < timer.passed("forward", chosen.stationary, 1).total


def test_panels_owned_by_few_ranks_take_longer() -> None:
    """In[b, c] is owned by c: panels along c come from one rank each, unless ranks are at different ones."""
    footprints = Footprints(Distribution(Layer.matmul(512, 512, 512).nest, PerAxis(k=4)))
    link = Machine("link", (Level("system", None, 0.0, 1e-9),), LASSEN.compute, algorithms=("ring",))
    timer = LayerTimer(link, footprints, ROW_MAJOR, sequence=("forward",))
    whole = timer.passed("forward", "Out", 1).comm
    assert whole == pytest.approx(512 * 512 * 4 * 3 / 4 * 1e-9)
    for panels in (2, 4):
        assert timer.passed("forward", "Out", panels).comm == pytest.approx(whole)
    assert timer.passed("forward", "Out", 8).comm == pytest.approx(2 * 4 / 3 * whole)  # a tree of two steps
    assert timer.passed("forward", "Ker", 8).comm == pytest.approx(whole)
    sums = LayerTimer(link, footprints, ROW_MAJOR, sequence=("backward-data",))
    assert sums.passed("backward-data", "Out", 8).comm == pytest.approx(4 * whole)  # all to one


def test_a_single_rotating_tensor_hides_all_its_words() -> None:
    """Four panels of 3/4 the words in all, under three quarters of the computing: the first is at hand."""
    layer, link = Layer.matmul(65536, 64, 512), Level("system", None, 0.0, 1e-9)
    machine = Machine("link", (link,), replace(LASSEN.compute, bandwidth=None), overlap=1.0)
    timer = LayerTimer(
        machine, Footprints(Distribution(layer.nest, PerAxis(b=4))), ROW_MAJOR, sequence=("forward",)
    )
    time = timer.passed("forward", "Out", 4)
    assert time.comm < 0.75 * time.compute
    assert time.exposed == pytest.approx(3 * LASSEN.compute.overhead)
    assert timer.passed("forward", "Out", 8).exposed > time.comm / 8
    wide = Footprints(Distribution(layer.nest, PerAxis(b=16)))
    several = LayerTimer(machine, wide, ROW_MAJOR, sequence=("forward",)).passed("forward", "Out", 4)
    streams = several.comm * 12 / 15  # of 15 shares 3 are of the first panel
    hidden = min(streams, 0.75 * several.compute)
    assert several.exposed == pytest.approx(several.comm - hidden + 3 * LASSEN.compute.overhead)


def test_no_overlap_exposes_everything() -> None:
    plain = Machine("plain", LASSEN.levels, LASSEN.compute, overlap=0.0)
    layer = Layer.matmul(4096, 4096, 4096)
    time = fastest(Request(layer.nest, 16), plain).times[0]
    assert time.exposed == pytest.approx(time.comm)


def test_memory_and_fixed_grids() -> None:
    nest = load_layer(EXAMPLES / "conv.yaml").nest
    free = fastest(Request(nest, 16), LASSEN)
    assert fastest(Request(nest, 16, fixed={"b": 8}), LASSEN).grid.b == 8
    assert fastest(Request(nest, 16, exact=True), LASSEN).grid.size == 16
    with pytest.raises(InfeasibleError, match="fits the memory"):
        fastest(Request(nest, 16, limit_words=1000), LASSEN)
    assert free.seconds <= fastest(Request(nest, 16, fixed={"b": 8}), LASSEN).seconds


def test_a_grid_of_too_many_processes_is_refused_as_for_words() -> None:
    nest = load_layer(EXAMPLES / "conv.yaml").nest
    for pinned, exact, said in (
        ({"b": 8}, False, "^no grid of at most 4 processes exists with b=8; take at least 8 processes or "),
        (
            {"b": 3},
            True,
            "^no grid of exactly 4 processes exists with b=3 for Nb=32 .*; allow idle processes ",
        ),
    ):
        request = Request(nest, 4, fixed=pinned, exact=exact)
        for find in (search, lambda asked: fastest(asked, LASSEN)):
            with pytest.raises(InfeasibleError, match=said):
                find(request)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    conv = str(EXAMPLES / "conv.yaml")
    assert main(["plan", conv, "--procs", "16", "--objective", "time"]) == 2
    assert "needs a machine" in capsys.readouterr().err
    assert main(["plan", conv, "--procs", "16", "--objective", "time", "--machine", "lassen"]) == 0
    assert "time on lassen" in capsys.readouterr().out
    assert main(["plan", conv, "--procs", "16", "--objective", "time", "--machine", "lassen", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["time"]["seconds"] > 0
    assert set(data["time"]["axes_inside"]) == {"socket"}


def test_a_layer_plan_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from synth.cli.main import main; "
        f"main(['plan', {str(EXAMPLES / 'conv.yaml')!r}, '--procs', '16', '-o', sys.argv[1]]); "
        "print([m for m in ('torch', 'cvxpy', 'sympy', 'networkx', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "plan.txt")], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip().endswith("[]")


def test_a_training_step_saves_what_memory_allows() -> None:
    nest = load_layer(EXAMPLES / "conv.yaml").nest
    free = fastest(Request(nest, 16, pass_="training"), LASSEN)
    assert free.pass_plans[0].saves | free.pass_plans[1].saves == set(TENSORS)
    tight: Fastest | None = None
    for memory in (300_000, 700_000, 1_000_000)[:: tried(2, 1)]:
        try:
            found = fastest(Request(nest, 16, limit_words=memory, pass_="training"), LASSEN)
        except InfeasibleError:
            assert tight is None
            continue
        needed = training_memory(Footprints(Distribution(nest, found.grid)), found.pass_plans).words
        assert needed <= memory
        assert tight is None or found.seconds <= tight.seconds * (1 + 1e-9)
        tight = tight or found
    assert tight is not None
    assert tight.seconds > free.seconds


def test_requested_panels_are_used() -> None:
    nest = load_layer(EXAMPLES / "conv.yaml").nest
    for panels in (1, 3, 10**6):
        found = fastest(Request(nest, 16, stationary=("Out",), panels=panels), LASSEN)
        work = Distribution(nest, found.grid).most_work
        assert found.pass_plans[0].panels == min(panels, work.c)


def test_the_memory_of_a_machine_is_a_limit(tmp_path: Path) -> None:
    """Where `memory` gives none; with fewer words or less time as the aim."""
    layer = Layer.conv2d((8, 64, 28, 28), 64, 3, padding=1)
    for objective in ("words", "time"):
        free = synth.plan(layer, 4, objective=objective, machine="lassen", pass_="training")
        memory = free.used_bytes * 9 // 10
        tight = synth.plan(layer, 4, memory, objective=objective, machine="lassen", pass_="training")
        file = tmp_path / "small.yaml"
        text = (PROFILES / "lassen.yaml").read_text()
        file.write_text(re.sub(r"(?m)^memory:.*$", f"memory: {memory}", text))
        made = synth.plan(layer, 4, objective=objective, machine=file, pass_="training")
        assert made.used_bytes <= memory < free.used_bytes
        assert (made.pass_plans, made.grid) == (tight.pass_plans, tight.grid)
