"""From the entries of a network file to a graph: edges checked, shapes inferred, loop nests built."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from synth.base.yaml_positions import Listing, Node, Scalar, did_you_mean
from synth.layer.layer import Layer
from synth.layer.validate import LayerError
from synth.network.graph import CONVS, NORMS, PASSIVE, WEIGHTLESS, Network
from synth.network.graph import Node as Made

if TYPE_CHECKING:
    from synth.network.file import Entry

Shape = tuple[int, ...]
PLAIN = ("kernel", "stride", "padding", "dilation")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CONVS, ("out_channels", *PLAIN, "groups", "bias", "transposed", "output_padding")),
    "linear": ("out_features", "bias"),
    "matmul": ("n", "bias"),
    "pool": (*PLAIN, "ceil"),
    "upsample": ("scale", "linear"),
    **dict.fromkeys(("globalpool", "add", "mul", "cat", *PASSIVE), ()),
    **dict.fromkeys(NORMS, ("affine",)),
    "prelu": ("parameters",),
}
FLAGS = ("bias", "ceil", "transposed", "linear", "affine")
SEVERAL = ("add", "mul", "cat")  # kinds that take more than one input
NEEDED = {
    **dict.fromkeys(CONVS, ("out_channels", "kernel")),
    "linear": ("out_features",),
    "matmul": ("n",),
    "pool": ("kernel",),
    "upsample": ("scale",),
}


def build(name: str, input: Node, dtype: Node | None, entries: Sequence[Entry], origin: str) -> Network:
    """The graph. Raises `InputError` at the place of an unknown input, a cycle or an impossible shape."""
    shape = _input(input)
    word = dtype.text if isinstance(dtype, Scalar) else "float32"
    made: dict[str, Made] = {}
    for entry in ordered(entries):
        shapes = [shape if source == "input" else made[source].shape for source in entry.inputs]
        made[entry.name] = _Maker(entry, shapes, word, made).node()
    return Network(name, shape, made, word, origin)


def _input(node: Node) -> Shape:
    if not isinstance(node, Listing) or not 2 <= len(node.items) <= 5:
        raise node.fault(f"input is {node}; write N, C and the spatial extents, e.g. [32, 3, 224, 224]")
    shape = []
    for item in node.items:
        if not isinstance(item, Scalar):
            raise item.fault(f"an entry of input is {item}; write an integer")
        value = item.integer("an entry of input")
        if not 1 <= value <= 2**40:
            raise item.fault(f"an entry of input is {value}; use 1 to 2**40")
        shape.append(value)
    return tuple(shape)


def ordered(entries: Sequence[Entry]) -> list[Entry]:
    """Every layer after its inputs, otherwise as written. A cycle is an `InputError`."""
    known = {entry.name: entry for entry in entries}
    for entry in entries:
        for source, place in zip(entry.inputs, entry.from_places or (entry.place,) * 9, strict=False):
            if source != "input" and source not in known:
                raise place.fault(
                    f"{entry.name} takes {source}, which no layer is named"
                    f"{did_you_mean(source, ['input', *known])}"
                )
    done: dict[str, bool] = {}
    result: list[Entry] = []
    for root in entries:
        stack = [(root, iter(root.inputs))]
        path = [root.name]
        if root.name in done:
            continue
        done[root.name] = False
        while stack:
            entry, sources = stack[-1]
            source = next((s for s in sources if s != "input"), "")
            if not source:
                done[entry.name] = True
                result.append(entry)
                stack.pop()
                path.pop()
            elif source not in done:
                done[source] = False
                stack.append((known[source], iter(known[source].inputs)))
                path.append(source)
            elif not done[source]:
                cycle = [*path[path.index(source) :], source][::-1]
                raise entry.place.fault(
                    f"the layers form a cycle: {' -> '.join(cycle)}; a layer takes what comes before it"
                )
    return result


class _Maker:
    """Builds one node from its entry and the shapes of its inputs."""

    def __init__(self, entry: Entry, shapes: list[Shape], dtype: str, made: dict[str, Made]) -> None:
        self.entry, self.shapes, self.dtype, self.made = entry, shapes, dtype, made
        self.kind, self.shape = entry.kind, shapes[0]

    def node(self) -> Made:
        entry, kind = self.entry, self.kind
        for key, node in entry.arguments.items():
            if key not in ARGUMENTS[kind]:
                raise node.fault(
                    f"{entry.name}: unknown key {key} of {kind}"
                    f"{did_you_mean(key, ARGUMENTS[kind] or ('none',))}"
                )
        for key in NEEDED.get(kind, ()):
            if key not in entry.arguments:
                raise entry.place.fault(f"{entry.name}: {kind} lacks {key}; write {key}: under it")
        if kind not in SEVERAL and len(self.shapes) > 1:
            raise entry.place.fault(f"{entry.name}: {kind} takes one input, not {len(self.shapes)}; use add")
        if kind in SEVERAL and len(self.shapes) < 2:
            raise entry.place.fault(f"{entry.name}: {kind} takes two inputs or more; list them in from")
        maker: dict[str, Callable[[], Made]] = {
            **dict.fromkeys(CONVS, self.conv),
            **dict.fromkeys(("linear", "matmul"), self.linear),
            "pool": self.pool,
            "globalpool": self.globalpool,
            "upsample": self.upsample,
            "add": self.add,
            "mul": self.mul,
            "cat": self.cat,
            "flatten": self.flatten,
        }
        return maker.get(kind, self.passive)()

    def passive(self) -> Made:
        return Made(
            *(self.entry.name, self.kind, self.entry.inputs, self.shape, self.shape), trained=self.trained()
        )

    def trained(self) -> int:
        """Words of parameters of what stays where its input lies."""
        channels = self.shape[1]
        if self.kind in NORMS:
            affine = self.flag("affine") if "affine" in self.entry.arguments else self.kind != "instancenorm"
            return 2 * channels if affine else 0
        if self.kind == "prelu":
            return int(self.number("parameters")) if "parameters" in self.entry.arguments else 1
        return channels if self.kind == "scale" else 0

    def flatten(self) -> Made:
        flat = (self.shape[0], math.prod(self.shape[1:]))
        return Made(self.entry.name, self.kind, self.entry.inputs, flat, self.shape)

    def mul(self) -> Made:
        """A product word by word; inputs but the first may have one position for all."""
        for source, shape in zip(self.entry.inputs, self.shapes, strict=True):
            if shape not in (self.shape, (*self.shape[:2], *[1] * (len(self.shape) - 2))):
                raise self.entry.place.fault(
                    f"{self.entry.name}: {source} is {_by(shape)} but {self.entry.inputs[0]} is "
                    f"{_by(self.shape)}; give a shape as equal, or one word per channel"
                )
        return self.passive()

    def cat(self) -> Made:
        for source, shape in zip(self.entry.inputs, self.shapes, strict=True):
            if (shape[0], *shape[2:]) != (self.shape[0], *self.shape[2:]):
                raise self.entry.place.fault(
                    f"{self.entry.name}: {source} is {_by(shape)} but {self.entry.inputs[0]} is "
                    f"{_by(self.shape)}; only the channels of what is put together may differ"
                )
        shape = (self.shape[0], sum(each[1] for each in self.shapes), *self.shape[2:])
        return Made(self.entry.name, self.kind, self.entry.inputs, shape, self.shape)

    def upsample(self) -> Made:
        """The adjoint of a pooling: a transposed convolution with one group per channel.

        Nearest copies a position `scale` times; linear spreads it over the positions around it.
        """
        if len(self.shape) < 3:
            raise self.entry.place.fault(f"{self.entry.name}: upsample needs a feature map; remove it")
        rank, scale = len(self.shape) - 2, self.number("scale")
        each = [_at(scale, axis) for axis in range(rank)]
        rest = {"stride": each, "groups": self.shape[1], "transposed": True}
        kernel = each
        if self.flag("linear"):
            kernel = [2 * n - n % 2 for n in each]
            rest["padding"] = [n // 2 for n in each]
        layer = self.layer(f"conv{rank}d", self.shape, self.shape[1], kernel, rest)
        return self.made_of(layer, layer.output_shape, self.shape)

    def add(self) -> Made:
        for source, shape in zip(self.entry.inputs, self.shapes, strict=True):
            if shape != self.shape:
                raise self.entry.place.fault(
                    f"{self.entry.name}: {source} is {_by(shape)} but {self.entry.inputs[0]} is "
                    f"{_by(self.shape)}; only equal shapes can be added"
                )
        return self.passive()

    def conv(self) -> Made:
        rank = int(self.kind[4])
        if len(self.shape) != rank + 2:
            raise self.entry.place.fault(
                f"{self.entry.name}: {self.kind} needs {rank + 2} dimensions, not {_by(self.shape)}"
            )
        numbers = {key: self.number(key) for key in self.entry.arguments if key not in FLAGS}
        numbers["transposed"] = self.flag("transposed")
        layer = self.layer(self.kind, self.shape, numbers.pop("out_channels"), numbers.pop("kernel"), numbers)
        return self.made_of(layer, layer.output_shape, self.shape)

    def linear(self) -> Made:
        key = "out_features" if self.kind == "linear" else "n"
        out, before = self.number(key), self.unflattened()
        if math.prod(before[2:]) == 1:
            layer = self.layer("matmul", (before[0], out, before[1]), out, (), {})
        else:
            layer = self.layer(f"conv{len(before) - 2}d", before, out, before[2:], {})
        return self.made_of(layer, (before[0], out), before)

    def unflattened(self) -> Shape:
        """The feature map behind a flatten and whatever keeps its shape."""
        name = self.entry.inputs[0]
        while name != "input" and self.made[name].kind in PASSIVE and self.made[name].kind != "flatten":
            name = self.made[name].inputs[0]
        if name != "input" and self.made[name].kind == "flatten":
            return self.made[name].in_shape
        return self.shape

    def pool(self) -> Made:
        rank = len(self.shape) - 2
        numbers = {key: self.number(key) for key in self.entry.arguments if key != "ceil"}
        kernel = numbers.pop("kernel")
        numbers.setdefault("stride", kernel)
        shape = self.ceiled(kernel, numbers) if self.flag("ceil") else self.shape
        layer = self.layer(f"conv{rank}d", shape, shape[1], kernel, {**numbers, "groups": shape[1]})
        return self.made_of(layer, layer.output_shape, self.shape)

    def ceiled(self, kernel: Any, numbers: dict[str, Any]) -> Shape:
        """The input widened until its last, partial window counts."""
        spatial = []
        for axis, size in enumerate(self.shape[2:]):
            k, s, p = (_at(v, axis) for v in (kernel, numbers["stride"], numbers.get("padding", 0)))
            out = -(-(size + 2 * p - k) // s) + 1
            out -= 1 if (out - 1) * s >= size + p else 0
            spatial.append(max(size, (out - 1) * s + k - 2 * p))
        return (*self.shape[:2], *spatial)

    def globalpool(self) -> Made:
        if len(self.shape) < 3:
            raise self.entry.place.fault(f"{self.entry.name}: globalpool needs a feature map; remove it")
        rest = {"groups": self.shape[1]}
        layer = self.layer(f"conv{len(self.shape) - 2}d", self.shape, self.shape[1], self.shape[2:], rest)
        return self.made_of(layer, layer.output_shape, self.shape)

    def made_of(self, layer: Layer, shape: Shape, before: Shape) -> Made:
        weighted = self.kind not in WEIGHTLESS
        bias = weighted and (self.flag("bias") if "bias" in self.entry.arguments else self.kind == "linear")
        return Made(self.entry.name, self.kind, self.entry.inputs, shape, before, layer, bias)

    def layer(self, kind: str, input: Shape, out: Any, kernel: Any, rest: dict[str, Any]) -> Layer:
        try:
            return Layer(kind, input, out, kernel, dtype=self.dtype, name=self.entry.name, **rest)  # type: ignore[arg-type]
        except LayerError as fault:
            place = self.entry.arguments.get(fault.key, self.entry.place)
            raise place.fault(f"{self.entry.name}: {fault.sentence}") from fault

    def number(self, key: str) -> Any:
        node = self.entry.arguments[key]
        if isinstance(node, Scalar):
            return node.integer(key)
        items = node.items if isinstance(node, Listing) else ()
        if not items:
            raise node.fault(f"{self.entry.name}: {key} is {node}; write an integer or a list of them")
        return tuple(item.integer(key) if isinstance(item, Scalar) else 0 for item in items)

    def flag(self, key: str) -> bool:
        node = self.entry.arguments.get(key)
        if node is None:
            return False
        if not isinstance(node, Scalar) or node.text not in ("true", "false"):
            raise node.fault(f"{self.entry.name}: {key} is {node}; write true or false")
        return node.text == "true"


def _at(value: Any, axis: int) -> int:
    return int(value[axis]) if isinstance(value, tuple) else int(value)


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))
