"""The seconds of all grids of a layer class, in every rank order: computed at once, and looked up.

The seconds of one layer alone assume that its neighbours compute as long as it does. They rank its grids; the
choice over the whole network prices neighbours as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from synth.layer.axes import SPATIAL, Axis, PerAxis
from synth.layer.nest import Nest
from synth.machine.rank_groups import distinct_orders
from synth.network.grids.box_rows import Array
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.request import NetworkRequest
from synth.network.step_time.between import Between
from synth.network.step_time.layer_times import LayerTimes, Seconds, layer_times
from synth.network.step_time.step import StepSeconds


class TimedGrids:
    """Seconds of placed grids of one layer class.

    grids: the family, by (grid, axis). followed: what follows a layer of the class, on average. input_rows:
    whether the layer may be cut by input rows. times: of all placed grids known so far: those of the family,
    and what strategies without such a grid use. least: of the grids of the family, each in its best order and
    cut of rows.
    """

    def __init__(
        self,
        layer_class: LayerClass,
        request: NetworkRequest,
        grids: Array,
        followed: Between,
        input_rows: bool = False,
    ) -> None:
        self.layer_class, self.request, self.followed = layer_class, request, followed
        self._index: dict[PlacedGrid, int] = {}
        self._alone: list[float] = []
        self.times = LayerTimes(*(np.zeros(0) for _ in LayerTimes._fields))
        self._turned: dict[PerAxis, tuple[Axis, ...]] = {}
        if input_rows:
            self._turned = {
                PerAxis(*row): axes
                for row, axes in zip(grids.tolist(), turned_axes(layer_class.nest, grids), strict=True)
                if axes
            }
        orders = [self.orders(PerAxis(*row)) for row in grids.tolist()]
        self.add([placed for each in orders for placed in each])
        first = np.cumsum([0, *map(len, orders)])[:-1]
        self.least: Seconds = np.minimum.reduceat(self._alone, first) if len(first) else np.zeros(0)

    def orders(self, grid: PerAxis) -> list[PlacedGrid]:
        """A grid in all rank orders that differ, by output rows and in its cut by input rows."""
        cuts = dict.fromkeys(((), self._turned.get(grid, ())))
        orders = distinct_orders(grid, self.request.orders)
        return [PlacedGrid(grid, order, turned) for order in orders for turned in cuts]

    def cut(self, placed: PlacedGrid) -> PlacedGrid:
        """A grid in an order, cut by the rows that take the fewest seconds."""
        other = replace(placed, turned=self._turned.get(placed.grid, ()))
        return min(replace(placed, turned=()), other, key=self.seconds)

    def add(self, some: Iterable[PlacedGrid]) -> None:
        """Compute the times of placed grids that are not known yet."""
        new = [placed for placed in dict.fromkeys(some) if placed not in self._index]
        if not new:
            return
        times = layer_times(self.layer_class, self.request, new, self.followed)
        self._index.update({placed: len(self._index) + i for i, placed in enumerate(new)})
        self._alone += self._seconds_alone(times).tolist()
        self.times = LayerTimes(*map(np.concatenate, zip(self.times, times, strict=True)))

    def _seconds_alone(self, times: LayerTimes) -> Seconds:
        """Seconds of the layer, with what of Ker's moves its own computing would not hide."""
        machine, may = self.request.machine, self.request.may_hold_whole(self.layer_class.weighted)
        assert machine is not None
        step = StepSeconds(
            machine, [times], [self.followed], [may], self.request.training, self.request.hides
        )
        free, back = (step.overlap * each for each in (times.computing_forward, times.computing_backward))
        shards = times.update + np.maximum(0.0, times.gathered - free) + np.maximum(0.0, times.reduced - back)
        whole = times.update_whole + np.maximum(0.0, times.averaged - back)
        found: Seconds = step.alone(0) + (np.minimum(shards, whole) if may else shards)
        return found

    def seconds(self, placed: PlacedGrid) -> float:
        """Seconds of a placed grid, also of one outside the family."""
        if placed not in self._index:
            self.add([placed])
        return self._alone[self._index[placed]]

    def rows(self, some: Sequence[PlacedGrid]) -> LayerTimes:
        """The times of some placed grids, in their order; those of new ones are computed."""
        self.add(some)
        return self.times.at([self._index[placed] for placed in some])

    @property
    def placed(self) -> list[PlacedGrid]:
        """All placed grids known so far, in the order of `times`."""
        return list(self._index)


def turned_axes(nest: Nest, grids: Array) -> list[tuple[Axis, ...]]:
    """By grid: the axes along which cuts by input rows share fewer words of Out than others share of In.

    Kernels on blocks of input rows compute more, so no other axis can be worth it.
    """
    parts = PerAxis(*grids.T)
    channels = [-(-getattr(nest.extents, axis) // getattr(parts, axis)) for axis in ("c", "k")]
    fewer: dict[Axis, Array] = {}
    for axis in nest.turnable:
        window, cuts = nest.windows[axis], getattr(parts, axis)
        shared = [channels[0] * window.most_overlap, channels[1] * window.turned.most_overlap]
        for other in SPATIAL:
            if other != axis:
                rows, outputs = nest.windows[other].size, nest.windows[other].out
                shared = [shared[0] * rows, shared[1] * outputs]
        fewer[axis] = (cuts > 1) & (cuts <= window.size) & (shared[1] < shared[0])
    if not fewer:
        return [()] * len(grids)
    return [
        tuple(axis for axis, cut in zip(fewer, row, strict=True) if cut)
        for row in np.stack(list(fewer.values()), axis=1).tolist()
    ]
