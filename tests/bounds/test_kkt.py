"""The KKT conditions of Eq. 4: they hold at every closed form, and derive every candidate of it."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from synth.base.errors import InfeasibleError
from synth.bounds.closed_form import ClosedForm, Eq4, solve
from synth.bounds.kkt import GRADIENTS, Lagrangian, conditions, mean_step
from synth.layer.axes import TENSORS, Tensor
from synth.layer.layer import load_layer


def random_problem(rng: random.Random) -> Eq4:
    """A problem in which every constraint may be active, with small and large extents."""
    sizes = [math.exp(rng.uniform(0, 8)) if rng.random() < 0.8 else 1.0 for _ in range(3)]
    taps, strides = rng.choice((1.0, 9.0, 25.0, 49.0)), rng.choice((1.0, 4.0, 9.0))
    procs = min(math.exp(rng.uniform(0, 7)), math.prod(sizes))
    memory = rng.choice((math.inf, math.exp(rng.uniform(0, 12))))
    return Eq4(*sizes, taps, strides, procs, memory)


def test_the_conditions_hold_at_every_closed_form() -> None:
    rng = random.Random(21)
    active: set[str] = set()
    for _ in range(600):
        problem = random_problem(rng)
        for stationary in TENSORS:
            try:
                form = solve(problem, stationary)
            except InfeasibleError:
                continue
            found = conditions(problem, form)
            assert found.holds, (problem, form, found)
            active |= found.multipliers.keys()
    assert active == GRADIENTS.keys()


def test_the_conditions_fail_elsewhere() -> None:
    problem = Eq4(256, 256, 6272, 9, 1, 64)
    form = solve(problem, "Out")
    assert conditions(problem, form).holds
    for factor in (0.9, 1.2):
        moved = ClosedForm(form.case, form.cost, form.t_k * factor, form.t_x, 1.0, "Out", ())
        assert not conditions(problem, moved).holds
    tight = Eq4(256, 256, 6272, 9, 1, 64, 1000.0)
    assert not conditions(tight, form).holds  # the tile exceeds the memory


def bases() -> list[tuple[str, ...]]:
    """Sets of at most three active constraints; B needs one that keeps it from below."""
    sets = (chosen for count in (1, 2, 3) for chosen in itertools.combinations(GRADIENTS, count))
    return [chosen for chosen in sets if {"tile", "share"} & set(chosen)]


def test_every_case_is_solved_and_is_a_candidate_of_the_closed_form() -> None:
    """33 sets of active constraints determine a point. Its cost is that of `solve` wherever it is optimal."""
    lagrangian = Lagrangian(("k", "x", "c"))
    solved = {chosen: point for chosen in bases() if (point := lagrangian.solve(chosen)) is not None}
    assert len(solved) == 33
    for chosen, point in solved.items():  # the multipliers solve the stationarity conditions
        assert [each.subs(point).simplify() for each in lagrangian.stationarity(chosen)] == [0, 0, 0]
    rng, met = random.Random(3), set()
    for _ in range(80):
        problem = random_problem(rng)
        try:
            form = solve(problem, "Out")
        except InfeasibleError:
            continue
        found = conditions(problem, form)
        chosen = tuple(found.multipliers)
        values = lagrangian.values(problem, "Out")
        numbers = [float(solved[chosen][v].subs(values)) for v in lagrangian.variables]
        assert numbers == pytest.approx(found.point, rel=1e-6)
        met.add(chosen)
    assert len(met) > 8


@pytest.mark.parametrize(
    ("problem", "stationary", "t"),
    [(Eq4(2, 64, 900, 9, 9, 4), "Ker", 9 * 2), (Eq4(2, 64, 900, 9, 9, 64), "Ker", 9 * 2)],
)
def test_a_tile_of_all_filters_and_one_channel(problem: Eq4, stationary: Tensor, t: float) -> None:
    """With S >= N_k the tile T_k = N_k, T_c = 1 can be the optimum: a kink that the conditions name."""
    form = solve(problem, stationary)
    assert conditions(problem, form).holds
    assert problem.RS * form.t_k * form.t_c >= t


def test_conv2_at_4_processes_is_case_1b_with_all_filters() -> None:
    problem = Eq4.of(load_layer("examples/resnet50/conv2_x_1x1_expand.yaml").nest, 4)
    form = solve(problem, "Out")
    found = conditions(problem, form)
    assert (form.case, form.t_k) == ("1b", 256.0)
    assert found.multipliers == pytest.approx({"tile": 16384.0, "share": 6406144.0, "most_a": 1589248.0})
    assert mean_step(tuple(found.multipliers), ("k", "x", "c")).startswith("No AM-GM step")


def test_the_mean_inequality_gives_the_cost_where_it_is_the_step() -> None:
    for problem, words in (
        (Eq4(256, 256, 6272, 9, 1, 64), "sum is at "),
        (Eq4(256, 256, 6272, 9, 1, 64, 4096.0), "is fixed"),
        (Eq4(4, 256, 6272, 9, 1, 64), "at its bound"),
    ):
        form = solve(problem, "Out")
        found = conditions(problem, form)
        step = mean_step(tuple(found.multipliers), ("k", "x", "c"))
        assert step.startswith("AM-GM:")
        assert words in step
