"""One training step of a layer: its passes on one grid, and what is kept in memory between them.

    pass              reads       writes   what it can find kept
    forward           In, Ker     Out      nothing
    backward-data     dOut, Ker   dIn      Ker, from the forward pass
    backward-filter   dOut, In    dKer     In, from the forward pass; dOut, from backward-data

The two gradients may come either way around (dOut is then found by the other one). The sums of the first
travel while the second is computed, so the one with more words to sum goes first.

Without keeping, every tensor moves three times (twice gathered, once summed); each kept tensor saves one
gather, so keeping all three saves a third of the words. It costs memory: a kept slice lives from the pass
that gathers it to the pass that finds it. Which tensors to keep is part of the search.

A transposed convolution does backward-data first: In and Out change places above. Where a gradient is not
wanted (dIn of the first layer of a network) there are two passes, and one tensor that both read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache, reduce
from itertools import combinations
from operator import add

from synth.layer.axes import Tensor
from synth.layer.passes import GRADIENTS, PASSES, WRITES, Pass, Passes, reuse_intervals, sequences
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints, Memory
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received
from synth.search.tiling_search import TilingChoice, choose_tiling


def pass_templates(kept: frozenset[Tensor], sequence: Passes = PASSES) -> tuple[PassPlan, ...]:
    """The passes, each with what it keeps and finds kept when `kept` is kept between passes.

    Of `kept`, what one pass alone reads is left out.
    """
    lives = reuse_intervals(sequence)
    kept = kept & lives.keys()
    return tuple(
        PassPlan(
            pass_=pass_,
            reuses=frozenset(t for t in kept if lives[t][1] == pass_),
            saves=frozenset(t for t in kept if lives[t][0] == pass_),
        )
        for pass_ in sequence
    )


def preferred_orders(
    footprints: Footprints, transposed: bool = False, gradients: Collection[Tensor] = GRADIENTS
) -> tuple[Passes, ...]:
    """The orders of the passes, best first: the gradient with more words to sum is computed first."""

    def arriving(sequence: Passes) -> int:
        written = WRITES[sequence[1]]
        return (footprints.distribution.group_size(written) - 1) * footprints.carried(written)

    return tuple(sorted(sequences(transposed, gradients), key=arriving, reverse=True))


def unused_resident_words(
    footprints: Footprints, kept: frozenset[Tensor], sequence: Passes, pass_: Pass
) -> int:
    """Words alive during a pass that are none of its business, at most.

    A backward pass leaves the tensor alone whose gradient it computes: its share waits, and its slice where
    that was kept. Beside the last pass stays the gradient that was computed before it.
    """
    if pass_ == sequence[0]:
        return 0
    waits, before = WRITES[pass_], sequence[1 : sequence.index(pass_)]
    words = footprints.shares[waits] + (footprints.slice(waits) if waits in kept else 0)
    return words + sum(footprints.shares[WRITES[earlier]] for earlier in before)


def training_memory(footprints: Footprints, pass_plans: Sequence[PassPlan], overlap: bool = False) -> Memory:
    """The most words a process holds over the passes, what waits for later ones included.

    overlap: whether the sums of the first gradient travel while the second one is computed.
    """
    kept = pass_plans[0].saves | pass_plans[1].saves
    sequence = tuple(pass_plan.pass_ for pass_plan in pass_plans)
    passes = [
        footprints.memory(pass_plan).beside(
            unused_resident_words(footprints, kept, sequence, pass_plan.pass_)
        )
        for pass_plan in pass_plans
    ]
    if overlap:
        more = footprints.travelling(pass_plans[1]) - footprints.shares[WRITES[sequence[1]]]
        passes[2] = passes[2].beside(more)
    return reduce(Memory.most, passes)


def reduction_overlaps(
    footprints: Footprints, pass_plans: Sequence[PassPlan], limit_words: int | None
) -> bool:
    """Whether the sums of the first gradient travel under the second: there are both, and memory for it."""
    if len(pass_plans) < len(PASSES) or footprints.distribution.group_size(pass_plans[1].written) == 1:
        return False
    return limit_words is None or training_memory(footprints, pass_plans, True).words <= limit_words


def choose_training_tilings(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit_words: int | None,
    panels: int | None = None,
    transposed: bool = False,
    gradients: Collection[Tensor] = GRADIENTS,
) -> tuple[TilingChoice | None, int]:
    """The plans of the passes that move the fewest words in all, and the least memory needed.

    Words are those of the process that receives most over the whole step; `panels` as for `fit`.
    """
    footprints = Footprints(distribution)
    best: TilingChoice | None = None
    least: int | None = None
    orders = preferred_orders(footprints, transposed, gradients)

    @cache
    def fewest(kept: frozenset[Tensor]) -> int:
        """Words in either order, were there memory enough."""
        return _words(distribution, pass_templates(kept, orders[0]))

    for kept in reuse_choices(orders[0], limit_words is None):
        if best is not None and fewest(kept) >= best.words:
            continue
        for sequence in orders:
            chosen, needed = choose_pass_tilings(footprints, stationary, limit_words, kept, panels, sequence)
            least = needed if least is None else min(least, needed)
            if chosen is not None and (best is None or chosen.words < best.words):
                best = chosen
            if chosen is not None and chosen.words == fewest(kept):
                break
    assert least is not None
    return best, least


def reuse_choices(sequence: Passes, all_fit: bool) -> Iterator[frozenset[Tensor]]:
    """What may be kept between passes, most first; with enough memory everything is."""
    tensors = reuse_intervals(sequence)
    for count in range(len(tensors), -1, -1):
        for kept in combinations(tensors, count):
            yield frozenset(kept)
        if all_fit:
            return


def choose_tilings_reusing(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit_words: int | None,
    kept: frozenset[Tensor],
    transposed: bool,
    gradients: Collection[Tensor] = GRADIENTS,
) -> tuple[TilingChoice | None, int]:
    """`choose_pass_tilings` in the preferred order of the passes, as networks plan and run a layer."""
    footprints = Footprints(distribution)
    sequence = preferred_orders(footprints, transposed, gradients)[0]
    reused = kept & reuse_intervals(sequence).keys()
    return choose_pass_tilings(footprints, stationary, limit_words, reused, sequence=sequence)


def choose_pass_tilings(
    footprints: Footprints,
    stationary: Sequence[Tensor],
    limit_words: int | None,
    kept: frozenset[Tensor],
    panels: int | None = None,
    sequence: Passes = PASSES,
) -> tuple[TilingChoice | None, int]:
    """The plans of the passes when exactly `kept` is kept between them; None if over `limit_words`.

    Also the least memory needed, in words.
    """
    distribution = footprints.distribution
    pass_plans: list[PassPlan] = []
    used_words = needed = 0
    for role in pass_templates(kept, sequence):
        alive = unused_resident_words(footprints, kept, sequence, role.pass_)
        left = None if limit_words is None else limit_words - alive
        wanted = 1 if panels is None and _travels_whole(distribution, role, sequence) else panels
        found, least = choose_tiling(distribution, stationary, left, role, wanted)
        needed = max(needed, least + alive)
        if found is not None:
            pass_plans.append(found.first)
            used_words = max(used_words, found.used_words + alive)
    if len(pass_plans) < len(sequence):
        return None, needed
    if reduction_overlaps(footprints, pass_plans, limit_words):
        used_words = training_memory(footprints, pass_plans, overlap=True).words
    return TilingChoice(tuple(pass_plans), _words(distribution, pass_plans), used_words), needed


def _travels_whole(distribution: Distribution, role: PassPlan, sequence: Passes) -> bool:
    """Whether the sums of a pass are all that could stream in it: under the next pass they travel at once."""
    at_hand = (t in role.reuses or distribution.group_size(t) == 1 for t in role.reads)
    return sequence[1:-1] == (role.pass_,) and distribution.group_size(role.written) > 1 and all(at_hand)


def _words(distribution: Distribution, pass_plans: Sequence[PassPlan]) -> int:
    """Words of the process that receives most over all passes."""
    return reduce(add, (received(distribution, pass_plan) for pass_plan in pass_plans)).most_with()
