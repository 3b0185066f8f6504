"""Argument grids of public tests of spatial convolutions and poolings, and how they are divided.

PhysicsNeMo (test/domain_parallel/ops): kernels 2 and 3, padding 0 and 1, strides 1 and 2, one to three
dimensions, transposed, and poolings. LBANN/DistConv (tests/test_basic, test_strides, test_periodic): kernels
1, 3 and 5, strides 2 and 4, periodic padding, each dimension divided. Beside these: dilation, groups, all
padding modes, extents that nothing divides, and two and three dimensions divided at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn

from benchmarks.judges.cuts import SPATIAL

EVEN = {1: (32,), 2: (16, 16), 3: (8, 8, 8)}
UNEVEN = {1: (31,), 2: (13, 17), 3: (7, 9, 11)}


@dataclass(frozen=True)
class Layer:
    """A layer of a test: its class in torch.nn and arguments, the extents of its input, its cut."""

    kind: str
    options: tuple[tuple[str, Any], ...]
    extents: tuple[int, ...]
    cut: str  # such as "h2 w2"
    ranks: int

    @property
    def pools(self) -> bool:
        return "Pool" in self.kind

    def model(self) -> nn.Module:
        """The layer; a pooling between two convolutions."""
        options: dict[str, Any] = dict(self.options)
        kind, dims = getattr(nn, self.kind), len(self.extents) - 2
        if not self.pools:
            return nn.Sequential(kind(self.extents[1], 8, **options))
        conv = getattr(nn, f"Conv{dims}d")
        return nn.Sequential(conv(self.extents[1], 4, 3, padding=1), kind(**options), conv(4, 3, 1))


@lru_cache
def layers() -> dict[str, list[Layer]]:
    """Layers by the name of their test."""
    found: dict[str, list[Layer]] = {}
    for name, kind, options, extents in _grid():
        for cut, ranks in _cuts(len(extents) - 2):
            found.setdefault(name, []).append(Layer(kind, tuple(options.items()), extents, cut, ranks))
    return found


def _cuts(dims: int) -> Iterator[tuple[str, int]]:
    """Each dimension by itself, then two and three of them at once."""
    axes = SPATIAL[dims]
    yield f"{axes[0]}4", 4
    yield f"{axes[-1]}2 k2", 4
    if dims > 1:
        yield f"{axes[-1]}4", 4
        yield f"{axes[-2]}2 {axes[-1]}2", 4
        yield f"{axes[0]}4 {axes[-1]}2", 8
    if dims == 3:
        yield "d2 h2 w2", 8


def _grid() -> Iterator[tuple[str, str, dict[str, Any], tuple[int, ...]]]:
    for dims in (1, 2, 3):
        even, uneven = (2, 4, *EVEN[dims]), (2, 4, *UNEVEN[dims])
        conv, back = f"Conv{dims}d", f"ConvTranspose{dims}d"
        for kernel in (2, 3):
            for stride in (1, 2):
                for padding in (0, 1):
                    yield "kernel, stride, padding", conv, _of(kernel, stride, padding), even
                yield "transposed", back, _of(kernel, stride, 0), even
        for kernel in (1, 3, 5):
            yield "same extents", conv, _of(kernel, 1, kernel // 2), even
            for stride in (1, 2):
                circular = {"padding_mode": "circular"}
                yield "periodic", conv, _of(kernel, stride, kernel // 2) | circular, even
        for kernel in (1, 2, 3):
            for stride in (2, 4):
                yield "strides", conv, _of(kernel, stride, int(kernel == 3)), even
        for padded in ("zeros", "circular", "reflect", "replicate"):
            yield "uneven extents", conv, _of(3, 1, 1) | {"padding_mode": padded}, uneven
            yield "uneven extents", conv, _of(3, 2, 1) | {"padding_mode": padded}, uneven
            yield "dilation", conv, _of(3, 1, 2) | {"dilation": 2, "padding_mode": padded}, even
        yield "uneven extents", back, _of(3, 2, 1) | {"output_padding": 1}, uneven
        yield "dilation", conv, _of(2, 1, 0) | {"dilation": 3}, uneven
        yield "dilation", conv, {"kernel_size": 3, "padding": "same", "dilation": 2}, uneven
        for groups in (2, 4):
            yield "groups", conv, _of(3, 1, 1) | {"groups": groups}, uneven
        for kind in (f"MaxPool{dims}d", f"AvgPool{dims}d"):
            for kernel, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 0), (2, 1, 0)):
                for extents in (even, uneven):
                    yield "pooling", kind, _of(kernel, stride, padding), extents
            yield "pooling", kind, _of(2, 2, 0) | {"ceil_mode": True}, uneven
        yield "pooling", f"MaxPool{dims}d", _of(2, 2, 0) | {"dilation": 2}, uneven
        yield "pooling", f"AvgPool{dims}d", _of(3, 2, 1) | {"count_include_pad": False}, uneven
        for out in (1, 2, 3, 5):
            for kind in (f"AdaptiveAvgPool{dims}d", f"AdaptiveMaxPool{dims}d"):
                yield "adaptive pooling", kind, {"output_size": out}, uneven


def _of(kernel: int, stride: int, padding: int) -> dict[str, Any]:
    return {"kernel_size": kernel, "stride": stride, "padding": padding}
