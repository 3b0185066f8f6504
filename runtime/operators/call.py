"""One call of a traced model: arguments, parameters, and the layer that it equals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.operators.functional import Layer, layer_of_function
from synth.runtime.rules.movement import order_of
from synth.runtime.rules.rule import Traced, is_trainable
from synth.runtime.tracing.expressions import is_computed, is_expression, leaves
from synth.runtime.tracing.generators import (
    GivenGenerator,
    generators_in,
    with_generators,
)


@dataclass(frozen=True)
class Call:
    """One call of a `module`, or of the function that `node` names.

    node: of a graph of `synth.runtime.tracing.trace.traced`.
    parameters: node -> (name, value) of each argument that does not depend on the
        model's input: a parameter or buffer, or an expression, named by `key_of`.
    layer: of torch.nn that does what the function does; None for modules and others.
    """

    node: fx.Node
    module: nn.Module | None
    parameters: Mapping[fx.Node, tuple[str, torch.Tensor]]
    layer: Layer | None = None

    @classmethod
    def of(
        cls,
        node: fx.Node,
        modules: Mapping[str, nn.Module],
        tensors: Mapping[str, torch.Tensor],
    ) -> Call:
        """The call of a node; `tensors` are the model's parameters and buffers."""
        if node.op == "call_module":
            module = modules[str(node.target)]
            return cls(node, module, _parameters(node, tensors))
        call = cls(node, None, _parameters(node, tensors))
        if is_expression(node) or len(call.inputs) != 1:
            return call
        shape = call.shapes[0]
        layer = layer_of_function(
            call.function, call.word, node, shape, call.parameters
        )
        return replace(call, layer=layer)

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
        """The arguments that depend on the model's input, each once."""
        return [each for each in self.node.all_input_nodes if is_computed(each)]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of `inputs`."""
        return [node_shape(each) for each in self.inputs]

    @property
    def dtypes(self) -> Traced:
        """Those of the first of `inputs` and of the result."""
        return Traced(self.inputs[0].meta["value"].dtype, self.node.meta["value"].dtype)

    @property
    def takes_input_alone(self) -> bool:
        """Whether there is one argument, which depends on the model's input."""
        given = [*self.node.args, *self.node.kwargs.values()]
        return len(given) == 1 and given == self.inputs

    @property
    def generators(self) -> list[GivenGenerator]:
        """What stands for generators of the user among the arguments."""
        others = self.node.meta.get("arguments", {})
        return generators_in((self.node.args, self.node.kwargs, [*others.values()]))

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the result."""
        return node_shape(self.node)

    def filled(
        self,
        in_place: bool = True,
        training: bool = True,
        instead: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """What is called, as a function of the tensors `inputs`, then `parameters`.

        Every argument is given as the user wrote it: by position or by name, and as
        often. training: the mode, if the other arguments depend on it. instead: what is
        called in place of the own function or module. in_place: whether the function
        may change its operand.
        """
        nodes = [*self.inputs, *self.parameters]
        modes = self.node.meta.get("arguments", {})
        given, named = modes.get(training, (self.node.args, self.node.kwargs))
        call: Any = instead or self.module or self.function
        draws = bool(self.generators)
        if self.module is None and not in_place:
            call = out_of_place(call)
            named = {key: each for key, each in named.items() if key != "inplace"}

        def run(*tensors: torch.Tensor) -> Any:
            values = dict(zip(nodes, tensors, strict=True))
            args: Any = fx.node.map_arg((tuple(given), named), values.__getitem__)
            if draws:
                args = with_generators(args)
            return call(*args[0], **args[1])

        return run

    def passed(self) -> Callable[..., Any]:
        """What stands for an expression in a mode in which it is not computed."""
        nodes, node = list(self.parameters), self.node.meta["passes"]

        def run(*tensors: torch.Tensor) -> Any:
            return None if node is None else tensors[nodes.index(node)]

        return run

    @property
    def owner(self) -> str:
        """The module that has what the call uses, or that makes the call."""
        if self.module is not None:
            return str(self.node.target)
        operands = self.layer.operands if self.layer else {}
        given = [operands["weight"]] if "weight" in operands else list(self.parameters)
        names = {name for each in given for name in leaves(each)}
        owners = {
            name.rpartition(".")[0].partition(".parametrizations")[0] for name in names
        }
        return owners.pop() if len(owners) == 1 else str(self.node.meta["module"])

    def entries(self) -> dict[str, str]:
        """Where a step uses a parameter, a buffer or an expression -> its key."""
        found = {self.state_key(name): name for name, _ in self.parameters.values()}
        if self.layer is not None:
            operands = self.layer.operands.items()
            found |= {name: self.parameters[each][0] for name, each in operands}
        if self.module is not None:
            prefix = f"{self.node.target}." if self.node.target else ""
            for each in (self.module.named_parameters, self.module.named_buffers):
                names = [name for name, _ in each(remove_duplicate=False)]
                found |= {name: prefix + name for name in names}
        return found

    def order(self) -> tuple[int, ...]:
        """The order of dimensions that a permuting function makes."""
        return tuple(order_of(self.filled(), len(self.out)))

    def joined(self) -> tuple[list[Any], int] | None:
        """The operands of a concatenation, and its dimension; None if unknown."""
        return joined_by(self.node)

    @staticmethod
    def state_key(name: str) -> str:
        """Where a step of this call holds an argument with some key.

        It is the whole key, so that no two are one, and no name in a module of torch.
        """
        return "/" + name.replace(".", "/")


def out_of_place(call: Any) -> Callable[..., Any]:
    """A function that changes its first operand, as one that gives a new tensor.

    The result has the dtype of that operand, also where the other operands are wider,
    or where the function compares: then a copy is changed. Other functions stay as
    they are.
    """
    name = str(getattr(call, "__name__", ""))
    if name.startswith("__") or not name.endswith("_"):
        return call  # type: ignore[no-any-return]
    plain: Any = getattr(torch.Tensor, name.rstrip("_"), None)

    def run(changed: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = None if plain is None else plain(changed, *args, **kwargs)
        if made is not None and made.dtype == changed.dtype:
            return made
        return call(changed.clone(), *args, **kwargs)

    return run


def key_of(node: fx.Node) -> str:
    """The name of a value that does not depend on the input.

    That of a parameter or buffer; that of an expression ends with parentheses.
    """
    return f"{node.name}()" if is_expression(node) else str(node.target)


def _parameters(
    node: fx.Node, tensors: Mapping[str, torch.Tensor]
) -> dict[fx.Node, tuple[str, torch.Tensor]]:
    """The arguments of a call that do not depend on the input."""
    found = {}
    for each in node.all_input_nodes:
        if is_expression(each):
            trained = any(tensors[name].requires_grad for name in leaves(each))
            value: torch.Tensor = each.meta["value"]
            found[each] = (
                key_of(each),
                (
                    nn.Parameter(value, requires_grad=True)
                    if trained and is_trainable(value)
                    else value
                ),
            )
        elif each.op == "get_attr":
            found[each] = str(each.target), tensors[str(each.target)]
    return found


def joined_by(node: fx.Node) -> tuple[list[Any], int] | None:
    """The operands that a call concatenates or stacks, and the dimension of the result.

    None where they are unknown.
    """
    args, kwargs = node.args, node.kwargs
    parts: Any = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not isinstance(parts, list | tuple) or not isinstance(dim, int):
        return None
    return list(parts), dim % len(node_shape(node))


def node_shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of what a node gives; () for what is no tensor."""
    return tuple(getattr(node.meta["value"], "shape", ()))
