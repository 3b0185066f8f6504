"""Lower bound on the memory of every grid in a range, in words, for the branch and bound.

Of what `memory` counts, a process always holds: the shards of the tensors that are read, the sums of the
result's shard or slice, the halo if blocks share rows, and the stationary slice if a group shares it, twice
while it is gathered or summed. All of these shrink with the number of parts, so the grid with the most parts
bounds a range. Whether a group shards a slice follows from the grid with the fewest parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from synth.layer.axes import LACKS, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, reuse_intervals
from synth.layer.window import Window
from synth.schedule.pass_plan import Structure
from synth.schedule.pass_program import lowered

Words = dict[Tensor, int]


class LeastMemory:
    """Lower bounds on the memory of grids, in words, over some stationary tensors.

    sequences: the possible orders of the passes.
    """

    def __init__(self, nest: Nest, sequences: Sequence[Passes], stationary: Sequence[Tensor]) -> None:
        self.nest, self.sequences, self.stationary = nest, sequences, stationary

    def __call__(self, least: PerAxis, most: PerAxis, size: int) -> int:
        """Words that a process holds on any grid from `least` to `most` of at most `size` processes."""
        shards = {tensor: -(-self.nest.words[tensor] // size) for tensor in TENSORS}
        slices = self._slices(most)
        return min(self._step(each, least, most, shards, slices) for each in self.sequences)

    def _step(self, sequence: Passes, least: PerAxis, most: PerAxis, shards: Words, slices: Words) -> int:
        """One pass, or a training step: a backward pass also holds the shard of the tensor it ignores."""
        needed = waiting = 0
        for number, pass_ in enumerate(sequence):
            waiting += shards[WRITES[pass_]] if number else 0
            intervals = reuse_intervals(sequence).items()
            reuses = frozenset(tensor for tensor, (_, last) in intervals if last == pass_)
            plans = (Structure(pass_, each, (), reuses, frozenset()) for each in self.stationary)
            words = min(self._pass(plan, least, most, shards, slices) for plan in plans)
            needed = max(needed, words + waiting)
        return needed

    def _pass(self, plan: Structure, least: PerAxis, most: PerAxis, shards: Words, slices: Words) -> int:
        """One pass with one stationary tensor, whose reused slices may or may not be in memory."""
        groups = tuple(tuple(a for a in LACKS[t] if getattr(least, a) > 1) for t in TENSORS)
        tree = lowered(plan, groups, self._row_axes(least), turned=self.nest.turned)
        stationary, written = plan.stationary, plan.written
        words = sum(shards[tensor] for tensor in plan.reads)
        for rows in tree.fetches:  # the widened shard contains the shard
            widened = -(-slices[rows.tensor] // most.of(LACKS[rows.tensor]))
            words += max(0, widened - shards[rows.tensor])
        carried = 0 if most.of(self.nest.framed(written)) > 1 else shards[written]
        if stationary != written:  # gathered whole: the slice, and its pieces in flight
            alone = least.of(LACKS[stationary]) == 1
            return words + carried + (0 if alone else 1 + len(tree.gathers)) * slices[stationary]
        words += slices[stationary]
        for _ in tree.reduces:  # reduced whole: the copy that is sent, and what others send
            words += slices[stationary] + (least.of(LACKS[stationary]) - 1) * carried
        return words

    def _row_axes(self, least: PerAxis) -> tuple[Axis, ...]:
        """The axes along which neighbours share rows on every grid of the range."""
        windows = self.nest.windows
        return tuple(a for a in SPATIAL if getattr(least, a) > 1 and windows[a].overlap > 0)

    def _slices(self, parts: PerAxis) -> Words:
        n = PerAxis(*(-(-extent // p) for extent, p in zip(self.nest.extents, parts, strict=True)))
        return {
            "In": n.b * n.g * n.c * self._rows("In", n),
            "Ker": n.g * n.k * n.c * self.nest.taps,
            "Out": n.b * n.g * n.k * self._rows("Out", n),
        }

    def _rows(self, tensor: Tensor, block: PerAxis) -> int:
        """The fewest positions of a tensor that a block touches."""
        framed, rows = self.nest.framed(tensor), 1
        for axis in SPATIAL:
            size = getattr(block, axis)
            rows *= _rows_read(self.nest.windows[axis], size) if axis in framed else size
        return rows


def _rows_read(window: Window, size: int) -> int:
    """The fewest rows that a block of `size` positions reads, wherever the padding clips them."""
    if window.divisor > 1:  # some block reads at least an even part of the rows
        low, high = window.reach(0, window.out)
        return (high - low) * (size - 1) // window.out
    beyond = window.stride * (window.out - 1) + window.span - window.padding
    return max(0, window.frame(size) - max(0, window.padding) - max(0, beyond - window.size))
