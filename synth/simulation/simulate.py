"""`synth simulate`: verify a plan's schedule for all ranks, and compute with it in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synth.base.errors import CheckError
from synth.base.units import show_bytes, show_words
from synth.layer.residue_classes import into_classes
from synth.planning.plan import Plan
from synth.schedule.schedule import Schedule
from synth.simulation.interpreter import simulate
from synth.simulation.numpy_kernels import reference
from synth.simulation.traffic import Simulation
from synth.simulation.verify import Verified, verify

LARGEST = 2**33  # multiply-adds beyond which values take minutes in one process


@dataclass(frozen=True)
class Simulated:
    """What the interpreted schedule gave: words received and held per rank, and whether values agree."""

    plan: Plan
    verified: Verified
    received: dict[str, list[int]]  # tensor, "halo" or "total" -> words by rank
    peak: list[int]  # most words held, by rank
    values: bool  # whether values were computed and agree

    def __str__(self) -> str:
        size = self.plan.nest.word_bytes
        most = {name: max(words) for name, words in self.received.items()}
        halo = f" (halo {show_words(most['halo'])})"
        told = "values agree with the whole layer in one piece" if self.values else "counted only, no values"
        held = max(self.peak)
        return (
            f"plan {self.plan.id}: {self.verified}\n"
            f"{told}\n"
            f"received per rank, at most: In {show_words(most['in'])}{'' if self.plan.turned else halo}, "
            f"Ker {show_words(most['ker'])}, Out {show_words(most['out'])}"
            f"{halo if self.plan.turned else ''}; "
            f"together {show_words(most['total'])} words = {show_bytes(most['total'] * size)}, as planned\n"
            f"held per rank, at most: {show_words(held)} words = {show_bytes(held * size)}; "
            f"planned {show_words(self.plan.used_words)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Words per rank and tensor, peak memory in words per rank, and what was checked."""
        return {
            "schema": "synth.simulation/1",
            "plan": self.plan.id,
            "ranks": self.verified.ranks,
            "steps": self.verified.steps,
            "words": {name: max(words) for name, words in self.received.items()},
            "words_per_rank": self.received,
            "peak_words_per_rank": self.peak,
            "planned_memory_words": self.plan.used_words,
            "values_checked": self.values,
        }


def simulated(plan: Plan, values: bool = True, seed: int = 0) -> Simulated:
    """Verify the schedules of all passes of a layer's plan, and interpret all ranks in one process.

    values: whether to compute, too: on small whole numbers of `seed`, so results agree exactly with the layer
    in one piece. Layers of more than 2^33 multiply-adds are only counted. The result has the words that every
    rank receives, by tensor, and the most words that it holds.

    Raises `CheckError` and its kinds where anything is wrong.
    """
    verified = [verify(schedule, plan.limit_words) for schedule in plan.schedules]
    values = values and plan.nest.work * len(plan.schedules) <= LARGEST
    outcomes = [_interpreted(plan, schedule, values, seed) for schedule in plan.schedules]
    received = {
        name: [sum(ranks) for ranks in zip(*(each.received[name] for each in outcomes), strict=True)]
        for name in outcomes[0].received
    }
    peak = [max(ranks) for ranks in zip(*(each.peak for each in outcomes), strict=True)]
    if max(peak) > plan.used_words:
        raise CheckError(f"a rank holds {max(peak)} words, but only {plan.used_words} are planned")
    steps = sum(each.steps for each in verified)
    whole = Verified(verified[0].ranks, steps, max(received["total"]), max(peak))
    return Simulated(plan, whole, received, peak, values)


def _interpreted(plan: Plan, schedule: Schedule, with_values: bool, seed: int) -> Simulation:
    """One pass; `with_values` its result is compared with the whole layer in one piece.

    Residue classes are those of the whole tensors; what the result has in filler rows is not compared.
    """
    if not with_values:
        return simulate(schedule)
    random, pass_plan, nest = np.random.default_rng(seed), schedule.pass_plan, plan.nest
    first, second = (
        random.integers(-4, 5, plan.layer.nest.shapes[tensor]).astype(np.float64)
        for tensor in pass_plan.reads
    )
    pairs = zip(pass_plan.reads, (first, second), strict=True)
    one, other = (into_classes(nest, tensor, each) for tensor, each in pairs)
    outcome = simulate(schedule, one, other)
    whole = reference(plan.layer.nest, first, second, pass_plan.pass_)
    expected, real = (into_classes(nest, pass_plan.written, each) for each in (whole, np.ones_like(whole)))
    if outcome.out is None or not np.array_equal(outcome.out * real, expected):
        raise CheckError(f"plan {plan.id}: the interpreted {pass_plan.pass_} pass computes other values")
    return outcome
