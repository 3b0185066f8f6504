"""The grid of a plan as a picture: which processes share a slice of which tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from synth.layer.axes import AXES, TENSORS, PerAxis, Tensor
from synth.layer.passes import role_name
from synth.planning.plan import Plan
from synth.reports.plot_frame import OF_TENSOR, POINTS, lines_of, side_by_side

LABELLED = 256  # cells up to which ranks are written


def grid_figure(plan: Plan) -> Any:
    """The processes as cells, once for each tensor that some share: a colour for each group.

    b, g, d, h, w downwards, c and k to the right. A grid that would be one row or one column is broken into
    lines. The group of the first cell is outlined.
    """
    d = plan.distribution
    shared = [tensor for tensor in TENSORS if d.group_size(tensor) > 1]
    rows, columns = plan.grid.x * plan.grid.g, plan.grid.c * plan.grid.k
    down, right = f"{_split(plan, AXES[:5])} ({rows})", f"{_split(plan, AXES[5:])} ({columns})"
    if min(rows, columns) == 1:
        columns = min(16, math.isqrt(4 * rows * columns))
        rows = -(-plan.grid.size // columns)
        down, right = "", f"{_split(plan, AXES) or 'one process'}, line by line"
    count = max(1, len(shared))
    wide = max(3.6, min(10.0, 0.5 + 0.36 * columns)) * count
    inches = max(5.6, wide)
    figure, panels = side_by_side(count, inches, min(7.0, 1.3 + 0.3 * rows))
    shown: list[Tensor | None] = [*shared] or [None]
    for axes, tensor in zip(panels, shown, strict=True):
        _cells(axes, plan, tensor, (rows, columns))
        axes.set_xlabel(right, fontsize=8)
        axes.set_title(_about(plan, tensor), fontsize=8, loc="left")
    panels[0].set_ylabel(down, fontsize=8)
    what = "one colour shares a slice; outlined: with rank 0" if shared else "no two ranks share a slice"
    title = f"{plan.layer.name}, P = {plan.procs}, grid {plan.grid.shown()}: {what}"
    figure.suptitle(lines_of(title, inches), fontsize=POINTS, x=0.01, ha="left")
    return figure


def _cells(axes: Any, plan: Plan, tensor: Tensor | None, shape: tuple[int, int]) -> None:
    """One cell per rank in the colour of its group."""
    from matplotlib.patches import Rectangle

    rows, columns = shape
    groups, d = _groups(plan, tensor), plan.distribution
    colours = np.ones((rows * columns, 3))
    colours[: len(groups)] = _tints(groups, tensor)
    axes.imshow(colours.reshape(rows, columns, 3), aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    for cell, group in enumerate(groups):
        y, x = divmod(cell, columns)
        with_first = tensor is not None and group == groups[0]
        if len(groups) <= 1024:
            style: dict[str, Any] = {"edgecolor": "white", "linewidth": 1.0, "zorder": 2}
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, **style))
        if with_first and tensor:
            style = {"edgecolor": OF_TENSOR[tensor], "linewidth": 1.8, "zorder": 3}
            axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, **style))
        if len(groups) <= LABELLED and columns <= 16:
            bold = "bold" if with_first else "normal"
            rank = d.rank(PerAxis(*(int(i) for i in np.unravel_index(cell, tuple(plan.grid)))))
            axes.text(x, y, str(rank), ha="center", va="center", fontsize=7, fontweight=bold)


def _groups(plan: Plan, tensor: Tensor | None) -> list[int]:
    """Rank -> the first rank of its group, in the order of the axes b, g, d, h, w, c, k."""
    lacked = () if tensor is None else plan.distribution.lacked(tensor)
    numbers = np.arange(plan.grid.size).reshape(tuple(plan.grid))
    first = tuple(slice(0, 1) if axis in lacked else slice(None) for axis in AXES)
    return [int(n) for n in np.broadcast_to(numbers[first], tuple(plan.grid)).reshape(-1)]


def _tints(groups: Sequence[int], tensor: Tensor | None) -> Any:
    """A light colour for each group; neighbouring groups differ. Grey where nothing is shared."""
    from matplotlib.colors import hsv_to_rgb

    if tensor is None:
        return np.full((len(groups), 3), 0.9)
    place = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    hues = [(0.58 + 0.618034 * place[group]) % 1.0 for group in groups]  # steps of the golden ratio
    return hsv_to_rgb(np.array([[hue, 0.30, 0.96] for hue in hues]))


def _about(plan: Plan, tensor: Tensor | None) -> str:
    """`Ker: 4 groups of 16 along b·h`."""
    if tensor is None:
        return f"{plan.grid.size} ranks"
    size, along = plan.distribution.group_size(tensor), _split(plan, plan.distribution.lacked(tensor))
    count = plan.grid.size // size
    roles = dict.fromkeys(role_name(pass_plan.pass_, tensor) for pass_plan in plan.pass_plans)
    return f"{' and '.join(roles)}: {count} group{'s' * (count > 1)} of {size} along {along}"


def _split(plan: Plan, axes: Sequence[str]) -> str:
    """Those of some axes that the grid splits, as `b·h`."""
    return "·".join(axis for axis in axes if getattr(plan.grid, axis) > 1)
