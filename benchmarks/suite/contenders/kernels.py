"""torch's own operation of a layer and its gradients, on the block of a contender.

Shapes are those of torch: In [N, C, *rows], Ker [K, C, *taps], Out [N, K, *rows]; of a matrix product
In [m, k], Ker [n, k] and Out [m, n], as `torch.nn.Linear` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from synth.layer.layer import Layer

CONVOLUTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "conv1d": F.conv1d,
    "conv2d": F.conv2d,
    "conv3d": F.conv3d,
}


class Kernel:
    """The operation of a layer; `padding` if the block contains rows of neighbours instead of zeros."""

    def __init__(self, layer: Layer, padding: tuple[int, ...] | None = None) -> None:
        self.product = layer.kind == "matmul"
        if not self.product:
            self.conv = CONVOLUTIONS[layer.kind]
            self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
            self.padding = layer.padding if padding is None else padding

    def forward(self, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Out of a block."""
        if self.product:
            return F.linear(inputs, weight)
        return self.conv(inputs, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def gradients(
        self, dout: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, wanted: str = "In Ker"
    ) -> tuple[Any, Any]:
        """(dIn, dKer) of a block; None for a gradient that is not in `wanted`."""
        mask = "In" in wanted, "Ker" in wanted
        if self.product:
            return (dout @ weight if mask[0] else None), (dout.t() @ inputs if mask[1] else None)
        rest = [0] * len(self.padding), self.groups, [*mask, False]
        geometry = self.stride, self.padding, self.dilation
        # (dout, in, ker, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask)
        made = torch.ops.aten.convolution_backward(dout, inputs, weight, None, *geometry, False, *rest)
        return made[0], made[1]


def shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    """In, Ker and Out of a layer as torch has them."""
    if layer.kind == "matmul":
        rows, columns, inner = layer.input
        return {"In": (rows, inner), "Ker": (columns, inner), "Out": (rows, columns)}
    kernel = (layer.out_channels, layer.input[1] // layer.groups, *layer.kernel)
    return {"In": layer.input, "Ker": kernel, "Out": layer.output_shape}


def operations(layer: Layer) -> int:
    """Floating-point operations of a forward pass, two per multiply-add, padding counted."""
    return 2 * math.prod(shapes(layer)["Out"]) * math.prod(shapes(layer)["Ker"][1:])


def write_whole(layer: Layer, path: Path) -> None:
    """Everything of one step, computed by torch in this process: tensors by name, for `torch.load`.

    In, Ker and dOut hold small whole numbers, so that every order of summing gives the same values.
    """
    torch.manual_seed(0)
    sizes = shapes(layer)
    whole = {name: torch.randint(-2, 3, size).float() for name, size in sizes.items()}
    whole["dOut"] = whole.pop("Out")
    kernel = Kernel(layer)
    whole["Out"] = kernel.forward(whole["In"], whole["Ker"])
    whole["dIn"], whole["dKer"] = kernel.gradients(whole["dOut"], whole["In"], whole["Ker"])
    torch.save(whole, path)
