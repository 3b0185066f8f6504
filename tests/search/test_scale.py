"""A million processes, extents of 2^40 along several dimensions: few steps, and exact numbers."""

from __future__ import annotations

import json
import math
import random
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted_work import Efforts
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_problems import nests

from synth.base.errors import InfeasibleError
from synth.cli.main import main
from synth.layer.axes import AXES, SPATIAL, PerAxis
from synth.layer.intervals import cuts, length, overlap, volume
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received
from synth.search.branch_and_bound import search
from synth.search.grid_ranges import Ranges, shared_rows
from synth.search.grids import Space, work_cap
from synth.search.request import Request

HUGE = 2**40
MEMORY = 4 * 2**30


class Command:
    """`synth plan` in this process, which gets 4 GiB of address space beside what it has."""

    def __init__(self, folder: Path) -> None:
        self.layer = folder / "layer.yaml"
        self.efforts = Efforts()

    def __call__(self, name: str, procs: int, *flags: str) -> int:
        """The exit code."""
        self.layer.write_text(LAYERS[name])
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, hard))
        try:
            return main(["plan", str(self.layer), "--procs", str(procs), "--json", *flags])
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, hard))

    @property
    def work(self) -> tuple[int, int]:
        """(Steps, examined tilings) of all searches."""
        return self.efforts.work


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    made = Command(tmp_path)
    monkeypatch.setattr("synth.search.branch_and_bound.Effort", made.efforts)
    return made


LAYERS = {
    "all": f"conv2d: {{input: {[HUGE] * 4}, out_channels: {HUGE}, kernel: 3, padding: 1}}",
    "rows": f"conv2d: {{input: [1, 1, {HUGE}, {HUGE}], out_channels: 1, kernel: 5, padding: 2}}",
    "long": "conv2d: {input: [5000, 3000, 4999, 4001], out_channels: 2777, kernel: 3, padding: 1}",
    "deep": "conv3d: {input: [50000, 30, 999, 4001, 2000], out_channels: 2777, kernel: [3, 5, 3], stride: 2}",
    "matmul": f"matmul: {{m: {HUGE}, n: {HUGE - 1}, k: {HUGE - 87}}}",
}


