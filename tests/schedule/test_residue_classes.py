"""Residue classes of a dilation as samples: words, values, the search over them, files, refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

import synth
from synth.base.errors import InfeasibleError, InputError, UsageError
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.passes import PASSES
from synth.layer.residue_classes import class_choices, into_classes, possible_counts
from synth.planning.plan import Plan
from synth.planning.plan_file import parse_plan
from synth.planning.plan_json import exact_json
from synth.reports.text import report
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received
from synth.simulation.numpy_kernels import reference
from synth.simulation.simulate import simulated

WAVENET = Layer.conv1d((1, 64, 16384), 64, 2, dilation=512, name="wavenet")
TCN = Layer.conv1d((1, 25, 65536), 25, 7, dilation=64, name="tcn")
DRN = Layer.conv2d((1, 512, 128, 128), 512, 3, padding=4, dilation=4, name="drn")
UNEVEN = Layer.conv1d((2, 3, 33), 4, 3, padding=12, dilation=12, name="uneven")


@pytest.mark.parametrize(
    ("layer", "procs", "with_classes", "without"),
    [
        (WAVENET, 4, 6_144, 30_720),
        (WAVENET, 64, 8_064, 35_712),
        (TCN, 16, 4_123, 13_070),
        (DRN, 4, 1_769_472, 2_031_616),
        (DRN, 16, 1_490_944, 1_622_016),
    ],
)
def test_dilated_layers_are_cut_along_their_classes(
    layer: Layer, procs: int, with_classes: int, without: int
) -> None:
    """There is no halo along the classes. The words without them are those of the grids of rows."""
    plan = synth.plan(layer, procs)
    assert dict(plan.classes) == dict.fromkeys(layer.spatial_axes, layer.dilation[0])
    assert (plan.words["total"], plan.words["halo"]) == (with_classes, 0)
    none = dict.fromkeys(layer.spatial_axes, 1)
    assert synth.plan(layer, procs, classes=none).words["total"] == without


@pytest.mark.parametrize("pass_", [*PASSES, "training"])
def test_all_passes_are_cut_along_the_classes(pass_: str) -> None:
    plan, none = (synth.plan(TCN, 4, pass_=pass_, classes=each) for each in (None, {"w": 1}))
    assert plan.classes == (("w", 64),)
    assert plan.words["halo"] == 0
    assert 2 * plan.words["total"] < none.words["total"]


def test_layers_without_dilation_have_no_classes() -> None:
    for layer in (
        Layer.conv2d((4, 8, 16, 16), 8, 3, padding=1),
        Layer.conv2d((4, 8, 16, 16), 8, 1, dilation=3),  # one tap
        Layer.conv1d((4, 8, 16), 8, 3, stride=3, dilation=2),
        Layer.conv1d((4, 8, 16), 8, 3, stride=2, dilation=2),
        Layer.matmul(8, 8, 8),
    ):
        assert list(class_choices(layer.nest, {}, 0.1)) == [()]
        assert not synth.plan(layer, 8).classes
    strided = Layer.conv1d((4, 8, 32), 8, 3, stride=2, dilation=4)  # every other row is read, with dilation 2
    assert possible_counts(strided.nest.windows["w"]) == [1, 2]


def random_plans(count: int, seed: int) -> Iterator[Plan]:
    """Plans of random dilated layers with residue classes: those that the search takes, and fixed ones."""
    draw = random.Random(seed)
    while count:
        dims, transposed = draw.choice([1, 2, 2]), draw.random() < 0.25
        zeros = [draw.randint(0, 6) for _ in range(dims)]
        try:
            layer = Layer(
                "conv1d" if dims == 1 else "conv2d",
                (draw.randint(1, 3), 2 * draw.randint(1, 2), *(draw.randint(4, 20) for _ in range(dims))),
                2 * draw.randint(1, 2),
                tuple(draw.randint(2, 4) for _ in range(dims)),
                stride=tuple(draw.choice([1, 1, 1, 2]) for _ in range(dims)),
                dilation=tuple(draw.choice([1, 2, 3, 4, 6]) for _ in range(dims)),
                padding=tuple(n if transposed or n % 2 else (n, n // 2) for n in zeros),
                groups=draw.choice([1, 1, 2]),
                transposed=transposed,
            )
        except UsageError:  # no output position
            continue
        windows = layer.nest.windows
        counts = {axis: draw.choice(possible_counts(windows[axis])) for axis in layer.spatial_axes}
        classes = counts if draw.random() < 0.7 else None
        pass_ = draw.choice([*PASSES, "training"])
        try:
            plan = synth.plan(
                layer,
                draw.choice([2, 3, 4, 6, 8]),
                pass_=pass_,
                balance=draw.choice([0.1, 1.0]),
                classes=classes,
            )
        except InfeasibleError:  # more filler than the balance allows
            continue
        if plan.classes:
            count -= 1
            yield plan


def test_words_and_values_of_random_plans() -> None:
    """Words are those of the interpreted schedule, values those of the layer itself, and the bound holds."""
    for plan in random_plans(20, seed=5):
        assert simulated(plan).values
        assert plan.bound.words <= plan.words["total"]
        text = json.dumps({**exact_json(plan), "algorithm": plan.algorithm})
        assert parse_plan(text, "plan.json") == plan


def test_no_random_grid_of_any_classes_beats_the_plan() -> None:
    """Every choice of classes and of axes cut by input rows, on random grids within the work balance."""
    draw = random.Random(3)
    for layer in (
        Layer.conv2d((1, 4, 13, 16), 4, (3, 2), padding=(2, 0), dilation=(2, 4)),
        Layer.conv1d((2, 3, 36), 5, 3, padding=6, dilation=6),
        UNEVEN,
    ):
        best = synth.plan(layer, 6, balance=0.3)
        cap = synth.plan(layer, 6, balance=0.3, classes=dict.fromkeys(layer.spatial_axes, 1)).least_work
        assert cap is not None
        tried = 0
        counts = [possible_counts(layer.nest.windows[axis]) for axis in layer.spatial_axes]
        for chosen in product(*counts):
            classes = tuple((a, n) for a, n in zip(layer.spatial_axes, chosen, strict=True) if n > 1)
            nest = layer.nest.by_classes(classes)
            for _ in range(60):
                turned = nest.turn([axis for axis in nest.turnable if draw.random() < 0.4])
                parts = draw.choice([(6, 1), (3, 2), (5, 1)])
                grid = PerAxis(**dict(zip(draw.sample("bhwck", 2), parts, strict=True)))
                if any(p > min(n) for p, *n in zip(grid, turned.extents, nest.extents, strict=True)):
                    continue
                distribution = Distribution(turned, grid)
                if max(distribution.load, Distribution(nest, grid).load) <= cap * 13 // 10:
                    tried += 1
                    assert received(distribution, PassPlan()).most()["total"] >= best.words["total"]
        assert tried >= 10


def test_classes_have_the_values_of_the_layer() -> None:
    """Uneven classes and padding that the dilation does not divide: filler changes no other row."""
    layer = Layer.conv2d((2, 3, 11, 10), 4, 3, padding=((2, 3), 1), dilation=(3, 2))
    nest = layer.nest.by_classes((("h", 3), ("w", 2)))
    draw = np.random.default_rng(0)
    inputs, ker = (draw.integers(-4, 5, layer.nest.shapes[t]) * 1.0 for t in ("In", "Ker"))
    out = reference(nest, into_classes(nest, "In", inputs), ker)
    whole = reference(layer.nest, inputs, ker)
    real = into_classes(nest, "Out", np.ones_like(whole))
    assert 0 < (real == 0).sum() < real.size // 2
    assert np.array_equal(out * real, into_classes(nest, "Out", whole))


def test_filler_counts_as_work() -> None:
    """Four classes of 33 rows have 36 rows: more than 5 % of extra work."""
    assert dict(synth.plan(UNEVEN, 6, balance=0.05).classes).get("w", 1) in (1, 3)
    assert synth.plan(UNEVEN, 6, classes={"w": 4}, balance=0.05).nest.extents == PerAxis(b=8, w=9, c=3, k=4)


def test_reports_and_files_name_the_classes() -> None:
    plan = synth.plan(Layer.conv1d((1, 4, 30), 4, 3, dilation=4, padding=4), 4)
    assert plan.classes == (("w", 2),) or plan.classes == (("w", 4),)
    assert "residue classes of the dilation" in report(plan)
    assert "residue classes of the dilation" in str(plan)
    text = json.dumps(plan.to_json())
    assert parse_plan(text, "plan.json").id == plan.id
    count = plan.classes[0][1]
    with pytest.raises(InputError, match="classes w=3"):
        parse_plan(text.replace(f'"classes": {{"w": {count}}}', '"classes": {"w": 3}'), "plan.json")


def test_a_tight_memory_limit_is_kept_or_refused() -> None:
    layer = Layer.conv1d((1, 8, 256), 8, 3, padding=8, dilation=8)
    free = synth.plan(layer, 8)
    tight = synth.plan(layer, 8, free.used_words * 4)
    assert tight.words["total"] == free.words["total"]
    with pytest.raises(InfeasibleError, match="the least memory that fits is at most"):
        synth.plan(layer, 8, 256)


def test_what_cannot_be_divided_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"classes w=5: uneven has stride 1 and dilation 12 along w"):
        synth.plan(UNEVEN, 4, classes={"w": 5})
    with pytest.raises(UsageError, match="has stride 2 and dilation 3 along w"):
        synth.plan(Layer.conv1d((1, 4, 40), 4, 3, stride=2, dilation=3), 4, classes={"w": 3})
    with pytest.raises(UsageError, match="not a number along d, h or w"):
        synth.plan(UNEVEN, 4, classes={"b": 2})
    with pytest.raises(UsageError, match="objective time knows no residue classes"):
        synth.plan(UNEVEN, 4, classes={"w": 3}, objective="time", machine="lassen")
    with pytest.raises(UsageError, match=r"strategy data knows no residue classes"):
        synth.plan(UNEVEN, 4, classes={"w": 3}, strategy="data")
    with pytest.raises(ValueError, match="do not divide"):
        UNEVEN.nest.by_classes((("w", 5),))
