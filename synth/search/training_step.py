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
from synth.layer.passes import GRADIENTS, PASSES, WRITES, Passes, reuse_intervals, sequences
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import Reduce, pass_program
from synth.schedule.training_memory import reduction_overlaps, training_memory, unused_resident_words
from synth.schedule.volume import received
from synth.search.tiling_search import TilingChoice, choose_tiling


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
) -> tuple[TilingChoice | None, int]:
    """Choose the tilings and the reused tensors of a training step that move the fewest words.

    Returns the choice, or None if none fits `limit_words`, and the least memory in words that any choice
    needs. The words are those of the process that receives most over the whole step. The other arguments
    are those of `choose_tiling`.
    """
    footprints = Footprints(distribution)
    best: TilingChoice | None = None
    least: int | None = None
    orders = preferred_orders(footprints, transposed, gradients)

    @cache
    def fewest(reused: frozenset[Tensor]) -> int:
        """The words with unlimited memory, which do not depend on the order of the passes."""
        return _words(distribution, pass_templates(reused, orders[0]))

    for reused in reuse_choices(orders[0], limit_words is None):
        if best is not None and fewest(reused) >= best.words:
            continue
        for sequence in orders:
            chosen, needed = choose_pass_tilings(
                footprints, stationary, limit_words, reused, panels, sequence
            )
            least = needed if least is None else min(least, needed)
            if chosen is not None and (best is None or chosen.words < best.words):
                best = chosen
            if chosen is not None and chosen.words == fewest(reused):
                break
    assert least is not None
    return best, least


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
    """`choose_pass_tilings` in the preferred order of the passes. Network plans and their runs use it."""
    footprints = Footprints(distribution)
    sequence = preferred_orders(footprints, transposed, gradients)[0]
    reusable = reused & reuse_intervals(sequence).keys()
    return choose_pass_tilings(footprints, stationary, limit_words, reusable, sequence=sequence)


def choose_pass_tilings(
    footprints: Footprints,
    stationary: Sequence[Tensor],
    limit_words: int | None,
    reused: frozenset[Tensor],
    panels: int | None = None,
    sequence: Passes = PASSES,
) -> tuple[TilingChoice | None, int]:
    """Choose the tilings of all passes, if they reuse exactly the tensors `reused`.

    Returns the choice, or None if none fits `limit_words`, and the least memory in words that any needs.
    """
    distribution = footprints.distribution
    pass_plans: list[PassPlan] = []
    used_words = needed = 0
    for template in pass_templates(reused, sequence):
        resident = unused_resident_words(footprints, reused, sequence, template.pass_)
        available = None if limit_words is None else limit_words - resident
        wanted = 1 if panels is None and _reduces_at_once(distribution, template, sequence) else panels
        found, least = choose_tiling(distribution, stationary, available, template, wanted)
        needed = max(needed, least + resident)
        if found is not None:
            pass_plans.append(found.first)
            used_words = max(used_words, found.used_words + resident)
    if len(pass_plans) < len(sequence):
        return None, needed
    if reduction_overlaps(footprints, pass_plans, limit_words):
        used_words = training_memory(footprints, pass_plans, overlap=True).words
    return TilingChoice(tuple(pass_plans), _words(distribution, pass_plans), used_words), needed


def _reduces_at_once(distribution: Distribution, template: PassPlan, sequence: Passes) -> bool:
    """Whether a pass needs one panel only: it moves nothing but a reduction that overlaps with a pass."""
    moves = list(pass_program(distribution, template).collectives())
    return sequence[1:-1] == (template.pass_,) and [type(node) for node in moves] == [Reduce]


def _words(distribution: Distribution, pass_plans: Sequence[PassPlan]) -> int:
    """The words of the process that receives most over all passes."""
    return reduce(add, (received(distribution, pass_plan) for pass_plan in pass_plans)).most_with()
