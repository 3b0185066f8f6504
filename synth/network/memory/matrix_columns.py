"""Words of the windows that oneDNN copies at once where a convolution multiplies matrices.

On one thread it seeks the block of input channels, output channels and positions of Out that it expects to
compute fastest, by the second cache and the length of a vector (oneDNN 3.12, `gemm_convolution_utils.cpp`).
Of a volume it copies all windows of one depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from synth.runtime.grid.rules.convolution_call import ConvolutionCall
from synth.runtime.grid.rules.processors import Processor

VECTOR = {"sse41": 4, "avx": 8, "avx2": 8, "avx512": 16}  # words
LEAST_FILTERS = 8  # of a block
ROW = 48  # positions that the product of matrices computes at once
FAR = 20  # a word that is not in the second cache, over one that is
STRIDED = 8  # times as long as without a stride
FEW = 0.05  # terms over filters, for which blocks are sought in any case


class Block(NamedTuple):
    """Input channels, output channels and positions of a block, and how fast it seems."""

    channels: int
    filters: int
    positions: int
    speed: float


@lru_cache(4096)
def windows_at_once(call: ConvolutionCall, processor: Processor) -> int:
    """Words of the windows that a convolution copies at once."""
    taps, vector = math.prod(call.taps), VECTOR[processor.isa]
    if call.taps == (1,) * len(call.taps) and max(call.stride) == 1 and call.rows == call.made:
        return 0
    depth, samples = math.prod(call.made[:-2]), call.samples * call.groups
    many = samples * depth * call.plane >= vector or call.plane < samples * depth
    few = call.stride[-1] == 1 and call.group_channels * taps <= FEW * call.group_filters
    if len(call.rows) == 3 or not (many or few):
        return call.windows
    search = _Search(call, processor.level2 // call.word_bytes, vector)
    best = search.best()
    return best.channels * taps * best.positions


@dataclass
class _Search:
    """The search for a block. cache: words of the second cache. vector: words."""

    call: ConvolutionCall
    cache: int
    vector: int

    def __post_init__(self) -> None:
        call = self.call
        self.channels, self.filters = call.group_channels, call.group_filters
        self.taps, self.steps = math.prod(call.taps), math.prod(call.stride)
        self.places = call.samples * call.groups * math.prod(call.made)  # of Out
        self.found = Block(self.channels, 1, 1, 0.0)

    def best(self) -> Block:
        """The fastest block of those that oneDNN looks at."""
        self._try(self.filters, self.places)
        if self.found[:3] == (self.channels, self.filters, self.places):
            return self.found
        row, ker = self.steps + self.taps, self.taps * self.filters
        all_, least = self.channels, self.vector
        room = self.cache - ker * all_
        filters = self._filters(_divided(room - row * all_ * least, least))
        self._explore(filters, self._positions(_divided(room, row * all_ + filters)))
        most = max(1, self.cache // (2 * LEAST_FILTERS * row + 2 * ker))
        if most < self.channels:
            some = self.channels // max(1, self.channels // most)
            room = self.cache - ker * some
            positions = max(1, _divided(self.cache - 2 * ker * some, 2 * some * row))
            filters = self.cache // 2 // positions
            if filters > self.filters:
                filters = self.filters
                positions = self._positions(_divided(room, row * some + filters))
            elif positions > self.places:
                positions = self.places
                filters = self._filters(_divided(room - row * some * positions, positions))
            self._explore(filters, positions)
        room = self.cache - ker * all_
        whole = _divided(room, row * all_ + self.filters)
        self._explore(self.filters, max(least, _divided(whole, least) * least))
        return self.found

    def _filters(self, filters: int) -> int:
        return max(LEAST_FILTERS, min(self.filters, filters))

    def _positions(self, positions: int) -> int:
        return max(self.vector, min(self.places, positions))

    def _explore(self, filters: int, positions: int) -> None:
        """A block, and the ones beside it that the product of matrices computes faster."""
        more, row = _up(filters, LEAST_FILTERS), positions // ROW * ROW
        self._try(filters, positions)
        self._try(filters // LEAST_FILTERS * LEAST_FILTERS, row)
        self._try(more, row)
        self._try(more, _up(positions, self.vector))
        self._try(more, _up(positions, ROW))

    def _try(self, filters: int, positions: int) -> None:
        filters = min(self.filters, self._filters(filters))
        positions = min(self.call.plane, self.places, self._positions(positions))
        most = self._most_channels(filters, positions)
        price, most = FAR if most < 1 else 1, max(1, most)
        channels = max(1, self.channels // math.ceil(self.channels / most))
        speed = self._speed(channels, filters, positions, price)
        if speed > self.found.speed:
            self.found = Block(channels, filters, positions, speed)

    def _most_channels(self, filters: int, positions: int) -> int:
        """Input channels that fit the cache."""
        read, columns, ker = self.steps * positions, self.taps * positions, self.taps * self.filters
        free = self.cache - filters * positions
        if positions >= self.places:
            most = self.cache // (read + columns)
            if filters < self.filters:
                most = min(most, _divided(free, columns + self.taps * filters))
            if most >= self.channels:
                return most
        return _divided(free, read + columns + ker)

    def _speed(self, channels: int, filters: int, positions: int, price: int) -> float:
        """How fast a block seems."""
        vector, terms, part = self.vector, self.channels * self.taps, channels * self.taps
        times = 1 if channels == self.channels else 2 * math.ceil(self.channels / channels) - 1
        out = price * self.filters * _up(self.places, vector) * times
        read = price * self.taps * self.channels * _up(self.places * self.steps, vector)
        wide = _up(positions, vector)
        columns = 2 * read * wide / positions * (STRIDED if self.call.stride[-1] > 1 else 1)
        ker = price * self.filters * _up(terms, vector)
        memory = self.places / vector * self.filters * terms / (read + columns + ker + out)
        share = positions * filters * part / (self.filters * self.places * terms)
        work = positions / vector * filters * part
        dense = work / (wide * part + filters * _up(part, vector) + filters * wide)
        filled = 1.0
        for whole, block in (
            (self.filters, filters),
            (self.call.plane, positions),
            (self.channels, channels),
            (positions, 3 * vector),
        ):
            filled *= whole / _up(whole, block)
        return filled * memory * math.sqrt(share) * dense


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _divided(number: int, by: int) -> int:
    """The quotient, rounded towards zero."""
    return int(number / by)
