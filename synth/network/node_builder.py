"""From the entries of a network file to a network: shapes inferred, loop nests built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from synth.base.yaml_positions import Listing, Scalar
from synth.base.yaml_positions import Node as YamlNode
from synth.layer.layer import Layer
from synth.layer.validate import LayerError
from synth.network.arguments import FLAGS, check_arguments, division_of, flag_of, number_of, shown
from synth.network.entries import Entry, in_dependency_order
from synth.network.graph import Network, Node, Parts, first_laid_out, parts_of, parts_of_input
from synth.network.kinds import CONVS, KINDS, SHUFFLES
from synth.network.row_map_entries import padding_of, row_maps
from synth.network.row_maps import joined_rows, joined_shape

Shape = tuple[int, ...]


def build_network(
    name: str, input: YamlNode, dtype: YamlNode | None, entries: Sequence[Entry], origin: str
) -> Network:
    """The network of some entries. `origin` is the file that they come from.

    Raises `InputError` with the place of an unknown input, a cycle or an impossible shape.
    """
    shape = _input_shape(input)
    word = dtype.text if isinstance(dtype, Scalar) else "float32"
    nodes: dict[str, Node] = {}
    parts = parts_of_input(shape)
    for entry in in_dependency_order(entries):
        shapes = [shape if source == "input" else nodes[source].shape for source in entry.inputs]
        if entry.kind in CONVS and "padding_mode" in entry.arguments and len(shapes) == 1:
            pad, entry = padding_of(entry, shapes[0])
            if pad is not None:
                shapes = [pad.shape]
                nodes[pad.name], parts[pad.name] = pad, parts_of(pad, parts)
            if pad is not None and any(each.name == pad.name for each in entries):
                raise entry.place.fault(f"{pad.name} is the padding of {entry.name}; rename the other")
        made = _NodeBuilder(entry, shapes, word, nodes).node()
        if made.kind in ("add", "mul"):
            made = replace(made, inputs=_in_order(made, shapes, parts))
        nodes[entry.name], parts[entry.name] = made, parts_of(made, parts)
    return Network(name, shape, nodes, word, origin)


def _input_shape(node: YamlNode) -> Shape:
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


class _NodeBuilder:
    """Builds one node from its entry, the shapes of its inputs, and the nodes before it."""

    def __init__(self, entry: Entry, shapes: list[Shape], dtype: str, nodes: dict[str, Node]) -> None:
        self.entry, self.shapes, self.dtype, self.nodes = entry, shapes, dtype, nodes
        self.kind, self.shape = entry.kind, shapes[0]

    def node(self) -> Node:
        check_arguments(self.entry, self.shapes)
        builders: dict[str, Callable[[], Node]] = {
            **dict.fromkeys(CONVS, self.conv),
            **dict.fromkeys(("linear", "matmul"), self.linear),
            "pool": self.pool,
            "globalpool": self.globalpool,
            "upsample": self.upsample,
            "add": self.add,
            "mul": self.mul,
            "cat": self.cat,
            "flatten": self.flatten,
            "reindex": self.reindex,
            **dict.fromkeys(SHUFFLES, self.shuffle),
            "channelmean": self.channelmean,
            "gathered": self.gathered,
        }
        return builders.get(self.kind, self.passive)()

    def passive(self) -> Node:
        entry, groups = self.entry, 0
        if self.kind == "groupnorm" and "groups" in entry.arguments:
            groups, channels = int(number_of(self.entry, "groups")), self.shape[1]
            if groups < 1 or channels % groups:
                raise entry.arguments["groups"].fault(
                    f"{entry.name}: groups is {groups}; it must divide the {channels} channels"
                )
        trained = self.trained()
        return Node(
            entry.name, self.kind, entry.inputs, self.shape, self.shape, trained=trained, groups=groups
        )

    def trained(self) -> int:
        """Trained words of a kind that has no loop nest."""
        if "parameters" in self.entry.arguments:
            return int(number_of(self.entry, "parameters"))
        known = KINDS[self.kind]
        affine = flag_of(self.entry, "affine", known.affine)
        return known.trained[0] * self.shape[1] + known.trained[1] if affine else 0

    def flatten(self) -> Node:
        flat = (self.shape[0], math.prod(self.shape[1:]))
        return Node(self.entry.name, self.kind, self.entry.inputs, flat, self.shape)

    def gathered(self) -> Node:
        """A call without a layout, in a shape of its own: every rank computes it, or its `divided` part."""
        entry, shape = self.entry, self._listed("shape")
        if min(shape) < 1:
            raise entry.arguments["shape"].fault(
                f"{entry.name}: shape is {shown(shape)}; use extents of 1 or more"
            )
        trained = self.trained() if "parameters" in entry.arguments else 0
        work = int(number_of(entry, "multiply_adds")) if "multiply_adds" in entry.arguments else 0
        node = Node(entry.name, self.kind, entry.inputs, shape, self.shape, trained=trained)
        if "joined" in entry.arguments:
            node = self._of_joined_rows(node, int(number_of(entry, "joined")))
        return replace(node, divided=division_of(entry), multiply_adds=work)

    def _of_joined_rows(self, node: Node, dim: int) -> Node:
        """A concatenation of its inputs along a dimension of positions."""
        place, joined = self.entry.arguments["joined"], joined_shape(self.shapes, dim)
        if dim < 2 or joined != node.shape:
            raise place.fault(
                f"{node.name}: joined is {dim}, but {', '.join(map(shown, self.shapes))} do not make"
                f" {shown(node.shape)} along it; write the dimension, from 2, of which the inputs have rows"
            )
        return replace(node, dims=(dim,), maps=joined_rows([each[dim] for each in self.shapes]))

    def reindex(self) -> Node:
        """Rows that are moved or selected; dimensions that `rows` does not name stay as they are."""
        entry, maps = self.entry, row_maps(self.entry, self.shape)
        extents = [len(each.rows) for each in maps]
        given = number_of(self.entry, "dims") if "dims" in entry.arguments else ()
        dims = given if isinstance(given, tuple) else (given,)
        if any(not -1 <= dim < len(extents) for dim in dims):
            raise entry.arguments["dims"].fault(
                f"{entry.name}: dims is {list(dims)}; use -1 or one of {len(extents)} dimensions from 0"
            )
        shape = tuple(1 if dim < 0 else extents[dim] for dim in dims) if dims else tuple(extents)
        return Node(entry.name, self.kind, entry.inputs, shape, self.shape, maps=maps, dims=dims)

    def shuffle(self) -> Node:
        """Channels become positions of a map, or positions channels."""
        entry, factor, down = self.entry, number_of(self.entry, "factor"), self.kind == "pixelunshuffle"
        place, (batch, channels, *extents) = entry.arguments["factor"], self.shape
        if not extents:
            raise entry.place.fault(f"{entry.name}: {self.kind} needs a feature map; remove it")
        if isinstance(factor, tuple) and len(factor) != len(extents):
            raise place.fault(f"{entry.name}: factor has {len(factor)} entries, needs {len(extents)}")
        factors = [_at(factor, axis) for axis in range(len(extents))]
        words = math.prod(factors)
        sizes, parts = (extents, factors) if down else ([channels], [words])
        if min(factors) < 1 or any(size % part for size, part in zip(sizes, parts, strict=True)):
            what = "every factor must divide its extent" if down else f"{words} must divide the channels"
            raise place.fault(f"{entry.name}: factor is {factor} for {shown(self.shape)}; {what}")
        pairs = zip(extents, factors, strict=True)
        made = [size // each if down else size * each for size, each in pairs]
        shape = batch, channels * words if down else channels // words, *made
        return Node(entry.name, self.kind, entry.inputs, shape, self.shape)

    def channelmean(self) -> Node:
        """The mean of every few neighbouring channels."""
        entry, size, channels = self.entry, number_of(self.entry, "size"), self.shape[1]
        if not isinstance(size, int) or size < 1 or channels % size:
            raise entry.arguments["size"].fault(
                f"{entry.name}: size is {size}; it must divide the {channels} channels"
            )
        shape = self.shape[0], channels // size, *self.shape[2:]
        return Node(entry.name, self.kind, entry.inputs, shape, self.shape)

    def mul(self) -> Node:
        """An element-wise product; inputs but the first may have one position per channel."""
        one = (*self.shape[:2], *[1] * (len(self.shape) - 2))
        self._require(
            lambda shape: shape in (self.shape, one), "give a shape as equal, or one word per channel"
        )
        return self.passive()

    def cat(self) -> Node:
        others = self.shape[0], *self.shape[2:]
        self._require(
            lambda shape: (shape[0], *shape[2:]) == others,
            "only the channels of what is put together may differ",
        )
        shape = (self.shape[0], sum(each[1] for each in self.shapes), *self.shape[2:])
        return Node(self.entry.name, self.kind, self.entry.inputs, shape, self.shape)

    def add(self) -> Node:
        self._require(lambda shape: shape == self.shape, "only equal shapes can be added")
        return self.passive()

    def _require(self, fits: Callable[[Shape], bool], remedy: str) -> None:
        """Raise `InputError` for an input whose shape does not fit that of the first."""
        first = f"{self.entry.inputs[0]} is {shown(self.shape)}"
        for source, shape in zip(self.entry.inputs, self.shapes, strict=True):
            if not fits(shape):
                raise self.entry.place.fault(
                    f"{self.entry.name}: {source} is {shown(shape)} but {first}; {remedy}"
                )

    def upsample(self) -> Node:
        """The adjoint of a pooling: a transposed convolution with one group per channel.

        Nearest copies every position `scale` times; linear interpolates between positions.
        """
        if len(self.shape) < 3:
            raise self.entry.place.fault(f"{self.entry.name}: upsample needs a feature map; remove it")
        rank, scale = len(self.shape) - 2, number_of(self.entry, "scale")
        each = [_at(scale, axis) for axis in range(rank)]
        rest = {"stride": each, "groups": self.shape[1], "transposed": True}
        kernel = each
        if flag_of(self.entry, "linear"):
            kernel = [2 * n - n % 2 for n in each]
            rest["padding"] = [n // 2 for n in each]
        layer = self.layer(f"conv{rank}d", self.shape, self.shape[1], kernel, rest)
        return self.node_of(layer, layer.output_shape, self.shape)

    def conv(self) -> Node:
        rank = int(self.kind[4])
        if len(self.shape) != rank + 2:
            raise self.entry.place.fault(
                f"{self.entry.name}: {self.kind} needs {rank + 2} dimensions, not {shown(self.shape)}"
            )
        numbers = {key: number_of(self.entry, key) for key in self.entry.arguments if key not in FLAGS}
        numbers["transposed"] = flag_of(self.entry, "transposed")
        layer = self.layer(self.kind, self.shape, numbers.pop("out_channels"), numbers.pop("kernel"), numbers)
        return self.node_of(layer, layer.output_shape, self.shape)

    def linear(self) -> Node:
        key = "out_features" if self.kind == "linear" else "n"
        out, before = (
            number_of(self.entry, key),
            shape_before_flatten(self.nodes, self.entry.inputs[0]) or self.shape,
        )
        if math.prod(before[2:]) == 1:
            layer = self.layer("matmul", (before[0], out, before[1]), out, (), {})
        else:
            layer = self.layer(f"conv{len(before) - 2}d", before, out, before[2:], {})
        return self.node_of(layer, (before[0], out), before)

    def pool(self) -> Node:
        rank = len(self.shape) - 2
        numbers = {key: number_of(self.entry, key) for key in self.entry.arguments if key != "ceil"}
        kernel = numbers.pop("kernel")
        numbers.setdefault("stride", kernel)
        shape = self.ceiled(kernel, numbers) if flag_of(self.entry, "ceil") else self.shape
        layer = self.layer(f"conv{rank}d", shape, shape[1], kernel, {**numbers, "groups": shape[1]})
        return self.node_of(layer, layer.output_shape, self.shape)

    def ceiled(self, kernel: Any, numbers: dict[str, Any]) -> Shape:
        """The input shape, extended so that the last, partial window counts (ceil mode)."""
        spatial = []
        for axis, size in enumerate(self.shape[2:]):
            k, s, p = (_at(v, axis) for v in (kernel, numbers["stride"], numbers.get("padding", 0)))
            out = -(-(size + 2 * p - k) // s) + 1
            out -= 1 if (out - 1) * s >= size + p else 0
            spatial.append(max(size, (out - 1) * s + k - 2 * p))
        return (*self.shape[:2], *spatial)

    def globalpool(self) -> Node:
        """The mean, or maximum, of all positions, or of windows that follow from the result's extents."""
        entry = self.entry
        if len(self.shape) < 3:
            raise entry.place.fault(f"{entry.name}: globalpool needs a feature map; remove it")
        dims = self._listed("dims") or tuple(range(2, len(self.shape)))
        rows = self._listed("out") or (1,)
        if any(not 1 < dim < len(self.shape) for dim in dims):
            raise entry.arguments["dims"].fault(
                f"{entry.name}: dims is {list(dims)}; use positions, from 2 to {len(self.shape) - 1}"
            )
        if len(rows) not in (1, len(dims)) or not 1 <= min(rows) <= max(rows) <= 2**40:
            raise entry.arguments["out"].fault(
                f"{entry.name}: out is {list(rows)}; give an extent of 1 or more for each of the"
                f" {len(dims)} positions that are pooled"
            )
        made = dict(zip(dims, rows if len(rows) == len(dims) else rows * len(dims), strict=True))
        shape = tuple(made.get(dim, n) for dim, n in enumerate(self.shape))
        return Node(entry.name, self.kind, entry.inputs, shape, self.shape, maximum=flag_of(entry, "max"))

    def _listed(self, key: str) -> tuple[int, ...]:
        """Integers of an argument; none where it is not given."""
        given = number_of(self.entry, key) if key in self.entry.arguments else ()
        return given if isinstance(given, tuple) else (given,)

    def node_of(self, layer: Layer, shape: Shape, before: Shape) -> Node:
        weighted = KINDS[self.kind].weighted
        bias = weighted and flag_of(self.entry, "bias", self.kind == "linear")
        return Node(self.entry.name, self.kind, self.entry.inputs, shape, before, layer, bias)

    def layer(self, kind: str, input: Shape, out: Any, kernel: Any, rest: dict[str, Any]) -> Layer:
        """The loop nest; a fault of its numbers gets the place of the argument in the file."""
        try:
            return Layer(kind, input, out, kernel, dtype=self.dtype, name=self.entry.name, **rest)  # type: ignore[arg-type]
        except LayerError as fault:
            place = self.entry.arguments.get(fault.key, self.entry.place)
            raise place.fault(f"{self.entry.name}: {fault.sentence}") from fault


def shape_before_flatten(nodes: Mapping[str, Node], name: str) -> Shape | None:
    """The shape of the feature map that a flatten before a node's input reads; None without a flatten.

    name: of the input. Between the two may be kinds that keep the shape.
    """
    while name != "input" and nodes[name].known.passive and nodes[name].kind != "flatten":
        name = nodes[name].inputs[0]
    flat = name != "input" and nodes[name].kind == "flatten"
    return nodes[name].in_shape if flat else None


def _in_order(node: Node, shapes: Sequence[Shape], parts: Mapping[str, Parts]) -> tuple[str, ...]:
    """The operands of a sum or product with the one first in whose layout it is computed."""
    alike = [name for name, shape in zip(node.inputs, shapes, strict=True) if shape == node.shape]
    first = node.inputs.index(alike[first_laid_out(alike, parts)])
    return (node.inputs[first], *node.inputs[:first], *node.inputs[first + 1 :])


def _at(value: Any, axis: int) -> int:
    return int(value[axis]) if isinstance(value, tuple) else int(value)
