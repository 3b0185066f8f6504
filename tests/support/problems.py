"""Random problems for property tests: layers, nests, grids and pass plans, small enough for brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from synth.layer.axes import AXES, TENSORS, PerAxis, Tensor
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.passes import sequences
from synth.layer.validate import SPATIAL_AXES, LayerError
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule
from synth.search.training_step import pass_templates

KINDS = tuple(SPATIAL_AXES)
Values = NDArray[Any]


@st.composite
def layers(draw: st.DrawFn, most: int = 7, kinds: tuple[str, ...] = KINDS) -> Layer:
    """Tiny layers of every kind: strides, dilations, paddings, groups; nothing divides anything."""
    kind = draw(st.sampled_from(kinds))
    count = st.integers(1, most)
    if kind == "matmul":
        return Layer.matmul(draw(count), draw(count), draw(count))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    dims = len(SPATIAL_AXES[kind])

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    shape = (draw(st.integers(1, 4)), groups * draw(st.integers(1, 5)), *each(1, most + 2))
    filters = groups * draw(st.integers(1, 5))
    try:
        return Layer(
            kind,  # type: ignore[arg-type]
            shape,
            filters,
            each(1, 4),
            each(1, 3),
            each(0, 3),
            each(1, 3),
            groups,
        )
    except LayerError:  # the kernel does not fit, or nothing but padding is read
        assume(False)
        raise


def nests(most: int = 7) -> st.SearchStrategy[Nest]:
    """The nests of `layers`."""
    return layers(most).map(lambda layer: layer.nest)


def small_nests(most: int = 5) -> st.SearchStrategy[Nest]:
    """Nests for brute force over grids and pass plans: at most two spatial dimensions."""
    return layers(most, ("matmul", "conv1d", "conv2d")).map(lambda layer: layer.nest)


@st.composite
def distributions(draw: st.DrawFn, nest: st.SearchStrategy[Nest] | None = None) -> Distribution:
    """A nest on a grid of at most 24 processes; parts rarely divide extents."""
    made = draw(nests() if nest is None else nest)
    parts = [draw(st.sampled_from((1, *range(1, min(extent, 4) + 1)))) for extent in made.extents]
    grid = PerAxis(*parts)
    assume(grid.size <= 24)
    return Distribution(made, grid)


@st.composite
def schedules(draw: st.DrawFn, nest: st.SearchStrategy[Nest] | None = None) -> Schedule:
    """A distribution with a stationary tensor and at most 24 tiles: the forward pass."""
    distribution = draw(distributions(nest))
    return Schedule(distribution, _tiled(draw, distribution, PassPlan()))


@st.composite
def steps(draw: st.DrawFn, nest: st.SearchStrategy[Nest] | None = None) -> tuple[Schedule, ...]:
    """The three passes of a training step on one distribution, with any tensors kept between them."""
    distribution = draw(distributions(nest))
    kept = frozenset(tensor for tensor in TENSORS if draw(st.booleans()))
    sequence = draw(st.sampled_from(sequences()))
    return tuple(
        Schedule(distribution, _tiled(draw, distribution, role)) for role in pass_templates(kept, sequence)
    )


def _tiled(draw: st.DrawFn, distribution: Distribution, role: PassPlan) -> PassPlan:
    """Any stationary tensor, at most 24 tiles, either order of the inner loops."""
    work = distribution.most_work
    counts = [
        1 if axis == "g" else draw(st.sampled_from((1, *range(1, min(getattr(work, axis), 4) + 1))))
        for axis in AXES
    ]
    stationary: Tensor = draw(st.sampled_from(TENSORS))
    made = replace(role, stationary=stationary, counts=PerAxis(*counts), swapped=draw(st.booleans()))
    assume(made.steps <= 24)
    return made


def integers_for(nest: Nest, tensor: Tensor, seed: int = 0) -> Values:
    """Whole numbers as float64: every sum of products is exact, whatever the order."""
    generator = np.random.default_rng((seed, TENSORS.index(tensor)))
    return generator.integers(-4, 5, nest.shapes[tensor]).astype(np.float64)


def all_pass_plans(work: PerAxis, stationary: Tensor) -> Iterator[PassPlan]:
    """Every pass plan of a block: all counts along all axes but g, both orders of the inner loops."""
    ranges = [range(1, 2) if axis == "g" else range(1, n + 1) for axis, n in zip(AXES, work, strict=True)]
    for counts in itertools.product(*ranges):
        for swapped in (False, True):
            yield PassPlan(stationary, PerAxis(*counts), swapped)


def all_grids(extents: PerAxis, procs: int, exact: bool = False) -> Iterator[PerAxis]:
    """Every grid of at most (or exactly) `procs` processes without empty blocks."""

    def extended(axis: int, grid: tuple[int, ...], size: int) -> Iterator[PerAxis]:
        if axis == len(AXES):
            if size == procs or not exact:
                yield PerAxis(*grid)
            return
        for parts in range(1, min(extents[axis], procs // size) + 1):
            yield from extended(axis + 1, (*grid, parts), size * parts)

    yield from extended(0, (), 1)


def conv(nest_out: int, kernel: int = 3) -> Window:
    """A 'same' window, for examples by hand."""
    return Window.reduced(nest_out, kernel, 1, 1, kernel // 2)
