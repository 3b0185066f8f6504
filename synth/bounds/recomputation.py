"""Words that processes receive at least between layers, where any of them may compute a word again.

docs/bounds.md ("Networks with recomputation") has the argument. A layer whose process computes x positions
reads at least `least_inputs` of them, and receives what it has not computed. With a price for each word that
all processes must compute, the cheapest process is found on a tree of tensors. Floating point chooses the
prices; what they prove is computed in fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.bounds.least_inputs import Reading, Windows, least_inputs
from synth.bounds.piecewise import Curve, Number, composed, extended, floats, least_after, least_before, total

ROUNDS = 200  # of the search for prices; each of them gives a bound
NEAR = 2e-3  # of the best bound, where the search ends
TALLEST = 100  # tensors on a path of a tree, beyond which it is cut
UNIT = 1 << 20  # prices are whole multiples of one part of a word in so many


@dataclass(frozen=True)
class Tensor:
    """A tensor between layers: its words per position, and its positions.

    most: positions that a process completes at most, as a share of all channels. reads: how it reads the
    words of each source. split: whether a process may receive parts of its sums. given: the network's input,
    whose words have one owner.
    """

    name: str
    channels: int
    positions: int
    most: Fraction
    reads: Mapping[str, Reading] = field(default_factory=dict)
    split: bool = False
    given: bool = False


Sources = Mapping[str, tuple[str, ...]]  # tensor -> the sources that it reads in a tree


class Proof(NamedTuple):
    """A tree and a price per position of each tensor, which prove that a process receives so many words.

    On average over the processes; at least 0.
    """

    sources: Sources
    prices: Mapping[str, Fraction]
    words: Fraction


def best_proof(tensors: Sequence[Tensor], procs: int) -> Proof:
    """The best proof that is found. tensors: sources first."""
    trees = [_trees(tensors, halos) for halos in (False, True)]
    trees = trees[: 1 + (trees[0] != trees[1])]
    return max((_searched(tensors, each, procs) for each in trees), key=lambda proof: proof.words)


def proved_words(
    tensors: Sequence[Tensor], procs: int, sources: Sources, prices: Mapping[str, Fraction]
) -> Fraction:
    """The words that a tree and prices prove, in fractions.

    All processes together compute every position, and no word of the input has two owners.
    """
    walk = _Walk(tensors, sources, Fraction, lambda curve: curve)
    given = sum(_sign(each) * prices[each.name] * each.positions for each in tensors)
    words: Fraction = max(Fraction(0), walk.least(prices) + Fraction(given) / procs)
    return words


def _sign(tensor: Tensor) -> int:
    return -1 if tensor.given else 1


def _trees(tensors: Sequence[Tensor], halos: bool) -> Sources:
    """Each tensor with one of its readers: the last one with windows, or else the first one."""
    readers: dict[str, Tensor] = {}
    for tensor in tensors:
        for name, reading in tensor.reads.items():
            if name not in readers or (halos and isinstance(reading, Windows)):
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
    return found


class _Walk:
    """The cheapest process along trees: by the positions that it computes of a tensor, the least cost.

    The cost is that of this tensor and of all below it in its tree: words received, less the prices of what
    is computed.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        sources: Sources,
        number: Callable[[Fraction], Number],
        curve: Callable[[Curve], Curve],
    ) -> None:
        self.tensors, self.sources, self.number = tensors, sources, number
        self.named = {each.name: each for each in tensors}
        self.most = {each.name: number(each.most) for each in tensors}
        self.reads = {
            (each.name, name): curve(least_inputs(each.reads[name]))
            for each in tensors
            for name in sources[each.name]
        }
        self.cost: dict[str, Curve] = {}
        self.below: dict[tuple[str, str], Curve] = {}

    def least(self, prices: Mapping[str, Number]) -> Number:
        """The least cost of a process."""
        roots = set(self.named)
        for each in self.tensors:
            slope, most = -_sign(each) * prices[each.name], self.most[each.name]
            parts = [Curve([0 * most, most], [0 * most, slope * most])]
            parts += [self._below(each, self.named[name]) for name in self.sources[each.name]]
            self.cost[each.name] = total(parts)
            roots.difference_update(self.sources[each.name])
        return sum(min(self.cost[name].ys) for name in roots)

    def _below(self, tensor: Tensor, source: Tensor) -> Curve:
        """The cost of a source and of all below it, by the positions of the tensor that reads it.

        A process that needs z positions of the source receives those that it has not computed. Where sums are
        split, it may receive a part of the sum for each word instead.
        """
        channels = source.channels
        reading, most = self.reads[tensor.name, source.name], self.most[tensor.name]
        needed = least_before(least_after(self.cost[source.name]), channels)
        needed = extended(needed, reading(most), channels)
        found = self.below[tensor.name, source.name] = composed(needed, reading, most)
        return least_before(found, tensor.channels) if tensor.split else found

    def cheapest(self) -> tuple[dict[str, Number], Number]:
        """What a cheapest process computes of every tensor, and the words that it receives."""
        picked, words = dict[str, Number](), 0
        for each in reversed(self.tensors):
            if each.name not in picked:
                costs = self.cost[each.name]
                picked[each.name] = min(zip(costs.ys, costs.xs, strict=True))[1]
            for name in self.sources[each.name]:
                whole = x = picked[each.name]
                if each.split:
                    whole = self._whole(each, name, x)
                    words += each.channels * (x - whole)
                picked[name], more = self._of_source(name, self.reads[each.name, name](whole))
                words += more
        return picked, words

    def _whole(self, tensor: Tensor, name: str, x: Number) -> Number:
        """Of x positions, those that a cheapest process completes without parts of sums from others."""
        curve = self.below[tensor.name, name]
        return min(
            [*curve.xs, x], key=lambda at: curve(at) + tensor.channels * (x - at) if at <= x else np.inf
        )

    def _of_source(self, name: str, needed: Number) -> tuple[Number, Number]:
        """What is computed of a source of which some positions are needed, and the words received."""
        curve, channels = self.cost[name], self.named[name].channels
        some = [*curve.xs, min(needed, curve.xs[-1])]
        best = min(some, key=lambda y: curve(y) + channels * max(0, needed - y))
        return best, channels * max(0, needed - best)


