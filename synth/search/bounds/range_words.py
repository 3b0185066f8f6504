"""Lower bound of the words that every grid in a range receives again, because tiles are small.

With inner tiles along two composite indices, panels of one streamed tensor move once for each tile of the
outer one. In the loop, a process holds what `RangeMemory` bounds, the stationary slice or the
sums, and

    2 panels of each streamed tensor that a group shares: one is in use, the next one in flight
    the tile of the result, twice where its panels are reduced

The tiles of a slice cover it, so the largest of n has at least an nth of its words. The panels are smallest
with the finest tiles along the streaming index. Let a tensor have A words then, and the other one D with the
finest tiles along the inner index. With L words of memory left, the outer index has `n >= A / (L - D)` tiles.
The other tensor is received n - 1 times more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synth.layer.axes import LACKED_INDEX, LACKS, TENSORS, Axis, PerAxis, Tensor
from synth.layer.passes import WRITES, Pass, moves, reads
from synth.search.bounds.range_memory import RangeMemory, Step, Words
from synth.search.grid_ranges import Ranges
from synth.search.request import Request
from synth.search.training_step import reuse_choices

Choice = tuple[tuple[Axis, ...], frozenset[Tensor]]  # turned axes, and tensors that passes reuse
Floors = dict[Choice, int | None]  # lower bounds of the words; None where no tiling fits

Fine = tuple[Tensor, str]  # a tensor and the composite indices with the finest tiles
INDICES: dict[Tensor, str] = {t: "".join(i for i in "xck" if i != LACKED_INDEX[t]) for t in TENSORS}


class Streamed(NamedTuple):
    """A tensor that streams past the stationary one.

    held: panels in memory. inner: the composite index along which both are tiled. panel: with the finest
    tiles along the streaming index; least: along both. moves: whether panels move, so that they may again.
    """

    tensor: Tensor
    held: int
    inner: str
    panel: Fine
    least: Fine
    moves: bool


class Option(NamedTuple):
    """One stationary tensor of a pass. gathered: whether its slice is, for this pass alone."""

    stationary: Tensor
    written: Tensor
    gathered: bool
    streamed: tuple[Streamed, Streamed]


class RangeWords:
    """Lower bounds of the words of grids within the limit of a request."""

    def __init__(self, request: Request, ranges: Ranges) -> None:
        self.request, self.ranges, first = request, ranges, request.sequences[0]
        # the tensors that later passes may reuse, and how often each tensor is communicated then
        self.reuses = {reused: moves(first, reused) for reused in reuse_choices(first, False)}
        self._reloads: dict[tuple[Axis, ...], Reloads] = {}

    def memory(self, turned: tuple[Axis, ...]) -> RangeMemory:
        """Lower bounds of the memory of grids with some turned axes."""
        return self.reloads(turned).memory

    def reloads(self, turned: tuple[Axis, ...]) -> Reloads:
        """Lower bounds of the words that grids with some turned axes receive again."""
        if turned not in self._reloads:
            asked = self.request
            nest = asked.nest.turn(turned)
            memory = RangeMemory(nest, asked.sequences, asked.stationary, asked.ghosts)
            self._reloads[turned] = Reloads(memory, asked.stationary)
        return self._reloads[turned]

    def within(self, least: PerAxis, most: PerAxis) -> Within:
        """The same of the grids from `least` to `most`."""
        return Within(self, least, most)


class Within:
    """Lower bounds of the words and the memory of the grids from `least` to `most`, each found once."""

    def __init__(self, bounds: RangeWords, least: PerAxis, most: PerAxis) -> None:
        self.bounds, self.least, self.most = bounds, least, most
        self.size = min(bounds.request.procs, most.size)
        self._memory: dict[tuple[Axis, ...], tuple[int, Step]] = {}
        self._copied: dict[tuple[Axis, ...], Words] = {}
        self._again: dict[tuple[Axis, ...], _Again] = {}

    def memory(self, turned: tuple[Axis, ...]) -> int:
        """Words that a process holds with some turned axes."""
        return self._held(turned)[0]

    def _held(self, turned: tuple[Axis, ...]) -> tuple[int, Step]:
        if turned not in self._memory:
            memory = self.bounds.memory(turned)
            step = memory.step(self.least, self.most, self.size)
            self._memory[turned] = memory(self.least, self.most, self.size, step), step
        return self._memory[turned]

    def ample(self, turned: tuple[Axis, ...], reused: frozenset[Tensor]) -> int:
        """Words received with some turned axes and reused tensors, whatever the memory."""
        if turned not in self._copied:
            self._copied[turned] = self.bounds.ranges.copied(self.least, turned)
        return average(self.bounds.reuses[reused], self._copied[turned], self.size)

    def fewest(self, turned: tuple[Axis, ...], reused: frozenset[Tensor]) -> int | None:
        """The same within the limit; None if no tiling may fit."""
        limit, (held, step) = self.bounds.request.limit_words or 0, self._held(turned)
        reloads = self.bounds.reloads(turned)
        if held > limit or reloads.memory.reusing(reused, step) > limit:
            return None
        if turned not in self._again:
            again = self.bounds.ranges.again(self.least, turned)
            self._again[turned] = _Again(reloads, self.least, self.most, step, again, limit)
        more = self._again[turned].fewest(reused)
        return None if more is None else self.ample(turned, reused) + more // self.size


def average(moves: Mapping[Tensor, int], words: Words, size: int) -> int:
    """Words of the average of `size` processes, rounded up, if tensors move several times."""
    return -(-sum([moves[tensor] * words[tensor] for tensor in words]) // size)


class Reloads:
    """The tilings of each pass on grids that share the same tensors. `memory`: bounds of the same nest."""

    def __init__(self, memory: RangeMemory, stationary: Sequence[Tensor]) -> None:
        self.memory, self.nest, self.stationary = memory, memory.nest, stationary
        self._options: dict[tuple[Pass, frozenset[Tensor], tuple[bool, ...]], list[Option]] = {}

    def options(self, pass_: Pass, reused: frozenset[Tensor], shared: tuple[bool, ...]) -> list[Option]:
        """The options of a pass. reused: saved or reused by it. shared: whether groups share each tensor."""
        key = pass_, reused, shared
        if key not in self._options:
            groups = dict(zip(TENSORS, shared, strict=True))
            self._options[key] = [self._option(pass_, reused, groups, each) for each in self.stationary]
        return self._options[key]

    def _option(
        self, pass_: Pass, reused: frozenset[Tensor], shared: dict[Tensor, bool], stationary: Tensor
    ) -> Option:
        written, stream = WRITES[pass_], LACKED_INDEX[stationary]
        whole = reused & set(reads(pass_))  # saved or reused: the slices are in memory

        def streamed(tensor: Tensor) -> Streamed:
            inner = INDICES[tensor].replace(stream, "")
            held = 1 + shared[tensor] if tensor == written else 2 * shared[tensor]
            moves = tensor not in whole
            return Streamed(tensor, held * moves, inner, (tensor, stream), (tensor, INDICES[tensor]), moves)

        one, other = (streamed(tensor) for tensor in TENSORS if tensor != stationary)
        gathered = stationary != written and shared[stationary] and stationary not in whole
        return Option(stationary, written, gathered, (one, other))

    def sizes(self, least: PerAxis, most: PerAxis) -> dict[Fine, int]:
        """Words of the largest slice of each tensor at least, with the finest tiles along some indices."""
        block = self.nest.extents.blocks(most)
        length = {"c": block.c, "k": block.k}
        taps = {"In": 1, "Ker": self.nest.taps, "Out": 1}
        sizes: dict[Fine, int] = {}
        for tensor, indices in INDICES.items():
            one, other = indices[0], indices[1]
            if one == "x":
                length["x"] = block.b * self.memory.positions(tensor, least, most)
            first, second, unit = length[one], length[other], block.g * taps[tensor]
            sizes[tensor, ""] = unit * first * second
            sizes[tensor, one] = unit * second if first else 0
            sizes[tensor, other] = unit * first
            sizes[tensor, one + other] = unit if first else 0
        return sizes


class _Again:
    """Words that all processes receive again, on any grid from `least` to `most`.

    step: what these grids hold. again: what all processes receive whenever all panels of a tensor move.
    """

    def __init__(
        self, reloads: Reloads, least: PerAxis, most: PerAxis, step: Step, again: Words, limit: int
    ) -> None:
        self.reloads, self.step, self.again, self.limit = reloads, step, again, limit
        self.sizes = reloads.sizes(least, most)
        block = reloads.nest.extents.blocks(least)
        self.trips = {"x": block.x, "c": block.c, "k": block.k}  # the most tiles
        self.shared = tuple([least.of(LACKS[tensor]) > 1 for tensor in TENSORS])
        self._of_passes: dict[tuple[int, int, tuple[Tensor, ...], frozenset[Tensor]], int | None] = {}

    def fewest(self, reused: frozenset[Tensor]) -> int | None:
        """The words if passes reuse these tensors; None if no tiling fits."""
        memory, fewest = self.reloads.memory, -1
        for order, (sequence, saved) in enumerate(zip(memory.sequences, memory.saved(reused), strict=True)):
            total = 0
            for number, (pass_, (_, then)) in enumerate(zip(sequence, saved, strict=True)):
                key = order, number, then, reused - {WRITES[pass_]}
                if key not in self._of_passes:
                    self._of_passes[key] = self._of_pass(*key, pass_)
                words = self._of_passes[key]
                if words is None:
                    break
                total += words
            else:
                fewest = total if fewest < 0 else min(fewest, total)
        return None if fewest < 0 else fewest

    def _of_pass(
        self, order: int, number: int, saved: tuple[Tensor, ...], reused: frozenset[Tensor], pass_: Pass
    ) -> int | None:
        left = self.limit - self.step.held[order][number]
        for tensor in saved:
            left -= self.step.slices[tensor]
        least: int | None = None
        for option in self.reloads.options(pass_, reused, self.shared):
            words = self._of(option, left)
            if words == 0:
                return 0
            if words is not None and (least is None or words < least):
                least = words
        return least

    def _of(self, option: Option, left: int) -> int | None:
        """The words with one stationary tensor. left: of memory, beside shards and saved slices."""
        stationary, written, gathered, (one, other) = option
        sizes = self.sizes
        result = sizes[written, ""]
        if gathered:
            left -= sizes[stationary, ""]
        panels = 0
        for each in option.streamed:
            if each.held == 2 and each.tensor != written:
                panels += sizes[each.tensor, ""]
        if panels + result <= left:  # one step
            return 0
        summed = stationary == written
        left -= result if summed else self.step.carried[written]
        if not summed and panels + 2 * result <= 2 * left:  # two steps
            return 0
        least: int | None = None
        for first, second in ((one, other), (other, one)):  # the outer loop tiles the first
            need = first.held * sizes[first.panel] + (sizes[stationary, second.inner] if summed else 0)
            rest = left - second.held * sizes[second.least]
            if need <= rest:  # one tile along the outer loop
                return 0
            if rest > 0 and (tiles := -(-need // rest)) <= self.trips[first.inner]:
                words = (tiles - 1) * self.again[second.tensor] if second.moves else 0
                least = words if least is None or words < least else least
        return least
