"""A traced torch model as the planner's network: what it does decides where its activations may lie.

Names are those of the model: of the module for what has weights, of the call in the graph for the rest.
Poolings are planned like layers; element-wise calls and normalizations stay where their input lies, a sum
where its first term lies. What is computed from gathered values starts anew: it has no home.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from synth.layer.axes import Tensor
from synth.layer.layer import Layer
from synth.layer.validate import LayerError
from synth.network.graph import Network, Node
from synth.network.planner.owned_boxes import OwnedBoxes, PlacedGrid

if TYPE_CHECKING:
    from torch import fx, nn

Boxed = tuple[tuple[int, int], ...]


def described(name: str, module: nn.Module, shape: tuple[int, ...]) -> Layer | None:
    """A convolution or linear layer for the planner; None for all else.

    A linear layer on positions with channels last is a convolution with a kernel of one; one that is given a
    feature map is the convolution whose kernel covers the map.
    """
    from torch import nn

    if type(module) is nn.Linear:
        return _linear(name, module, shape)
    kinds: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
    back: dict[type[nn.Module], int]
    back = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
    dims, conv = {**kinds, **back}.get(type(module)), _any(module)
    if dims is None or conv.padding_mode != "zeros" or len(shape) != dims + 2:
        return None
    padding = conv.padding
    if padding == "valid":
        padding = (0,) * dims
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        if any(span % 2 for span in spans):
            return None
        padding = tuple(span // 2 for span in spans)
    rest = {"stride": conv.stride, "padding": padding, "dilation": conv.dilation, "groups": conv.groups}
    if type(module) in back:
        if any(more >= step for more, step in zip(conv.output_padding, conv.stride, strict=True)):
            return None
        rest |= {"transposed": True, "output_padding": conv.output_padding}
    return conv_of(shape, conv.out_channels, conv.kernel_size, **rest, dtype=_word(module), name=name)


def _linear(name: str, module: nn.Linear, shape: tuple[int, ...]) -> Layer | None:
    out, rest = module.out_features, {"dtype": _word(module), "name": name}
    if len(shape) == 2:
        return Layer.matmul(shape[0], out, module.in_features, **rest)
    if not 3 <= len(shape) <= 5:
        return None
    if on_map(module, shape):
        return conv_of(shape, out, shape[2:], **rest)
    return conv_of((shape[0], shape[-1], *shape[1:-1]), out, (1,) * (len(shape) - 2), **rest)


def on_map(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a layer is a linear one that takes a whole feature map (b, c, *spatial)."""
    features = getattr(module, "in_features", None)
    return len(shape) > 2 and shape[-1] != features and math.prod(shape[1:]) == features


def _any(module: nn.Module) -> Any:
    return module


def conv_of(shape: tuple[int, ...], out_channels: int, kernel: tuple[int, ...], **rest: Any) -> Layer:
    """A convolution with as many dimensions as its input has."""
    make = (Layer.conv1d, Layer.conv2d, Layer.conv3d)[len(shape) - 3]
    return make(shape, out_channels, kernel, **rest)


def _word(module: Any) -> str:
    return str(module.weight.dtype).removeprefix("torch.")


def network_of(graph: fx.Graph, modules: Mapping[str, nn.Module], name: str, dtype: str) -> Network:
    """The network of a graph whose nodes know their values; see `synth.runtime.model.trace.traced`.

    Raises `ValueError` where a layer that has a state is called twice.
    """
    reader = _Reader(modules, dtype)
    called = set[str]()
    for node in graph.nodes:
        target = str(node.target)
        if node.op == "call_module" and modules[target].state_dict():
            if target in called:
                raise ValueError(f"{target} is called twice; call a layer of its own")
            called.add(target)
        reader.read(node)
    return Network(name, reader.input, reader.nodes, dtype)


