"""The search against brute force over all grids, stationary tensors and pass plans."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import reduce
from operator import add

import pytest
from brute_force import all_grids, all_points
from effort import tried
from example_nests import same_window
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis_problems import distributions, small_nests

from synth.base.errors import InfeasibleError
from synth.bounds.universal import universal_bound
from synth.layer.axes import AXES, TENSORS, PerAxis
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.passes import TASKS, Task, sequences
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received
from synth.search import branch_and_bound as search_module
from synth.search.bounds import grid_bounds
from synth.search.bounds.heavy_processes import heavy_words
from synth.search.branch_and_bound import search
from synth.search.grid_ranges import Ranges
from synth.search.request import Request
from synth.search.training_step import pass_templates

PROCS = st.integers(1, 24)


Rank = tuple[int, int, int, tuple[int, ...]]  # what decides between plans, the least is best


def brute_force(request: Request) -> Rank | None:
    """The rank of the best admitted plan, by looking at every plan."""
    grids = [
        grid
        for grid in all_grids(request.nest.extents, request.procs, request.exact)
        if all(getattr(grid, axis) == parts for axis, parts in request.fixed.items())
    ]
    works = {grid: Distribution(request.nest, grid).most_work.size for grid in grids}
    least = min(works.values(), default=0)
    plans = []
    for grid in grids:
        if works[grid] > (1 + request.balance) * least + 1e-9:
            continue
        words = fewest_words(Distribution(request.nest, grid), request)
        if words is not None:
            plans.append(ranked(request, words, works[grid], grid))
    return min(plans, default=None)


def fewest_words(d: Distribution, request: Request) -> int | None:
    if request.limit_words is None:  # one tile a step, and all tensors that a later pass reads are saved
        all_kept = pass_templates(frozenset(TENSORS), sequences(request.transposed)[0])
        passes = all_kept if request.pass_ == "training" else (PassPlan(pass_=request.pass_),)
        return reduce(add, (received(d, pass_plan) for pass_plan in passes)).most()["total"]
    points = [point for tensor in request.stationary for point in all_points(d, tensor).values()]
    return min((words for words, memory in points if memory <= request.limit_words), default=None)


def ranked(request: Request, words: int, work: int, grid: PerAxis) -> Rank:
    """Ties go to the least work, the fewest idle processes, few parts along c, w, h, d and k."""
    return words, work, request.procs - grid.size, (grid.c, grid.w, grid.h, grid.d, grid.k)


def best(request: Request) -> Rank:
    found = search(request)
    return ranked(request, found.tiling.words, found.work, found.grid)


@settings(max_examples=tried(30, 60))
@given(small_nests(6), st.integers(1, 16), st.booleans(), st.sampled_from([0.0, 0.1, 0.5]))
def test_no_grid_moves_fewer_words(nest: Nest, procs: int, exact: bool, balance: float) -> None:
    request = Request(nest, procs, balance=balance, exact=exact)
    expected = brute_force(request)
    if expected is None:
        with pytest.raises(InfeasibleError, match=rf"^no grid of exactly {procs} processes exists"):
            search(request)
        return
    assert best(request) == expected


@settings(max_examples=tried(30, 60))
@given(small_nests(5), st.integers(1, 12), st.sampled_from(TASKS), st.booleans())
@example(Layer.matmul(1, 4, 1).nest, 3, "training", False)  # one rank gathers a word, another one sums it
def test_no_grid_moves_fewer_words_in_any_pass(nest: Nest, procs: int, task: Task, transposed: bool) -> None:
    request = Request(nest, procs, pass_=task, transposed=transposed)
    assert best(request) == brute_force(request)


@settings(max_examples=tried(30, 60))
@given(small_nests(5), st.integers(1, 12), st.sampled_from(AXES), st.integers(1, 4))
def test_no_grid_with_a_fixed_axis_moves_fewer_words(nest: Nest, procs: int, axis: str, parts: int) -> None:
    request = Request(nest, procs, fixed={axis: min(parts, getattr(nest.extents, axis))})
    expected = brute_force(request)
    if expected is None:
        with pytest.raises(InfeasibleError, match=r"^no grid of at most \d+ processes exists with"):
            search(request)
        return
    assert best(request) == expected
    assert getattr(search(request).grid, axis) == request.fixed[axis]


@settings(max_examples=tried(30, 60))
@given(
    small_nests(3), st.integers(1, 8), st.floats(0, 1), st.sampled_from([*((t,) for t in TENSORS), TENSORS])
)
def test_no_plan_within_the_memory_moves_fewer_words(
    nest: Nest, procs: int, share: float, stationary: tuple[str, ...]
) -> None:
    assume(nest.extents.size <= 200)
    free = Request(nest, procs, stationary=stationary)  # type: ignore[arg-type]
    most = search(free).tiling.used_words
    least = least_memory(replace(free, limit_words=1))
    request = replace(free, limit_words=least + int(share * (most - least)))
    assert best(request) == brute_force(request)


def least_memory(request: Request) -> int:
    """The memory in words that a refusal names."""
    with pytest.raises(InfeasibleError) as fault:
        search(request)
    named = re.search(r"the least memory that fits is (\d+) bytes \(memory=(\d+)\)$", str(fault.value))
    assert named
    assert named[1] == named[2]
    return int(named[1]) // request.nest.word_bytes


@given(small_nests(5), st.integers(1, 12))
def test_the_memory_that_a_refusal_names_is_the_least(nest: Nest, procs: int) -> None:
    request = Request(nest, procs, limit_words=1)
    least = least_memory(request)
    assert search(replace(request, limit_words=least)).tiling.used_words <= least
    assert least_memory(replace(request, limit_words=least - 1)) == least


@given(small_nests(6), st.integers(1, 16), st.integers(1, 100))
def test_more_memory_never_moves_more_words(nest: Nest, procs: int, more: int) -> None:
    request = Request(nest, procs, limit_words=1)
    memory = least_memory(request)
    tight = search(replace(request, limit_words=memory)).tiling.words
    roomy = search(replace(request, limit_words=memory + more)).tiling.words
    assert tight >= roomy >= search(replace(request, limit_words=None)).tiling.words


@given(small_nests(7), PROCS)
def test_the_bound_is_below_the_optimum(nest: Nest, procs: int) -> None:
    found = search(Request(nest, procs))
    real = Distribution(nest, found.grid).most_real_work
    assert universal_bound(nest, procs, None, real).words <= found.tiling.words


CONV4 = Layer.conv2d([32, 256, 14, 14], 256, 3, padding=1).nest


@pytest.mark.parametrize(
    ("procs", "used", "words"), [(61, 60, 185862), (127, 120, 116753), (1000, 960, 33389), (64, 64, 164864)]
)
def test_process_counts_that_leave_ranks_idle(procs: int, used: int, words: int) -> None:
    found = search(Request(CONV4, procs))
    assert (found.grid.size, found.tiling.words) == (used, words)
    assert found.work <= 1.1 * found.least_work


@pytest.mark.parametrize("task", ["forward", "backward-filter", "training"])
@pytest.mark.parametrize(("procs", "fitted", "ranges"), [(61, 6, 450), (1000, 1, 1700)])
def test_bounds_prune_all_but_a_few_grids(task: Task, procs: int, fitted: int, ranges: int) -> None:
    """Of 2 666 grids, or 82 560, a few are fitted and ten bounded by processes, the rest in ranges."""
    calls: Counter[str] = Counter()

    def counted(owner: object, name: str) -> None:
        function = getattr(owner, name)

        def call(*given: object) -> object:
            calls[name] += 1
            return function(*given)

        patch.setattr(owner, name, call)

    with pytest.MonkeyPatch.context() as patch:
        counted(search_module._Search, "_choose_tiling")
        counted(grid_bounds, "heavy_words")
        counted(Ranges, "bound")
        search(Request(CONV4, procs, pass_=task))
    assert calls["_choose_tiling"] <= fitted
    assert calls["heavy_words"] <= 10
    assert calls["bound"] <= ranges


def test_exactly_61_processes_move_more_words_than_60() -> None:
    exact = search(Request(CONV4, 61, exact=True))
    free = search(Request(CONV4, 61))
    assert exact.grid.size == 61
    assert exact.tiling.words > 5 * free.tiling.words


def test_balance_0_admits_grids_of_the_least_work_only() -> None:
    """With balance 0 only grids with the least work remain."""
    found = search(Request(CONV4, 1000, balance=0.0))
    assert found.work == found.least_work


@settings(max_examples=tried(30, 60))
@given(distributions(small_nests()), st.sampled_from(TASKS))
def test_the_bound_by_heavy_processes_is_a_bound(d: Distribution, task: Task) -> None:
    """No more than the most, and no less than the last of those with the largest block along every axis."""
    pass_plans = pass_templates(frozenset(TENSORS)) if task == "training" else (PassPlan(pass_=task),)
    words = reduce(add, (received(d, pass_plan) for pass_plan in pass_plans))
    blocks = {at: d.work(at) for at in map(d.at, d.ranks)}
    sizes = {at: tuple(high - low for low, high in block.values()) for at, block in blocks.items()}
    last = max(at for at, size in sizes.items() if size == d.most_work)
    loaded = heavy_words(d, Request(d.nest, d.grid.size, pass_=task).sequences[0])
    if d.grid.d == d.grid.h == d.grid.w == 1 or task in (
        "forward",
        "backward-filter",
    ):  # of sums that return little is known
        assert words.at(last)["total"] <= loaded
    assert loaded <= words.most()["total"]


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (3, 1)])
@pytest.mark.parametrize(
    ("rows", "columns"), [((12, 2), (1, 1)), ((12, 4), (1, 1)), ((12, 3), (7, 3)), ((8, 3), (7, 3))]
)
def test_the_bound_by_heavy_processes_is_exact_far_from_the_padding(
    rows: tuple[int, int], columns: tuple[int, int], kernel: tuple[int, int]
) -> None:
    """(extent, parts): who receives most has neighbours on both sides, where its block is no shorter for it.

    With a wide kernel the second of three blocks reads more columns, though it is one shorter.
    """
    high, wide = same_window(rows[0], kernel[0]), same_window(columns[0], kernel[1] if columns[0] > 1 else 1)
    nest = Nest(PerAxis(b=2, h=rows[0], w=columns[0], c=4, k=4), Window(1), high, wide)
    d = Distribution(nest, PerAxis(h=rows[1], w=columns[1], k=2))
    loaded = heavy_words(d, ("forward",))
    assert loaded == received(d, PassPlan()).most()["total"]


@pytest.mark.parametrize("task", ["forward", "training"])
def test_requested_panels(task: Task) -> None:
    nest = Nest(PerAxis(b=64, c=256, k=256), *[Window(1)] * 3)
    for panels in (2, 8):
        request = Request(nest, 4, stationary=("Out",), fixed={"b": 2, "k": 2}, pass_=task, panels=panels)
        assert search(request).tiling.first == replace(search(request).tiling.first, counts=PerAxis(c=panels))


def test_impossible_requests() -> None:
    nest = Nest(PerAxis(b=2, c=3, k=5), *[Window(1)] * 3)
    with pytest.raises(InfeasibleError) as fault:
        search(Request(nest, 7, exact=True))
    assert str(fault.value) == (
        "no grid of exactly 7 processes exists for Nb=2 Nc=3 Nk=5; "
        "allow idle processes (leave out exact_procs) or take another number"
    )
    with pytest.raises(InfeasibleError) as fault:
        search(Request(nest, 4, fixed={"k": 5}))
    assert str(fault.value) == (
        "no grid of at most 4 processes exists with k=5; take at least 5 processes or free a part of grid"
    )
    with pytest.raises(InfeasibleError, match=r"exists with b=2, k=5; take at least 10 processes"):
        search(Request(nest, 9, fixed={"b": 2, "k": 5}))
    for memory in (None, 1000):  # in words
        with pytest.raises(InfeasibleError) as fault:
            search(Request(nest, 4, most_work=7, limit_words=memory))
        assert str(fault.value) == (
            "no grid of at most 4 processes loads every process with at most 7 iterations; "
            "raise balance or free a part of grid"
        )
    with pytest.raises(InfeasibleError) as fault:
        search(Request(nest, 1, limit_words=30))  # In, Ker and Out have 6 + 15 + 10 words
    assert str(fault.value) == (
        "no plan for 1 processes fits 120 bytes per process; "
        "the least memory that fits is 124 bytes (memory=124)"
    )
