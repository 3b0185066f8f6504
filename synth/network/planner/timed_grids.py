"""The seconds of all grids of a layer class, in every rank order: computed at once, and looked up.

The seconds of one layer alone assume that its neighbours compute as long as it does. They rank its grids; the
choice over the whole network prices neighbours as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from synth.layer.axes import PerAxis
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

    grids: the family, by (grid, axis). followed: what follows a layer of the class, on average. times: of all
    placed grids known so far: those of the family, and what strategies without such a grid use. least: of the
    grids of the family, each in its best order.
    """

    def __init__(
        self,
        layer_class: LayerClass,
        request: NetworkRequest,
        grids: Array,
        followed: Between,
    ) -> None:
        self.layer_class, self.request, self.followed = layer_class, request, followed
        self._index: dict[PlacedGrid, int] = {}
        self._alone: list[float] = []
        self.times = LayerTimes(*(np.zeros(0) for _ in LayerTimes._fields))
        orders = [self.orders(PerAxis(*row)) for row in grids.tolist()]
        self.add([placed for each in orders for placed in each])
        first = np.cumsum([0, *map(len, orders)])[:-1]
        self.least: Seconds = np.minimum.reduceat(self._alone, first) if len(first) else np.zeros(0)

    def orders(self, grid: PerAxis) -> list[PlacedGrid]:
        """A grid in all rank orders that differ."""
        return [PlacedGrid(grid, order) for order in distinct_orders(grid, self.request.orders)]

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
        """The times of some placed grids."""
        self.add(some)
        return self.times.at([self._index[placed] for placed in some])

    @property
    def placed(self) -> list[PlacedGrid]:
        """All placed grids known so far, in the order of `times`."""
        return list(self._index)
