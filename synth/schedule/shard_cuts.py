"""How a slice that a group shares is cut into shards, so that every word has one owner.

Processes that differ only along a tensor's lacking index need the same slice of it (SPAA'21, "Initial Data
Distribution"). Each of them owns a shard. The paper cuts In and Ker along c. The best grids often have fewer
channels than processes in the group, so shards may be cut along any dimensions: only the balance matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from synth.base.arithmetic import divisors
from synth.layer.axes import Tensor

MANY = 24  # factorizations from which arrays are faster
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
    fewest: tuple[int, int, int] | None = None
    even = _even_shares(members, extents)
    for count in (1, 2, 3):
        for dims in combinations(extents, min(count, len(extents))):
            others = [each for each in extents if each not in dims]
            rest = math.prod(largest for _, largest, _ in others)
            smaller = math.prod(smallest for _, _, smallest in others)
            for parts in _candidates(members, dims, rest, smaller):
                shares = _shares(dims, parts, rest, smaller, -fewest[0] if fewest else 0)
                if shares is not None and (fewest is None or shares < fewest):
                    best, fewest = tuple(zip([dim for dim, _, _ in dims], parts, strict=True)), shares
                    if shares == even:
                        return best
        if count == 2 and fewest is not None and fewest[2] < 0:
            break
    return best


def _candidates(members: int, dims: Extents, rest: int, smaller_rest: int) -> Sequence[tuple[int, ...]]:
    """The parts among which the best ones are: of many that fit in a word, the first best one, by arrays."""
    every = _products(members, len(dims))
    if len(every) < MANY or math.prod([rest, *(largest for _, largest, _ in dims)]) * members >= 2**62:
        return every
    parts = _product_array(members, len(dims))
    largest, smallest = (np.array([each[place] for each in dims])[:, None] for place in (1, 2))
    least = (largest // parts).prod(0) * rest
    most = (-(-largest // parts)).prod(0) * rest
    smaller = (smallest // parts).prod(0) * smaller_rest
    first = np.lexsort((-smaller, most, -least))[0]
    return [every[first]]


def _shares(
    dims: Extents, parts: tuple[int, ...], rest: int, smaller_rest: int, known: int
) -> tuple[int, int, int] | None:
    """-words of the smallest shard of the largest slice, words of its largest one, -words of the smallest.

    rest: positions of a slice along all other dimensions. None if the smallest shard of the largest slice has
    fewer words than `known`.
    """
    least = most = rest
    for (_, largest, _), count in zip(dims, parts, strict=True):
        least *= largest // count
    if least < known:
        return None
    smaller = smaller_rest
    for (_, largest, smallest), count in zip(dims, parts, strict=True):
        most *= -(-largest // count)
        smaller *= smallest // count
    return -least, most, -smaller


def _even_shares(members: int, extents: Extents) -> tuple[float, float, float]:
    """What `_shares` is for shards that are all equal, over every slice; no cut has less."""
    most = math.prod(largest for _, largest, _ in extents) / members
    least = math.prod(smallest for _, _, smallest in extents) / members
    return -most, most, -least


@lru_cache(maxsize=4096)
def _products(number: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Ordered factorizations of `number` into `count` factors, each at least 2 when there are several."""
    if count == 1:
        return ((number,),)
    return tuple(
        (factor, *rest)
        for factor in divisors(number)[1:-1]
        for rest in _products(number // factor, count - 1)
    )


@lru_cache(maxsize=1 << 14)
def radix(cut: ShardCut) -> dict[str, tuple[int, int]]:
    """Dimension -> (parts of a slice, members between two parts): a cut is a number of mixed radix."""
    step, result = 1, dict[str, tuple[int, int]]()
    for dim, parts in reversed(cut):
        result[dim] = parts, step
        step *= parts
    return result


def member_parts(cut: ShardCut, index: int) -> dict[str, tuple[int, int]]:
    """Group member `index` -> {dimension: (parts, its part)}."""
    return {dim: (parts, index // step % parts) for dim, (parts, step) in radix(cut).items()}


@lru_cache(maxsize=4096)
def _product_array(number: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The same, by (factor, factorization)."""
    return np.array(_products(number, count), np.int64).T
