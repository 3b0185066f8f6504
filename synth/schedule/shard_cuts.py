"""How a slice that a group shares is cut into shards, so that every word has one owner.

Processes that differ only along a tensor's lacking index need the same slice of it (SPAA'21, "Initial Data
Distribution"). Each of them owns a shard. The paper cuts In and Ker along c. The best grids often have fewer
channels than processes in the group, so shards may be cut along any dimensions: only the balance matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from synth.base.arithmetic import divisors
from synth.layer.axes import Tensor

ShardCut = tuple[tuple[str, int], ...]  # (dimension, parts), the first varies slowest over the group
Extents = tuple[tuple[str, int, int], ...]  # (dimension, its extent in the largest and the smallest slice)

# tensor -> the dimensions along which its shards are cut, in order of preference
WANTED: dict[Tensor, tuple[str, ...]] = {
    "In": ("c", "g", "b", "h", "w", "d"),
    "Ker": ("c", "k", "g", "r", "s", "t"),
    "Out": ("k", "g", "b", "h", "w", "d"),
}


@lru_cache(maxsize=65536)
def shard_cut(members: int, extents: Extents) -> ShardCut:
    """The cut of a tensor's slices among `members` whose members lack the fewest words, over all slices.

    They lack most of the largest slice. Among cuts alike in that, the largest shard is smallest: a member
    receives that many words from every other one, if the tensor is written.

    extents: the dimensions in order of preference, with their extents in the largest and in the smallest
    slice. One dimension is cut if it divides all slices evenly; otherwise up to three dimensions are cut, as
    few as possible.
    """
    if members == 1:
        return ()
    for dim, largest, smallest in extents:
        if largest % members == 0 == smallest % members:
            return ((dim, members),)
    # dimensions of extent 1 are interchangeable: keep the preferred one
    flat = [dim for dim, largest, _ in extents if largest == 1][1:]
    extents = tuple(each for each in extents if each[0] not in flat)
    best: ShardCut = ()
    fewest: tuple[int, ...] = ()
    even = _even_shares(members, extents)
    for count in (1, 2, 3):
        for candidate in _candidates(members, extents, count):
            shares = _shares(dict(candidate), extents)
            if not fewest or shares < fewest:
                best, fewest = candidate, shares
            if shares == even:
                return best
        if count == 2 and fewest[2] < 0:
            break
    return best


def _shares(parts: dict[str, int], extents: Extents) -> tuple[int, int, int]:
    """-words of the smallest shard of the largest slice, words of its largest one, -words of the smallest."""
    least = most = smaller = 1
    for dim, largest, smallest in extents:
        count = parts.get(dim, 1)
        least *= largest // count
        most *= -(-largest // count)
        smaller *= smallest // count
    return -least, most, -smaller


def _even_shares(members: int, extents: Extents) -> tuple[float, float, float]:
    """What `_shares` is for shards that are all equal, over every slice; no cut has less."""
    most = math.prod(largest for _, largest, _ in extents) / members
    least = math.prod(smallest for _, _, smallest in extents) / members
    return -most, most, -least


def _candidates(members: int, extents: Extents, count: int) -> Iterator[ShardCut]:
    """Ways to cut among `members` along exactly `count` of the dimensions."""
    for dims in combinations([dim for dim, _, _ in extents], min(count, len(extents))):
        for parts in _products(members, len(dims)):
            yield tuple(zip(dims, parts, strict=True))


def _products(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorizations of `number` into `count` factors, each at least 2 when there are several."""
    if count == 1:
        yield (number,)
        return
    for factor in divisors(number)[1:-1]:
        for rest in _products(number // factor, count - 1):
            yield (factor, *rest)


def member_parts(cut: ShardCut, index: int) -> dict[str, tuple[int, int]]:
    """Group member `index` -> {dimension: (parts, its part)}."""
    result: dict[str, tuple[int, int]] = {}
    for dim, parts in reversed(cut):
        index, part = index // parts, index % parts  # numpy has no divmod for arrays of Python integers
        result[dim] = (parts, part)
    return result