@pytest.mark.parametrize(
    ("name", "procs", "steps"),
    [("all", 10**6, 3500), ("all", 999_983, 3500), ("rows", 720_720, 5000), ("matmul", 2**20, 35_000)],
)
@pytest.mark.one_in(6)
def test_plans_of_huge_layers_are_made_in_few_steps(
    name: str, procs: int, steps: int, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(name, procs, "--rows", "h=out,w=out") == 0  # as `by_hand` counts
    made = json.loads(capsys.readouterr().out)
    grid = PerAxis(**made["grid"])
    assert 0.9 * procs <= grid.size <= procs
    assert made["words"] == by_hand(plan_nest(made), grid)
    assert made["bounds"]["universal"] <= made["words"]["total"]
    assert command.work[0] <= steps


LIMITS = [  # layer, processes, bytes of memory, what else is asked, exit code, most steps, most tilings
    ("matmul", 10**6, 15 * 10**18, [], 0, 20_000, 7000),  # tiles within tiles, panels by the thousand
    ("all", 10**6, 2**44, [], 4, 1, 0),
]
SLOW = [
    ("long", 10**6, 2**44, [], 0, 35_000, 20),
    ("matmul", 999_983, 2**34, ["--pass", "training"], 4, 1, 0),
    # its shards and ghost rows take 1.35e19
    ("rows", 720_720, 2 * 10**19, ["--pass", "backward-data"], 0, 10_500, 30),
    ("rows", 720_720, 8 * 10**18, ["--pass", "backward-data"], 4, 1, 0),
    ("rows", 10**6, 2**34, ["--pass", "backward-filter"], 4, 1, 0),
    ("deep", 10**6, 700 * 2**30, [], 0, 5000, 300),
    ("deep", 1000, 2**44, ["--strategy", "2.5D"], 4, 1, 0),
    ("long", 16, 175 * 10**12, [], 0, 650, 1500),
]


@pytest.mark.parametrize(
    ("name", "procs", "memory", "flags", "code", "steps", "tilings"),
    [*LIMITS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
@pytest.mark.one_in(2)
def test_plans_of_huge_layers_within_a_memory_limit(
    name: str,
    procs: int,
    memory: int,
    flags: list[str],
    code: int,
    steps: int,
    tilings: int,
    command: Command,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = command(name, procs, "--memory", str(memory), *flags)
    out, err = capsys.readouterr()
    assert ended == code, err
    assert command.work[0] <= steps
    assert command.work[1] <= tilings
    if code:
        refusal = f"synth: no plan for {procs} processes fits {memory} bytes per process"
        least = re.match(
            rf"{refusal}; the least memory that fits is (?:at most )?(\d+) bytes \(--memory \1\)$", err
        )
        assert least, err
        assert int(least[1]) > memory
        return
    made = json.loads(out)
    assert made["memory"]["bytes"] <= memory
    assert made["bounds"]["universal"] <= made["words"]["total"]


def test_the_memory_that_a_refusal_names_is_enough(tmp_path: Path) -> None:
    """Where the least is not known for sure, what is named is enough."""
    nest = Layer.conv2d((5000, 3000, 4999, 4001), 2777, 3, padding=1).nest
    with pytest.raises(InfeasibleError, match="the least memory that fits is at most") as fault:
        search(Request(nest, 10**6, 2**20))
    named = re.search(r"memory=(\d+)", str(fault.value))
    assert named
    enough = int(named[1]) // nest.word_bytes
    found = search(Request(nest, 10**6, enough))
    assert found.tiling.used_words <= enough


def plan_nest(made: dict[str, Any]) -> Nest:
    return Layer.from_json(made["problem"], "plan", made["name"]).nest


def corners(grid: PerAxis) -> Iterator[PerAxis]:
    """Processes among which those are that receive most: first, second, middle and last along every axis."""

    def places(parts: int) -> list[int]:
        return sorted({0, min(1, parts - 1), parts // 2, max(0, parts - 2), parts - 1})

    def along(axis: int, at: tuple[int, ...]) -> Iterator[PerAxis]:
        if axis == len(AXES):
            yield PerAxis(*at)
            return
        for place in places(grid[axis]):
            yield from along(axis + 1, (*at, place))

    yield from along(0, ())


def at_hand(d: Distribution, at: PerAxis) -> dict[str, int]:
    """The words of one process, with Python integers and boxes; the forward pass, untiled."""
    needed, carried, owned = (f("In", at) for f in (d.needed, d.carried, d.owned))
    words = {
        "in": volume(needed) - volume(overlap(carried, owned)),
        "ker": volume(d.needed("Ker", at)) - volume(d.owned("Ker", at)),
        "out": (d.group_size("Out") - 1) * volume(d.carried("Out", at)),
        "halo": volume(carried) - volume(overlap(carried, owned)),
    }
    return {**words, "total": words["in"] + words["ker"] + words["out"]}


def by_hand(nest: Nest, grid: PerAxis) -> dict[str, int]:
    """The most words of the processes of `corners`."""
    each = [at_hand(Distribution(nest, grid), at) for at in corners(grid)]
    return {name: max(words[name] for words in each) for name in each[0]}


@pytest.mark.parametrize(
    "grid",
    [
        PerAxis(b=100, c=100, k=100),
        PerAxis(b=999_983),
        PerAxis(h=720_720),
        PerAxis(b=16, h=250, w=50, c=5),
        PerAxis(h=1000, w=1000),
    ],
)
def test_words_of_a_million_processes_are_those_of_big_integers(grid: PerAxis) -> None:
    window = Window.reduced(HUGE, 5, 2, 1, 2)
    nest = Nest(PerAxis(b=HUGE, h=window.out, w=window.out, c=HUGE, k=HUGE - 1), Window(1), window, window)
    d = Distribution(nest, grid)
    found = received(d, PassPlan())
    most, rng = found.most(), random.Random(0)
    for at in [*corners(grid), *(PerAxis(*map(rng.randrange, grid)) for _ in range(300))]:
        words = at_hand(d, at)
        assert found.at(at) == words
        assert all(words[name] <= most[name] for name in words)
    totals = found.words["In"] + found.words["Ker"] + found.words["Out"]
    classes = np.unravel_index(int(totals.argmax()), totals.shape)
    heaviest = PerAxis(*(int(np.argmax(of == i)) for of, i in zip(found.classes, classes, strict=True)))
    assert at_hand(d, heaviest)["total"] == most["total"]


def test_rows_read_by_many_blocks_are_counted_without_enumerating_pairs() -> None:
    """A pass that writes In, on 2^18 blocks of rows: 2^36 pairs of blocks."""
    window = Window.reduced(HUGE, 3, 1, 1, 1)
    nest = Nest(PerAxis(h=HUGE), Window(1), window, Window(1))
    found = received(Distribution(nest, PerAxis(h=2**18)), PassPlan("In", pass_="backward-data")).most()
    assert found == {"in": 2, "ker": 3, "out": 0, "halo": 2, "total": 5}  # most own no tap


def test_the_least_work_of_huge_nests() -> None:
    nest = Nest(PerAxis(b=HUGE, c=HUGE, k=HUGE), Window(1), Window(1), Window(1))
    assert Space(nest, 2**20, {}).least_work == 2**100
    prime = Space(nest, 999_983, {}).least_work
    assert prime is not None
    assert prime == HUGE**2 * -(-HUGE // 999_983)  # no grid of fewer processes comes as near


@pytest.mark.parametrize(
    ("least", "balance", "cap"), [(20, 0.15, 23), (10, 0.1, 11), (3, 0.0, 3), (9, 0.1, 9)]
)
def test_work_cap(least: int, balance: float, cap: int) -> None:
    assert work_cap(least, balance) == cap


def test_work_cap_of_huge_work_is_exact() -> None:
    huge = 2**160 + 1
    assert work_cap(huge, 0.0) == huge
    assert work_cap(huge, 0.1) == huge + huge // 10


@given(nests(), st.integers(1, 9))
def test_rows_that_blocks_share_are_never_overestimated(nest: Nest, parts: int) -> None:
    for axis in SPATIAL:
        window = nest.windows[axis]
        blocks = cuts((0, window.out), min(parts, window.out))
        read = sum(length(window.reach(*block)) for block in blocks)
        assert window.size + shared_rows(window, len(blocks)) <= read


def test_cuts_far_from_the_edges_share_all_rows() -> None:
    window = Window.reduced(1000, 5, 1, 1, 2)
    assert window.overlap == 3
    assert shared_rows(window, 11) == 10 * 4 - 2  # one clipped cut at either end


def test_bounds_of_grid_ranges_hold_for_every_grid() -> None:
    """Bound and key of a range are at most those of each grid in it; halving loses no grid."""
    window = Window.reduced(9, 3, 1, 1, 1)
    nest = Nest(PerAxis(b=3, h=9, c=4, k=5), Window(1), window, Window(1))
    ranges = Ranges(Space(nest, 12, {}), 80)
    whole = ranges.whole()
    assert whole is not None
    waiting, singles = [whole], set()
    while waiting:
        each = waiting.pop()
        if each.single:
            singles.add(ranges.grid(each.first))
            continue
        for half in ranges.halves(each):
            assert ranges.bound(half) >= ranges.bound(each)
            assert ranges.key(half) >= ranges.key(each)
            waiting.append(half)
    admitted = {
        PerAxis(b=b, h=h, c=c, k=k)
        for b in range(1, 4)
        for h in range(1, 10)
        for c in range(1, 5)
        for k in range(1, 6)
        if b * h * c * k <= 12 and -(-3 // b) * -(-9 // h) * -(-4 // c) * -(-5 // k) <= 80
    }
    assert singles == admitted
    for grid in admitted:
        average = sum(received(Distribution(nest, grid), PassPlan()).total.ravel().tolist()) / grid.size
        at = tuple(n - 1 for n in grid)
        place = next(r for r in [ranges.narrowed(list(at), list(at))] if r)
        assert ranges.grid(place.first) == grid
        assert ranges.bound(place) <= math.ceil(average)
