"""Owned boxes of many grids at once: words of each layer, and words that move between two layers.

`distribution.Distribution` says which box of a tensor a rank owns, one rank and one grid at a time. Here the
same cuts are taken as arrays over (grid, rank), so that a planner can price thousands of pairs of grids. A
redistribution is priced by intersecting boxes alone, see `moves`.

Dimensions of a box here: b, channels (all groups, flat), d, h, w, in the user's coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, DIMS, LACKS, ROW_MAJOR, SPATIAL, Order, PerAxis, Tensor, strides
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, gathers
from synth.schedule.distribution import Distribution

Array = NDArray[Any]
Span = tuple[Array, Array]
FLAT = ("b", "channel", "d", "h", "w")
CHUNK = 1 << 18  # elements of one intersection


EVERY = 1 << 15  # ranks up to which every rank is looked at; of more, a fixed sample


@cache
def looked_at(procs: int) -> Array:
    """The ranks over which maxima are taken: all of them, or a sample that is the same every time."""
    if procs <= EVERY:
        return np.arange(procs, dtype=np.int32)
    drawn = np.random.default_rng(procs).integers(0, procs, 8190)
    return np.unique(np.concatenate([[0, procs - 1], drawn])).astype(np.int32)


@dataclass(frozen=True)
class Placed:
    """A grid with the order in which its axes run over the ranks."""

    grid: PerAxis
    order: Order = ROW_MAJOR


class Boxes:
    """Boxes of some placed grids of one nest over `procs` ranks; arrays are (grid, rank)."""

    def __init__(self, nest: Nest, placed: Sequence[Placed], procs: int) -> None:
        self.nest, self.placed, self.procs = nest, list(placed), procs
        self.distributions = [Distribution(nest, each.grid) for each in placed]
        self.integer: Any = np.int32 if max(max(nest.shapes.values())) < 2**31 else np.int64
        self.lines: dict[tuple[str, str], Span] = {}
        ranks = looked_at(procs)[None, :]
        steps = [strides(each.grid, each.order) for each in placed]
        self.parts: dict[str, Array] = {
            a: np.array([[getattr(p.grid, a)] for p in placed], np.int32) for a in AXES
        }
        self.at: dict[str, Array] = {a: self._coordinate(ranks, steps, a) for a in AXES}
        self.idle = ranks >= np.array([[each.grid.size] for each in placed])

    def _coordinate(self, ranks: Array, steps: list[dict[Any, int]], axis: str) -> Array:
        if self.parts[axis].max() == 1:
            return np.zeros((1, 1), dtype=np.int32)
        step = np.array([[s[axis]] for s in steps], np.int32)
        at: Array = ranks // step % self.parts[axis]
        return at

    def _line(self, tensor: Tensor, dim: str) -> Span:
        """What the group of each rank owns along a dimension."""
        if (tensor, dim) not in self.lines:
            size = dict(zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))[dim]
            whole = np.zeros((1, 1), dtype=self.integer), np.full((1, 1), size, dtype=self.integer)
            split = dim in AXES and self.parts[dim].max() > 1
            self.lines[tensor, dim] = _cut(whole, self.parts[dim], self.at[dim]) if split else whole
        return self.lines[tensor, dim]

    def _member(self, tensor: Tensor) -> Array:
        member = np.zeros((1, 1), dtype=np.int32)
        for axis in LACKS[tensor]:
            member = member * self.parts[axis] + self.at[axis]
        return member

    def owned(self, tensor: Tensor) -> dict[str, Span]:
        """Dimension -> the interval that each rank alone owns."""
        member, spans = self._member(tensor), {}
        for dim in DIMS[tensor]:
            line = self._line(tensor, dim)
            parts, step = self._share(tensor, dim)
            spans[dim] = line if parts.max() == 1 else _cut(line, parts, member // step % parts)
        return spans

    def _share(self, tensor: Tensor, dim: str) -> tuple[Array, Array]:
        """(parts along a dimension, members per part) of each grid's share."""
        cuts = [_radix(each.shares[tensor]).get(dim, (1, 1)) for each in self.distributions]
        return (
            np.array([[parts] for parts, _ in cuts], np.int32),
            np.array([[step] for _, step in cuts], np.int32),
        )

    # -- words of the layer --------------------------------------------------------------------------

    @cached_property
    def _inputs(self) -> tuple[Array, Array]:
        """Words of In that are needed, and words that are needed and owned."""
        needed = kept = np.ones((1, 1), dtype=np.int64)
        own = self.owned("In")
        for dim in DIMS["In"]:
            if dim not in SPATIAL:
                needed, kept = needed * _len(self._line("In", dim)), kept * _len(own[dim])
                continue
            reach = self._reach(dim)
            needed, kept = needed * _len(reach), kept * _len(_meet(reach, own[dim]))
        return needed, kept

    @cached_property
    def _summed(self) -> tuple[Array, Array]:
        """Words of dIn carried for the group, and words owned, once per block that adds to them."""
        carried = wanted = np.ones((1, 1), dtype=np.int64)
        own, member = self.owned("In"), self._member("In")
        for dim in DIMS["In"]:
            if dim not in SPATIAL:
                carried, wanted = carried * _len(own[dim]), wanted * _len(own[dim])
                continue
            reach = self._reach(dim)
            parts, step = self._share("In", dim)
            part = member // step % parts
            low = np.where(part == 0, reach[0], own[dim][0])
            high = np.where(part == parts - 1, reach[1], own[dim][1])
            carried = carried * _len(_meet((low, np.maximum(low, high)), reach))
            wanted = wanted * self._added(dim, own[dim])
        return carried, wanted

    def _added(self, dim: Any, own: Span) -> Array:
        """Rows of an interval, each counted once for every block that reads it."""
        window, extent, parts = self.nest.windows[dim], getattr(self.nest.extents, dim), self.parts[dim]
        rows = np.zeros_like(own[0] + self.at[dim])
        for index in range(int(parts.max())):
            block = _cut((0, extent), parts, np.minimum(index, parts - 1))
            rows = rows + np.where(index < parts, _len(_meet(_reached(window, block), own)), 0)
        return rows

    def _reach(self, dim: Any) -> Span:
        extent = getattr(self.nest.extents, dim)
        return _reached(self.nest.windows[dim], _cut((0, extent), self.parts[dim], self.at[dim]))

    def words(
        self, passes: Passes, weighted: bool, kept: frozenset[Tensor] = frozenset({"Out"})
    ) -> tuple[Array, dict[str, Array]]:
        """(words that the most-receiving rank receives, words per tensor), per grid.

        Of some passes, which keep what they gather of the tensors in `kept`, as `passes.reuse_intervals`
        says. Without weights (pooling) the kernel is free and has no gradient.
        """
        group = {t: self._group(t) for t in LACKS}
        needed, within = self._inputs
        carried, wanted = self._summed if "backward-data" in passes else self._inputs
        ker, out = (_volume(self.owned(t)) for t in ("Ker", "Out"))
        gathered: dict[Tensor, Array] = {"In": needed - within, "Out": self._slice("Out") - out}
        summed: dict[Tensor, Array] = {
            "In": carried * (group["In"] - 1) + wanted - within,
            "Out": out * (group["Out"] - 1),
        }
        gathered["Ker"] = (self._slice("Ker") - ker) * weighted
        summed["Ker"] = ker * (group["Ker"] - 1) * weighted
        moved = {}
        for tensor, times in gathers(passes, kept).items():
            sums = sum(WRITES[pass_] == tensor for pass_ in passes)
            words = times * gathered[tensor] + sums * summed[tensor]
            moved[tensor.lower()] = np.where(self.idle, 0, words)
        total = moved["in"] + moved["ker"] + moved["out"]
        return total.max(axis=1), {name: words.max(axis=1) for name, words in moved.items()}

    def _slice(self, tensor: Tensor) -> Array:
        words = np.ones((1, 1), dtype=np.int64)
        for dim in DIMS[tensor]:
            words = words * _len(self._line(tensor, dim))
        return words

    def _group(self, tensor: Tensor) -> Array:
        return np.array([[each.group_size(tensor)] for each in self.distributions])

    # -- boxes in the user's coordinates ---------------------------------------------------------------

    def flat(self, tensor: Tensor) -> tuple[Array, Array, Array]:
        """(lows, highs) as (dimension of `FLAT`, grid, rank), and which grids have such boxes.

        Channels of a grouped tensor are one interval only where whole groups, or parts of one, are owned.
        """
        own = self.owned(tensor)
        inner = "c" if tensor == "In" else "k"
        width = getattr(self.nest.extents, inner)
        group, channel = own["g"], own[inner]
        whole: Array = (_len(channel) == width) | (_len(group) <= 1)
        low = group[0] * width + channel[0]
        high = np.where(_len(group) <= 1, group[0] * width + channel[1], group[1] * width)
        spans = {**own, "channel": (low, np.where(_len(group) == 0, low, high))}
        shape = (len(self.placed), self.idle.shape[1])
        lows = np.stack([np.broadcast_to(spans[d][0], shape) for d in FLAT]).astype(np.int32)
        highs = np.stack([np.broadcast_to(spans[d][1], shape) for d in FLAT]).astype(np.int32)
        highs[0][self.idle] = lows[0][self.idle]
        return lows, highs, np.asarray(np.broadcast_to(whole, shape).all(axis=1))


