"""The front end for torch models: traces a model and reads it as the planner's network.

`synth import`, `plan_model` and `parallelize` all start here, so a model is accepted or refused by all three
alike, and a plan of its network file fits the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth.network.graph import Network
from synth.network.write import network_text
from synth.parallel.front_end.mapped_loops import map_loops
from synth.parallel.front_end.network_reader import NetworkReader
from synth.parallel.front_end.padding import move_padding, pad_last
from synth.parallel.front_end.parts import compute_parts
from synth.parallel.front_end.recurrences import roll_recurrences
from synth.parallel.front_end.rewrite import (
    bypass_flatten,
    join_stacks,
    reduce_parts,
    split_joins,
)
from synth.parallel.front_end.shuffles import join_means, join_shuffles, shuffle_films
from synth.parallel.front_end.slices import turn_by_flips

if TYPE_CHECKING:
    import torch
    from torch import fx, nn


@dataclass(frozen=True)
class TracedModel:
    """A model as the ranks run it (`graph`) and as the planner sees it (`network`).

    layers: node of the graph -> its layer in the network, and the module that has its weights.
    notes: layer -> what its kind does not say.
    """

    graph: fx.Graph
    network: Network
    dtype: torch.dtype
    device: torch.device
    layers: dict[str, tuple[str, str]]
    notes: dict[str, str]

    def file_text(self, title: str = "") -> str:
        """The network file."""
        return network_text(self.network, self.notes, title)


def trace_model(model: nn.Module, inputs: Any, name: str = "", device: str | None = None) -> TracedModel:
    """Traces a model for inputs of one shape, in the mode that it is in; nothing is computed.

    inputs: as `synth.parallelize` takes them. name: of the network; by default the model's class.
    device: the kind on which it runs if the model is on "meta".
    Raises `ValueError`, in one sentence, for a model that the ranks cannot run.
    """
    from synth.runtime.model.parameters import first_names
    from synth.runtime.operators.table import Operators
    from synth.runtime.tracing.trace import traced

    dtype = model_dtype(model)
    graph = traced(model, inputs, dtype, device)
    parameters = dict(model.named_parameters())
    operators = Operators(dict(model.named_modules()), {**parameters, **dict(model.named_buffers())})
    roll_recurrences(graph, operators)
    map_loops(graph, operators)
    join_stacks(graph)
    join_shuffles(graph, operators)
    shuffle_films(graph, operators)
    join_means(graph, operators)
    move_padding(graph, operators)
    bypass_flatten(graph, operators)
    reduce_parts(graph, operators)
    turn_by_flips(graph)
    pad_last(graph, operators)
    compute_parts(graph, operators)
    word = str(dtype).removeprefix("torch.")
    reader = NetworkReader(operators, word, frozenset(parameters), first_names(model))
    network = reader.network(graph, name or type(model).__name__)
    calls = [operators.call(node) for node in graph.nodes if "layer" in node.meta]
    layers = {call.node.name: (str(call.node.meta["layer"]), call.owner) for call in calls}
    split_joins(graph, operators)
    return TracedModel(graph, network, dtype, model_device(model, device), layers, reader.notes)


def model_device(model: nn.Module, given: str | None = None) -> torch.device:
    """Where a model computes: `given`, else the device of the first parameter, or the CPU."""
    import torch

    from synth.runtime.model.templates import device_of

    here = device_of(model)
    return torch.device(given) if given and here.type == "meta" else here


def model_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of the first real parameter, that of the parts of a complex one, or torch's default."""
    import torch

    given = sorted(model.parameters(), key=lambda values: values.is_complex())  # real ones first
    return given[0].dtype.to_real() if given else torch.get_default_dtype()
