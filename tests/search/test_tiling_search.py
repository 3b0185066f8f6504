"""The best pass plan of a distribution against all of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from brute_force import all_points
from example_nests import same_window
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_problems import distributions, small_nests

from synth.layer.axes import AXES, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, TASKS, Task
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.panel_rotation import rotated
from synth.schedule.pass_plan import PassPlan
from synth.search.bounds.range_memory import RangeMemory
from synth.search.pass_tilings import choose_tiling
from synth.search.request import Request
from synth.search.tile_counts import _undominated, tile_counts
from synth.search.tiling_search import PANELS
from synth.search.training_step import _StepTilings, choose_training_tilings, reuse_choices


@given(st.integers(1, 3000))
def test_tile_counts_are_one_per_tile_size(extent: int) -> None:
    sizes = [math.ceil(extent / n) for n in tile_counts(extent)]
    assert sizes == sorted({math.ceil(extent / n) for n in range(1, extent + 1)}, reverse=True)


@pytest.mark.parametrize("stationary", TENSORS)
@given(d=distributions(small_nests(4)), share=st.floats(0, 1))
@pytest.mark.one_in(2)
def test_fewest_words_of_all_pass_plans_that_fit(stationary: Tensor, d: Distribution, share: float) -> None:
    assume(d.most_work.size <= 300)
    points = all_points(d, stationary)
    memories = sorted({memory for _, memory in points.values()})
    for limit in (memories[0], memories[int(share * (len(memories) - 1))], memories[-1], None):
        found, least = choose_tiling(d, [stationary], limit)
        assert least == (memories[0] if limit is not None else 0)
        assert found is not None
        assert (found.words, found.used_words) == points[found.first]
        assert limit is None or found.used_words <= limit
        assert found.words == min(w for w, m in points.values() if limit is None or m <= limit)
    assert choose_tiling(d, [stationary], memories[0] - 1) == (None, memories[0])


@given(distributions(small_nests(4)))
def test_the_best_of_three_stationary_tensors(d: Distribution) -> None:
    each = [choose_tiling(d, [tensor], None) for tensor in TENSORS]
    found, least = choose_tiling(d, TENSORS, None)
    assert found is not None
    assert found.words == min(one.words for one, _ in each if one)
    assert least == 0  # not looked for where there is no limit


def test_panels_for_overlap_where_memory_is_ample() -> None:
    nest = Nest(PerAxis(b=2048, c=256, k=256), *[Window(1)] * 3)
    found, _ = choose_tiling(Distribution(nest, PerAxis(k=3)), ["Out"], None)
    assert found is not None
    assert found.first == PassPlan("Out", PerAxis(c=PANELS))
    assert not rotated(Distribution(nest, PerAxis(k=3)), found.first)
    small = Distribution(Nest(PerAxis(b=64, c=256, k=256), *[Window(1)] * 3), PerAxis(b=2, k=2))
    found, _ = choose_tiling(small, ["Out"], None)
    assert found is not None
    assert found.first == PassPlan("Out")  # its panels would be shorter than their start-up
    found, _ = choose_tiling(small, ["Out"], None, panels=8)
    assert found is not None
    assert found.first == PassPlan("Out", PerAxis(c=8))  # but one may ask for them
    thin = Nest(PerAxis(b=64, c=3, k=256), *[Window(1)] * 3)
    found, _ = choose_tiling(Distribution(thin, PerAxis(b=2, k=2)), ["Out"], None)
    assert found is not None
    assert found.first == PassPlan("Out")  # three channels are never cut thinner for overlap
    alone, _ = choose_tiling(Distribution(nest, PerAxis()), ["Out"], None)
    assert alone is not None
    assert alone.first.steps == 1  # nothing travels


@pytest.mark.parametrize(("grid", "panels"), [(PerAxis(b=2, k=2), 2), (PerAxis(b=16), 4), (PerAxis(k=2), 2)])
def test_panel_counts_that_allow_rotation(grid: PerAxis, panels: int) -> None:
    nest = Nest(PerAxis(b=2048, c=256, k=2048), *[Window(1)] * 3)
    found, _ = choose_tiling(Distribution(nest, grid), ["Out"], None)
    assert found is not None
    assert found.first == PassPlan("Out", PerAxis(c=panels))
    assert rotated(Distribution(nest, grid), found.first)
    asked, _ = choose_tiling(Distribution(nest, grid), ["Out"], None, panels=3)
    assert asked is not None
    assert asked.first.panels == 3


def test_panel_counts_under_a_memory_limit_allow_rotation() -> None:
    """Five would do; eight are fewer than twice as many, and divide the sixteen shares of Ker."""
    d = Distribution(Nest(PerAxis(b=2048, c=256, k=2048), *[Window(1)] * 3), PerAxis(b=16))
    limit = Footprints(d).memory(PassPlan("Out", PerAxis(c=5))).words
    found, _ = choose_tiling(d, ["Out"], limit)
    assert found is not None
    assert found.first == PassPlan("Out", PerAxis(c=8))
    assert found.used_words <= limit


def test_panels_get_finer_and_then_inner_tiles_appear_as_memory_shrinks() -> None:
    nest = Nest(PerAxis(b=64, c=64, k=64), *[Window(1)] * 3)
    d = Distribution(nest, PerAxis(b=2, k=2))
    found, _ = choose_tiling(d, ["Out"], None)
    assert found is not None
    _, least = choose_tiling(d, ["Out"], found.used_words)
    words, steps = found.words, found.first.steps
    for limit in range(found.used_words, least - 1, -64):
        found, _ = choose_tiling(d, ["Out"], limit)
        assert found is not None
        assert found.words >= words
        assert found.words > words or found.first.steps >= steps
        words, steps = found.words, found.first.steps
    assert found.first.steps > found.first.panels


def test_tiles_that_padding_cuts_short() -> None:
    """Four tiles of five rows are as long as three, but the longest reads fewer rows at the padded edge."""
    d = Distribution(Nest(PerAxis(b=2, h=5, c=5, k=4), Window(1), same_window(5), Window(1)), PerAxis(k=3))
    points = all_points(d, "Out")
    for limit in sorted({memory for _, memory in points.values()}):
        found, _ = choose_tiling(d, ["Out"], limit)
        assert found is not None
        assert found.words == min(words for words, memory in points.values() if memory <= limit)


def test_blocks_with_more_padding_than_rows() -> None:
    """With more padding than rows, the tiles that read the fewest rows are not the same in every block."""
    h, w = Window.reduced(3, 2, 1, 1, 2), Window.reduced(2, 2, 1, 1, 2)
    d = Distribution(Nest(PerAxis(b=2, h=6, w=5, c=3, k=6), Window(1), h, w), PerAxis(b=2, h=2, k=2))
    found, _ = choose_tiling(d, ["Ker"], 159)
    assert found is not None
    assert found.words == min(words for words, memory in all_points(d, "Ker").values() if memory <= 159) == 36


@pytest.mark.parametrize(
    ("extents", "window", "grid", "limit", "least"),
    [
        (PerAxis(b=3, h=3, c=7, k=5), Window.reduced(9, 4, 1, 2, 0), PerAxis(h=2, c=4, k=3), 91, 55),
        (PerAxis(b=4, h=2, k=7), Window.reduced(6, 4, 3, 1, 1), PerAxis(b=3, k=3), 57, 16),
    ],
)
def test_inner_loops_where_rows_are_shared(
    extents: PerAxis, window: Window, grid: PerAxis, limit: int, least: int
) -> None:
    """Cutting c and k moves less than cutting h, along which two tiles share rows."""
    d = Distribution(Nest(extents, Window(1), window, Window(1)), grid)
    found, _ = choose_tiling(d, ["Ker"], limit)
    assert found is not None
    points = all_points(d, "Ker").values()
    assert found.words == min(words for words, memory in points if memory <= limit) == least


@pytest.mark.parametrize(("extent", "panels"), [(4, 2), (16, 2), (16, 4), (16, 8), (16, 16)])
def test_panels_along_x_are_as_few_as_memory_allows(extent: int, panels: int) -> None:
    d = Distribution(Nest(PerAxis(b=extent, c=2), *[Window(1)] * 3), PerAxis(c=2))
    pass_plan = PassPlan("Ker", PerAxis(b=panels))
    found, _ = choose_tiling(d, ["Ker"], Footprints(d).memory(pass_plan).words)
    assert found is not None
    assert found.first == pass_plan


@given(
    distributions(),
    st.sampled_from(TASKS),
    st.booleans(),
    st.sampled_from([*((t,) for t in TENSORS), TENSORS]),
    st.sampled_from([GRADIENTS, *((t,) for t in GRADIENTS)]),
    st.sets(st.sampled_from(SPATIAL)),
    st.sets(st.sampled_from(AXES)),
)
def test_the_memory_bound_is_below_the_least_memory(
    d: Distribution,
    task: Task,
    transposed: bool,
    stationary: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
    turned: set[Axis],
    below: set[Axis],
) -> None:
    request = Request(d.nest, d.grid.size, pass_=task, transposed=transposed, gradients=gradients)
    for axis in turned & {*d.nest.turnable}:
        nest = d.nest.turn({axis})
        if getattr(d.grid, axis) <= getattr(nest.extents, axis):
            d = Distribution(nest, d.grid, ghosts=d.ghosts)
    memory = RangeMemory(d.nest, request.sequences, stationary, d.ghosts)
    bound = memory(d.grid, d.grid, d.grid.size)
    begin = PerAxis(*(1 if axis in below else n for axis, n in d.grid._asdict().items()))
    assert memory(begin, d.grid, d.grid.size) <= bound  # of a range that has the grid
    if task == "training":
        _, least = choose_training_tilings(d, stationary, 0, None, transposed, gradients)
    else:
        _, least = choose_tiling(d, stationary, 0, PassPlan(pass_=task))
    assert bound <= least
    tilings, step = _StepTilings(Footprints(d), stationary, None), memory.step(d.grid, d.grid, d.grid.size)
    for reused in reuse_choices(request.sequences[0], False) if task == "training" else ():
        needed = min(tilings.least_memory(reused, order) for order in request.sequences)
        assert memory.reusing(reused, step) <= needed


def test_a_block_with_long_sides_is_cut_into_the_fewest_tiles_that_fit() -> None:
    """Where not every tile count is tried: no side of the best plan can be cut into one tile fewer."""
    window = Window.reduced(2**40, 3, 1, 1, 1)
    d = Distribution(Nest(PerAxis(b=4, h=2**40, c=8, k=8), Window(1), window, Window(1)), PerAxis(b=2, k=2))
    footprints = Footprints(d)
    _, least = choose_tiling(d, ["Ker"], 0)
    limit = least + 10**9
    found, _ = choose_tiling(d, ["Ker"], limit)
    assert found is not None
    rows = found.first.counts.h
    assert rows > 1
    assert footprints.memory(found.first).words <= limit
    fewer = replace(found.first, counts=found.first.counts.with_("h", rows - 1))
    assert footprints.memory(fewer).words > limit


def test_undominated_tilings_are_those_of_the_definition() -> None:
    chance = random.Random(1)
    for _ in range(200):
        count, most = chance.choice([5, 50, 300]), chance.choice([4, 20, 300])
        candidates = sorted(
            (
                chance.randrange(50),
                chance.randrange(9),
                (chance.randrange(most), chance.randrange(most), chance.randrange(most)),
                (number,),
            )
            for number in range(count)
        )
        expected = [
            each
            for place, each in enumerate(candidates)
            if not any(
                all(a <= b for a, b in zip(other[2], each[2], strict=True)) for other in candidates[:place]
            )
        ]
        assert _undominated(candidates) == expected
