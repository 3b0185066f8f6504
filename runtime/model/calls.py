"""One call of a traced model: arguments, parameters, and the layer that it equals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.layers.pooling import (
    ADAPTIVE_AVG,
    ADAPTIVE_MAX,
    AVG_POOLS,
    MAX_POOLS,
)

# functions that are layers of torch.nn, too
MODULES: dict[str, Callable[..., nn.Module]] = {
    "dropout": nn.Dropout,
    "dropout1d": nn.Dropout1d,
    "dropout2d": nn.Dropout2d,
    "dropout3d": nn.Dropout3d,
    **{f"max_pool{d}d": each for d, each in enumerate(MAX_POOLS, 1)},
    **{f"avg_pool{d}d": each for d, each in enumerate(AVG_POOLS, 1)},
    **{f"adaptive_avg_pool{d}d": each for d, each in enumerate(ADAPTIVE_AVG, 1)},
    **{f"adaptive_max_pool{d}d": each for d, each in enumerate(ADAPTIVE_MAX, 1)},
    "interpolate": nn.Upsample,
    "layer_norm": nn.LayerNorm,
    "group_norm": nn.GroupNorm,
}
WITH_PARAMETERS = ("layer_norm", "group_norm")  # those that may be given tensors


@dataclass(frozen=True)
class Call:
    """One call of a `module`, or of the function that `node` names.

    node: of a graph of `synth.runtime.model.trace.traced`.
    parameters: node -> (name, value) of each parameter or buffer among the arguments.
    """

    node: fx.Node
    module: nn.Module | None
    parameters: Mapping[fx.Node, tuple[str, torch.Tensor]]

    @classmethod
    def of(
        cls,
        node: fx.Node,
        modules: Mapping[str, nn.Module],
        tensors: Mapping[str, torch.Tensor],
    ) -> Call:
        """The call of a node; `tensors` are the model's parameters and buffers."""
        used = [each for each in node.all_input_nodes if each.op == "get_attr"]
        return cls(
            node,
            modules[str(node.target)] if node.op == "call_module" else None,
            {each: (str(each.target), tensors[str(each.target)]) for each in used},
        )

    @property
    def name(self) -> str:
        """The layer's name in the plan; else that of the module or of the node."""
        own = self.node.target if self.module is not None else self.node.name
        return str(self.node.meta.get("layer", own))

    @property
    def function(self) -> Callable[..., Any]:
        """The function that is called. Not for modules."""
        function: Callable[..., Any] = self.node.target  # type: ignore[assignment]
        return function

    @property
    def word(self) -> str:
        """The name of the function, without the _ of its in-place form."""
        if self.module is not None:
            return ""
        name = str(getattr(self.function, "__name__", ""))
        return name if name.startswith("__") else name.rstrip("_")

    @property
    def inputs(self) -> list[fx.Node]:
        """The computed tensors among the arguments, each once."""
        return [each for each in self.node.all_input_nodes if each.op != "get_attr"]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of `inputs`."""
        return [node_shape(each) for each in self.inputs]

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the result."""
        return node_shape(self.node)

    def filled(self, in_place: bool = True) -> Callable[..., Any]:
        """The function of the tensors `inputs`, then of the parameters."""
        call: Any = self.function
        nodes = [*self.inputs, *self.parameters]
        if not in_place and getattr(call, "__name__", "").endswith("_"):
            call = getattr(torch.Tensor, self.word, call)
        given = self.node.kwargs.items()
        kwargs = {k: v for k, v in given if in_place or k != "inplace"}

        def run(*tensors: torch.Tensor) -> Any:
            values = dict(zip(nodes, tensors, strict=True))
            args: Any = fx.node.map_arg(
                (tuple(self.node.args), kwargs), values.__getitem__
            )
            return call(*args[0], **args[1])

        return run

    def as_module(self) -> nn.Module | None:
        """The layer that does what this function does with these arguments."""
        args, kwargs = self.node.args, dict(self.node.kwargs)
        if self.word.startswith("dropout"):
            trains = args[2] if len(args) > 2 else kwargs.get("training", True)
            p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            return MODULES[self.word](p if trains else 0.0)
        if kwargs.pop("recompute_scale_factor", None) or kwargs.pop("antialias", False):
            return None
        given = {name.rpartition(".")[2]: v for name, v in self.parameters.values()}
        for name in ("input", "weight", "bias", "inplace"):
            kwargs.pop(name, None)
        rest = [each for each in args[1:] if not isinstance(each, fx.Node)]
        module: nn.Module
        try:
            if self.word == "group_norm":
                module = nn.GroupNorm(rest[0], self.shapes[0][1], **kwargs)  # type: ignore[arg-type]
            else:
                module = MODULES[self.word](*rest, **kwargs)
        except (TypeError, IndexError):
            return None
        if self.word in WITH_PARAMETERS:
            if set(given) - {"weight", "bias"} or len(given) < len(self.parameters):
                return None
            for name in ("weight", "bias"):
                module.register_parameter(name, given.get(name))  # type: ignore[arg-type]
        return module

    def order(self) -> tuple[int, ...]:
        """The order of dimensions that a permuting function makes."""
        total = len(self.out)
        args = [each for each in self.node.args if not isinstance(each, fx.Node)]
        if self.word == "permute":
            dims: Any = self.node.kwargs.get(
                "dims", args[0] if len(args) == 1 else args
            )
            return tuple(int(dim) % total for dim in dims)
        extents = list(range(1, total + 1))  # each tells the dimension that it was
        moved: Any = self.filled()(torch.empty(extents, device="meta"))
        return tuple(extent - 1 for extent in moved.shape)

    def joined(self) -> tuple[list[Any], int] | None:
        """The operands of a concatenation, and its dimension; None if unknown."""
        args, kwargs = self.node.args, self.node.kwargs
        parts: Any = args[0] if args else kwargs.get("tensors")
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        if not isinstance(parts, list | tuple) or not isinstance(dim, int):
            return None
        return list(parts), dim % len(self.out)

    def reduced_dims(self) -> set[int]:
        """The dimensions over which a mean is taken."""
        args, total = self.node.args, len(self.shapes[0])
        dims: Any = self.node.kwargs.get("dim", args[1] if len(args) > 1 else None)
        given = (dims,) if isinstance(dims, int) else tuple(dims or ())
        return {int(dim) % total for dim in given}

    def state_key(self, name: str) -> str:
        """The name of a parameter in the step that stands for this call."""
        last = name.rpartition(".")[2]
        others = [each.rpartition(".")[2] for each, _ in self.parameters.values()]
        return last if others.count(last) == 1 else name.replace(".", "_")


def node_shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of what a node gives; () for what is no tensor."""
    return tuple(getattr(node.meta["value"], "shape", ()))
