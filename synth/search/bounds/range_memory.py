"""Lower bound on the memory of every grid in a range, over a whole step.

`LeastMemory` bounds each pass by its shards and slices. Here the rows of neighbours come in, and what a step
holds beside a pass (`training_memory.unused_resident_words`):

    beside    dOut, given at the start, in the first pass; later Out, the tensor whose gradient is computed,
              and the gradients before it. In a network the neighbours hold Out and dOut
    fetched   while rows are fetched: the widened shard, the strips sent and the strips received
    returned  while rows of the result return: the same of the result
    saved     slices that a pass saves, until the end of the pass that reuses them

All processes together send and receive as many rows as blocks share. So the most that a process holds is at
least the average. R are the rows that all blocks read, repetitions included, and D those read by any. In the
sum over all blocks, a widened shard with its strips has `R + 2·(R - D)` rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from synth.layer.axes import DIMS, LACKS, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, reads, reuse_intervals
from synth.schedule.memory_bound import LeastMemory
from synth.search.grid_ranges import shared_rows

Words = dict[Tensor, int]


class Step(NamedTuple):
    """What the passes of a step hold at least, in words.

    passes: per order of the passes and pass, (while rows are fetched, from then on), without saved slices.
    held: per order and pass, what of these is live in the loop beside slices, panels and sums.
    slices: of each tensor that a group shares on every grid; 0 for others.
    carried: what a process carries of each tensor.
    """

    passes: list[list[tuple[int, int]]]
    held: list[list[int]]
    slices: Words
    carried: Words


class Held(NamedTuple):
    """The tensors that matter in one pass of a step."""

    stored: tuple[Tensor, ...]  # shards with ghost rows
    shards: tuple[Tensor, ...]  # other shards and gradients
    fetches: tuple[Tensor, ...]  # of which rows are fetched, whatever the passes reuse
    written: Tensor


# per order of the passes and pass: tensors whose slices are saved while rows are fetched, and from then on
Saved = list[list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]]


class RangeMemory:
    """Lower bounds on the memory of grids, in words. `ghosts`: see `Distribution`."""

    def __init__(
        self, nest: Nest, sequences: Sequence[Passes], stationary: Sequence[Tensor], ghosts: bool
    ) -> None:
        self.nest, self.ghosts, self.sequences = nest, ghosts, sequences
        self._bounds = LeastMemory(nest, sequences, stationary)
        self._reusable = tuple(reuse_intervals(sequences[0]))
        self._saved: dict[frozenset[Tensor], Saved] = {}
        self._held = [self._of_passes(each) for each in sequences]
        self._ends = WRITES[sequences[0][0]] if ghosts and len(sequences[0]) > 1 else None
        self._shared = {axis: cache(partial(shared_rows, window)) for axis, window in nest.windows.items()}
        self._read = {axis: high - low for axis, (low, high) in self._reaches()}
        # without gaps between the rows of neighbouring positions; else neighbours may share none
        self._whole = all(window.stride <= window.span for window in nest.windows.values())
        self._framed: dict[Tensor, tuple[Axis, ...]] = {t: nest.framed(t) for t in TENSORS}
        self._flat = {  # words of a tensor per position of its framed axes
            t: nest.words[t] // max(1, math.prod(nest.windows[a].size for a in self._framed[t]))
            for t in TENSORS
        }
        self._distinct = {t: math.prod(self._read[a] for a in self._framed[t]) for t in TENSORS}

    def __call__(self, least: PerAxis, most: PerAxis, size: int, step: Step | None = None) -> int:
        """Words that a process holds on any grid from `least` to `most` of at most `size` processes."""
        words = self._bounds(least, most, size)
        words += -(-self.nest.words[self._ends] // size) if self._ends else 0
        return max(words, self.reusing(frozenset(), step or self.step(least, most, size)))

    def reusing(self, reused: frozenset[Tensor], step: Step) -> int:
        """Words that a process holds if later passes reuse these tensors, by what the passes hold."""
        slices, least = step.slices, -1
        for passes, saved in zip(step.passes, self.saved(reused), strict=True):
            most = 0
            for (fetched, later), (before, then) in zip(passes, saved, strict=True):
                for tensor in before:
                    fetched += slices[tensor]
                for tensor in then:
                    later += slices[tensor]
                most = max(most, fetched, later)
            least = most if least < 0 else min(least, most)
        return least

    def saved(self, reused: frozenset[Tensor]) -> Saved:
        """Per order of the passes and pass, the tensors whose slices are saved if passes reuse `reused`."""
        if reused not in self._saved:
            self._saved[reused] = [self._intervals(each, reused) for each in self.sequences]
        return self._saved[reused]

    def step(self, least: PerAxis, most: PerAxis, size: int) -> Step:
        """What the passes hold on any grid from `least` to `most` of at most `size` processes."""
        shards = {tensor: -(-self.nest.words[tensor] // size) for tensor in TENSORS}
        stored, moving = dict(shards), dict(shards)  # moving: the widened shards with their strips
        carried = dict(shards)
        for tensor in ("In", "Out"):
            if not self._whole:
                moving[tensor] = carried[tensor] = 0
                continue
            read, flat = self._rows_read(tensor, least), self._flat[tensor]
            carried[tensor] = flat * read // size
            if self.ghosts:
                stored[tensor] = max(stored[tensor], -(-flat * read // size))
            moving[tensor] = -(-flat * (3 * read - 2 * self._distinct[tensor]) // size)
        passes: list[list[tuple[int, int]]] = []
        beside: list[list[int]] = []
        for sequence in self._held:
            passes.append(found := [])
            beside.append(live := [])
            for each in sequence:
                held = strips = 0
                for tensor in each.stored:
                    held += stored[tensor]
                for tensor in each.shards:
                    held += shards[tensor]
                live.append(held)
                for tensor in each.fetches:
                    strips = max(strips, moving[tensor] - stored[tensor])
                found.append((held + strips, held + moving[each.written]))
        slices = dict.fromkeys(self._reusable, 0)
        for tensor in self._reusable if self._whole else ():
            if least.of(LACKS[tensor]) > 1:
                slices[tensor] = self._slice(tensor, least, most)
        return Step(passes, beside, slices, carried)

    def _of_passes(self, sequence: Passes) -> list[Held]:
        found, ends = [], WRITES[sequence[0]]
        for number, pass_ in enumerate(sequence):
            written, read = WRITES[pass_], reads(pass_)
            given = (ends,) if self.ghosts and len(sequence) > 1 else ()
            if number == 0:
                found.append(Held((*read, *given), (), read, written))
                continue
            earlier = tuple(WRITES[each] for each in sequence[1:number])
            fetches = (ends,) if number == 1 else ()  # the first gradient fetches dOut
            found.append(Held((*read, written), (*given, *earlier), fetches, written))
        return found

    def _slice(self, tensor: Tensor, least: PerAxis, most: PerAxis) -> int:
        """Words of the largest slice of a tensor at least: that of the average block."""
        framed, words = self._framed[tensor], 1
        for dim, extent in zip(DIMS[tensor], self.nest.shapes[tensor], strict=True):
            rows = self._read[dim] + self._shared[dim](getattr(least, dim)) if dim in framed else extent
            words *= -(-rows // getattr(most, dim, 1))
        return words

    def positions(self, tensor: Tensor, least: PerAxis, most: PerAxis) -> int:
        """Rows times columns of the largest slice of a tensor at least; 0 where it may have gaps."""
        framed, positions = self._framed[tensor], 1
        for axis in SPATIAL:
            if axis in framed:
                rows = self._read[axis] + self._shared[axis](getattr(least, axis)) if self._whole else 0
            else:
                rows = getattr(self.nest.extents, axis)
            positions *= -(-rows // getattr(most, axis))
        return positions

    def _rows_read(self, tensor: Tensor, least: PerAxis) -> int:
        """Rows that the blocks of all grids from `least` on read at least, repetitions included."""
        return math.prod(self._read[a] + self._shared[a](getattr(least, a)) for a in self.nest.framed(tensor))

    def _reaches(self) -> list[tuple[Axis, tuple[int, int]]]:
        return [(axis, self.nest.windows[axis].reach(0, self.nest.windows[axis].out)) for axis in SPATIAL]

    @staticmethod
    def _intervals(
        sequence: Passes, reused: frozenset[Tensor]
    ) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """`Saved` of one order of the passes: from the pass that saves a tensor to the one that reuses it."""
        place = {
            tensor: (sequence.index(first), sequence.index(last))
            for tensor, (first, last) in reuse_intervals(sequence).items()
            if tensor in reused
        }
        return [
            (
                tuple(tensor for tensor, (since, until) in place.items() if since < number <= until),
                tuple(tensor for tensor, (since, until) in place.items() if since <= number <= until),
            )
            for number in range(len(sequence))
        ]
