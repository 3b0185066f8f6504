"""One training step of a layer: its passes on one grid, and the slices that passes reuse.

    pass              reads       writes   can reuse
    forward           In, Ker     Out      nothing
    backward-data     dOut, Ker   dIn      Ker, saved by the forward pass
    backward-filter   dOut, In    dKer     In, saved by the forward pass; dOut, saved by backward-data

The two gradients may have either order; the second one can reuse dOut. The reduction of the first gradient
overlaps with the computation of the second, so the gradient with more words to reduce comes first.

Without reuse every tensor is communicated three times: two gathers and one reduction. Each reused tensor
saves one gather, so reusing all three saves a third of the words. Reuse costs memory, because a saved slice
stays in memory from the pass that gathers it to the pass that reuses it. The search also decides which
tensors to reuse.

A transposed convolution does backward-data first, so In and Out are exchanged above. A step without one of
the gradients (dIn of the first layer of a network) has two passes, which share one tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache, reduce
from itertools import combinations
from operator import add

from synth.layer.axes import Tensor
from synth.layer.passes import GRADIENTS, PASSES, WRITES, Pass, Passes, reuse_intervals, sequences
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import Reduce, pass_program
from synth.schedule.training_memory import reduction_overlaps, training_memory, unused_resident_words
from synth.schedule.volume import Received, received
from synth.search.pass_tilings import PassTilings, Tally
from synth.search.tiling_search import TilingChoice


@cache
def pass_templates(reused: frozenset[Tensor], sequence: Passes = PASSES) -> tuple[PassPlan, ...]:
    """A `PassPlan` per pass with its saved and reused tensors, and without a tiling.

    `reused`: the tensors that a later pass reuses. Tensors that only one pass reads are ignored.
    """
    intervals = reuse_intervals(sequence)
    reused = reused & intervals.keys()
    return tuple(
        PassPlan(
            pass_=pass_,
            reuses=frozenset(t for t in reused if intervals[t][1] == pass_),
            saves=frozenset(t for t in reused if intervals[t][0] == pass_),
        )
        for pass_ in sequence
    )


def preferred_orders(
    footprints: Footprints, transposed: bool = False, gradients: Collection[Tensor] = GRADIENTS
) -> tuple[Passes, ...]:
    """The possible orders of the passes, best first: the first gradient has more words to reduce."""

    def reduced_words(sequence: Passes) -> int:
        written = WRITES[sequence[1]]
        return (footprints.distribution.group_size(written) - 1) * footprints.carried(written)

    return tuple(sorted(sequences(transposed, gradients), key=reduced_words, reverse=True))


def choose_training_tilings(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit_words: int | None,
    panels: int | None = None,
    transposed: bool = False,
    gradients: Collection[Tensor] = GRADIENTS,
    most_words: int | None = None,
    enough: int | None = None,
    footprints: Footprints | None = None,
    tally: Tally | None = None,
) -> tuple[TilingChoice | None, int]:
    """Choose the tilings and the reused tensors of a training step that move the fewest words.

    Returns the choice, or None if none fits `limit_words`, and the least memory in words that any choice
    needs which can move at most `most_words` (0 if no choice can, or without a limit). `enough`: if more is
    needed, a lower bound above this is returned. The words are those of the process that receives most over
    the whole step. The other arguments are those of `choose_tiling`.
    """
    footprints = footprints or Footprints(distribution)
    step = _StepTilings(footprints, stationary, panels, tally)
    orders = preferred_orders(footprints, transposed, gradients)
    least = 0
    best: TilingChoice | None = None
    for reused in reuse_choices(orders[0], limit_words is None):
        fewest = 0 if most_words is None else step.fewest(reused, orders[0])  # in any order of the passes
        if most_words is not None and fewest > most_words:
            continue
        fit = orders
        if limit_words is not None:
            needed = {order: step.least_memory(reused, order, enough) for order in orders}
            least = min(least or needed[orders[0]], *needed.values())
            fit = tuple(order for order in orders if needed[order] <= limit_words)
        for order in fit:
            chosen = step.choose(limit_words, reused, order, most_words)
            if chosen is not None:
                best, most_words = chosen, chosen.words - 1
                if chosen.words == (fewest or step.fewest(reused, orders[0])):
                    break
    return best, least


class StepFloors:
    """Lower bounds of the memory of any tilings of a step on one distribution, by the reused tensors."""

    def __init__(
        self,
        footprints: Footprints,
        stationary: Sequence[Tensor],
        panels: int | None,
        orders: Sequence[Passes],
    ) -> None:
        self._step, self._orders = _StepTilings(footprints, stationary, panels), orders

    def __call__(self, reused: frozenset[Tensor], enough: int) -> int:
        """Words of memory in the best order of the passes; the first bound that is within `enough`."""
        least = 0
        for order in self._orders:
            floor = self._step.memory_floor(reused, order, enough)
            if floor <= enough:
                return floor
            least = min(least or floor, floor)
        return least


def reuse_choices(sequence: Passes, all_fit: bool) -> Iterator[frozenset[Tensor]]:
    """The sets of tensors that passes may reuse, largest first. `all_fit`: only the set of all of them."""
    tensors = reuse_intervals(sequence)
    for count in range(len(tensors), -1, -1):
        for reused in combinations(tensors, count):
            yield frozenset(reused)
        if all_fit:
            return


def choose_tilings_reusing(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit_words: int | None,
    reused: frozenset[Tensor],
    transposed: bool,
    gradients: Collection[Tensor] = GRADIENTS,
) -> tuple[TilingChoice | None, int]:
    """The same in the preferred order of the passes, which reuse all of `reused` that they can.

    Network plans and their runs use it.
    """
    footprints = Footprints(distribution)
    sequence = preferred_orders(footprints, transposed, gradients)[0]
    reusable = frozenset(reused & reuse_intervals(sequence).keys())
    step = _StepTilings(footprints, stationary, None)
    least = 0 if limit_words is None else step.least_memory(reusable, sequence)
    return step.choose(limit_words, reusable, sequence), least


class _StepTilings:
    """The tilings of all passes on one distribution. Choices of reused tensors share those of passes."""

    def __init__(
        self,
        footprints: Footprints,
        stationary: Sequence[Tensor],
        panels: int | None,
        tally: Tally | None = None,
    ) -> None:
        self.tally = tally
        self.footprints, self.stationary, self.panels = footprints, stationary, panels
        self._passes: dict[tuple[PassPlan, int | None], PassTilings] = {}
        self._received: dict[tuple[Pass, frozenset[Tensor]], Received] = {}
        self._alone: dict[PassPlan, bool] = {}
        self._chosen: dict[tuple[int, int | None, int | None], TilingChoice | None] = {}

    def passes(self, reused: frozenset[Tensor], sequence: Passes) -> list[PassTilings]:
        """The tilings of each pass, if they reuse exactly the tensors `reused`."""
        return [self._of(template, sequence) for template in pass_templates(reused, sequence)]

    def _of(self, template: PassPlan, sequence: Passes) -> PassTilings:
        alone = self.panels is None and self._reduces_at_once(template, sequence)
        key = template, 1 if alone else self.panels
        if key not in self._passes:
            self._passes[key] = PassTilings(self.footprints, self.stationary, *key, self.tally)
        return self._passes[key]

    def least_memory(self, reused: frozenset[Tensor], sequence: Passes, enough: int | None = None) -> int:
        """The least memory in words that any tilings with these reused tensors need.

        If that is more than `enough`, only a lower bound of it above `enough`.
        """
        if enough is not None and (floor := self.memory_floor(reused, sequence, enough)) > enough:
            return floor
        needed = 0
        for resident, each in self._last_first(reused, sequence):
            needed = max(needed, resident + each.least_memory)
            if enough is not None and needed > enough:
                break
        return needed

    def memory_floor(self, reused: frozenset[Tensor], sequence: Passes, enough: int) -> int:
        """A lower bound of `least_memory`, found faster; the first above `enough`, if one is."""
        most = 0
        for resident, each in self._last_first(reused, sequence):
            most = max(most, resident + each.least_floor)
            if most > enough:
                break
        return most

    def _last_first(self, reused: frozenset[Tensor], sequence: Passes) -> Iterator[tuple[int, PassTilings]]:
        """The resident words beside each pass and its tilings: most are resident beside the last pass."""
        for template in reversed(pass_templates(reused, sequence)):
            resident = unused_resident_words(self.footprints, reused, sequence, template.pass_)
            yield resident, self._of(template, sequence)

    def fewest(self, reused: frozenset[Tensor], sequence: Passes) -> int:
        """The words with unlimited memory."""
        return reduce(add, map(self._untiled, self.passes(reused, sequence))).most_in_all()

    def _untiled(self, tilings: PassTilings) -> Received:
        """The words of one pass without a limit: no matter which tensors it saves."""
        key = tilings.template.pass_, tilings.template.reuses
        if key not in self._received:
            self._received[key] = tilings.untiled
        return self._received[key]

    def choose(
        self,
        limit_words: int | None,
        reused: frozenset[Tensor],
        sequence: Passes,
        most_words: int | None = None,
    ) -> TilingChoice | None:
        """The tilings of all passes with the fewest words, or None if none with at most `most_words` fit."""
        passes, resident = self.passes(reused, sequence), self._resident(reused, sequence)
        chosen: list[TilingChoice] = []
        for number, (each, words) in enumerate(zip(passes, resident, strict=True)):
            left = None if limit_words is None else limit_words - words
            others = map(self._untiled, passes[:number] + passes[number + 1 :])
            found = self._choose(each, left, _left_beside(others, most_words))
            if found is None:
                return None
            chosen.append(found)
        pass_plans = tuple(found.first for found in chosen)
        received_words = _words(self.footprints.distribution, pass_plans)
        if most_words is not None and received_words > most_words:
            return None
        if reduction_overlaps(self.footprints, pass_plans, limit_words):
            used = training_memory(self.footprints, pass_plans, overlap=True).words
        else:
            used = max(each.used_words + words for each, words in zip(chosen, resident, strict=True))
        return TilingChoice(pass_plans, received_words, used)

    def _choose(self, tilings: PassTilings, limit: int | None, most: int | None) -> TilingChoice | None:
        key = id(tilings), limit, most
        if key not in self._chosen:
            self._chosen[key] = tilings.choose(limit, most)
        return self._chosen[key]

    def _reduces_at_once(self, template: PassPlan, sequence: Passes) -> bool:
        """Whether a pass needs one panel only: it moves nothing but a reduction that overlaps with a pass."""
        if sequence[1:-1] != (template.pass_,):
            return False
        if template not in self._alone:
            moves = pass_program(self.footprints.distribution, template).collectives()
            self._alone[template] = [type(node) for node in moves] == [Reduce]
        return self._alone[template]

    def _resident(self, reused: frozenset[Tensor], sequence: Passes) -> list[int]:
        return [unused_resident_words(self.footprints, reused, sequence, pass_) for pass_ in sequence]


def _left_beside(others: Iterator[Received], most_words: int | None) -> int | None:
    """The most words of one pass where no process may receive more than `most_words` over all passes.

    Whatever their tilings, each process receives at least the untiled words of the other passes, `others`.
    They are counted only if there is such a limit.
    """
    if most_words is None:
        return None
    beside = [*others]
    return most_words - reduce(add, beside).least() if beside else most_words


def _words(distribution: Distribution, pass_plans: Sequence[PassPlan]) -> int:
    """The words of the process that receives most over all passes."""
    return reduce(add, (received(distribution, pass_plan) for pass_plan in pass_plans)).most_in_all()
