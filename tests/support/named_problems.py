"""Layers and problems for the tests of the bounds: named ones, random ones, and the stored vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from synth.bounds.closed_form import Eq4
from synth.layer.axes import PerAxis
from synth.layer.nest import Nest
from synth.layer.window import Window

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())

settings.register_profile("bounds", derandomize=True, deadline=None)


def conv(extents: list[int]) -> Nest:
    """A convolution without padding from [b, k, c, h, w, r, s, stride_w, stride_h] of its output."""
    b, k, c, h, w, r, s, stride_w, stride_h = extents
    high = Window.reduced(stride_h * (h - 1) + r, r, stride_h, 1, 0)
    wide = Window.reduced(stride_w * (w - 1) + s, s, stride_w, 1, 0)
    return Nest(PerAxis(b=b, c=c, k=k, h=h, w=w), Window(1), high, wide)


def matmul(m: int, n: int, k: int) -> Nest:
    """An m x k times k x n product."""
    return Nest(PerAxis(b=m, c=k, k=n), Window(1), Window(1), Window(1))


def eq4(problem: dict[str, Any]) -> Eq4:
    """A stored problem as Eq. 4 has it."""
    b, k, c, h, w, r, s, stride_w, stride_h = problem["extents"]
    return Eq4(k, c, b * h * w, r * s, stride_w * stride_h, problem["procs"], problem["memory"])


@st.composite
def windows(draw: st.DrawFn, largest: int = 16) -> Window:
    """A window with any stride, dilation and padding that torch accepts."""
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation, padding = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
    size = draw(st.integers(least, least + largest))
    return Window.reduced(size, kernel, stride, dilation, padding)


@st.composite
def nests(draw: st.DrawFn, groups: int = 1) -> Nest:
    """A small convolution in two spatial dimensions."""
    high, wide = draw(windows()), draw(windows())
    b, c, k = (draw(st.sampled_from([1, 2, 3, 8, 64])) for _ in range(3))
    g = draw(st.integers(1, groups))
    return Nest(PerAxis(b=b, g=g, c=c, k=k, h=high.out, w=wide.out), Window(1), high, wide)


@st.composite
def haloless(draw: st.DrawFn) -> Nest:
    """A layer whose tiles have no halo: kernel = stride, no padding; so Eq. 3 has Eq. 4's cost."""

    def window() -> Window:
        kernel, out = draw(st.integers(1, 3)), draw(st.integers(1, 20))
        return Window.reduced(kernel * out, kernel, kernel, 1, 0)

    high, wide = window(), window()
    b, c, k = (draw(st.integers(1, 300)) for _ in range(3))
    return Nest(PerAxis(b=b, c=c, k=k, h=high.out, w=wide.out), Window(1), high, wide)
