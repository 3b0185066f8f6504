"""`--strategy`: the named algorithms, and their words beside the performance model of Dryden et al., SC'19.

Section 4 of that paper counts words per process as RS(n, p) and AG(n, p) for a reduce-scatter or an
all-gather of n words over p processes, and AR(n, p) for an all-reduce; in words received, and on a ring,
RS = AG = n·(p-1)/p and AR = RS + AG. Halos are neglected there. The convention here differs in one place:
weights are owned once and not replicated over samples and positions, so the all-gather half of the
all-reduce is paid by the next forward pass instead. A step costs the same.
"""

from __future__ import annotations

import pytest

import synth
from synth.base.errors import UsageError
from synth.layer.layer import Layer
from synth.planning.plan import Plan
from synth.search.strategies import STRATEGIES

LAYER = Layer.conv2d((8, 32, 8, 8), 64, 3, padding=1)
STRIDED = Layer.conv2d((8, 64, 16, 16), 32, 1, stride=2)


def ring(words: int, procs: int) -> int:
    """RS or AG: words received by each process."""
    assert words % procs == 0
    return words * (procs - 1) // procs


def sc19(plan: Plan) -> dict[str, int]:
    """Section 4 for the grid of a plan: x gathered along k, y along c, w reduced along b, h and w.

    stationary-x is `k = 1` and has no words of x; stationary-y is `c = 1` and has none of y. Each activation
    tensor moves twice: once as itself and once as its gradient.
    """
    n, grid = plan.nest.extents, plan.grid
    samples, outputs = n.b // grid.b, (n.h // grid.h) * (n.w // grid.w)
    rows = (plan.nest.h.size // grid.h) * (plan.nest.w.size // grid.w)
    x = samples * (n.c // grid.c) * rows
    y = samples * (n.k // grid.k) * outputs
    w = (n.c // grid.c) * (n.k // grid.k) * plan.nest.taps
    replicas = grid.b * grid.h * grid.w
    return {"in": 2 * ring(x, grid.k), "out": 2 * ring(y, grid.c), "ker": 2 * ring(w, replicas)}


@pytest.mark.parametrize("layer", [LAYER, STRIDED])
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("stationary-x", {"b": 2, "c": 4}),
        ("stationary-x", {"c": 8}),
        ("stationary-y", {"b": 2, "k": 4}),
        ("stationary-w", {"b": 2, "c": 2, "k": 2}),
        ("stationary-w", {"c": 4, "k": 2}),
        ("data", {"b": 8}),
    ],
)
def test_words_of_a_step_are_those_of_sc19(layer: Layer, name: str, grid: dict[str, int]) -> None:
    fixed = {axis: grid.get(axis, 1) for axis in "bhwck"}
    split = next(each.axes for each in STRATEGIES if each.name == name)
    fixed = {axis: parts for axis, parts in fixed.items() if axis in split}
    plan = synth.plan(layer, 8, grid=fixed, strategy=name, pass_="training")
    assert {tensor: plan.words[tensor] for tensor in ("in", "out", "ker")} == sc19(plan)


def test_weight_gradients_are_reduced_over_the_ranks_with_the_same_weights_only() -> None:
    plan = synth.plan(LAYER, 8, grid={"b": 2, "c": 4}, strategy="stationary-x", pass_="training")
    filter_pass = next(each for each in plan.schedules if each.pass_plan.pass_ == "backward-filter")
    pairs = {
        (move.source, target)
        for round_ in filter_pass.rounds()
        for move in round_.reductions
        for target in move.targets
        if move.tensor == "Ker"
    }
    at = plan.distribution.at
    assert pairs
    assert all(at(one).c == at(other).c and at(one).b != at(other).b for one, other in pairs)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_a_strategy_splits_its_axes_only(strategy: object) -> None:
    plan = synth.plan(LAYER, 4, strategy=strategy.name, balance=10.0)  # type: ignore[attr-defined]
    assert {axis for axis, parts in plan.grid._asdict().items() if parts > 1} <= set(strategy.axes)  # type: ignore[attr-defined]
    stays = strategy.stationary  # type: ignore[attr-defined]
    assert stays in (None, plan.first.stationary)


def test_contradictions_are_refused() -> None:
    with pytest.raises(UsageError, match=r"strategy is 'magic'; it must be one of data, spatial"):
        synth.plan(LAYER, 4, strategy="magic")
    with pytest.raises(UsageError, match=r"stationary-x does not split axis k; leave k=2 out of grid"):
        synth.plan(LAYER, 4, strategy="stationary-x", grid={"k": 2})
    with pytest.raises(UsageError, match=r"strategy 2D keeps Out stationary, not ker"):
        synth.plan(LAYER, 4, strategy="2D", stationary="ker")
