"""The planner's network of a traced torch model, by the operator table that the ranks use as well.

Every node of the network has its dimensions in the order (N, C, *spatial). A model may permute them, so a
value of the model is a node of the network and the order in which the model has its dimensions. Convolutions,
linear layers, poolings and upsamplings are planned. Other operators use the layout of their first input
(elementwise: see `first_laid_out`); other operands are redistributed. What cannot be computed on shards is
"gathered" and has no layout of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from synth.layer.layer import Layer
from synth.layer.validate import LayerError
from synth.network.graph import Network, Node, Parts, first_laid_out, parts_of, parts_of_input
from synth.network.node_builder import shape_before_flatten
from synth.network.reductions import layer_below
from synth.network.row_maps import RowMap, joined_rows, joined_shape
from synth.parallel.front_end.node_facts import division, saved_tensor
from synth.parallel.front_end.node_names import NodeNames
from synth.parallel.front_end.torch_layers import (
    layer_of,
    pool_layer,
    takes_map,
    upsample_layer,
)

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.call import Call
    from synth.runtime.operators.table import Operators
    from synth.runtime.rules.local_forms import LocalForm
    from synth.runtime.rules.reductions import ReductionForm
    from synth.runtime.rules.row_calls import MovedRows

OTHER = "another input"
ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "true_divide")  # nothing to plan with a number

Shape = tuple[int, ...]
Order = tuple[int, ...]  # the network's dimension for each of the model's


class Value(NamedTuple):
    """A tensor of the model: a node of the network, and the node's dimension for each of the model's."""

    name: str
    order: Order


@dataclass
class NetworkReader:
    """Reads a graph of `synth.runtime.tracing.trace.traced` node by node.

    Writes into the metadata of the graph. "layer" of a planned node is the name of its layer. "tensor" of a
    node is the network's node whose value it has, with the network's order of dimensions. "like" of a sum is
    the place of the operand in whose layout it is computed.
    """

    operators: Operators
    dtype: str
    parameters: frozenset[str]
    first_names: dict[str, str]  # name of a parameter -> its first one, where it has several
    nodes: dict[str, Node] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # layer -> what its kind leaves out
    values: dict[fx.Node, Value] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)  # parameters of the nodes so far
    input: Shape = ()

    def __post_init__(self) -> None:
        self.names = NodeNames(self.nodes)

    def network(self, graph: fx.Graph, name: str) -> Network:
        """The network of a graph."""
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        first = max(inputs, key=lambda node: (2 <= len(_shape(node)) <= 5, math.prod(_shape(node))))
        self.input = _shape(first)
        self.parts = parts_of_input(self.input)
        for node in graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._input(node, node is first)
                node.meta["tensor"] = self.values[node].name
            elif node.op.startswith("call") and not node.meta.get("expression"):
                before = set(self.nodes)
                call = self.operators.call(node)
                self.values[node] = self._read(call)
                region = (each.number for each in node.meta.get("regions", {}).get(True, ()))
                facts: dict[str, Any] = {"saves": saved_tensor(call), "region": tuple(region)}
                new = self.nodes.keys() - before
                for each in self.nodes:
                    if each in new:
                        self.nodes[each] = replace(self.nodes[each], **facts)
                        self.parts[each] = parts_of(self.nodes[each], self.parts)
                self._note_tensor(call, new)
        return Network(name, self.input, self.nodes, self.dtype)

    def _note_tensor(self, call: Call, new: set[str]) -> None:
        """Note which node of the network has the value of a call, and whether the call is direct."""
        value = self.values[call.node]
        straight_out = value.order == straight(call.out)
        call.node.meta["tensor"] = value.name if straight_out else ""
        if value.name not in self.nodes:  # the network's input
            return
        made = self.nodes[value.name]
        if not self._is_direct(call, made, new) or not straight_out:
            self.nodes[value.name] = replace(made, direct=False)

    def _is_direct(self, call: Call, made: Node, new: set[str]) -> bool:
        """Whether a call makes a node from the nodes that it reads, or gives words of one in their places.

        new: the nodes that the call has added.
        """
        kind, meta = self.operators.operator(call).kind, call.node.meta
        given = [self.values[each] for each in call.inputs]
        if any(each.order != straight(shape) for each, shape in zip(given, call.shapes, strict=True)):
            return False
        if "only" in meta or meta.get("differs") or (call.parameters and kind in ("elementwise", "same")):
            return False
        if not new:
            return kind in ("elementwise", "same")
        return new == {made.name} and set(made.inputs) == {each.name for each in given}

    def _input(self, node: fx.Node, largest: bool) -> Value:
        """The largest input is that of the network; the others have no planned layout."""
        shape = _shape(node)
        if largest:
            return Value("input", straight(shape))
        name = self.names.free(str(node.name))
        own = shape or (1,)
        made = Node(name, "gathered", ("input",), own, self.input, divided="parts")
        self.parts[name] = parts_of(made, self.parts)
        return self._put(made, straight(shape), OTHER)

    # -- operators ------------------------------------------------------------------------------------

    def _read(self, call: Call) -> Value:
        """Adds the nodes of a call; gives the value that it computes."""
        operator = self.operators.operator(call)
        first = self.values[call.inputs[0]]
        kind = operator.kind if all(2 <= len(each) <= 5 for each in (call.out, *call.shapes)) else "gathered"
        match kind:
            case "same":
                value: Value | None = first
            case "permute":
                value = Value(first.name, tuple(first.order[dim] for dim in call.order()))
            case "layer":
                value = self._layer(call, operator.module)
            case "elementwise":
                value = self._elementwise(call)
            case "cat":
                value = self._cat(call, *operator.form)
            case "reindex":
                value = self._reindex(call, operator.form)
            case "dropout" | "scan":
                value = self._add(call, kind, [first.name], first.order)
            case "prelu" | "batchnorm" | "groupnorm" | "instancenorm":
                value = self._same_layout(call, kind, straight(call.out))
            case "layernorm":
                value = self._same_layout(call, kind, channels_last(call.out))
            case "pool":
                layer = pool_layer("pool", operator.module, call.shapes[0], call.out, self.dtype)
                value = self._weightless(call, "pool", layer)
            case "resize":
                layer = upsample_layer("up", operator.module, call.shapes[0], call.out, self.dtype)
                value = self._weightless(call, "upsample", layer)
            case "shuffle":
                value = self._shuffle(call, operator.form)
            case "reduction":
                value = self._reduction(call, operator.form)
            case "flatten":
                value = self._flatten(call)
            case "local":
                value = self._along_channels(call, operator.form)
            case _:
                value = None
        return value or self._framed(call) or self._gathered(call)

    def _layer(self, call: Call, module: Any) -> Value | None:
        """A convolution or linear layer."""
        before, after = call.shapes[0], call.out
        name = self.names.of(call)
        layer = None
        with suppress(LayerError):  # torch runs it, such as a window in the padding alone
            layer = layer_of(name, module, before)
        if layer is None:
            return None
        bias = getattr(module, "bias", None) is not None
        on_positions = len(after) > 2 and len(module.get_parameter("weight").shape) == 2
        ordered = channels_last if on_positions else straight
        order = ordered(after)
        source = self._ordered(self.values[call.inputs[0]], ordered(before), name)
        in_shape = self._shape_of(source)
        kind = "linear" if len(after) == 2 else layer.kind
        if kind == "linear" and not takes_map(module, before):
            flat = shape_before_flatten(self.nodes, source)
            if flat is not None and math.prod(flat[2:]) > 1:  # a file would mean the map
                source = self._detached(source, before, name)
            else:
                in_shape = flat or in_shape
        _, tied = self._trained(call)
        node = Node(name, kind, (source,), permuted(after, order), in_shape, layer, bias, tied=tied)
        if tied:
            self.notes[name] = f"with the weights of {call.owner}"
        return self._planned(call, node, order)

    def _weightless(self, call: Call, kind: str, layer: Layer | None) -> Value | None:
        """A planned layer without weights."""
        if layer is None:
            return None
        name, order = self.names.of(call), straight(call.out)
        source = self._ordered(self.values[call.inputs[0]], order, name)
        made = Node(name, kind, (source,), call.out, call.shapes[0], replace(layer, name=name))
        return self._planned(call, made, order)

    def _reduction(self, call: Call, form: ReductionForm) -> Value | None:
        """A reduction of positions, where its input lies; None where that is no planned layout."""
        first = self.values[call.inputs[0]]
        here = self._shape_of(first.name)
        rows = {first.order[dim]: n for dim, n in zip(form.over, form.extents, strict=True)}
        if not rows:  # every row is one of the input
            return first
        if min(rows) < 2 or form.joined or layer_below(self.nodes, first.name) is None:
            return None
        name, shape = self.names.of(call), tuple(rows.get(dim, n) for dim, n in enumerate(here))
        made = Node(name, "globalpool", (first.name,), shape, here, maximum=not form.adds)
        value = self._put(made, first.order)
        return value if form.keep else self._without(value, sorted(rows))

    def _without(self, value: Value, over: Sequence[int]) -> Value:
        """A value without dimensions of extent 1."""
        before = self._shape_of(value.name)
        kept = [dim for dim in range(len(before)) if dim not in over]
        shape, name = tuple(before[dim] for dim in kept), self.names.free(f"{value.name}.flat")
        made = Node(name, "flatten", (value.name,), shape, before)
        if len(kept) > 2:
            maps = tuple(RowMap(extent, range(extent)) for extent in before)
            made = replace(made, kind="reindex", maps=maps, dims=tuple(kept))
        return self._put(made, tuple(kept.index(dim) for dim in value.order if dim in kept))

    def _flatten(self, call: Call) -> Value | None:
        """Positions of a map that ranks may cut cannot be flattened in their layout."""
        first, before = self.values[call.inputs[0]], call.shapes[0]
        if before == call.out:
            return first
        if first.order != straight(before) or math.prod(before[2:]) > 1:
            return None
        name = self.names.of(call)
        return self._put(Node(name, "flatten", (first.name,), call.out, before), (0, 1))

    def _along_channels(self, call: Call, form: LocalForm) -> Value | None:
        """A call along the channels alone, such as a softmax or a normalization of vectors."""
        first = self.values[call.inputs[0]]
        if call.out != call.shapes[0]:
            return None
        along = [first.order[dim] for dim in range(len(call.out)) if form.units.get(dim) != 1]
        if along != [1]:
            return None
        return self._add(call, "softmax", [first.name], first.order)

    def _framed(self, call: Call) -> Value | None:
        """A view that adds or drops dimensions of extent 1 alone, as where frames of a film are samples."""
        from synth.runtime.operators.one_tensor import RESHAPES

        if call.word not in RESHAPES or not all(2 <= len(each) <= 5 for each in (call.out, *call.shapes)):
            return None
        first, before = self.values[call.inputs[0]], call.shapes[0]
        real = [dim for dim, n in enumerate(before) if n > 1]
        if [before[dim] for dim in real] != [n for n in call.out if n > 1]:
            return None
        left = iter(real)
        dims = [first.order[next(left)] if n > 1 else -1 for n in call.out]
        if 1 not in dims[1:]:
            return None
        at = dims.index(1)
        placed = [0, at, *(dim for dim in range(1, len(dims)) if dim != at)]  # of the model, in the network's
        here = self._shape_of(first.name)
        maps = tuple(RowMap(extent, range(extent)) for extent in here)
        name, shape = self.names.of(call), tuple(call.out[dim] for dim in placed)
        inner = tuple(dims[dim] for dim in placed)
        made = Node(name, "reindex", (first.name,), shape, here, maps=maps, dims=inner)
        return self._put(made, tuple(placed.index(dim) for dim in range(len(placed))), call.word)

    def _cat(self, call: Call, joined: Sequence[fx.Node], dim: int) -> Value | None:
        parts = [self.values[part] for part in joined]
        order = parts[0].order
        if order[dim] > 1:
            return self._behind_inputs(call, parts, dim)
        if order[dim] != 1 or len(parts) < 2:
            return None
        name = self.names.of(call)
        sources = tuple(self._ordered(part, order, name) for part in parts)
        first, shape = self._shape_of(sources[0]), permuted(call.out, order)
        call.node.meta["like_first"] = True  # where the planner has it
        return self._put(Node(name, "cat", sources, shape, first), order)

    def _behind_inputs(self, call: Call, parts: Sequence[Value], dim: int) -> Value | None:
        """Rows of a value between those of other inputs, such as a cache: as if it were padded.

        The others lie where the value does. Where several parts are computed, see `_joined_positions`.
        """
        own = [place for place, part in enumerate(parts) if self.notes.get(part.name) != OTHER]
        if len(own) != 1:
            return self._joined_positions(call, parts, dim)
        source = parts[own[0]]
        name, shape, at = self.names.of(call), self._shape_of(source.name), source.order[dim]
        maps = [RowMap(extent, range(extent)) for extent in shape]
        maps[at] = joined_rows([self._shape_of(part.name)[part.order[dim]] for part in parts])[own[0]]
        joined = tuple(len(each.rows) for each in maps)
        made = Node(name, "reindex", (source.name,), joined, shape, maps=tuple(maps))
        return self._put(made, source.order, "beside another input")

    def _joined_positions(self, call: Call, parts: Sequence[Value], dim: int) -> Value | None:
        """Positions of several values: they lie where those of the largest do; see `largest_laid_out`."""
        plain, shapes = straight(call.out), [self._shape_of(part.name) for part in parts]
        if any(part.order != plain for part in parts) or joined_shape(shapes, dim) != call.out:
            return None
        made = self._gathered(call)
        sources, maps = tuple(part.name for part in parts), joined_rows([each[dim] for each in shapes])
        node = replace(self.nodes[made.name], inputs=sources, in_shape=shapes[0], maps=maps, dims=(dim,))
        self.nodes[made.name] = node
        return made

    def _reindex(self, call: Call, moved: MovedRows) -> Value | None:
        """Rows that are moved or selected, in the order of the network's dimensions."""
        first, dims = self.values[call.inputs[0]], moved.dims
        maps: list[Any] = [None] * len(moved.maps)
        for dim, each in enumerate(moved.maps):
            maps[first.order[dim]] = each
        order, inner = first.order, tuple[int, ...]()
        if dims is not None:
            if first.order != straight(call.shapes[0]) or dims[:2] != (0, 1):
                return None
            order, inner = straight(call.out), tuple(-1 if dim is None else dim for dim in dims)
        name, shape = self.names.of(call), permuted(call.out, order)
        before = self._shape_of(first.name)
        made = Node(name, "reindex", (first.name,), shape, before, maps=tuple(maps), dims=inner)
        return self._put(made, order, _word(call).strip("_"))

    def _shuffle(self, call: Call, channels: int) -> Value | None:
        """Channels to positions of a map, or back. channels: the dimension that has them."""
        first = self.values[call.inputs[0]]
        if first.order[channels] != 1:
            return None
        if call.shapes[0] == call.out:
            return first
        before, shape = self._shape_of(first.name), permuted(call.out, first.order)
        name, kind = self.names.of(call), "pixelshuffle" if before[1] > shape[1] else "pixelunshuffle"
        kind = "channelmean" if before[2:] == shape[2:] else kind
        return self._put(Node(name, kind, (first.name,), shape, before), first.order)

    def _elementwise(self, call: Call) -> Value | None:
        """Uses the layout of an operand of its shape (`first_laid_out`); the others are redistributed."""
        alike = [node for node in call.inputs if _shape(node) == call.out]
        if not alike:  # broadcast to a larger shape
            return None
        base = alike[first_laid_out([self.values[node].name for node in alike], self.parts)]
        others = [node for node in call.inputs if node is not base]
        value = self.values[base]
        if not others and not call.parameters:
            return value if call.word in ARITHMETIC else self._add(call, "relu", [value.name], value.order)
        if others and (call.parameters or any(len(_shape(n)) != len(call.out) for n in others)):
            return None
        if not others:
            return self._with_parameters(call, value)
        name = self.names.of(call)
        sources = [value.name, *(self._ordered(self.values[n], value.order, name) for n in others)]
        shape = self._shape_of(value.name)
        gate = (*shape[:2], *[1] * (len(shape) - 2))
        shapes = {self._shape_of(source) for source in sources}
        if shapes - {shape, gate} or (len(shapes) > 1 and len(shape) < 3):
            return None
        call.node.meta["like"] = call.inputs.index(base)
        kind = "mul" if len(shapes) > 1 or call.word == "mul" else "add"
        return self._add(call, kind, sources, value.order)

    def _with_parameters(self, call: Call, value: Value) -> Value:
        """An operation with parameters or buffers of the model, which are there where they are needed."""
        trained, tied = self._trained(call)
        kind = "prelu" if call.word == "prelu" else "scale" if trained or tied else "relu"
        return self._add(call, kind, [value.name], value.order, trained, tied)

    def _same_layout(self, call: Call, kind: str, order: Shape) -> Value:
        """A normalization or PReLU: computed in the layout of its input."""
        source = self._ordered(self.values[call.inputs[0]], order, self.names.of(call))
        value = self._add(call, kind, [source], order, *self._trained(call))
        if kind == "groupnorm":
            groups = int(getattr(self.operators.operator(call).module, "num_groups", 0))
            self.nodes[value.name] = replace(self.nodes[value.name], groups=groups)
        return value

    def _gathered(self, call: Call) -> Value:
        """What every rank computes from the whole, or what has no planned layout."""
        name, out = self.names.of(call), call.out or (1,)
        sources = tuple(dict.fromkeys(self.values[node].name for node in call.inputs))
        before = self._shape_of(sources[0])
        operator = self.operators.operator(call)
        work = operator.form.multiply_adds if operator.kind == "product" else 0
        trained, tied = self._trained(call)
        node = Node(name, "gathered", sources, out, before, trained=trained, tied=tied)
        node = replace(node, divided=division(call, operator.kind), multiply_adds=work)
        return self._put(node, straight(out), _word(call))

    # -- nodes ----------------------------------------------------------------------------------------

    def _add(
        self,
        call: Call,
        kind: str,
        sources: Sequence[str],
        order: Shape,
        trained: int = 0,
        tied: bool = False,
    ) -> Value:
        """A node with the layout and shape of its first source."""
        name, shape = self.names.of(call), self._shape_of(sources[0])
        made = Node(name, kind, tuple(sources), shape, shape, trained=trained, tied=tied)
        what = _word(call) if call.module is None else _word(call).lower()
        told = kind in ("relu", "scale", "scan", "softmax", "add", "mul") and what != kind
        return self._put(made, order, what if told else "")

    def _planned(self, call: Call, node: Node, order: Shape) -> Value:
        call.node.meta["layer"] = node.name
        return self._put(node, order)

    def _put(self, node: Node, order: Shape, note: str = "") -> Value:
        """A new node, and the value that it gives. note: what its kind leaves out."""
        self.nodes[node.name] = node
        if note:
            self.notes[node.name] = note
        return Value(node.name, order)

    def _ordered(self, value: Value, order: Shape, reader: str) -> str:
        """The node of a value whose dimensions are in some order; where they are not, a new one."""
        if value.order == order:
            return value.name
        shape = self._shape_of(value.name)
        whole = tuple(shape[dim] for dim in value.order)
        return self._detached(value.name, permuted(whole, order), reader)

    def _detached(self, source: str, shape: Shape, reader: str) -> str:
        """A node with the words of another in some shape, without a layout of its own."""
        name = self.names.free(f"{reader}.in")
        made = Node(name, "gathered", (source,), shape, self._shape_of(source), divided="view")
        return self._put(made, straight(shape), "other order of dimensions").name

    def _shape_of(self, name: str) -> Shape:
        return self.input if name == "input" else self.nodes[name].shape

    def _trained(self, call: Call) -> tuple[int, bool]:
        """Trained words of a call that no call before it has, and whether others have all that it trains."""
        from synth.runtime.tracing.expressions import leaves

        used = {name for each in call.parameters for name in leaves(each)}
        if call.module is not None:
            target = str(call.node.target)
            names = (f"{target}.{name}" if target else name for name, _ in call.module.named_parameters())
            used |= {self.first_names[name] for name in names}
        trained = used & self.parameters
        fresh = trained - self.counted
        self.counted |= used
        words = sum(self.operators.tensors[name].numel() for name in fresh)
        return words, bool(trained) and not words


def _word(call: Call) -> str:
    """What a call is called: the class of its module, or the name of its function."""
    return call.word if call.module is None else type(call.module).__name__


def _shape(node: Any) -> Shape:
    return tuple(getattr(node.meta["value"], "shape", ()))


# -- orders of dimensions: a model may permute those of a tensor, the network has (N, C, *spatial) ---------


def straight(shape: Shape) -> Order:
    """The order of dimensions of the network itself."""
    return tuple(range(len(shape)))


def channels_last(shape: Shape) -> Order:
    """The order with the channels last: (N, *spatial, C)."""
    return (0, *range(2, len(shape)), 1) if len(shape) > 1 else straight(shape)


def permuted(shape: Shape, order: Order) -> Shape:
    """The shape of the network's node for a shape of the model."""
    return tuple(shape[order.index(dim)] for dim in range(len(shape)))
