"""Timing in rounds: medians, their errors, and when they hold still."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from synth.runtime.grid.ranks import Ranks
from synth.runtime.program.rounds import TURNS, Job, Nodes, median, settled, timed_in_rounds


def test_the_error_of_a_median_is_how_medians_scatter() -> None:
    draw = np.random.default_rng(0)
    found = [median(list(1 + 0.1 * draw.standard_normal(25))) for _ in range(400)]
    scatter = statistics.stdev(each.seconds for each in found)
    assert statistics.median(each.error for each in found) == pytest.approx(scatter, rel=0.15)


def test_disturbed_samples_change_neither_the_median_nor_its_error_much() -> None:
    quiet = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99]
    noisy = [*quiet, 9.0, 7.0]
    assert median(noisy).seconds == pytest.approx(1.0, rel=0.01)
    assert median(noisy).error < 0.01
    assert median([2.0, 3.0]).error == math.inf


def test_medians_hold_still_if_the_jobs_together_do() -> None:
    still, loose = [1.0, 1.0, 1.0], [1.0, 1.3, 0.8]
    assert settled([still, still])
    assert not settled([still, loose])
    assert settled([still] * 100 + [loose])
    assert not settled([[1.0]])


class Clock:
    """Ranks of one node whose jobs take times from a list, by job; a second passes in each round."""

    several = False

    def __init__(self, times: dict[str, list[float]]) -> None:
        self.times, self.calls, self.name, self.rounds = times, dict.fromkeys(times, 0), "", 0

    def job(self, name: str) -> Callable[[], object]:
        def run() -> None:
            self.name = name

        return run

    def timed(self, run: Callable[[], object], calls: int, together: bool = False) -> tuple[float, float]:
        assert together <= self.several
        run()
        each = self.times[self.name]
        at = self.calls[self.name]
        self.calls[self.name] += 1
        return 0.0, calls * each[min(at, len(each) - 1)]

    def spans(self, times: list[tuple[float, float]]) -> list[float]:
        found = [end - begin for begin, end in times]
        if len(times) > len(self.times):  # the last one is what has passed
            self.rounds += 1
            found[-1] = float(self.rounds)
        return found


@pytest.mark.parametrize(
    ("noise", "budget", "rounds"),
    [
        (0.0, 100.0, 4),  # the first one that has as many as asked for
        (0.0, 0.0, 4),
        (0.5, 10.0, 10),  # till the time is up
        (0.5, 0.0, 4),
    ],
)
def test_rounds_go_on_until_medians_hold_still(noise: float, budget: float, rounds: int) -> None:
    draw = np.random.default_rng(0)
    times = {
        name: list(seconds * (1 + noise * draw.random(50))) for name, seconds in (("a", 1e-3), ("b", 1.0))
    }
    clock = Clock(times)
    jobs = {"a": Job(clock.job("a"), 0.02), "b": Job(clock.job("b"))}
    found = timed_in_rounds(jobs, clock, 4, budget)
    assert clock.rounds == rounds
    assert found["b"].seconds == statistics.median(times["b"][2 : 2 + rounds])  # two runs warm up
    assert found["a"].seconds == pytest.approx(statistics.median(times["a"][2 : 2 + rounds]))


class TwoNodes(Clock):
    """Two nodes: jobs in turn take twice as long on the other one. `order` is that in which they ran."""

    def __init__(self, times: dict[str, list[float]]) -> None:
        super().__init__(times)
        self.order: list[str] = []

    def in_turn(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        found = []
        for run in runs:
            _, seconds = self.timed(run, 1)
            self.order.append(self.name)
            found.append(seconds)
        return found

    def means(self, seconds: list[float]) -> list[float]:
        return [2 * each for each in seconds]


def test_jobs_in_turn_run_one_behind_the_other() -> None:
    times = {"a": [9.0, 1.0, 3.0, 2.0], "b": [5.0], "c": [9.0, 7.0, 7.0, 8.0]}
    clock = TwoNodes(times)
    jobs = {name: Job(clock.job(name), in_turn=name != "b") for name in times}
    found = timed_in_rounds(jobs, clock, 3, 0.0)
    assert clock.order == ["a", "c"] * 4  # the first turn warms up
    assert {name: each.seconds for name, each in found.items()} == {"a": 4.0, "b": 5.0, "c": 14.0}
    assert list(found) == list(jobs)


def test_nodes_tell_means_of_their_ranks() -> None:
    """One process is all ranks: its own numbers are the means."""
    runs = list[str]()
    nodes = Nodes(Ranks((0,), 0), 1, torch.device("cpu"), lambda: runs.append("begin"))
    found = nodes.in_turn([lambda: runs.append("one"), lambda: runs.append("other")])
    assert runs == ["begin", *["one", "other"] * TURNS]
    assert all(0 <= each < 1 for each in found)
