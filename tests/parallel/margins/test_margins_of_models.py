"""Random networks with margins on simulated ranks: every word of one process, from rows that arrive once."""

from __future__ import annotations

import random

import torch
from drawn_plans import drawn_model, drawn_plan
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated import run

from synth.network.plan.plan import NetworkPlan
from synth.parallel.front_end.trace_model import TracedModel
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
    parts = recipe.parts(Inputs.of(shape), PreparedModel(traced, {}, LayerPlans.of(plan), True))
    return assembled(model, parts, ProcessGroups(ranks))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([2, 3, 4, 6, 8]))
def test_values_are_those_of_one_process(seed: int, dims: int, procs: int) -> None:
    rng = random.Random(seed)
    model, shape = drawn_model(rng, dims, norms=False)
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
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([2, 3, 4, 6]))
@example(336, 3, 4)  # a sum reads the input, of which the first layer would be cut by input rows
def test_what_steps_exchange_is_what_the_plan_has_counted(seed: int, dims: int, procs: int) -> None:
    """Also with layers that have no margins; group norms exchange statistics beside."""
    rng = random.Random(seed)
    model, shape = drawn_model(rng, dims, norms=False)
    traced, plan = drawn_plan(model, shape, procs, rng)
    graph = graph_of(0, model, shape, traced, plan)
    if plan.margins is not None:
        rings = [ring.exchange().forward for ring in graph.rings.values()]
        assert sum(map(max, rings)) == plan.margins.cost
