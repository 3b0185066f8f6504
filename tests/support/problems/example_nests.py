"""Nests and values made by hand: convolutions and products from a few numbers, tensors of whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import TENSORS, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.window import Window

Values = NDArray[Any]


def conv(extents: list[int]) -> Nest:
    """A convolution without padding from [b, k, c, h, w, r, s, stride_w, stride_h] of its output."""
    b, k, c, h, w, r, s, stride_w, stride_h = extents
    high = Window.reduced(stride_h * (h - 1) + r, r, stride_h, 1, 0)
    wide = Window.reduced(stride_w * (w - 1) + s, s, stride_w, 1, 0)
    return Nest(PerAxis(b=b, c=c, k=k, h=h, w=w), Window(1), high, wide)


def matmul(m: int, n: int, k: int) -> Nest:
    """An m x k times k x n product."""
    return Nest(PerAxis(b=m, c=k, k=n), Window(1), Window(1), Window(1))


def same_window(out: int, kernel: int = 3) -> Window:
    """The window of a convolution that keeps the size: stride 1, padding kernel // 2."""
    return Window.reduced(out, kernel, 1, 1, kernel // 2)


def whole_numbers(nest: Nest, tensor: Tensor, seed: int = 0) -> Values:
    """Values of a tensor as float64: every sum of products is exact, whatever the order."""
    generator = np.random.default_rng((seed, TENSORS.index(tensor)))
    return generator.integers(-4, 5, nest.shapes[tensor]).astype(np.float64)
