"""Hypothesis strategies for what the planner is asked: windows, layers, nests, distributions, schedules.

Extents are small enough for brute force, and parts and tiles rarely divide them. Strides, dilations, paddings
and groups are of every kind that torch accepts.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from synth.layer.axes import AXES, TENSORS, PerAxis, Tensor
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.passes import sequences
from synth.layer.validate import SPATIAL_AXES, LayerError
from synth.layer.window import Padding, Window, both_ends
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule
from synth.search.training_step import pass_templates

KINDS = tuple(SPATIAL_AXES)
MOST_PROCS = 24  # of a distribution
MOST_TILES = 24  # of a pass plan


# -- layers and nests -----------------------------------------------------------------------------------


def paddings() -> st.SearchStrategy[Padding]:
    """Zeros at both ends alike, or other numbers before and after."""
    one = st.integers(0, 3)
    return one | st.tuples(one, one).filter(lambda ends: ends[0] != ends[1])


@st.composite
def windows(draw: st.DrawFn, largest: int = 16) -> Window:
    """A window with any stride, dilation and padding that torch accepts."""
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation, padding = draw(st.integers(1, 3)), draw(paddings())
    least = max(1, dilation * (kernel - 1) + 1 - sum(both_ends(padding)))
    size = draw(st.integers(least, least + largest))
    return Window.reduced(size, kernel, stride, dilation, padding)


@st.composite
def layers(draw: st.DrawFn, most: int = 7, kinds: tuple[str, ...] = KINDS) -> Layer:
    """Tiny layers of every kind: strides, dilations, paddings, groups; nothing divides anything."""
    kind = draw(st.sampled_from(kinds))
    count = st.integers(1, most)
    if kind == "matmul":
        return Layer.matmul(draw(count), draw(count), draw(count))
    if kind == "einsum":
        return draw(contractions())
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
            tuple(draw(paddings()) for _ in range(dims)),
            each(1, 3),
            groups,
        )
    except LayerError:  # the kernel does not fit, or nothing but padding is read
        assume(False)
        raise


@st.composite
def contractions(draw: st.DrawFn) -> Layer:
    """Tiny binary contractions: up to two indices of each class, in any order in operands and result."""
    names = iter(draw(st.permutations("abcdEFGH")))
    counts = [draw(st.integers(0, 2)) for _ in range(4)]
    rows, groups, columns, summed = ("".join(next(names) for _ in range(count)) for count in counts)
    parts = rows + groups + summed, groups + columns + summed, rows + groups + columns
    one, other, out = ("".join(draw(st.permutations(each))) for each in parts)
    extents = {index: draw(st.integers(1, 3)) for index in rows + groups + columns + summed}
    return Layer.einsum(f"{one},{other}->{out}", extents)


def nests(most: int = 7) -> st.SearchStrategy[Nest]:
    """The nests of `layers`."""
    return layers(most).map(lambda layer: layer.nest)


def small_nests(most: int = 5) -> st.SearchStrategy[Nest]:
    """Nests for brute force over grids and pass plans: at most two spatial dimensions."""
    return layers(most, ("matmul", "conv1d", "conv2d")).map(lambda layer: layer.nest)


@st.composite
def image_nests(draw: st.DrawFn, groups: int = 1) -> Nest:
    """Convolutions in two spatial dimensions with up to 64 samples, channels and filters."""
    high, wide = draw(windows()), draw(windows())
    b, c, k = (draw(st.sampled_from([1, 2, 3, 8, 64])) for _ in range(3))
    g = draw(st.integers(1, groups))
    return Nest(PerAxis(b=b, g=g, c=c, k=k, h=high.out, w=wide.out), Window(1), high, wide)


@st.composite
def nests_without_halo(draw: st.DrawFn) -> Nest:
    """Layers whose tiles have no halo: kernel = stride, no padding; so Eq. 3 has Eq. 4's cost."""

    def window() -> Window:
        kernel, out = draw(st.integers(1, 3)), draw(st.integers(1, 20))
        return Window.reduced(kernel * out, kernel, kernel, 1, 0)

    high, wide = window(), window()
    b, c, k = (draw(st.integers(1, 300)) for _ in range(3))
    return Nest(PerAxis(b=b, c=c, k=k, h=high.out, w=wide.out), Window(1), high, wide)


# -- distributions and schedules ------------------------------------------------------------------------


@st.composite
def distributions(draw: st.DrawFn, nest: st.SearchStrategy[Nest] | None = None) -> Distribution:
    """A nest on a grid of at most 24 processes, with or without ghost rows; parts rarely divide extents."""
    made = draw(nests() if nest is None else nest)
    parts = [draw(st.sampled_from((1, *range(1, min(extent, 4) + 1)))) for extent in made.extents]
    grid = PerAxis(*parts)
    assume(grid.size <= MOST_PROCS)
    return Distribution(made, grid, ghosts=draw(st.booleans()))


@st.composite
def schedules(draw: st.DrawFn, nest: st.SearchStrategy[Nest] | None = None) -> Schedule:
    """A distribution with a stationary tensor and at most 24 tiles: the forward pass."""
    distribution = draw(distributions(nest))
    return Schedule(distribution, _tiled(draw, distribution, PassPlan()))


@st.composite
def training_steps(draw: st.DrawFn, nest: st.SearchStrategy[Nest] | None = None) -> tuple[Schedule, ...]:
    """The three passes of a training step on one distribution; each tensor may be saved for a later pass."""
    distribution = draw(distributions(nest))
    saved = frozenset(tensor for tensor in TENSORS if draw(st.booleans()))
    sequence = draw(st.sampled_from(sequences()))
    templates = pass_templates(saved, sequence)
    return tuple(Schedule(distribution, _tiled(draw, distribution, each)) for each in templates)


def _tiled(draw: st.DrawFn, distribution: Distribution, template: PassPlan) -> PassPlan:
    """Any stationary tensor, at most 24 tiles, either order of the inner loops."""
    work = distribution.most_work
    counts = [
        1 if axis == "g" else draw(st.sampled_from((1, *range(1, min(getattr(work, axis), 4) + 1))))
        for axis in AXES
    ]
    stationary: Tensor = draw(st.sampled_from(TENSORS))
    made = replace(template, stationary=stationary, counts=PerAxis(*counts), swapped=draw(st.booleans()))
    assume(made.steps <= MOST_TILES)
    return made
