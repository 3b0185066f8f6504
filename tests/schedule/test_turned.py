"""Blocks cut by input rows: words, values, pairs, memory, by the formulas and by interpreted schedules."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

import synth
from synth.base.errors import InputError, UsageError
from synth.layer.axes import AXES, TENSORS, PerAxis
from synth.layer.intervals import cuts
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.passes import PASSES, Pass
from synth.planning.plan_file import parse_plan
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule
from synth.simulation.interpreter import simulate
from synth.simulation.numpy_kernels import reference
from synth.simulation.simulate import simulated
from synth.simulation.verify import verify


def image(channels: int, filters: int, size: int, kernel: int) -> Layer:
    return Layer.conv2d([1, channels, size, size], filters, kernel, padding=kernel // 2)


@pytest.mark.parametrize(
    ("layer", "procs", "by_input", "by_output"),
    [
        (image(64, 3, 1024, 9), 16, 27_060, 280_820),  # the last layer of super-resolution
        (image(64, 3, 1024, 3), 16, 4_704, 67_412),
        (image(64, 2, 512, 3), 4, 1_890, 33_696),  # the head of a U-Net
        (image(128, 64, 512, 3), 4, 88_128, 120_960),  # and its decoder
        (image(128, 64, 512, 3), 16, 102_144, 135_168),
    ],
)
@pytest.mark.parametrize("pass_", PASSES)
def test_layers_with_few_filters_return_rows_of_out(
    layer: Layer, procs: int, by_input: int, by_output: int, pass_: Pass
) -> None:
    """Half of the passes send the halo of the other cut back; all of them move as many words."""
    plan = synth.plan(layer, procs, pass_=pass_)
    assert plan.turned == ("h", "w")
    assert plan.words["total"] == by_input
    assert synth.plan(layer, procs, pass_=pass_, rows={"h": "out", "w": "out"}).words["total"] == by_output


def test_a_training_step_moves_twice_the_words_of_a_pass() -> None:
    assert synth.plan(image(64, 2, 512, 3), 4, pass_="training").words["total"] == 2 * 1_890


def test_the_search_finds_the_best_choice_of_all_grids_and_axes() -> None:
    """Against every grid with every choice of turned axes, one by one."""
    layer = Layer.conv2d([1, 6, 19, 24], 4, [3, 5], stride=[2, 1], padding=[1, 2])
    best = synth.plan(layer, 8, exact_procs=True, balance=0.5)
    cap = best.least_work * 3 // 2 if best.least_work else 0
    words = []
    for turned in ((), ("h",), ("w",), ("h", "w")):
        rows = {axis: "in" if axis in turned else "out" for axis in ("h", "w")}
        for h in (1, 2, 4, 8):
            for w in (1, 2, 4, 8):
                for k in (1, 2, 4):
                    if 8 % (h * w * k) or 8 // (h * w * k) > 6:
                        continue
                    grid = {"h": h, "w": w, "k": k, "c": 8 // (h * w * k)}
                    distribution = Distribution(layer.nest.turn(turned), PerAxis(**grid))
                    if distribution.load <= cap and Distribution(layer.nest, PerAxis(**grid)).load <= cap:
                        made = synth.plan(layer, 8, grid=grid, rows=rows, balance=10.0)
                        words.append(made.words["total"])
    assert best.words["total"] == min(words)
    assert best.turned


def problems(count: int, seed: int) -> Iterator[tuple[random.Random, Nest, Distribution]]:
    """Random nests with turned axes on random grids."""
    draw = random.Random(seed)
    while count:
        dims = draw.choice([1, 2, 2])
        numbers = {
            "stride": [draw.choice([1, 1, 2, 3]) for _ in range(dims)],
            "dilation": [draw.choice([1, 1, 2, 3]) for _ in range(dims)],
            "padding": [draw.randint(0, 4) for _ in range(dims)],
        }
        kernel, groups = [draw.randint(2, 4) for _ in range(dims)], draw.choice([1, 1, 2])
        size = [draw.randint(4, 14) for _ in range(dims)]
        channels, filters = groups * draw.randint(1, 3), groups * draw.randint(1, 3)
        try:
            layer = Layer(
                "conv1d" if dims == 1 else "conv2d",
                (draw.randint(1, 3), channels, *size),
                filters,
                tuple(kernel),
                groups=groups,
                **numbers,
            )
        except UsageError:  # no output position
            continue
        turned = tuple(axis for axis in layer.nest.turnable if draw.random() < 0.7)
        nest = layer.nest.turn(turned)
        grid = PerAxis(*(draw.randint(1, min(extent, 3)) for extent in nest.extents))
        if turned and grid.size <= 24:
            count -= 1
            yield draw, layer.nest, Distribution(nest, grid)


def test_words_values_and_memory_of_random_schedules() -> None:
    """Planned words are those of the interpreted schedule on every rank; values are those of one process."""
    for draw, nest, distribution in problems(25, seed=7):
        work = distribution.most_work
        tiles = (draw.choice([1, 1, 2, 3]) if axis != "g" else 1 for axis in AXES)
        counts = PerAxis(*(min(count, most) for count, most in zip(tiles, work, strict=True)))
        pass_ = draw.choice(PASSES)
        plan = PassPlan(draw.choice(TENSORS), counts, draw.random() < 0.5, pass_)
        schedule = Schedule(distribution, plan)
        verify(schedule)
        one, other = (np.random.default_rng(1).integers(-4, 5, nest.shapes[t]) * 1.0 for t in plan.reads)
        outcome = simulate(schedule, one, other)
        assert outcome.out is not None
        assert np.array_equal(outcome.out, reference(nest, one, other, pass_))
        assert max(outcome.peak) <= Footprints(distribution).memory(plan).words


def test_turning_keeps_tensors_and_pairs_and_is_its_own_inverse() -> None:
    for _, nest, distribution in problems(40, seed=3):
        turned = distribution.nest
        assert (turned.shapes, turned.real_work) == (nest.shapes, nest.real_work)
        assert turned.turn(turned.turned) == nest
        for axis in turned.turned:
            window = nest.windows[axis]
            pairs = {
                (window.stride * x + window.dilation * tap - window.padding, x)
                for x in range(window.out)
                for tap in range(window.kernel)
            }
            for low, high in cuts((0, window.size), min(3, window.size)):
                inside = [x for y, x in pairs if low <= y < high]
                assert turned.windows[axis].taps(low, high) == len(inside)
                reached = turned.windows[axis].reach(low, high)
                assert all(reached[0] <= x < reached[1] for x in inside)


def test_unequal_pairs_count_as_work() -> None:
    """Rows 0, 2, 4, ... have two taps of a kernel of 3 with stride 2, the others one."""
    nest = Layer.conv1d([1, 8, 10], 8, 3, stride=2, padding=1).nest
    even, uneven = (Distribution(nest.turn("w"), PerAxis(w=parts)) for parts in (5, 10))
    assert nest.turn("w").windows["w"].taps(1, 2) == 2 * nest.turn("w").windows["w"].taps(2, 3)
    assert even.load * 3 == 8 * 8 * 3  # pairs of two rows
    assert uneven.load * 3 >= 8 * 8 * 2  # pairs of the rows with two taps


def test_a_plan_file_has_the_turned_axes() -> None:
    import json

    plan = synth.plan(image(6, 2, 12, 3), 4)
    text = json.dumps(plan.to_json())
    assert parse_plan(text, "plan.json") == plan
    assert plan.decisions()["turned"] == ["h"] or plan.turned == ("h", "w")
    with pytest.raises(InputError, match="share no rows along b"):
        parse_plan(text.replace('"turned": [', '"turned": ["b", '), "plan.json")
    assert simulated(plan).values


def test_what_cannot_be_turned_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="share no rows along h"):
        synth.plan(Layer.conv2d([1, 4, 8, 8], 4, 1), 4, rows={"h": "in"})
    with pytest.raises(UsageError, match="in or out along d, h or w"):
        synth.plan(image(6, 2, 12, 3), 4, rows={"b": "in"})
    with pytest.raises(UsageError, match="output rows only"):
        synth.plan(image(6, 2, 12, 3), 4, rows={"h": "in"}, objective="time", machine="lassen")
