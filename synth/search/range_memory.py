"""Lower bound on the memory of every grid in a range, over a whole step.

`LeastMemory` bounds each pass by its shards and slices. Here the rows of neighbours come in, and what a step
holds beside a pass (`training_memory.unused_resident_words`):

    beside    dOut, given at the start, in the first pass; later Out, the tensor whose gradient is computed,
              and the gradients before it. In a network the neighbours hold Out and dOut
    fetched   while rows are fetched: the widened shard, the strips sent and the strips received
    returned  while rows of the result return: the same of the result

All processes together send and receive as many rows as blocks share. So the most that a process holds is at
least the average: with R the rows that all blocks read, repetitions included, and D those read by any, a
widened shard with its strips has `R + 2·(R - D)` rows in the sum over all blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial

from synth.layer.axes import SPATIAL, TENSORS, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, reads
from synth.schedule.memory_bound import LeastMemory
from synth.search.grid_ranges import shared_rows


class RangeMemory:
    """Lower bounds on the memory of grids, in words. `ghosts`: see `Distribution`."""

    def __init__(
        self, nest: Nest, sequences: Sequence[Passes], stationary: Sequence[Tensor], ghosts: bool
    ) -> None:
        self.nest, self.ghosts = nest, ghosts
        self._passes = LeastMemory(nest, sequences, stationary)
        self._sequences = sequences
        # without gaps between the rows of neighbouring positions; else neighbours may share none
        self._windows = [
            (axis, window, cache(partial(shared_rows, window)))
            for axis, window in nest.windows.items()
            if window.stride <= window.span
        ]
        self._whole = len(self._windows) == len(SPATIAL)
        rows = {tensor: [self._read(axis) for axis in nest.framed(tensor)] for tensor in TENSORS}
        self._flat = {
            tensor: nest.words[tensor] // max(1, math.prod(nest.windows[a].size for a in nest.framed(tensor)))
            for tensor in TENSORS
        }
        self._distinct = {tensor: math.prod(rows[tensor]) for tensor in TENSORS}

    def __call__(self, least: PerAxis, most: PerAxis, size: int) -> int:
        """Words that a process holds on any grid from `least` to `most` of at most `size` processes."""
        shards = {tensor: -(-self.nest.words[tensor] // size) for tensor in TENSORS}
        ends = WRITES[self._sequences[0][0]]
        beside = shards[ends] if self.ghosts and len(self._sequences[0]) > 1 else 0
        words = self._passes(least, most, size) + beside
        return max(words, self._with_rows(least, size, shards)) if self._whole else words

    def _with_rows(self, least: PerAxis, size: int, shards: dict[Tensor, int]) -> int:
        """Words while rows of neighbours are fetched or return."""
        stored, moving = dict(shards), dict(shards)
        for tensor in ("In", "Out"):
            read = self._rows_read(tensor, least)
            flat = self._flat[tensor]
            if self.ghosts:
                stored[tensor] = max(stored[tensor], -(-flat * read // size))
            moving[tensor] = -(-flat * (3 * read - 2 * self._distinct[tensor]) // size)
        return min(self._of_step(sequence, shards, stored, moving) for sequence in self._sequences)

    def _of_step(
        self,
        sequence: Passes,
        shards: dict[Tensor, int],
        stored: dict[Tensor, int],
        moving: dict[Tensor, int],
    ) -> int:
        most, ends = 0, WRITES[sequence[0]]
        step = len(sequence) > 1
        for number, pass_ in enumerate(sequence):
            written = WRITES[pass_]
            held = sum(stored[tensor] for tensor in reads(pass_))
            if step and number == 0:
                held += stored[ends] if self.ghosts else 0
            elif step:
                held += stored[written] + (shards[ends] if self.ghosts else 0)
                held += sum(shards[WRITES[each]] for each in sequence[1:number])
            # the first gradient fetches dOut, whatever the passes reuse
            fetched = reads(pass_) if number == 0 else (ends,) if number == 1 else ()
            in_flight = max((moving[tensor] - stored[tensor] for tensor in fetched), default=0)
            most = max(most, held + max(0, in_flight, moving[written]))
        return most

    def _read(self, axis: str) -> int:
        """Rows that any position of an axis reads."""
        window = self.nest.windows[axis]
        low, high = window.reach(0, window.out)
        return high - low

    def _rows_read(self, tensor: Tensor, least: PerAxis) -> int:
        """Rows that the blocks of all grids from `least` on read at least, repetitions included."""
        framed = self.nest.framed(tensor)
        return math.prod(
            self._read(axis) + shared(getattr(least, axis))
            for axis, _, shared in self._windows
            if axis in framed
        )
