"""Memory of a training step: of each pass, with the words of other passes that are resident beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from synth.layer.axes import Tensor
from synth.layer.passes import PASSES, WRITES, Pass, Passes
from synth.schedule.memory import Footprints, Memory
from synth.schedule.pass_plan import PassPlan


def unused_resident_words(
    footprints: Footprints, reused: frozenset[Tensor], sequence: Passes, pass_: Pass
) -> int:
    """Upper bound on resident words that the pass neither reads nor writes.

    These are the shard of the tensor whose gradient the pass computes, its slice if it is saved and a copy,
    and the results of earlier passes. A program is given dOut at the start and returns Out at the end; in a
    network the neighbours hold them (`Distribution.ghosts` is false).
    """
    ends = WRITES[sequence[0]]
    if pass_ == sequence[0]:
        return footprints.stored(ends) if footprints.distribution.ghosts else 0
    unused, earlier = WRITES[pass_], sequence[1 : sequence.index(pass_)]
    words = footprints.stored(unused)
    words += footprints.finished(ends) if footprints.distribution.ghosts else 0
    words += footprints.saved(unused) if unused in reused and footprints.is_apart(unused) else 0
    return words + sum(footprints.finished(WRITES[each]) for each in earlier)


def training_memory(footprints: Footprints, pass_plans: Sequence[PassPlan], overlap: bool = False) -> Memory:
    """The memory of a training step: the maximum over its passes, with resident words of other passes.

    `overlap`: whether the reduction of the first gradient overlaps with the computation of the second.
    """
    reused = pass_plans[0].saves | pass_plans[1].saves
    sequence = tuple(pass_plan.pass_ for pass_plan in pass_plans)
    pool = footprints.messages.kept(pass_plans, overlap)
    passes = [
        footprints.memory(pass_plan).beside(
            pool + unused_resident_words(footprints, reused, sequence, pass_plan.pass_)
        )
        for pass_plan in pass_plans
    ]
    if overlap:
        in_flight = footprints.travelling(pass_plans[1]) - footprints.finished(WRITES[sequence[1]])
        passes[2] = passes[2].beside(in_flight)
    return reduce(Memory.most, passes)


def reduction_overlaps(
    footprints: Footprints, pass_plans: Sequence[PassPlan], limit_words: int | None
) -> bool:
    """Whether the reduction of the first gradient overlaps with the computation of the second.

    This needs two gradients and enough memory.
    """
    if len(pass_plans) < len(PASSES) or footprints.distribution.group_size(pass_plans[1].written) == 1:
        return False
    return limit_words is None or training_memory(footprints, pass_plans, True).words <= limit_words
