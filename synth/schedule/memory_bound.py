"""Lower bound on the memory of every grid in a range, in words, for the branch and bound.

Of what `memory` counts, a process always holds: the shards of the tensors that are read, the halo if blocks
share rows, and the stationary slice if a group shares it, twice while it is summed. Then come the sums of the
result's shard or slice. All of these shrink with the number of parts, so the grid with the most
parts bounds a range. Whether a group shards a slice follows from the grid with the fewest parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synth.layer.axes import LACKS, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Passes, reuse_intervals
from synth.layer.window import Window
from synth.schedule.pass_plan import Structure
from synth.schedule.pass_program import lowered

Words = dict[Tensor, int]


class Option(NamedTuple):
    """One stationary tensor of a pass: the moves of whole tensors that its tree has."""

    stationary: Tensor
    fetches: tuple[Tensor, ...]  # tensors with rows of neighbours
    reduces: int


class PassForm(NamedTuple):
    """One pass on all grids that split the same axes."""

    reads: tuple[Tensor, ...]
    written: Tensor
    waiting: tuple[Tensor, ...]  # of earlier passes: shards that are held beside
    options: tuple[Option, ...]


class LeastMemory:
    """Lower bounds on the memory of grids, in words, over some stationary tensors.

    sequences: the possible orders of the passes.
    """

    def __init__(self, nest: Nest, sequences: Sequence[Passes], stationary: Sequence[Tensor]) -> None:
        self.nest, self.sequences, self.stationary = nest, sequences, stationary
        self._forms: dict[tuple[bool, ...], list[list[PassForm]]] = {}

    def __call__(self, least: PerAxis, most: PerAxis, size: int) -> int:
        """Words that a process holds on any grid from `least` to `most` of at most `size` processes."""
        split = tuple(parts > 1 for parts in least)
        if split not in self._forms:
            self._forms[split] = [self._step(each, least) for each in self.sequences]
        shards = {tensor: -(-self.nest.words[tensor] // size) for tensor in TENSORS}
        slices = self._slices(most)
        groups = {tensor: least.of(LACKS[tensor]) for tensor in TENSORS}
        carried, widened = dict(shards), dict.fromkeys(TENSORS, 0)
        for tensor in ("In", "Out"):
            if most.of(self.nest.framed(tensor)) > 1:
                carried[tensor] = 0
            rows = -(-slices[tensor] // most.of(LACKS[tensor]))  # the widened shard contains the shard
            widened[tensor] = max(0, rows - shards[tensor])

        found = -1
        for step in self._forms[split]:
            most_words = 0
            for reads, written, waiting, options in step:
                fewest = -1
                for stationary, fetches, reduces in options:
                    words = slices[stationary]
                    if stationary != written:  # gathered whole, maybe in place, and then the sums
                        words = words * (groups[stationary] > 1) + carried[written]
                    elif reduces:  # whole: the copy that is sent, and what others send
                        words += reduces * (words + (groups[stationary] - 1) * carried[written])
                    for tensor in fetches:
                        words += widened[tensor]
                    fewest = words if fewest < 0 else min(fewest, words)
                for tensor in reads:
                    fewest += shards[tensor]
                for tensor in waiting:
                    fewest += shards[tensor]
                most_words = max(most_words, fewest)
            found = most_words if found < 0 else min(found, most_words)
        return found

    def _step(self, sequence: Passes, least: PerAxis) -> list[PassForm]:
        """The passes in order. A backward pass also holds the shard of the tensor it ignores."""
        written = tuple(WRITES[pass_] for pass_ in sequence)
        intervals = reuse_intervals(sequence).items()
        forms = []
        for number, pass_ in enumerate(sequence):
            reuses = frozenset(tensor for tensor, (_, last) in intervals if last == pass_)
            plans = [Structure(pass_, each, (), reuses, frozenset()) for each in self.stationary]
            options = tuple(self._option(plan, least) for plan in plans)
            forms.append(PassForm(plans[0].reads, written[number], written[1 : number + 1], options))
        return forms

    def _option(self, plan: Structure, least: PerAxis) -> Option:
        """A stationary tensor, whose reused slices may or may not be in memory."""
        groups = tuple(tuple(a for a in LACKS[t] if getattr(least, a) > 1) for t in TENSORS)
        tree = lowered(plan, groups, self._row_axes(least), turned=self.nest.turned)
        fetches = tuple(rows.tensor for rows in tree.fetches)
        return Option(plan.stationary, fetches, len(tree.reduces))

    def _row_axes(self, least: PerAxis) -> tuple[Axis, ...]:
        """The axes along which neighbours share rows on every grid of the range."""
        windows = self.nest.windows
        return tuple(a for a in SPATIAL if getattr(least, a) > 1 and windows[a].overlap > 0)

    def _slices(self, parts: PerAxis) -> Words:
        n = self.nest.extents.blocks(parts)
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
