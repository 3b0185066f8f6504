"""Random networks with margins on simulated ranks: every word of one process, from rows that arrive once."""

from __future__ import annotations

import math
import random

import pytest
import torch
from drawn_plans import drawn_model, drawn_plan
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated import run

from synth.layer.axes import PerAxis
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import _NetworkPlanner
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import TracedModel, trace_model
from synth.parallel.layer_plans import LayerPlans
from synth.parallel.recipe import NetworkRecipe, PreparedModel
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.model.assemble import assembled
from synth.runtime.model.planned_words import words_of
from synth.runtime.model.step_graph import StepGraph
from synth.runtime.tracing.inputs import Inputs


def graph_of(
    rank: int, model: torch.nn.Module, shape: tuple[int, ...], traced: TracedModel, plan: NetworkPlan
) -> StepGraph:
    """The steps of one rank, which does not run."""
    ranks = AbsentRanks(tuple(range(plan.request.procs)), rank)
    options = {"check_finite": False, "batch_norm": "global"}
    recipe = NetworkRecipe(ranks, None, False, None, options, True)
    parts = recipe.parts(model, Inputs.of(shape), PreparedModel(traced, {}, LayerPlans.of(plan), True))
    return assembled(model, parts, ProcessGroups(ranks))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([2, 3, 4, 6, 8]), st.booleans())
def test_values_are_those_of_one_process(seed: int, dims: int, procs: int, shuffles: bool) -> None:
    rng = random.Random(seed)
    model, shape = drawn_model(rng, dims, norms=False, shuffles=shuffles, selects=shuffles)
    traced, plan = drawn_plan(model, shape, procs, rng)
    layers = {node.name for node in traced.network.planned}
    if plan.margins is None or not layers <= plan.margins.layers:
        return  # some steps would send messages
    graphs = [graph_of(rank, model, shape, traced, plan) for rank in range(procs)]
    words = words_of(graphs[0], ()).forward
    assert max(words) <= plan.cost
    if plan.margins.cost:
        assert max(words) > 0
    x = torch.randn(shape).double()
    with torch.no_grad():
        expected = model(x)
        found = run(graphs, dict(model.named_parameters()), x)
    each = (expected,) if isinstance(expected, torch.Tensor) else expected
    for one, got in zip(each, found, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-10, atol=1e-10)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([2, 3, 4, 6]), st.booleans())
@example(336, 3, 4, False)  # a sum reads the input, of which the first layer would be cut by input rows
def test_what_steps_exchange_is_what_the_plan_has_counted(
    seed: int, dims: int, procs: int, shuffles: bool
) -> None:
    """Also with layers that have no margins; group norms exchange statistics beside."""
    rng = random.Random(seed)
    model, shape = drawn_model(rng, dims, norms=False, shuffles=shuffles, selects=shuffles)
    traced, plan = drawn_plan(model, shape, procs, rng)
    graph = graph_of(0, model, shape, traced, plan)
    if plan.margins is not None:
        rings = [ring.exchange().forward for ring in graph.rings.values()]
        assert sum(map(max, rings)) == plan.margins.cost


class Shuffled(torch.nn.Module):
    """Channels become 3 by 3 positions, and 2 by 2 positions of an odd block channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = (torch.nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 36), (4, 12)))
        self.last = torch.nn.Conv2d(48, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.middle(torch.nn.functional.pixel_shuffle(self.first(x), 3))
        return self.last(torch.nn.functional.pixel_unshuffle(torch.relu(x), 2))


@pytest.mark.parametrize(
    ("grid", "moves"),
    [
        (PerAxis(h=4), {"pixel_unshuffle"}),
        (PerAxis(w=3), set()),
        (PerAxis(k=4), set()),  # 9 of 36 channels are those of one channel behind the shuffle
        (PerAxis(k=6), {"pixel_shuffle"}),
        (PerAxis(h=2, k=2), {"pixel_unshuffle"}),
    ],
    ids=str,
)
def test_shuffles_move_what_the_plan_has_counted(grid: PerAxis, moves: set[str]) -> None:
    model, shape = Shuffled().eval(), (2, 3, 10, 12)
    traced = trace_model(model, shape)
    request = NetworkRequest(math.prod(grid), resident_weights=True, exact_procs=True)
    planner = _NetworkPlanner(traced.network, request, "auto", lambda text: None)
    _, make = planner.with_grid(grid, planner.run())
    plan = make()
    words = words_of(graph_of(0, model, shape, traced, plan), ())
    moved = {edge.target_path[-1].name: count for edge, count in plan.edge_words.items() if edge.moves_rows}
    assert set(moved) == {"pixel_shuffle", "pixel_unshuffle"}
    assert moved == {name: max(words.calls[name][0]) for name in moved}
    assert {name for name, count in moved.items() if count} == moves
