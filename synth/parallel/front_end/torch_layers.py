"""Layers of torch.nn as layers of the planner."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from synth.layer.layer import Layer
from synth.layer.validate import LayerError

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]


def layer_of(name: str, module: nn.Module, shape: Shape) -> Layer | None:
    """A convolution or linear layer for the planner; None for any other module.

    A module with an attribute `zeros` pads by these, before and after, in place of its own padding.
    shape: of the input, (N, C, *spatial) in elements. A linear layer on positions, whose channels are the
    last dimension, is a convolution with a kernel of one. A linear layer of a feature map is the convolution
    whose kernel covers the map.
    """
    from torch import nn

    weight: Any = getattr(module, "weight", None)
    if weight is not None and weight.is_complex():  # of which no layer is planned
        return None
    if type(module) is nn.Linear:
        return _linear(name, module, shape)
    plain: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
    transposed: dict[type[nn.Module], int]
    transposed = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
    dims = {**plain, **transposed}.get(type(module))
    conv: Any = module
    zeros = getattr(conv, "zeros", None)
    if dims is None or len(shape) != dims + 2 or (zeros is None and conv.padding_mode != "zeros"):
        return None
    padding = conv.padding if zeros is None else zeros
    if padding == "valid":
        padding = (0,) * dims
    rest = {"stride": conv.stride, "padding": padding, "dilation": conv.dilation, "groups": conv.groups}
    if type(module) in transposed:
        if any(more >= step for more, step in zip(conv.output_padding, conv.stride, strict=True)):
            return None
        rest |= {"transposed": True, "output_padding": conv.output_padding}
    return conv_layer(shape, conv.out_channels, conv.kernel_size, **rest, dtype=_dtype(module), name=name)


def _linear(name: str, module: nn.Linear, shape: Shape) -> Layer | None:
    out, rest = module.out_features, {"dtype": _dtype(module), "name": name}
    if len(shape) == 2:
        return Layer.matmul(shape[0], out, module.in_features, **rest)
    if not 3 <= len(shape) <= 5:
        return None
    if takes_map(module, shape):
        return conv_layer(shape, out, shape[2:], **rest)
    return conv_layer((shape[0], shape[-1], *shape[1:-1]), out, (1,) * (len(shape) - 2), **rest)


def takes_map(module: nn.Module, shape: Shape) -> bool:
    """Whether a module is a linear layer that is given a whole feature map (b, c, *spatial)."""
    features = getattr(module, "in_features", None)
    return len(shape) > 2 and shape[-1] != features and math.prod(shape[1:]) == features


def conv_layer(shape: Shape, out_channels: int, kernel: Shape, **rest: Any) -> Layer:
    """A convolution with as many spatial dimensions as its input has."""
    make = (Layer.conv1d, Layer.conv2d, Layer.conv3d)[len(shape) - 3]
    return make(shape, out_channels, kernel, **rest)


def pool_layer(name: str, module: Any, before: Shape, after: Shape, dtype: str) -> Layer | None:
    """A pooling as a convolution with one group per channel; None where no convolution has its shape.

    An input that a last, partial window exceeds is widened by it.
    """
    dims = len(before) - 2
    kernel = _per_dim(module.kernel_size, dims)
    stride = kernel if module.stride is None else module.stride  # of a norm, as torch has it
    given = {"stride": stride, "padding": getattr(module, "padding", 0)}
    given["dilation"] = getattr(module, "dilation", 1)
    numbers = {key: _per_dim(value, dims) for key, value in given.items()}
    if getattr(module, "ceil_mode", False):
        if set(numbers["dilation"]) != {1}:  # a network file does not have both
            return None
        before = _widened(before, after, kernel, numbers)
    try:
        layer = conv_layer(before, before[1], kernel, **numbers, groups=before[1], dtype=dtype, name=name)
    except LayerError:
        return None
    return layer if layer.output_shape == after else None


def _widened(before: Shape, after: Shape, kernel: Shape, numbers: dict[str, Shape]) -> Shape:
    """The input with the rows that the last windows of a pooling with `ceil_mode` read beyond it."""
    rows = zip(before[2:], after[2:], kernel, numbers["stride"], numbers["padding"], strict=True)
    sizes = [max(n, (out - 1) * s + k - 2 * p) for n, out, k, s, p in rows]
    return (*before[:2], *sizes)


def upsample_layer(name: str, module: Any, before: Shape, after: Shape, dtype: str) -> Layer | None:
    """A resize by whole numbers as a transposed convolution with one group per channel; None for others.

    Nearest copies a position; linear spreads it over the positions around it.
    """
    if len(before) > 5 or any(n % size for n, size in zip(after[2:], before[2:], strict=True)):
        return None
    scale = tuple(n // size for n, size in zip(after[2:], before[2:], strict=True))
    kernel, padding = scale, (0,) * len(scale)
    if "linear" in module.mode:
        kernel = tuple(2 * n - n % 2 for n in scale)
        padding = tuple(n // 2 for n in scale)
    rest = {"stride": scale, "padding": padding, "groups": before[1], "transposed": True}
    layer = conv_layer(before, before[1], kernel, **rest, dtype=dtype, name=name)
    return layer if layer.output_shape == after else None


def _per_dim(value: Any, dims: int) -> Shape:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * dims


def _dtype(module: Any) -> str:
    return str(module.weight.dtype).removeprefix("torch.")