def onto_maps(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
    """Give linear layers the feature map itself where the graph flattens it for them.

    So the values of a map that is cut need not be brought together first; see `described`.
    """
    from torch import nn

    for node in list(graph.nodes):
        if node.op != "call_module" or not isinstance(modules[str(node.target)], nn.Linear):
            continue
        flat = node.all_input_nodes[0]
        before = _flattened(flat, modules)
        if before is not None and math.prod(_shape(before)[2:]) > 1 and len(_shape(before)) <= 5:
            node.args = (before,)
            if not flat.users:
                graph.erase_node(flat)


def _flattened(node: fx.Node, modules: Mapping[str, nn.Module]) -> fx.Node | None:
    """The feature map (b, c, *spatial) that a node gives as (b, c * spatial)."""
    from torch import nn

    flattens = node.op == "call_module" and isinstance(modules[str(node.target)], nn.Flatten)
    if not flattens and _called(node) not in ("flatten", "view", "reshape"):
        return None
    before = node.all_input_nodes[0]
    shape = _shape(before)
    return before if len(shape) > 2 and _shape(node) == (shape[0], math.prod(shape[1:])) else None


def _called(node: fx.Node) -> str:
    """The plain name of a function that a node calls."""
    return str(getattr(node.target, "__name__", "")).strip("_") if node.op == "call_function" else ""


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(getattr(node.meta["value"], "shape", ()))


class _Reader:
    """Walks the graph once."""

    def __init__(self, modules: Mapping[str, nn.Module], dtype: str) -> None:
        self.modules, self.dtype = modules, dtype
        self.nodes: dict[str, Node] = {}
        self.names: dict[fx.Node, str] = {}
        self.input: tuple[int, ...] = ()

    def read(self, node: fx.Node) -> None:
        """Adds one node, where it gives a tensor."""
        import torch

        if node.op == "placeholder":
            self.names[node], self.input = "input", _shape(node)
        elif node.op.startswith("call") and isinstance(node.meta["value"], torch.Tensor):
            sources = [each for each in node.all_input_nodes if each in self.names]
            if not sources:
                return
            made = self.made(node, sources)
            made = made if made.layer else replace(made, trained=self.trained(node))
            self.nodes[made.name] = made
            self.names[node] = made.name

    def made(self, node: fx.Node, sources: list[fx.Node]) -> Node:
        """The planner's node."""
        from synth.runtime.layers import pooling
        from synth.runtime.model import step_choice as choose

        before, after = _shape(sources[0]), _shape(node)
        inputs = tuple(self.names[each] for each in sources)
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            layer = described(str(node.target), module, before)
            if layer is not None:
                bias = getattr(module, "bias", None) is not None
                kind = "linear" if len(after) == 2 else layer.kind
                return Node(str(node.target), kind, inputs, after, before, layer, bias)
            if isinstance(module, (*pooling.MOST, *pooling.MEANS)):
                layer = self.pooled(node.name, module, before, after)
                return Node(node.name, "pool" if layer else "relu", inputs, after, before, layer)
            if isinstance(module, (*choose.ELEMENTWISE, *choose.NORMS, *_inside())):
                return Node(node.name, "relu", inputs, after, before)
        if _flattened(node, self.modules) is not None:
            return Node(node.name, "flatten", inputs, after, before)
        if self.means(node) and after[:2] == before[:2] and set(after[2:]) <= {1} and 2 < len(before) <= 5:
            layer = conv_of(before, before[1], before[2:], groups=before[1], dtype=self.dtype, name=node.name)
            return Node(node.name, "globalpool", inputs, after, before, layer)
        if all(_shape(each) == after for each in sources) and _called(node) in choose.ALONE:
            return Node(node.name, "add" if len(inputs) > 1 else "relu", inputs, after, before)
        return Node(node.name, "gathered", (), after, before)

    def trained(self, node: fx.Node) -> int:
        """Words of the parameters that a call uses."""
        used = [each.meta["value"] for each in node.all_input_nodes if each.op == "get_attr"]
        if node.op == "call_module":
            used += self.modules[str(node.target)].parameters()
        return sum(each.numel() for each in used if hasattr(each, "numel"))

    def means(self, node: fx.Node) -> bool:
        """Whether a call takes means over positions."""
        from synth.runtime.layers.pooling import ADAPTIVE

        if node.op == "call_module":
            return isinstance(self.modules[str(node.target)], ADAPTIVE)
        return _called(node) in ("mean", *(f"adaptive_avg_pool{d}d" for d in (1, 2, 3)))

    def pooled(self, name: str, module: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Layer | None:
        """A pooling as a convolution with a group per channel; None where it has other windows."""
        dims = len(before) - 2

        def each(value: Any) -> tuple[int, ...]:
            return tuple(value) if isinstance(value, tuple | list) else (value,) * dims

        numbers = {key: each(getattr(module, key, 1)) for key in ("stride", "padding", "dilation")}
        kernel, rest = each(module.kernel_size), {"groups": before[1], "dtype": self.dtype, "name": name}
        try:
            layer = conv_of(before, before[1], kernel, **numbers, **rest)
        except LayerError:
            return None
        windows = (layer.nest.windows[axis] for axis in layer.spatial_axes)
        every = all(window.source(i) == i for window in windows for i in range(window.size))
        strange = getattr(module, "return_indices", False) or getattr(module, "divisor_override", None)
        return layer if every and layer.output_shape == after and not strange else None


def _inside() -> tuple[type[nn.Module], ...]:
    """Other layers that act on words where they lie."""
    from torch import nn

    return nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.PReLU, nn.GroupNorm


def boxes_of(layer: Layer, placed: PlacedGrid, procs: int) -> tuple[tuple[Boxed, ...], tuple[Boxed, ...]]:
    """What each rank owns of the input and of the output of a pooling, in the model's dimensions."""
    boxes = OwnedBoxes(layer.nest, [placed], procs)
    result = []
    sides: tuple[Tensor, ...] = ("In", "Out")
    for tensor in sides:
        low, high, _ = boxes.flat(tensor)
        dims = [0, 1, *range(7 - len(layer.input), 5)]
        each = ([(int(low[d, 0, rank]), int(high[d, 0, rank])) for d in dims] for rank in range(procs))
        result.append(tuple(map(tuple, each)))
    return result[0], result[1]
