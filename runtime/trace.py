"""A model as a graph of calls with the shape of every result; nothing is computed."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn


def traced(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Graph:
    """The graph of a model; `meta["value"]` of a node is what it gives, on "meta".

    Raises `ValueError` where the model cannot be traced for this input.
    """
    # copied before it is moved: the user's model keeps its values
    empty = copy.deepcopy(model).to("meta")
    try:
        graph = fx.symbolic_trace(empty)
        Shapes(graph).run(torch.empty(shape, dtype=dtype, device="meta"))
    except (fx.proxy.TraceError, TypeError, RuntimeError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{type(model).__name__} has no graph for an input of {shape}: {reason}"
        ) from error
    return graph.graph


class Shapes(fx.Interpreter):
    """Notes what every node gives."""

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node."""
        n.meta["value"] = super().run_node(n)
        return n.meta["value"]


def known(argument: Any) -> Any:
    """An argument of a call with numbers for the nodes that give numbers."""
    if isinstance(argument, fx.Node):
        value = argument.meta["value"]
        return argument if isinstance(value, torch.Tensor) else value
    if isinstance(argument, tuple | list):
        kind = list if isinstance(argument, list) else tuple
        return kind(known(each) for each in argument)
    if isinstance(argument, dict):
        return {key: known(each) for key, each in argument.items()}
    return argument