def _radix(share: tuple[tuple[str, int], ...]) -> dict[str, tuple[int, int]]:
    """Dimension -> (parts, members per part step) of a share."""
    step, result = 1, {}
    for dim, parts in reversed(share):
        result[dim] = parts, step
        step *= parts
    return result


def _volume(spans: dict[str, Span]) -> Array:
    volume = np.ones((1, 1), dtype=np.int64)
    for span in spans.values():
        volume = volume * _len(span)
    return volume


def _cut(whole: tuple[Any, Any], parts: Any, index: Any) -> Span:
    low, high = whole
    size, longer = (high - low) // parts, (high - low) % parts
    start = low + index * size + np.minimum(index, longer)
    return start, start + size + (index < longer)


def _reached(window: Any, block: Span) -> Span:
    low, high = block
    first = np.maximum(0, window.stride * low - window.padding)
    tail = window.dilation * (window.kernel - 1) + 1 - window.padding
    last = np.minimum(window.size, window.stride * (high - 1) + tail)
    empty = (high <= low) | (last <= first)
    return np.where(empty, 0, first), np.where(empty, 0, last)


def _meet(one: Span, other: Span) -> Span:
    low = np.maximum(one[0], other[0])
    return low, np.maximum(low, np.minimum(one[1], other[1]))


def _len(span: Span) -> Array:
    return span[1] - span[0]
