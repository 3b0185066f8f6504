"""Received words: the planner's formula against the words that the simulator counts one by one."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from example_nests import same_window
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import distributions, schedules, training_steps

from synth.layer.axes import TENSORS, PerAxis, Tensor
from synth.layer.intervals import length
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule import volume as words
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule
from synth.schedule.volume import alike, received
from synth.simulation.interpreter import simulate

NAMES = ("in", "ker", "out", "halo", "total")


@given(schedules())
def test_planned_words_are_simulated_words_for_every_rank_and_tensor(schedule: Schedule) -> None:
    d = schedule.distribution
    planned = received(d, schedule.pass_plan)
    counted = simulate(schedule)
    for rank in d.ranks:
        at = planned.at(d.at(rank))
        assert tuple(at) == NAMES
        assert at == {name: counted.received[name][rank] for name in NAMES}
    assert planned.most() == counted.most()


@settings(max_examples=60)
@given(training_steps(), st.sampled_from([0, words.EVERY]))
def test_words_of_a_training_step_are_those_of_its_passes(passes: tuple[Schedule, ...], every: int) -> None:
    """For each pass and their sum, whichever tensors are saved, by classes of ranks and rank by rank."""
    d = passes[0].distribution
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "EVERY", every)
        words.received_by.cache_clear()
        planned = [received(d, each.pass_plan) for each in passes]
    words.received_by.cache_clear()
    counted = [simulate(each) for each in passes]
    together = reduce(add, planned)
    in_all = {name: [0] * len(d.ranks) for name in NAMES}
    for rank in d.ranks:
        at = d.at(rank)
        for one, other in zip(planned, counted, strict=True):
            assert one.at(at) == {name: other.received[name][rank] for name in NAMES}
        for name, count in together.at(at).items():
            in_all[name][rank] = count
            assert count == sum(other.received[name][rank] for other in counted)
    assert together.most() == {name: max(counts) for name, counts in in_all.items()}
    assert together.total.ravel().tolist() == in_all["total"]
    assert together.halo.ravel().tolist() == in_all["halo"]
    assert together.most_in_all() == max(in_all["total"])


@given(schedules())
def test_the_words_of_one_halo_exchange_are_those_of_the_pass(schedule: Schedule) -> None:
    """`Distribution.halo_words`, which timers price. Exact where the grid cuts evenly, else a bound."""
    d, written = schedule.distribution, schedule.pass_plan.written
    framed = [
        tensor for tensor in TENSORS if d.nest.framed(tensor) and tensor not in schedule.pass_plan.reuses
    ]
    one_exchange = sum(d.halo_words(tensor, returns=tensor == written) for tensor in framed)
    counted = received(d, schedule.pass_plan).most()["halo"]
    shares = {tensor: dict(cut) for tensor, cut in d.shard_cuts.items()}
    even = all(n % parts == 0 for n, parts in zip(d.nest.extents, d.grid, strict=True)) and all(
        getattr(d.most_work, dim) % parts == 0 for tensor in framed for dim, parts in shares[tensor].items()
    )
    assert one_exchange == counted if even and len(framed) == 1 else one_exchange >= counted


def test_a_halo_that_a_group_shares_is_cut_like_its_shards() -> None:
    """8 channels among 3 ranks: 3 of them, and of each the rows of a neighbour on either side."""
    nest = Layer.conv2d((4, 8, 28, 28), 16, 3, padding=1).nest
    d = Distribution(nest, PerAxis(h=3, k=3))
    assert d.halo_words("In") == received(d, PassPlan("Out")).most()["halo"] == 640


@given(schedules())
def test_python_integers_and_64_bits_count_alike(schedule: Schedule) -> None:
    short = received(schedule.distribution, schedule.pass_plan)
    words.received_by.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "WIDE", 0)
        exact = received(schedule.distribution, schedule.pass_plan)
    words.received_by.cache_clear()
    assert short.total.dtype == np.int64
    assert exact.total.dtype == object
    assert (short.halo == exact.halo).all()
    assert all((short.by_tensor[t] == exact.by_tensor[t]).all() for t in TENSORS)


@given(schedules())
def test_classes_of_processes_count_as_all_processes_do(schedule: Schedule) -> None:
    every = received(schedule.distribution, schedule.pass_plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "EVERY", 0)
        words.received_by.cache_clear()
        few = received(schedule.distribution, schedule.pass_plan)
    words.received_by.cache_clear()
    assert (every.halo == few.halo).all()
    assert all((every.by_tensor[t] == few.by_tensor[t]).all() for t in TENSORS)
    assert every.most() == few.most()
    twice = few + every
    for rank in schedule.distribution.ranks:
        at = schedule.distribution.at(rank)
        assert few.at(at) == every.at(at)
        assert twice.at(at) == {name: 2 * n for name, n in every.at(at).items()}


def test_words_beyond_64_bits_are_exact() -> None:
    """A matrix product of 2^40 on a 2x2x2 grid: each slice is 2^78 words, of which half is owned."""
    n = 2**40
    nest = Nest(PerAxis(b=n, c=n, k=n), Window(1), Window(1), Window(1))
    most = received(Distribution(nest, PerAxis(b=2, c=2, k=2)), PassPlan()).most()
    assert most == {"in": 2**77, "ker": 2**77, "out": 2**77, "halo": 0, "total": 3 * 2**77}
    odd = Nest(PerAxis(b=n + 1, c=n, k=n), Window(1), Window(1), Window(1))
    most = received(Distribution(odd, PerAxis(b=2, k=2)), PassPlan()).most()
    assert most["in"] == (n // 2 + 1) * (n // 2)
    assert most["ker"] == n * (n // 2) // 2


def test_repeated_moves_beyond_64_bits_are_exact() -> None:
    """Sums arrive from 15 others, tiles are visited 32 times, and rows read by up to 2^9 + 1 tiles."""
    nest = Nest(PerAxis(b=2**32, c=2**32, k=2**32), Window(1), Window(1), Window(1))
    assert received(Distribution(nest, PerAxis(c=16)), PassPlan()).most()["out"] == 15 * 2**60
    nest = Nest(PerAxis(b=2**30, c=2**30, k=2**30), Window(1), Window(1), Window(1))
    pass_plan = PassPlan("Out", PerAxis(b=2, k=32), swapped=True)
    assert received(Distribution(nest, PerAxis(k=2)), pass_plan).most()["in"] == 32 * 2**59
    window = same_window(2**10, 2**9 + 1)
    nest = Nest(PerAxis(b=2**25, h=2**10, c=2**25, k=2), Window(1), window, Window(1))
    rows = sum(length(window.reach(row, row + 1)) for row in range(2**10))
    pass_plan = PassPlan("Ker", PerAxis(h=2**10))
    assert received(Distribution(nest, PerAxis(k=2)), pass_plan).most()["in"] == 2**49 * rows


@pytest.mark.parametrize("kept", ["In", "Ker"])
def test_words_beside_a_reused_tensor_are_exact(kept: Tensor) -> None:
    """Floats end at 2^53; of the other tensor, 2^28 + 1 rows and columns arrive."""
    n = 2**29 + 1
    nest = Nest(PerAxis(b=n, c=n, k=n), Window(1), Window(1), Window(1))
    pass_plan = PassPlan(
        pass_="backward-filter" if kept == "In" else "backward-data", reuses=frozenset({kept})
    )
    most = received(Distribution(nest, PerAxis(b=2, k=2)), pass_plan).most()
    assert most["total"] == (2**28 + 1) ** 2


def test_long_rows_that_differ_by_one_are_of_two_classes() -> None:
    """Floats end at 2^53."""
    rows = np.array([2**60 + 1, 2**60, 2**60 + 1])
    assert alike(3, 0, [rows]).tolist() == [0, 1, 0]


def test_partial_sums_of_tiles_that_are_visited_twice() -> None:
    """Two processes sum dIn, 8 words each; each of its tiles is visited for either panel along k."""
    nest = Nest(PerAxis(b=4, c=4, k=4), Window(1), Window(1), Window(1))
    pass_plan = PassPlan("Out", PerAxis(b=2, k=2), swapped=True, pass_="backward-data")
    schedule = Schedule(Distribution(nest, PerAxis(k=2)), pass_plan)
    planned = received(schedule.distribution, pass_plan).most()
    assert planned == simulate(schedule).most()
    assert planned["in"] == 2 * 8


def test_halo_of_huge_images_is_exact() -> None:
    rows = 2**38
    window = same_window(rows)
    nest = Nest(PerAxis(b=2**20, h=rows, c=2**20), Window(1), window, Window(1))
    most = received(Distribution(nest, PerAxis(h=4)), PassPlan()).most()
    assert most["halo"] == most["in"] == 2 * 2**40
    assert all(type(count) is int for count in most.values())


@given(distributions())
def test_one_process_receives_nothing_and_no_process_more_than_it_can_use(d: Distribution) -> None:
    most = received(d, PassPlan())
    if d.grid.size == 1:
        assert most.most()["total"] == 0
    slices = {t: max(np.prod([b - a for a, b in d.needed(t, d.at(r))]) for r in d.ranks) for t in TENSORS}
    assert most.most()["in"] <= slices["In"]
    assert most.most()["ker"] <= slices["Ker"]
    assert most.most()["out"] <= slices["Out"] * (d.group_size("Out") - 1)


def test_paper_formula_of_the_2d_algorithm() -> None:
    """Classical SUMMA: every process of a p x p grid receives 2·(p-1)/p·n²/p words."""
    n, p = 64, 4
    nest = Nest(PerAxis(b=n, c=n, k=n), Window(1), Window(1), Window(1))
    found: dict[str, Any] = received(
        Distribution(nest, PerAxis(b=p, k=p)), PassPlan("Out", PerAxis(c=4))
    ).most()
    assert found["total"] == 2 * (p - 1) * n * n // p**2
