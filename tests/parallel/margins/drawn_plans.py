"""Random networks with plans that have margins, whatever they cost."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from row_model import RowModel
from row_networks import RowLayer, random_layers

from synth.network.margins.choose import evaluated
from synth.network.margins.row_graph import row_graph
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.margins_of_plan import row_grids, with_margins
from synth.network.planner.planner import _NetworkPlanner
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import TracedModel, trace_model

Shape = tuple[int, ...]
NORMS = "batchnorm", "groupnorm", "batchnorm of each batch"


def drawn_model(
    rng: random.Random, dims: int, norms: bool = True, shuffles: bool = False, selects: bool = False
) -> tuple[RowModel, Shape]:
    """A model in float64 with a weight, and the shape of its batch. Its norms are of all kinds."""
    layers: list[RowLayer] = []
    while not any(layer.kind in ("conv", "transposed") for layer in layers):
        layers = random_layers(rng, dims, shuffles=shuffles, selects=selects)
    kinds = NORMS if norms else ("relu",)
    for place, each in enumerate(layers):
        if each.kind == "groupnorm":
            layers[place] = each._replace(kind=kinds[place % len(kinds)])
    torch.manual_seed(rng.randrange(2**30))
    return RowModel(layers).double().eval(), (rng.randint(1, 2), 2, *layers[0].extents)


def drawn_plan(
    model: RowModel, shape: Shape, procs: int, rng: random.Random, training: bool = False
) -> tuple[TracedModel, NetworkPlan]:
    """A plan on one grid for all layers that admit it, or on the cheapest; with chosen or any margins."""
    traced = trace_model(model, shape)
    request = NetworkRequest(
        procs, training=training, resident_weights=not training, recompute=0.5, exact_procs=True
    )
    planner = _NetworkPlanner(traced.network, request, "auto", _silent)
    plan = planner.run()
    grids = row_grids(planner.candidates, planner.layers)
    if grids and rng.random() < 0.8:
        _, make = planner.with_grid(rng.choice(grids), plan)
        plan = make()
    plan = with_margins(plan, planner.by_input_rows(plan))
    if plan.margins is None or rng.random() < 0.3:
        return traced, plan
    most = rng.choice([0, 1, 3, 99])
    rows = {name: (rng.randint(0, most), rng.randint(0, most), most) for name in plan.margins.rows}
    graph = row_graph(traced.network, plan.placed_grids, procs)
    found = evaluated(graph, rows, graded=frozenset(graph) if training else ())
    return traced, replace(plan, margins=replace(plan.margins, rows=rows, words=found.words, back=found.back))


def _silent(text: str) -> None:
    """Report nothing."""
