"""A torch model as a network file: its exported graph, operator by operator.

Values whose channels were moved last are followed, so a linear layer on them is a convolution with a
kernel of one. Other activations and normalizations than `relu` and `batchnorm` are written as those, which
stay where their input lies as well; their own name is kept in a comment.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from synth.errors import UsageError
from synth.layer_rules import MAX_NAME

ACTIVATIONS = (
    *("relu", "relu_", "gelu", "silu", "silu_", "leaky_relu", "leaky_relu_", "sigmoid", "tanh"),
    *("hardtanh", "hardtanh_", "hardswish", "hardswish_", "elu", "elu_", "mish", "prelu"),
)
NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm")
SAME = ("contiguous", "clone", "detach", "alias", "to", "_to_copy", "lift_fresh_copy", "detach_")
FLAT = ("flatten", "view", "reshape", "squeeze", "_unsafe_view")


def imported(where: str, shape: Sequence[int]) -> str:
    """The network file of the model that `package.module:factory` makes, for an input of a shape.

    Raises `UsageError` where there is no such factory, the model cannot be exported, or one of its
    operators has no kind in a network file; the message names it.
    """
    import torch

    model = _made(where)
    try:
        with torch.no_grad():
            program = torch.export.export(model.eval(), (torch.zeros(tuple(shape)),), strict=False)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{where} cannot be exported for an input of {list(shape)}: {reason}") from error
    lines = _Graph(program, where).lines()
    name = where.rpartition(":")[2]
    head = [f"network: {name}", f"input: {list(shape)}", "layers:"]
    return "\n".join([f"# synth import {where}", *head, *lines]) + "\n"


def _made(where: str) -> Any:
    package, colon, factory = where.partition(":")
    if not colon or not package or not factory:
        raise UsageError(f"{where!r} names no factory; write package.module:factory")
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(package), factory)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{where} cannot be imported: {error}") from error
    finally:
        sys.path.pop(0)
    model = make()
    if not hasattr(model, "state_dict"):
        raise UsageError(f"{where} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


class _Graph:
    """Walks the exported graph once."""

    def __init__(self, program: Any, where: str) -> None:
        self.program, self.where = program, where
        signature = program.graph_signature
        self.parameters = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.inputs = set(signature.user_inputs)
        self.values: dict[Any, tuple[str, bool]] = {}  # node -> layer, whether its channels are last
        self.taken: set[str] = {"input", "entry"}
        self.written: list[str] = []
        self.last = "input"

    def lines(self) -> list[str]:
        """The layers of the file."""
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in self.inputs:
                self.values[node] = ("input", False)
            elif node.op == "call_function":
                self.call(node)
        if not self.written:
            raise UsageError(f"{self.where}: the model has no layer; give one that computes something")
        return self.written

    def call(self, node: Any) -> None:
        """Writes one operator, or follows its value."""
        sources = [each for each in node.all_input_nodes if each in self.values]
        if not sources:
            return  # of parameters and numbers alone
        operator = str(node.target).removeprefix("aten.").partition(".")[0].lstrip("<")
        source, last = self.values[sources[0]]
        args = self.arguments(node)
        match operator:
            case "conv1d" | "conv2d" | "conv3d":
                self.conv(node, operator, args)
            case "linear":
                self.linear(node, args, last)
            case _ if operator in ACTIVATIONS:
                self.write(node, "relu", [source], {}, last, operator)
            case _ if operator in NORMS:
                self.write(node, "batchnorm", [source], {}, last, operator)
            case "dropout" | "softmax" | "_softmax":
                self.write(node, operator.lstrip("_"), [source], {}, last)
            case "add" | "add_" if len(sources) == 2 and self.alike(node, sources):
                names = [self.values[each][0] for each in sources]
                self.write(node, "add", names, {}, last)
            case _ if operator in SAME or (operator in ("mul", "mul_", "add", "div") and len(sources) == 1):
                self.values[node] = (source, last)  # a scale per channel stays with its input
            case "permute" | "transpose":
                self.turned(node, args, source, last)
            case "max_pool1d" | "max_pool2d" | "max_pool3d" | "avg_pool1d" | "avg_pool2d" | "avg_pool3d":
                self.pool(node, operator, args)
            case _ if operator.startswith("adaptive_avg_pool") and set(_shape(node)[2:]) == {1}:
                self.write(node, "globalpool", [source], {}, last)
            case "mean" if not last and self.spatial(args, sources[0]):
                self.mean(node, source)
            case _ if operator in FLAT and _shape(node) == _flat(sources[0]):
                flat = _shape(sources[0]) == _shape(node)
                self.values[node] = (source, last)
                if not flat:
                    self.write(node, "flatten", [source], {}, last)
            case _:
                self.refuse(node, operator)

    def refuse(self, node: Any, operator: str) -> None:
        """Raises `UsageError` with the operator and the module it is of."""
        stack = node.meta.get("nn_module_stack") or {"": ("the model",)}
        module = next(reversed(list(stack.values())))[0] or "the model"
        raise UsageError(
            f"{self.where}: {operator} ({node.name}, in {module}) has no kind in a network file; "
            f"import a part of the model without it"
        )

    def arguments(self, node: Any) -> dict[str, Any]:
        """Arguments by name, defaults included."""
        if not hasattr(node.target, "_schema"):
            return {}
        named = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
        names = [a.name for a in node.target._schema.arguments]
        return {**named, **dict(zip(names, node.args, strict=False)), **node.kwargs}

    def conv(self, node: Any, kind: str, args: dict[str, Any]) -> None:
        weight = _shape(args["weight"])
        numbers = {"out_channels": weight[0], "kernel": list(weight[2:])}
        for key in ("stride", "padding", "dilation"):
            if isinstance(args[key], str):
                self.refuse(node, f"{kind} with padding {args[key]}")
            numbers[key] = [int(each) for each in args[key]]
        numbers |= {"groups": args["groups"]} if args["groups"] != 1 else {}
        numbers |= {"bias": "true"} if args.get("bias") is not None else {}
        source, last = self.values[args["input"]]
        if last:
            self.refuse(node, f"{kind} of permuted values")
        self.write(node, kind, [source], numbers, False)

    def linear(self, node: Any, args: dict[str, Any], last: bool) -> None:
        source, out = self.values[args["input"]][0], _shape(args["weight"])[0]
        bias = {"bias": "true" if args.get("bias") is not None else "false"}
        dims = len(_shape(node)) - 2
        if dims == 0:
            self.write(node, "linear", [source], {"out_features": out, **bias}, False)
        elif last and dims <= 3:
            numbers = {"out_channels": out, "kernel": [1] * dims, **bias}
            self.write(node, f"conv{dims}d", [source], numbers, True)
        else:
            self.refuse(node, "linear on more than samples and features")

    def pool(self, node: Any, operator: str, args: dict[str, Any]) -> None:
        numbers = {"kernel": list(args["kernel_size"]), "stride": list(args["stride"] or args["kernel_size"])}
        numbers |= {key: list(args[key]) for key in ("padding", "dilation") if args.get(key)}
        dims = int(operator[-2])
        numbers = {key: value * dims if len(value) == 1 else value for key, value in numbers.items()}
        ceil = {"ceil": "true"} if args["ceil_mode"] else {}
        source = next(n for n in node.all_input_nodes if n in self.values)
        self.write(node, "pool", [self.values[source][0]], {**numbers, **ceil}, False)

    def mean(self, node: Any, source: str) -> None:
        self.write(node, "globalpool", [source], {}, False)
        if len(_shape(node)) == 2:
            self.write(node, "flatten", [self.last], {}, False)

    def spatial(self, args: dict[str, Any], source: Any) -> bool:
        total = len(_shape(source))
        return {dim % total for dim in args.get("dim") or ()} == set(range(2, total)) and total > 2

    def alike(self, node: Any, sources: list[Any]) -> bool:
        return all(_shape(each) == _shape(node) and self.values[each][1] == self.values[sources[0]][1]
                   for each in sources)  # fmt: skip

    def turned(self, node: Any, args: dict[str, Any], source: str, last: bool) -> None:
        total = len(_shape(node))
        dims = [int(dim) % total for dim in args.get("dims") or ()]
        to_last, to_first = [0, *range(2, total), 1], [0, total - 1, *range(1, total - 1)]
        if dims != (to_first if last else to_last):
            self.refuse(node, "permute")
        self.values[node] = (source, not last)

    def write(
        self, node: Any, kind: str, sources: list[str], numbers: dict[str, Any], last: bool, told: str = ""
    ) -> None:
        """One line of the file."""
        name = self.named(node, kind)
        body = ", ".join(f"{key}: {value}" for key, value in numbers.items())
        body = f" {{{body}}}"
        origin = f", from: [{', '.join(sources)}]" if sources != [self.last] else ""
        known = told.rstrip("_").replace("_", "") in ("", kind)
        line = f"  - {{name: {name}, {kind}:{body}{origin}}}"
        self.written.append(line if known else f"{line}  # {told.rstrip('_')}")
        self.values[node], self.last = (name, last), name

    def named(self, node: Any, kind: str) -> str:
        """The name of the module that owns the weights, else the node's; each once."""
        owners = [self.parameters[n.name] for n in node.all_input_nodes if n.name in self.parameters]
        name = str(owners[0]).rpartition(".")[0] if owners and kind != "add" else str(node.name)
        if not name or name in self.taken or len(name) > MAX_NAME - 12:
            name = str(node.name) if node.name not in self.taken else f"{node.name}_{kind}"
        self.taken.add(name)
        return name


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(int(extent) for extent in getattr(value, "shape", ()))


def _flat(node: Any) -> tuple[int, ...]:
    shape = _shape(node)
    return shape[0], math.prod(shape[1:])
