"""A torch model as a network file: its exported graph, operator by operator.

Values whose channels were moved last are followed, so a linear layer on them is a convolution with a
kernel of one. Other activations than `relu` and `prelu` are written as `relu`, which stays where its input
lies as well; their own name is kept in a comment.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from synth.base.errors import UsageError
from synth.layer.validate import MAX_NAME

ACTIVATIONS = (
    *("relu", "relu_", "gelu", "silu", "silu_", "leaky_relu", "leaky_relu_", "sigmoid", "tanh"),
    *("hardtanh", "hardtanh_", "hardswish", "hardswish_", "elu", "elu_", "mish", "hardsigmoid", "softplus"),
)
NORMS = {f"{kind}_norm": f"{kind}norm" for kind in ("batch", "layer", "group", "instance")}
RESIZES = ("upsample_nearest", "_upsample_nearest_exact", "upsample_linear", "upsample_bilinear",
           "upsample_trilinear")  # fmt: skip
SAME = ("contiguous", "clone", "detach", "alias", "to", "_to_copy", "lift_fresh_copy", "detach_")
FLAT = ("flatten", "view", "reshape", "squeeze", "_unsafe_view")


def imported(where: str, shape: Sequence[int]) -> str:
    """The network file of the model that `package.module:factory` makes, for an input of a shape.

    Raises `UsageError` where there is no such factory, the model cannot be exported, or one of its
    operators has no kind in a network file; the message names it.
    """
    import torch

    model = _made(where)
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    zeros = torch.zeros(tuple(shape), dtype=dtype)
    try:
        with torch.no_grad(), _silence():
            program = torch.export.export(model.eval(), (zeros,), strict=False)
    except Exception as error:
        raise UsageError(
            f"{where} cannot be exported for an input of {list(shape)}: {_told(error)}"
        ) from error
    lines = _Graph(program, where).lines()
    name = where.rpartition(":")[2]
    head = [f"network: {name}", f"input: {list(shape)}"]
    head += [] if dtype == torch.float32 else [f"dtype: {str(dtype).removeprefix('torch.')}"]
    head += ["layers:"]
    return "\n".join([f"# synth import {where}", *head, *lines]) + "\n"


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without what torch prints of a graph that it cannot export; its error says why."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
            yield
    finally:
        logging.disable(before)


def _made(where: str) -> Any:
    package, colon, factory = where.partition(":")
    if not colon or not package or not factory:
        raise UsageError(f"{where!r} names no factory; write package.module:factory")
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(package), factory)
    except Exception as error:  # whatever the user's module does
        raise UsageError(f"{where} cannot be imported: {_told(error)}") from error
    finally:
        sys.path.pop(0)
    try:
        model = make()
    except Exception as error:
        raise UsageError(
            f"{where} makes no model: {_told(error)}; name a function that needs no argument"
        ) from error
    if not hasattr(model, "state_dict"):
        raise UsageError(f"{where} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _told(error: Exception) -> str:
    """The first line of an error, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Graph:
    """Walks the exported graph once."""

    def __init__(self, program: Any, where: str) -> None:
        self.program, self.where = program, where
        signature = program.graph_signature
        self.parameters = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.inputs = set(signature.user_inputs)
        self.values: dict[Any, tuple[str, bool]] = {}  # node -> layer, whether its channels are last
        self.taken: set[str] = {"input", "entry"}
        self.owners: dict[str, str] = {}  # parameter -> the first layer that uses it
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
            case "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d":
                self.conv(node, f"conv{operator[-2:]}", args, True)
            case "cat" if self.joins(node, sources):
                self.write(node, "cat", [self.values[each][0] for each in args["tensors"]], {}, last)
            case _ if operator.rstrip("123d").removesuffix("_") in RESIZES or operator in RESIZES:
                self.resize(node, operator, source, last)
            case "prelu":
                self.write(node, "prelu", [source], {"parameters": _shape(args["weight"])[0]}, last)
            case "linear":
                self.linear(node, args, last)
            case _ if operator in ACTIVATIONS:
                self.write(node, "relu", [source], {}, last, operator)
            case _ if operator in NORMS:
                self.norm(node, NORMS[operator], args, last)
            case "dropout" | "dropout_" | "feature_dropout" | "softmax" | "_softmax":
                kind = operator.strip("_").removeprefix("feature_")
                self.write(node, kind, [source], {}, last)
            case "mul" | "mul_" if len(sources) == 2 and self.gated(node, sources) is not None:
                self.write(node, "mul", self.gated(node, sources) or [], {}, last)
            case "mul" | "mul_" if len(sources) == 1 and self.trained(node):
                self.scale(node, source, last)
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

    def conv(self, node: Any, kind: str, args: dict[str, Any], transposed: bool = False) -> None:
        weight = _shape(args["weight"])
        channels = weight[1] * args["groups"] if transposed else weight[0]
        numbers: dict[str, Any] = {"out_channels": channels, "kernel": list(weight[2:])}
        for key in ("stride", "padding", "dilation", *(["output_padding"] if transposed else [])):
            if isinstance(args[key], str):
                self.refuse(node, f"{kind} with padding {args[key]}")
            numbers[key] = [int(each) for each in args[key]]
        numbers |= {"transposed": "true"} if transposed else {}
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

    def norm(self, node: Any, kind: str, args: dict[str, Any], last: bool) -> None:
        """A normalization; whether it has scale and shift is written where it is not the kind's default."""
        affine = args.get("weight") is not None
        numbers = {} if affine == (kind != "instancenorm") else {"affine": str(affine).lower()}
        self.write(node, kind, [self.values[args["input"]][0]], numbers, last)

    def resize(self, node: Any, operator: str, source: str, last: bool) -> None:
        """An upsampling by whole numbers."""
        before = next(_shape(n) for n in node.all_input_nodes if n in self.values)
        pairs = list(zip(_shape(node)[2:], before[2:], strict=True))
        if last or any(n % size for n, size in pairs):
            self.refuse(node, f"{operator} by no whole number")
        numbers: dict[str, Any] = {"scale": [n // size for n, size in pairs]}
        numbers |= {"linear": "true"} if "linear" in operator else {}
        self.write(node, "upsample", [source], numbers, False)

    def joins(self, node: Any, sources: list[Any]) -> bool:
        """Whether a concatenation is one of channels."""
        args = self.arguments(node)
        total, last = len(_shape(node)), self.values[sources[0]][1]
        known = all(each in self.values and self.values[each][1] == last for each in args["tensors"])
        return known and args["dim"] % total == (total - 1 if last else 1)

    def gated(self, node: Any, sources: list[Any]) -> list[str] | None:
        """The factors of a product, the gate with one position per channel last; None where it is none."""
        shapes = [_shape(each) for each in sources]
        ordered = sorted(sources, key=lambda each: -math.prod(_shape(each)))
        gate = (*_shape(node)[:2], *[1] * (len(_shape(node)) - 2))
        same_order = len({self.values[each][1] for each in sources}) == 1
        if not same_order or self.values[sources[0]][1] or set(shapes) - {_shape(node), gate}:
            return None
        return [self.values[each][0] for each in ordered]

    def trained(self, node: Any) -> list[str]:
        """Parameters that an operator uses, buffers left out."""
        trained = self.program.graph_signature.inputs_to_parameters
        return [trained[n.name] for n in node.all_input_nodes if n.name in trained]

    def scale(self, node: Any, source: str, last: bool) -> None:
        """A trained factor per channel."""
        factor = next(n for n in node.all_input_nodes if n not in self.values)
        channel = -1 if last else 1 - len(_shape(node))
        shape = (*[1] * (len(_shape(node)) - len(_shape(factor))), *_shape(factor))
        if math.prod(shape) != shape[channel] or shape[channel] != _shape(node)[channel]:
            self.refuse(node, "mul by a parameter of another shape than one word per channel")
        self.write(node, "scale", [source], {}, last)

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
        notes = [] if known else [told.rstrip("_")]
        before = [self.owners.setdefault(each, name) for each in self.trained(node)]
        if before and before[0] != name:
            notes.append(f"in the model with the weights of {before[0]}, here a layer with its own")
        comment = f"  # {'; '.join(notes)}" if notes else ""
        self.written.append(f"  - {{name: {name}, {kind}:{body}{origin}}}{comment}")
        self.values[node], self.last = (name, last), name

    def named(self, node: Any, kind: str) -> str:
        """The name of the module that owns the weights, else the node's; each once."""
        owners = [self.parameters[n.name] for n in node.all_input_nodes if n.name in self.parameters]
        path = str(owners[0]) if owners and kind != "add" else ""
        name = path.rpartition(".")[0] if kind != "scale" else path
        name = name or str(node.name)
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
