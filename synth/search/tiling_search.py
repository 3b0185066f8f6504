"""The best tiling of one pass on one distribution: stationary tensor, number of panels, inner tiles.

Without inner tiles no word is received twice, so the words do not depend on the number of panels (except
for halo rows that two panels along x share). Few panels have less latency, and more panels need less
memory. Another panel pays for its start-up only if enough words are streamed while the previous one is
used. Two rules choose the number of panels:

    enough memory   the largest number up to the wanted one that allows rotation (`panel_rotation`)
    limited memory  the smallest number that fits, or up to twice as many if that allows rotation

Inner tiles reload words, so the search tries them only if no number of panels fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from synth.base.arithmetic import divisors
from synth.layer.axes import LACKED_INDEX, SPATIAL, PerAxis, Tensor
from synth.schedule.memory import Footprints
from synth.schedule.memory_of_tilings import Array
from synth.schedule.panel_rotation import rotated
from synth.schedule.pass_plan import ONES, THINNEST, PassPlan
from synth.schedule.pass_program import pass_program
from synth.schedule.volume import Visits
from synth.search.tile_counts import FEW, count_from, thinned, tile_counts
from synth.search.tiling_words import TilingWords, merge

PANELS = 4  # the most panels that overlap asks for; a memory limit may ask for more
PANEL_BYTES = 2**17  # the least bytes of a panel: several start-ups of a fast network (2 us, 10 GB/s)
TIES = 256  # plans with equal words that are compared by their steps


@dataclass(frozen=True)
class TilingChoice:
    """The tilings of all passes, the words that the most receiving process receives, and the memory used."""

    pass_plans: tuple[PassPlan, ...]  # one per pass
    words: int  # received, over all passes
    used_words: int  # memory

    @property
    def first(self) -> PassPlan:
        """The plan of the first, or only, pass."""
        return self.pass_plans[0]


class TilingSearch:
    """One search: a pass on one distribution, with one limit.

    most_words: see `pass_tilings.choose_tiling`. words: of the tilings; searches of one pass share them.
    """

    def __init__(
        self,
        footprints: Footprints,
        template: PassPlan,
        panels: int | None,
        limit_words: int | None,
        most_words: int | None,
        words: TilingWords,
    ) -> None:
        self.footprints, self.limit_words, self.most_words = footprints, limit_words, most_words
        self.distribution = footprints.distribution
        self.template, self.panels, self.words = template, panels, words
        self.most = panels or PANELS
        self.work = self.distribution.most_work
        self.best: TilingChoice | None = None
        self._ties = (0, 0)  # the words of the last tie with the best plan, and how many were met
        self.examined = 0  # memories of plans

    def fits(self, pass_plan: PassPlan) -> bool:
        """Whether a plan needs no more memory than the limit."""
        self.examined += 1
        return self.limit_words is None or self.footprints.memory(pass_plan).words <= self.limit_words

    def _words(self, pass_plan: PassPlan) -> int:
        """The words that the most receiving process receives."""
        return self.words.of(pass_plan.stationary, pass_plan.counts, pass_plan.swapped)

    def try_stationary(self, tensor: Tensor) -> None:
        """Compare the plans with one stationary tensor with the best plan so far."""
        for pass_plan in self.candidates(tensor):
            self._keep_if_better(pass_plan)
        if self.best and self.best.first.stationary == tensor:
            for pass_plan in self._coarsened(self.best.first):
                self._keep_if_better(pass_plan)

    def _keep_if_better(self, pass_plan: PassPlan) -> None:
        words = self._words(pass_plan)
        if not self._is_useless(words, pass_plan.steps):
            self.best = TilingChoice((pass_plan,), words, self.footprints.memory(pass_plan).words)

    def _is_useless(self, words: int, steps: int) -> bool:
        """Whether plans with at least these words and steps are no better than the best plan so far."""
        if self.most_words is not None and words > self.most_words:
            return True
        best, steps = self.best, max(steps, self.most)
        return best is not None and (best.words, max(best.first.steps, self.most)) <= (words, steps)

    def _is_another_tie(self, words: int) -> bool:
        """Whether enough plans were compared that move as many words as the best, and can only save steps."""
        if self.best is None or words < self.best.words:
            return False
        known, count = self._ties
        self._ties = words, count + 1 if words == known else 1
        return words == known and count >= TIES

    def _beaten(self, words: int) -> bool:
        """Whether plans with at least these words move too many, or more than the best plan so far."""
        if self.most_words is not None and words > self.most_words:
            return True
        return self.best is not None and self.best.words < words

    def candidates(self, tensor: Tensor) -> Iterator[PassPlan]:
        """The plans to compare for one stationary tensor: no inner loop, one inner loop, two inner loops.

        A level is skipped if a plan of an earlier level moves no more words than this level's lower bound.
        """
        untiled = self._plan(tensor)
        floor = self._words(untiled)
        if self._is_useless(floor, 1):
            return
        for pass_plan in self._panels(tensor, ONES, floor):
            yield pass_plan
            if self._words(pass_plan) == floor and pass_plan.steps <= self.most:
                return
        if self._is_useless(floor, 1):
            return
        for composite in PassPlan(tensor).order[1:]:
            yield from self._inner(tensor, composite, ONES, floor)
        # with both inner loops, one of the streamed tensors is received at least twice
        once = self.words.visits(tensor, ONES)
        twice = min(self.words.most(once.twice(each)) for each in PassPlan(tensor).streaming)
        if (self.best is not None and self.best.words <= twice) or self._beaten(twice):
            return
        for swapped in (False, True):
            yield from self._nested(tensor, swapped)

    def _nested(self, tensor: Tensor, swapped: bool) -> Iterator[PassPlan]:
        """The plans with both inner loops, in the order of the outer one, which causes the reloads."""
        stream, outer, inner = self._plan(tensor, swapped=swapped).order
        for counts in self._that_fit(tensor, outer, ONES, stream + inner):
            least, steps = self._reloaded(tensor, counts, inner, swapped), 2 * counts.size
            if self._is_useless(self.words.most(least._replace(rows=(1, 1, 1))), steps):
                return
            words = self.words.most(least)
            if not self._is_useless(words, steps):
                yield from self._inner(tensor, inner, counts, words, swapped)

    def _reloaded(self, tensor: Tensor, counts: PerAxis, inner: str, swapped: bool) -> Visits:
        """The least visits of plans that have an outer loop with these counts and an inner loop."""
        twice = counts.with_("b" if inner == "x" else inner, 2)
        visits = self.words.visits(tensor, twice, swapped)
        return visits if PassPlan(tensor).stream != "x" and inner != "x" else visits._replace(rows=(1, 1, 1))

    def _inner(
        self, tensor: Tensor, composite: str, outer: PerAxis, enough: int, swapped: bool = False
    ) -> Iterator[PassPlan]:
        """The plans with an additional loop along `composite` with which some number of panels fits.

        Along x, where tiles share rows, plans that read the fewest rows come first, and the generator ends
        after a plan that moves at most `enough` words.
        """
        stream = PassPlan(tensor).stream

        def useful(counts: PerAxis) -> bool:
            inner = merge(outer, counts)
            words = self.words.of(tensor, inner, swapped)  # panels along x may add shared rows to them
            return not self._is_useless(words, inner.size) and not self._is_another_tie(words)

        for counts in self._that_fit(tensor, composite, outer, stream, useful):
            inner = merge(outer, counts)
            for pass_plan in self._panels(tensor, inner, enough, swapped):
                yield pass_plan
                if composite == "x" and self._words(pass_plan) <= enough:
                    return

    def _panels(
        self, tensor: Tensor, inner: PerAxis, enough: int, swapped: bool = False
    ) -> Iterator[PassPlan]:
        """The plans with some inner tiles and a number of panels that fits: the wanted one, more, or fewer.

        Along c and k the words do not depend on the number of panels, so one plan is enough. Along x, where
        panels share rows, the generator ends after a plan that moves at most `enough` words.
        """
        stream, wanted = PassPlan(tensor).stream, self._wanted(tensor)

        def planned(panels: PerAxis) -> PassPlan:
            return self._plan(tensor, merge(panels, inner), swapped)

        if stream == "x":
            yield from islice(self._x_panels(tensor, wanted, inner, enough, swapped), FEW)
            return
        extent = getattr(self.work, stream)
        wanted = count_from(extent, min(wanted, extent if self.panels else max(1, extent // THINNEST)))
        may_rotate = self.panels is None and inner == ONES and tensor == self.template.written
        if may_rotate:
            wanted = max(self._rotating(tensor, stream, 2, wanted), default=wanted)
        counts = range(wanted, extent + 1)

        def fits(count: int) -> bool:
            return self.fits(planned(PerAxis(**{stream: count})))

        if fits(wanted):
            yield planned(PerAxis(**{stream: wanted}))
        elif len(counts) > 1 and fits(extent):  # beyond one step, more panels never need more memory
            count = counts[bisect_left(counts, True, lo=1, key=fits)]
            if may_rotate:
                count = min(self._rotating(tensor, stream, count, 2 * count - 1), default=count)
            yield planned(PerAxis(**{stream: count}))
        else:
            coarser = filter(fits, range(1, wanted))
            yield from (planned(PerAxis(**{stream: count})) for count in islice(coarser, 1))

    def _x_panels(
        self, tensor: Tensor, wanted: int, inner: PerAxis, enough: int, swapped: bool
    ) -> Iterator[PassPlan]:
        """The useful plans with panels along x that fit, until one moves at most `enough` words."""

        def planned(panels: PerAxis) -> PassPlan:
            return self._plan(tensor, merge(panels, inner), swapped)

        panels = self.words.blocks.x_panels(min(wanted, self.work.b), alone=self.limit_words is None)
        words, steps = self.words.of_panels(tensor, panels, inner, swapped), panels.sizes * inner.size
        fits = np.ones(len(words), bool)
        if self.limit_words is not None:
            fits = panels.memory(planned) <= self.limit_words
        begin, end = 0, len(words)
        while begin < end:
            for place in (self._useful(words[begin:], steps[begin:]) + begin).tolist():
                begin = place + 1
                if self._is_another_tie(moved := int(words[place])):
                    continue
                self.examined += 1
                if fits[place]:
                    yield planned(panels.counts[place])
                    if moved <= enough:
                        return
                    break  # others may have become useless
            else:
                return

    def _useful(self, words: Array, steps: Array) -> Array:
        """The places of plans that are better than the best so far: the opposite of `_is_useless`."""
        useful = np.ones(len(words), bool)
        if self.most_words is not None:
            useful = words <= self.most_words
        if self.best is not None:
            best, fewer = self.best.words, max(self.best.first.steps, self.most)
            useful &= (words < best) | ((words == best) & (np.maximum(steps, self.most) < fewer))
        return np.flatnonzero(useful)

    def _rotating(self, tensor: Tensor, stream: str, low: int, high: int) -> list[int]:
        """The numbers of panels from `low` to `high` that allow rotation."""
        cuts = self.distribution.shard_cuts
        parts = {dict(cuts[t]).get(stream, 1) for t in self.template.reads if t != tensor}
        counts = {n for each in parts for n in divisors(each) if low <= n <= high}
        return [n for n in counts if rotated(self.distribution, self._plan(tensor, PerAxis(**{stream: n})))]

    def _that_fit(
        self,
        tensor: Tensor,
        composite: str,
        outer: PerAxis,
        rest: str,
        useful: Callable[[PerAxis], bool] = lambda _: True,
    ) -> Iterator[PerAxis]:
        """Useful counts of an inner loop, coarsest first: with the finest tiles along `rest` they fit."""

        def can_fit(counts: PerAxis) -> bool:
            finest = (merge(merge(outer, counts), each) for each in self._finest(rest))
            return any(self.fits(self._plan(tensor, each)) for each in finest)

        if composite == "x":
            tilings = [n for n in self.words.blocks.x_counts if n.size > 1]
            if outer.size == 1 and len(rest) > 1:  # an outer loop, whose reloads matter more than its rows
                tilings.sort(key=lambda n: n.size)
            yield from filter(can_fit, filter(useful, tilings))
            return
        extent = getattr(self.work, composite)
        counts = range(2, extent + 1)

        def along(count: int) -> PerAxis:
            return PerAxis(**{composite: count})

        if counts and can_fit(along(extent)):
            first = counts[bisect_left(counts, True, key=lambda count: can_fit(along(count)))]
            finer = [first, *(count for count in tile_counts(extent) if count > first)]
            yield from filter(useful, map(along, thinned(finer, FEW)))

    def _coarsened(self, pass_plan: PassPlan) -> Iterator[PassPlan]:
        """Plans with fewer tiles along x that fit. The search does not try every count of a long block."""
        if self.limit_words is None or pass_plan.trips("x") == 1:
            return
        tensor, swapped = pass_plan.stationary, pass_plan.swapped
        stream = pass_plan.stream
        panels = ONES if stream == "x" else PerAxis(**{stream: getattr(pass_plan.counts, stream)})
        rest = "" if stream == "x" else stream
        inner = PerAxis(*(n // panel for n, panel in zip(pass_plan.counts, panels, strict=True)))
        for axis in ("w", "h", "d", "b"):

            def fits(count: int, axis: str = axis, inner: PerAxis = inner) -> bool:
                fine = (merge(inner.with_(axis, count), each) for each in self._finest(rest))
                return any(self.fits(self._plan(tensor, each)) for each in fine)

            most = getattr(inner, axis)
            if most > 1:
                counts = range(2, most + 1)
                inner = inner.with_(axis, 1 if fits(1) else counts[bisect_left(counts, True, key=fits)])
        if stream == "x":
            yield self._plan(tensor, inner, swapped)
        else:
            yield from self._panels(tensor, inner, 0, swapped)

    def least_memory(self, tensor: Tensor) -> int:
        """The least memory in words that any plan with this stationary tensor needs.

        Smaller tiles need less memory, with four exceptions: a second step needs a buffer for the next
        panel, tiles along a padded axis need a padded copy, an inner loop gathers the slices of saved
        tensors as a whole, and results that an inner loop adds up need a buffer for the sum.
        """
        summed = LACKED_INDEX[self.template.written]
        finest = (PassPlan(tensor).stream, "xck", "xck".replace(summed, ""))
        candidates = [ONES, *(counts for each in finest for counts in self._finest(each))]
        return min(self.footprints.memory(self._plan(tensor, counts)).words for counts in candidates)

    def _finest(self, composites: str) -> list[PerAxis]:
        """The finest tiles along some composite indices. One of them needs the least memory."""
        work = self.work
        c, k = (getattr(work, axis) if axis in composites else 1 for axis in ("c", "k"))
        if "x" not in composites:
            return [PerAxis(c=c, k=k)]
        rows = product(*({1, getattr(work, axis)} for axis in SPATIAL))
        return [PerAxis(b=work.b, d=d, h=h, w=w, c=c, k=k) for d, h, w in rows]

    def _plan(self, tensor: Tensor, counts: PerAxis = ONES, swapped: bool = False) -> PassPlan:
        return self.words.plan(tensor, counts, swapped)

    def _wanted(self, tensor: Tensor) -> int:
        """The number of panels without a memory limit. It is 1 if few words are streamed.

        Reused and saved tensors do not count, because their slices are in memory in any case.
        """
        if self.panels is not None:
            return self.panels
        loop = pass_program(self.distribution, self._plan(tensor)).loop
        words = sum(self.footprints.slice(node.tensor) for node in (*loop.gathers, *loop.reduces))
        size = words * self.distribution.nest.word_bytes
        return max(1, min(PANELS, size // PANEL_BYTES))
