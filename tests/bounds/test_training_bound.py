"""The lower bound of a training step: below every plan, and below the brute force of all grids."""

from __future__ import annotations

import math

from brute_force import all_grids
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis_problems import distributions, small_nests

from synth.bounds.geometric_program import relax_received, relax_training
from synth.bounds.training_step import one_grid_bound, training_bound
from synth.bounds.universal import universal_bound
from synth.layer.axes import TENSORS, Tensor
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, PASSES, WRITES, Passes, sequences
from synth.schedule.distribution import Distribution
from synth.schedule.volume import received
from synth.search.training_step import choose_training_tilings, pass_templates


@given(distributions())
@settings(max_examples=150)
def test_bound_is_below_every_distribution(distribution: Distribution) -> None:
    """Whatever grid: the process that receives most is above the average, and that above the bound."""
    bound = training_bound(distribution.nest, distribution.grid.size, distribution.most_real_work)
    kept = frozenset(TENSORS)
    total = sum(received(distribution, pass_plan).total for pass_plan in pass_templates(kept))
    assert int(total.max()) >= bound.words * (1 - 1e-9)


@given(small_nests(4), st.integers(2, 6))
@settings(max_examples=25)
def test_bound_is_below_the_best_of_all_grids(nest: Nest, procs: int) -> None:
    grids = [Distribution(nest, grid) for grid in all_grids(nest.extents, procs, exact=True)]
    assume(grids)
    best = min(grids, key=lambda each: choose_training_tilings(each, TENSORS, None)[0].words)  # type: ignore[union-attr]
    fit, _ = choose_training_tilings(best, TENSORS, None)
    assert fit is not None
    assert fit.words >= training_bound(nest, procs, best.most_real_work).words * (1 - 1e-9)


def test_a_step_costs_at_least_as_much_as_two_passes_of_a_matrix_product() -> None:
    """Closed form for a cube: per pass min a/2 + b/2 + c with abc = V is 3 (V/4)^(1/3)."""
    n, procs = 96, 27
    nest = Layer.matmul(n, n, n).nest
    volume = (n**3 / procs) ** 2
    expected = 3 * 3 * (volume / 4) ** (1 / 3) - 2 * 3 * n * n / procs
    bound = training_bound(nest, procs, n**3 // procs)
    assert math.isclose(bound.words, expected, rel_tol=1e-6)
    single = universal_bound(nest, procs, None, n**3 // procs).words
    assert bound.words > single


@given(st.tuples(*[st.floats(0.5, 50)] * 3), st.floats(1, 1e4))
def test_the_water_filling_behind_it_is_a_minimum(sizes: tuple[float, float, float], volume: float) -> None:
    """For any gathers and sums whose products reach V in all passes, the step's words are not fewer."""
    touched = {pass_: dict(zip(TENSORS, sizes, strict=True)) for pass_ in WRITES}
    scale = (volume / math.prod(sizes)) ** (1 / 3)
    touched = {pass_: {t: w * scale for t, w in each.items()} for pass_, each in touched.items()}
    gathers = sum(max(touched[p][t] for p in WRITES if WRITES[p] != t) for t in TENSORS)
    sums = sum(touched[p][t] for p, t in WRITES.items())
    assert gathers + sums >= 9 * (volume / 4) ** (1 / 3) * (1 - 1e-9)


KEPT: list[frozenset[Tensor]] = [
    frozenset(),
    frozenset({"Out"}),
    frozenset({"In", "Ker"}),
    frozenset(TENSORS),
]


STEPS = [PASSES, *(sequences(gradients=(tensor,))[0] for tensor in GRADIENTS)]


@given(distributions(), st.sampled_from(KEPT), st.sampled_from(STEPS))
@settings(max_examples=60)
def test_bound_program_and_plan_in_a_chain(
    distribution: Distribution, kept: frozenset[Tensor], passes: Passes
) -> None:
    """Three derivations: an inequality of sets, a geometric program of blocks, words counted rank by rank."""
    nest, procs = distribution.nest, distribution.grid.size
    counted = sum(received(distribution, pass_plan).total for pass_plan in pass_templates(kept, passes))
    program = relax_training(nest, procs, kept, passes).cost
    bound = one_grid_bound(nest, procs, distribution.most_real_work, kept, passes).words
    assert int(counted.max()) >= program * (1 - 1e-5) - 1e-5
    assert int(counted.max()) >= bound * (1 - 1e-9)
    if nest.real_work == nest.work and not any(
        n % p for n, p in zip(nest.extents, distribution.grid, strict=True)
    ):
        assert bound <= program * (1 + 1e-5) + 1e-3
    if kept == frozenset(TENSORS):
        assert bound >= training_bound(nest, procs, distribution.most_real_work, passes).words - 1e-6


def test_with_everything_kept_a_step_is_two_passes() -> None:
    nest = Layer.conv2d((32, 256, 14, 14), 256, 3, padding=1).nest
    for procs in (4, 16, 64):
        work = nest.real_work // procs
        single, step = (
            f(nest, procs, work) for f in (lambda *a: universal_bound(a[0], a[1], None, a[2]), one_grid_bound)
        )
        assert math.isclose(step.words, 2 * single.words, rel_tol=1e-6)
        assert math.isclose(
            relax_training(nest, procs).cost, 2 * relax_received(nest, procs).cost, rel_tol=1e-5
        )


def test_closed_form_of_a_cube_for_any_weights() -> None:
    """3·(w_I·w_K·w_O·V)^(1/3), the bound and the program alike, once no bound of a block binds."""
    n, procs = 512, 64
    nest = Layer.matmul(n, n, n).nest
    cases: list[tuple[Passes, frozenset[Tensor], list[int]]] = [
        *((PASSES, kept, [3 - (tensor in kept) for tensor in ("In", "Ker", "Out")]) for kept in KEPT),
        (STEPS[1], frozenset(TENSORS), [2, 1, 2]),  # no dKer: Ker is gathered once, for both passes
        (STEPS[2], frozenset(TENSORS), [1, 2, 2]),  # no dIn
        (STEPS[2], frozenset({"Ker", "Out"}), [2, 2, 2]),  # which one pass alone reads
    ]
    for passes, kept, times in cases:
        volume, work = (n**3 / procs) ** 2, n**3 // procs
        expected = 3 * (math.prod(times) * volume) ** (1 / 3) - sum(times) * n * n / procs
        assert math.isclose(one_grid_bound(nest, procs, work, kept, passes).words, expected, rel_tol=1e-6)
        assert math.isclose(relax_training(nest, procs, kept, passes).cost, expected, rel_tol=1e-4)