def _searched(tensors: Sequence[Tensor], sources: Sources, procs: int) -> Proof:
    """The best prices for a tree, by cutting planes: a linear program of the processes that were cheapest."""
    from scipy.optimize import linprog  # slow to import

    walk = _Walk(tensors, sources, float, floats)
    size, signs = len(tensors), np.array([float(_sign(each)) for each in tensors])
    fair = np.array([each.positions / procs for each in tensors])
    unit = max((float(each.channels) * at for each, at in zip(tensors, fair, strict=True)), default=1.0)
    best, center, prices = 0.0, np.zeros(size), np.zeros(size)
    rows, costs, limits = list[NDArray[Any]](), list[float](), [(0.0, float(size))] * size + [(None, None)]
    for _ in range(ROUNDS):
        value = walk.least(dict(zip(walk.named, (prices / fair).tolist(), strict=True)))
        computed, words = walk.cheapest()
        if value + float(signs @ prices) > best:
            best, center = value + float(signs @ prices), prices
        shares = np.array([computed[each.name] for each in tensors]) / fair
        rows.append(np.append(signs * shares, 1.0))
        costs.append(words / unit)
        target = -np.append(signs, 1.0)
        found: Any = linprog(target, np.array(rows), np.array(costs), bounds=limits, method="highs")
        if found.status != 0 or -found.fun * unit <= best * (1 + NEAR):
            break
        prices = (unit * found.x[:-1] + center) / 2
    exact = {
        name: Fraction(math.floor(price * UNIT), UNIT)
        for name, price in zip(walk.named, (center / fair).tolist(), strict=True)
    }
    return Proof(sources, exact, proved_words(tensors, procs, sources, exact))
