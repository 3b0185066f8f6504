"""The memory of many tilings at once is that of each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis_problems import schedules, small_nests, training_steps

from synth.layer.axes import PerAxis, Tensor
from synth.layer.layer import Layer
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.memory_of_tilings import XTilings
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule


def compare(distribution: Distribution, template: PassPlan) -> list[int]:
    """Looks at all tilings along x; the other tiles are those of `template`. Gives the words of each."""
    work = distribution.most_work
    counts = [
        PerAxis(b=b, d=d, h=h, w=w) for b, d, h, w in product(*(range(1, n + 1) for n in work_rows(work)))
    ]

    def planned(tiles: PerAxis) -> PassPlan:
        return replace(template, counts=tiles._replace(c=template.counts.c, k=template.counts.k))

    found = XTilings(Footprints(distribution), counts).memory(planned).tolist()
    footprints = Footprints(distribution)
    assert found == [footprints.memory(planned(tiles)).words for tiles in counts]
    return found


def work_rows(work: PerAxis) -> tuple[int, int, int, int]:
    return work.b, work.d, work.h, work.w


@settings(max_examples=40)
@given(schedules(small_nests(4)), st.sampled_from(["In", "Ker", "Out"]))
def test_memory_of_a_pass(schedule: Schedule, tensor: Tensor) -> None:
    found = compare(schedule.distribution, replace(schedule.pass_plan, stationary=tensor))
    event(f"tilings: {min(4, len(found))}")


@settings(max_examples=20)
@given(training_steps(small_nests(4)))
def test_memory_of_passes_that_save_and_reuse(step: tuple[Schedule, ...]) -> None:
    for schedule in step:
        compare(schedule.distribution, schedule.pass_plan)


@pytest.mark.parametrize("ghosts", [True, False])
def test_words_beyond_64_bits(ghosts: bool) -> None:
    layer = Layer.conv2d((2, 2**40, 5, 4), 2**40, 3, padding=1)
    d = Distribution(layer.nest, PerAxis(h=2, w=2, k=2), ghosts=ghosts)
    assert max(compare(d, PassPlan("Ker", PerAxis(k=2)))) > 2**80
