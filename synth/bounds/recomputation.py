"""Words that processes receive at least between layers, where any of them may compute a word again.

docs/bounds.md ("Networks with recomputation") has the argument. A layer whose process computes x positions
reads at least `Reading` of them, and receives what it has not computed. With a price for each word that all
processes must compute, the cheapest process is found on a tree of tensors. The best prices give the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
POINTS = 14  # of a concave function
MANY = 8  # independent parts of a result, beyond which only whole ones count
ROUNDS = 200  # of the search for prices; each of them gives a bound
NEAR = 2e-3  # of the best bound, where the search ends
TALLEST = 100  # tensors on a path of a tree, beyond which it is cut


class Axis(NamedTuple):
    """A window of stride and dilation 1. before, after: the zeros on both sides."""

    outputs: int
    taps: int
    before: int
    after: int

    @property
    def more(self) -> int:
        """Inputs beyond the outputs."""
        return self.taps - 1 - self.before - self.after

    @property
    def side(self) -> int:
        """Inputs beyond `more` that a line of outputs reads at least, unless it is almost complete."""
        return min(self.before, self.after)

    @property
    def least(self) -> float:
        """Inputs beyond the outputs of a line that is not almost complete, at least."""
        return float(self.more + self.side)


class Reading(NamedTuple):
    """Input positions that any set of x output positions reads at least; linear between the points."""

    xs: Array
    ys: Array

    def __call__(self, x: Array) -> Array:
        """At some numbers of outputs."""
        return np.interp(x, self.xs, self.ys)

    def outputs(self, y: Array) -> Array:
        """The most outputs that y inputs may be enough for."""
        return np.interp(y, self.ys, self.xs)


def in_proportion(outputs: float, ratio: float) -> Reading:
    """Where every output has `ratio` inputs of its own, or 1/ratio outputs share one."""
    return Reading(np.array([0.0, outputs]), np.array([0.0, ratio * outputs]))


def in_windows(axes: Sequence[Axis], images: int = 1, groups: int = 1) -> Reading:
    """Where outputs read windows along axes, in images that share no word.

    Positions count as a share of all channels, so every group has its part of the positions of an image.
    """
    whole = math.prod(axis.outputs for axis in axes)
    xs = np.geomspace(min(1.0, whole / 2), whole, POINTS)
    ys = _any_share(axes, xs)
    half = xs <= whole / 2
    ys[half] = np.maximum(ys[half], xs[half] + border(axes, xs[half]))
    ys = np.minimum.accumulate(ys[::-1])[::-1]  # more outputs never read less
    xs, ys = (np.append(0.0, each) / groups for each in (xs, ys))
    parts = images * groups
    if parts > MANY:
        return Reading(xs[[0, -1]] * parts, ys[[0, -1]] * parts)
    xs, ys = (np.concatenate([[0.0], *(each[1:] + i * each[-1] for i in range(parts))]) for each in (xs, ys))
    return Reading(xs, ys)


def _any_share(axes: Sequence[Axis], xs: Array) -> Array:
    """Inputs that x outputs read at least, axis by axis: a line of outputs may be complete."""
    kept, more = 1.0, list[float]()
    for axis in axes:
        here = 1 - axis.side / axis.outputs
        more = [here * each for each in more] + [axis.least]
        kept *= here
    found: Array = kept * xs + len(axes) * (math.prod(more) * xs ** (len(axes) - 1)) ** (1 / len(axes))
    return found


def border(axes: Sequence[Axis], xs: Array) -> Array:
    """Inputs beyond x that x outputs read at least, for x up to half of all outputs."""
    more = [axis.least for axis in axes]
    if len(axes) == 1:
        return np.full_like(xs, more[0])
    plane, rest = _plane(axes), axes[2:]
    found: Array = plane(xs)
    if not rest:
        return found
    last, least = rest[0], more[2]
    area = float(axes[0].outputs * axes[1].outputs)
    top = float(plane(np.array([area / 2]))[0])
    nearly = min(top, area / 2 / ((axes[0].side + axes[1].side + 1) / 2) ** 2)
    slope = 2 * nearly / area  # of a plane that is more than half full
    thick = np.clip(np.sqrt(least * area / np.maximum(slope * xs, 1e-300)), 1, 2)
    short = max(0.0, least - slope * (last.outputs / 2 - last.side))
    found = np.minimum.reduce(
        [
            3 * (math.prod(more) * xs**2) ** (1 / 3),  # a corner
            2 * np.sqrt(top * least * xs),  # an edge
            (thick - 1) * slope * xs + least * area / thick,  # planes that are nearly full
            least * area - short * xs / last.outputs,  # full planes
            (last.outputs - last.side) * plane(xs / last.outputs),  # all planes alike
        ]
    )
    return np.asarray(found)


def _plane(axes: Sequence[Axis]) -> Callable[[Array], Array]:
    """`border` along the first two axes: of a corner, a strip, or all but a corner."""
    one, two = axes[:2]
    more = one.least, two.least
    strips = [
        more[1] * (one.outputs - max(0, one.side - 1)) if one.side else math.inf,
        more[0] * (two.outputs - max(0, two.side - 1)) if two.side else math.inf,
        2 * math.sqrt(one.outputs * two.outputs / 2) - one.side - two.side
        if one.side and two.side
        else math.inf,
    ]
    most = max(0.0, min(strips))
    return lambda xs: np.minimum(2 * np.sqrt(more[0] * more[1] * xs), most)


@dataclass(frozen=True)
class Tensor:
    """A tensor between layers: its words per position, and its positions.

    most: positions that a process completes at most, as a share of all channels. reads: the tensors whose
    words this one reads, of every one `Reading`. split: whether a process may receive parts of its sums.
    given: the network's input, whose words have one owner.
    """

    name: str
    channels: int
    positions: float
    most: float
    reads: Mapping[str, Reading] = field(default_factory=dict)
    split: bool = False
    given: bool = False

    def received(self, x: Array, source: Tensor, y: Array) -> Array:
        """Words that a process receives which has x positions of this tensor and y of a source, by both.

        Where sums are split, it may have the words that are read for some positions, and a part of the sum
        from others for each word of the rest.
        """
        reading = self.reads[source.name]
        words: Array = source.channels * np.maximum(0.0, reading(x)[:, None] - y)
        if not self.split:
            return words
        words = np.minimum(words, self.channels * np.maximum(0.0, x[:, None] - reading.outputs(y)))
        for outputs, read in zip(*reading, strict=True):  # positions without parts of sums from others
            parts = np.where(x >= outputs, self.channels * (x - outputs), np.inf)
            words = np.minimum(words, parts[:, None] + source.channels * np.maximum(0.0, read - y))
        return words


@dataclass(frozen=True)
class Trees:
    """Tensors of which every one is read by at most one other: sources first.

    sources: the tensors that each reads in the tree.
    """

    tensors: tuple[Tensor, ...]
    sources: Mapping[str, tuple[str, ...]]


def received_words(tensors: Sequence[Tensor], procs: int) -> int:
    """Words that a process receives at least, on average over `procs`. tensors: sources first."""
    first, last = (_trees(tensors, halos) for halos in (False, True))
    trees = [first] if first.sources == last.sources else [first, last]
    return max(0, *(math.floor(_Process(each, procs).bound()) - 1 for each in trees))


def _trees(tensors: Sequence[Tensor], halos: bool) -> Trees:
    """Each tensor with one of its readers: the last one with windows, or else the first one."""
    readers: dict[str, Tensor] = {}
    for tensor in tensors:
        for name, reading in tensor.reads.items():
            if name not in readers or (halos and len(reading.xs) > 2):
                readers[name] = tensor
    found, height = dict[str, tuple[str, ...]](), dict[str, int]()
    channels = {each.name: each.channels for each in tensors}
    for tensor in tensors:
        mine = tuple(name for name in tensor.reads if readers[name] is tensor)
        if tensor.split and mine:  # a part of a sum may stand for words of several sources
            mine = (max(mine, key=channels.__getitem__),)
        height[tensor.name] = 1 + max((height[name] for name in mine), default=0)
        if height[tensor.name] > TALLEST:
            mine, height[tensor.name] = (), 1
        found[tensor.name] = mine
    return Trees(tuple(tensors), found)


class _Process:
    """What a process computes of every tensor, at prices for positions that it computes.

    All costs are linear between some numbers of positions, or where a process computes what it needs, so that
    one of these numbers is the best for every tensor.
    """

    def __init__(self, trees: Trees, procs: int) -> None:
        self.tensors, self.sources = trees.tensors, trees.sources
        self.named = {each.name: each for each in self.tensors}
        self.counts = self._counts(procs)
        self.fair = np.array([each.positions / procs for each in self.tensors])
        self.signs = np.array([-1.0 if each.given else 1.0 for each in self.tensors])
        self.words = {  # (reader, source) -> words received, by the positions of both
            (tensor.name, name): tensor.received(
                self.counts[tensor.name], self.named[name], self.counts[name]
            )
            for tensor in self.tensors
            for name in self.sources[tensor.name]
        }

    def _counts(self, procs: int) -> dict[str, Array]:
        counts = {}
        for each in self.tensors:
            points = [reading.xs for reading in each.reads.values()]
            ends = [0.0, each.most, min(each.most, each.positions / procs)]
            counts[each.name] = _within(np.concatenate([ends, *points]), each)
        for each in reversed(self.tensors):
            for name in self.sources[each.name]:
                needed = each.reads[name](counts[each.name])
                counts[name] = _within(np.concatenate([counts[name], needed]), self.named[name])
        for each in self.tensors:
            for name in self.sources[each.name]:
                enough = each.reads[name].outputs(counts[name])
                counts[each.name] = _within(np.concatenate([counts[each.name], enough]), each)
        return counts

    def cheapest(self, prices: Array) -> tuple[float, float, Array]:
        """The least words less prices of what is computed; the words; positions over the fair share.

        prices: per fair share of each tensor.
        """
        least, chosen = dict[str, Array](), dict[tuple[str, str], NDArray[np.intp]]()
        for at, each in enumerate(self.tensors):
            total = -self.signs[at] * prices[at] / self.fair[at] * self.counts[each.name]
            for name in self.sources[each.name]:
                both = self.words[each.name, name] + least[name]
                chosen[each.name, name] = both.argmin(axis=1)
                total = total + both.min(axis=1)
            least[each.name] = total
        picked, value, words = dict[str, int](), 0.0, 0.0
        for each in reversed(self.tensors):
            if each.name not in picked:  # nothing reads it
                picked[each.name] = int(least[each.name].argmin())
                value += float(least[each.name].min())
            for name in self.sources[each.name]:
                picked[name] = int(chosen[each.name, name][picked[each.name]])
                words += float(self.words[each.name, name][picked[each.name], picked[name]])
        shares = np.array([self.counts[each.name][picked[each.name]] for each in self.tensors]) / self.fair
        return value, words, shares

    def bound(self) -> float:
        """The most that some prices prove: all processes together complete every position."""
        from scipy.optimize import linprog  # slow to import

        size, unit = len(self.tensors), max((float(each.max()) for each in self.words.values()), default=0.0)
        if not unit:
            return 0.0
        best, center, prices = 0.0, np.zeros(size), np.zeros(size)
        rows, costs, limits = list[Array](), list[float](), [(0.0, float(size))] * size + [(None, None)]
        target = -np.append(self.signs, 1.0)
        for _ in range(ROUNDS):
            value, words, shares = self.cheapest(prices)
            if value + float(self.signs @ prices) > best:
                best, center = value + float(self.signs @ prices), prices
            rows.append(np.append(self.signs * shares, 1.0))
            costs.append(words / unit)
            found: Any = linprog(target, np.array(rows), np.array(costs), bounds=limits, method="highs")
            if found.status != 0 or -found.fun * unit <= best * (1 + NEAR):
                break
            prices = (unit * found.x[:-1] + center) / 2
        return best


def _within(counts: Array, tensor: Tensor) -> Array:
    """Different numbers of positions that a process may compute."""
    some = np.unique(counts[(counts >= 0) & (counts <= tensor.most)])
    found: Array = some[np.append(True, np.diff(some) > 1e-9 * tensor.positions)]
    return found
