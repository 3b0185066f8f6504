"""All ranks of a network in one process, step by step: what a ring sends is copied from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import torch

from synth.runtime.comm.ring import Ring
from synth.runtime.grid.boxes import shape, volume, within
from synth.runtime.model.step_graph import StepGraph


def run(graphs: Sequence[StepGraph], tensors: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """The whole outputs. graphs: of every rank. tensors: of the model, whole.

    Every call must be one that moves nothing itself.
    """
    held: list[dict[str, torch.Tensor]] = [{} for _ in graphs]
    for name in (graphs[0].input, *(name for name, _ in graphs[0].calls)):
        made = []
        for graph, values in zip(graphs, held, strict=True):
            if name == graph.input:
                box = graph.layouts[name].mine
                made.append(x[tuple(slice(*each) for each in box)])
                continue
            assert not graph.steps[name].exchanges() or not any(
                any(each.forward) for each in graph.steps[name].exchanges()
            )
            given = [values[source] for source in graph.sources[name]]
            made.append(graph._call(name, given, tensors, set()))
        for values, each in zip(held, _completed(graphs, name, made), strict=True):
            values[name] = each
    return [_joined(graphs, held, node) for node in graphs[0].outputs]


def _completed(graphs: Sequence[StepGraph], name: str, made: list[torch.Tensor]) -> list[torch.Tensor]:
    """What all ranks hold of a value."""
    if name not in graphs[0].rings:
        return made
    rings: list[Ring] = [graph.rings[name] for graph in graphs]
    found = []
    for me, ring in enumerate(rings):
        here = ring.held.mine
        whole = torch.full(shape(here), 7e300, dtype=made[me].dtype)  # nobody reads what nobody sends
        if volume(ring.computed.mine):
            whole[within(ring.computed.mine, here)] = made[me]
        for owner, other in enumerate(rings):
            for box in ring.pieces(owner, me):
                whole[within(box, here)] = made[owner][within(box, other.computed.mine)]
        found.append(whole)
    return found


def _joined(graphs: Sequence[StepGraph], held: Sequence[dict[str, torch.Tensor]], node: str) -> torch.Tensor:
    layout = graphs[0].layouts[node]
    whole = torch.full(layout.whole, torch.nan, dtype=held[0][node].dtype)
    for graph, values in zip(graphs, held, strict=True):
        own = graph._own_words(node, values[node])
        whole[tuple(slice(*each) for each in graph.layouts[node].mine)] = own
    return whole


def unused(what: str) -> mock.Mock:
    """Something that must not be asked for."""
    return mock.Mock(side_effect=AssertionError(what))
