"""Training plans: three passes on one grid, the tensors that they save for each other, and the cost."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import combinations
from operator import add
from unittest.mock import patch

import pytest
from cases import CASES
from hypothesis import given, settings
from hypothesis_problems import distributions, small_nests, training_steps

import synth
from synth.layer.axes import TENSORS, PerAxis, Tensor
from synth.layer.passes import GRADIENTS, PASSES, WRITES, Passes, reads, reuse_intervals, sequences
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.schedule import Schedule
from synth.schedule.training_memory import reduction_overlaps, training_memory, unused_resident_words
from synth.schedule.volume import received
from synth.search import pass_tilings
from synth.search.training_step import (
    choose_tilings_reusing,
    choose_training_tilings,
    pass_templates,
    preferred_orders,
)
from synth.simulation.interpreter import simulate
from synth.simulation.simulate import simulated
from synth.simulation.verify import verify

SETS = [frozenset(kept) for count in range(4) for kept in combinations(TENSORS, count)]


@pytest.mark.parametrize("kept", SETS, ids=lambda kept: "+".join(sorted(kept)) or "nothing")
@pytest.mark.parametrize(
    "sequence",
    [
        each
        for turned in (False, True)
        for made in (GRADIENTS, ("In",), ("Ker",))
        for each in sequences(turned, made)
    ],
)
def test_pass_templates_save_and_reuse_the_same_tensors(sequence: Passes, kept: frozenset[Tensor]) -> None:
    passes = {pass_plan.pass_: pass_plan for pass_plan in pass_templates(kept, sequence)}
    assert tuple(passes) == sequence
    for tensor, (gathers, finds) in reuse_intervals(sequence).items():
        assert (tensor in passes[gathers].saves) == (tensor in kept) == (tensor in passes[finds].reuses)
        assert sequence.index(gathers) < sequence.index(finds)
        assert tensor in reads(gathers)
        assert tensor in reads(finds)


@given(training_steps())
@settings(max_examples=60)
def test_schedules_are_right_and_fit_the_planned_memory(schedules: tuple[Schedule, ...]) -> None:
    """For every pass and every set of saved tensors; `verify` checks all words of all ranks."""
    footprints = Footprints(schedules[0].distribution)
    for schedule in schedules:
        verify(schedule, None)
        planned = footprints.memory(schedule.pass_plan).words
        assert max(simulate(schedule).peak) <= planned


@given(distributions(small_nests()))
@settings(max_examples=40)
def test_each_saved_tensor_spares_one_gather(distribution: Distribution) -> None:
    """With one tile a step: each tensor moves twice if everything is saved, and three times if nothing is."""
    for sequence in sequences():
        words = {
            k: reduce(add, (received(distribution, t) for t in pass_templates(k, sequence))) for k in SETS
        }
        everything, nothing = words[frozenset(TENSORS)], words[frozenset()]
        for tensor in TENSORS:
            _, reader = reuse_intervals(sequence)[tensor]
            saved = received(distribution, pass_templates(frozenset())[PASSES.index(reader)])
            expected = nothing.by_tensor[tensor] - saved.by_tensor[tensor]
            assert (words[frozenset({tensor})].by_tensor[tensor] == expected).all()
            assert (everything.by_tensor[tensor] == expected).all()


@given(distributions(small_nests()))
@settings(max_examples=12)
def test_less_memory_saves_less_and_moves_more(distribution: Distribution) -> None:
    best, _ = choose_training_tilings(distribution, TENSORS, None)
    assert best is not None
    none, least = choose_training_tilings(distribution, TENSORS, 1)
    assert none is None
    assert choose_training_tilings(distribution, TENSORS, least - 1)[0] is None
    tight, _ = choose_training_tilings(distribution, TENSORS, least)
    assert tight is not None
    assert tight.used_words <= least
    assert tight.words >= best.words
    kept = tight.pass_plans[0].saves | tight.pass_plans[1].saves
    footprints = Footprints(distribution)
    first, second, last = (pass_plan.pass_ for pass_plan in tight.pass_plans)
    for pass_plan in tight.pass_plans:
        alive = unused_resident_words(footprints, kept, (first, second, last), pass_plan.pass_)
        assert max(simulate(Schedule(distribution, pass_plan)).peak) + alive <= least
    assert training_memory(footprints, tight.pass_plans).words <= least
    over = training_memory(footprints, tight.pass_plans, overlap=True).words
    assert (
        reduction_overlaps(footprints, tight.pass_plans, over)
        == (distribution.group_size(WRITES[second]) > 1)
        == reduction_overlaps(footprints, tight.pass_plans, None)
    )
    assert not reduction_overlaps(footprints, tight.pass_plans, over - 1)


@pytest.mark.parametrize(
    ("grid", "first"),
    [
        (PerAxis(b=4), "backward-filter"),  # dKer is summed, dIn is not
        (PerAxis(h=4), "backward-filter"),
        (PerAxis(k=4), "backward-data"),  # the other way round
        (PerAxis(c=4), "backward-data"),  # neither is
        (PerAxis(b=4, k=2), "backward-filter"),  # 3/4 of 16*8*9 words, and half of 16*8*8
        (PerAxis(b=2, k=4), "backward-data"),  # half of 16*4*9 words, and 3/4 of 2*16*8*8
    ],
)
def test_the_gradient_with_more_sums_comes_first(grid: PerAxis, first: str) -> None:
    distribution = Distribution(CASES["data"].nest, grid)
    best, other = preferred_orders(Footprints(distribution))
    assert best[1] == first
    assert other[1] != first


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("training")])
@pytest.mark.one_in(3)
def test_interpreted_cases_move_the_planned_words(name: str) -> None:
    outcome = simulated(CASES[name])
    assert outcome.values
    assert max(outcome.received["total"]) == CASES[name].words["total"]


def test_a_training_plan_is_read_back() -> None:
    import json

    from synth.planning.plan_file import parse_plan

    plan = synth.plan(CASES["data"].layer, 4, pass_="training")
    assert parse_plan(json.dumps(plan.to_json()), "plan.json") == plan
    assert [pass_plan.pass_ for pass_plan in plan.pass_plans] in map(list, sequences())


def test_sums_do_not_overlap_without_memory_for_it() -> None:
    import json

    from synth.planning.plan_file import parse_plan

    plan = CASES["training_grouped"]  # dIn has sums that travel while dKer is computed
    assert [pass_plan.pass_ for pass_plan in plan.pass_plans] == list(PASSES)
    assert plan.overlap
    tight = replace(plan, limit_bytes=plan.used_bytes - 1)
    assert not tight.overlap
    assert tight.used_bytes < plan.used_bytes
    assert tight.id != plan.id
    assert parse_plan(json.dumps(tight.to_json()), "plan.json").overlap is False


@given(distributions())
@settings(max_examples=10)
def test_untiled_words_of_other_passes_are_counted_only_under_a_limit_of_words(
    distribution: Distribution,
) -> None:
    with patch.object(pass_tilings, "received", wraps=received) as counted:
        chosen, _ = choose_tilings_reusing(distribution, TENSORS, None, frozenset(), False)
    assert chosen is not None
    assert counted.call_count == 0
    assert (
        chosen.words
        == reduce(add, (received(distribution, each) for each in chosen.pass_plans)).most_in_all()
    )
