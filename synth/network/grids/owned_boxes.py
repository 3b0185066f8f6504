"""Owned boxes of many grids at once, as arrays: words of a layer, and the boxes of a redistribution.

`Ownership` counts the words of a layer. Boxes are rows of a `RowBank`, so that the planner can price
thousands of pairs of grids. `redistribution` intersects them.

Dimensions of a box: b, channel (all groups, flat), d, h, w, in the user's coordinates.
`slice_words` counts weights of which a rank holds all that its grid reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from synth.layer.axes import AXES, ROW_MAJOR, Axis, Order, PerAxis, Tensor, strides
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, gathers
from synth.network.grids.box_rows import BoxRows, distinct
from synth.network.grids.row_bank import Cut, RowBank
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.ownership import Array, Ownership

MAX_EXACT_RANKS = 1 << 15  # up to this many, maxima are taken over all ranks; above, over a fixed sample
SAMPLE = 8190
KER: frozenset[Tensor] = frozenset({"Ker"})


@cache
def sampled_ranks(procs: int) -> Array:
    """The ranks over which maxima are taken: all of them, or the same random sample every time."""
    if procs <= MAX_EXACT_RANKS:
        return np.arange(procs, dtype=np.int32)
    drawn = np.random.default_rng(procs).integers(0, procs, SAMPLE)
    return distinct(np.concatenate([[0, procs - 1], drawn])).astype(np.int32)


@dataclass(frozen=True)
class PlacedGrid:
    """A process grid, the order in which its axes run over the ranks, and the turned axes of the nest.

    Turned axes, along which blocks are cut by input rows, change the words of the layer only: owned boxes,
    and so redistributions, are the same.
    """

    grid: PerAxis
    order: Order = ROW_MAJOR
    turned: tuple[Axis, ...] = ()


class GridDistributions(dict[PerAxis, Distribution]):
    """The distributions of the grids of one nest, each made when it is first asked for."""

    def __init__(self, nest: Nest, resident: frozenset[Tensor] = frozenset()) -> None:
        self.nest, self.resident = nest, resident
        self._plain: GridDistributions | None = None

    def turned(self, axes: tuple[Axis, ...]) -> GridDistributions:
        """Those of the nest with other loops along some axes. Their shards are the same."""
        made = GridDistributions(self.nest.turn(axes), self.resident)
        made._plain = self
        return made

    def __missing__(self, grid: PerAxis) -> Distribution:
        if self._plain is None:
            made = Distribution(self.nest, grid, resident=self.resident)
        else:
            made = self._plain[grid].on(self.nest)
        self[grid] = made
        return made


class OwnedBoxes:
    """Boxes of several placed grids of one nest over `procs` ranks. All arrays are (grid, rank).

    resident: tensors of which every rank owns its whole slice; see `Distribution`.
    distributions: those of the grids, if they are known; then `resident` has no effect.
    ranks: per grid, the ranks to look at; None for `sampled_ranks`.
    """

    def __init__(
        self,
        nest: Nest,
        placed: Sequence[PlacedGrid],
        procs: int,
        resident: frozenset[Tensor] = frozenset(),
        distributions: Sequence[Distribution] | None = None,
        ranks: Array | None = None,
    ) -> None:
        self.nest, self.placed, self.procs = nest, list(placed), procs
        self.distributions = list(
            distributions or (Distribution(nest, each.grid, resident=resident) for each in placed)
        )
        self._rows: dict[Tensor, BoxRows] = {}
        grids = np.array([each.grid for each in placed], np.int32)
        orders = [each.order for each in placed]
        ranks = sampled_ranks(procs)[None, :] if ranks is None else ranks
        self.ownership = Ownership.of_grids(self.distributions, grids, orders, ranks)
        self.idle: Array = ranks >= grids.prod(axis=1, dtype=np.int64)[:, None]  # whether beyond the grid

    def words(
        self, passes: Passes, weighted: bool, saves: frozenset[Tensor] = frozenset({"Out"})
    ) -> tuple[Array, dict[str, Array]]:
        """(received words of the most-receiving rank, the same per tensor), one number per grid.

        The passes save what they gather of the tensors in `saves`, as `passes.gathers` says. A layer
        without weights (pooling) neither gathers a kernel nor reduces its gradient.
        """
        moved = {}
        for tensor, times in gathers(passes, saves).items():
            words: Any = np.zeros((1, 1), np.int64)
            if weighted or tensor != "Ker":
                sums = sum(WRITES[pass_] == tensor for pass_ in passes)
                words = words + times * self.ownership.gathered(tensor) if times else words
                words = words + sums * self.ownership.summed(tensor) if sums else words
            moved[tensor.lower()] = np.where(self.idle, 0, words)
        total = moved["in"] + moved["ker"] + moved["out"]
        return total.max(axis=1), {name: words.max(axis=1) for name, words in moved.items()}

    # -- boxes in the user's coordinates ---------------------------------------------------------------

    def flat(self, tensor: Tensor) -> tuple[Array, Array, Array]:
        """(lows, highs) as (dimension of `FLAT`, grid, rank), and per grid whether these boxes are exact.

        The channels of a grouped tensor are one interval only if a rank owns whole groups, or a part of one.
        """
        inner: Axis = "c" if tensor == "In" else "k"
        groups, channels = (self.ownership.length(tensor, "shard", dim) for dim in ("g", inner))
        exact = (channels == getattr(self.nest.extents, inner)) | (groups <= 1)
        low, high = self.rows(tensor).spans
        return low, high, np.asarray(np.broadcast_to(exact, low.shape[1:]).all(axis=1))

    def rows(self, tensor: Tensor) -> BoxRows:
        """The boxes of `flat`, in rows that grids share."""
        if tensor not in self._rows:
            bank = RowBank(sampled_ranks(self.procs))
            numbers = row_numbers(bank, self.nest, tensor, self.placed, self.distributions)
            self._rows[tensor] = bank.boxes(numbers)
        return self._rows[tensor]


def row_numbers(
    bank: RowBank,
    nest: Nest,
    tensor: Tensor,
    placed: Sequence[PlacedGrid],
    distributions: Sequence[Distribution] | None = None,
) -> Array:
    """The numbers of the rows that placed grids own of a tensor, by (grid, dimension of `FLAT`)."""
    owners = distributions or [Distribution(nest, each.grid) for each in placed]
    some = []
    for each, owner in zip(placed, owners, strict=True):
        steps = strides(each.grid, each.order)
        parts_of = zip(AXES, each.grid, strict=True)
        cuts: dict[Axis, Cut] = {axis: (parts, steps[axis]) for axis, parts in parts_of if parts > 1}
        some.append((cuts, each.grid.size, owner.shard_cuts[tensor]))
    return bank.numbers(nest, tensor, some)


def slice_words(nest: Nest, grid: PerAxis) -> int:
    """Words of the largest slice of Ker."""
    return Footprints(Distribution(nest, grid, resident=KER)).shards["Ker"]
