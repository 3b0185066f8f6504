"""What holds for the rows of all blocks of a plan: a lean program has only the helpers that these need."""

from __future__ import annotations

from synth.codegen.parts.index_functions import layer_axes
from synth.layer.axes import Axis
from synth.layer.intervals import Interval, cuts
from synth.planning.plan import Plan


def reads_its_rows(plan: Plan) -> bool:
    """Whether each output row reads the input row of its number alone, as in a matrix product."""
    windows = [plan.nest.windows[axis] for axis in plan.layer.spatial_axes]
    return all((w.kernel, w.stride, w.padding) == (1, 1, 0) and w.out == w.size for w in windows)


def needs_zeros(plan: Plan) -> bool:
    """Whether some block reads zeros around In, or has input rows that its output rows do not read."""
    if plan.turned:
        return not reads_its_rows(plan)
    windows = [plan.nest.windows[axis] for axis in plan.layer.spatial_axes]
    return any(w.padding or w.size != w.stride * (w.out - 1) + w.span for w in windows)


def turned_axes(plan: Plan) -> tuple[Axis, ...]:
    """The axes along which blocks are of input rows; all of them if nothing cuts the others."""
    axes = plan.layer.spatial_axes
    others = [axis for axis in axes if axis not in plan.turned]
    return axes if plan.turned and all(_is_whole(plan, axis) for axis in others) else plan.turned


def _is_whole(plan: Plan, axis: Axis) -> bool:
    """Whether all work along an axis is one block, and all its output rows read input rows."""
    window = plan.nest.windows[axis]
    cut = max(getattr(each, axis) for each in (plan.grid, *(each.counts for each in plan.pass_plans)))
    return cut == 1 and window.padding < window.span and window.reach(window.out - 1, window.out) != (0, 0)


def may_be_empty(plan: Plan) -> bool:
    """Whether a block or the tile of a step may have no iterations, or touch no rows."""
    nest = plan.distribution.nest
    for axis in layer_axes(plan):
        whole, parts = (0, getattr(nest.extents, axis)), getattr(plan.grid, axis)
        for count in {getattr(pass_plan.counts, axis) for pass_plan in plan.pass_plans}:
            for block in cuts(whole, parts):
                if any(_is_empty(plan, axis, tile) for tile in cuts(block, count)):
                    return True
    return False


def _is_empty(plan: Plan, axis: Axis, rows: Interval) -> bool:
    low, high = rows
    if axis in plan.layer.spatial_axes and low < high:
        low, high = plan.distribution.nest.windows[axis].reach(low, high)
    return low >= high
