"""The torch models of random networks, see `row_networks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from row_networks import SELECTIONS, SHUFFLES, RowLayer
from torch import nn


class RowModel(nn.Module):
    """The layers of a network; it gives the results that nobody reads."""

    def __init__(self, layers: Sequence[RowLayer]) -> None:
        super().__init__()
        self.layers = list(layers)
        read = {source for layer in layers for source in layer.sources}
        self.outputs = [place for place in range(1, len(layers)) if place not in read]
        for place, layer in enumerate(layers):
            module = _module(layer, layers)
            if module is not None:
                self.add_module(f"l{place}", module)

    def forward(self, x: torch.Tensor) -> Any:
        values = [x]
        for place, layer in enumerate(self.layers[1:], 1):
            given = [values[source] for source in layer.sources]
            if layer.kind == "add":
                values.append(given[0] + given[1])
            elif layer.kind == "cat":
                values.append(torch.cat(given, 1))
            elif layer.kind in SELECTIONS:
                values.append(_selected(given[0], layer.kind))
            else:
                values.append(getattr(self, f"l{place}")(given[0]))
        found = [values[place] for place in self.outputs]
        return found[0] if len(found) == 1 else tuple(found)


def _selected(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "half":
        return x.chunk(2, 1)[0]
    return x.repeat_interleave(2, 1) if kind == "twice" else x.unflatten(1, (-1, 2)).mean(2)


class Shuffle(nn.Module):
    """Channels to positions, or back, by a reshape, a permutation and a reshape."""

    def __init__(self, factors: Sequence[int], down: bool) -> None:
        super().__init__()
        self.factors, self.down = factors, down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, *rows = x.shape
        pairs, dims = list(zip(rows, self.factors, strict=True)), len(rows)
        if self.down:
            wide = x.reshape(b, c, *(part for n, f in pairs for part in (n // f, f)))
            inner, outer = ([start + 2 * dim for dim in range(dims)] for start in (3, 2))
            made = wide.permute(0, 1, *inner, *outer)
            return made.reshape(b, -1, *(n // f for n, f in pairs))
        wide = x.unflatten(1, (-1, *self.factors))
        places = [place for dim in range(dims) for place in (2 + dims + dim, 2 + dim)]
        made = wide.permute(0, 1, *places)
        for dim in reversed(range(dims)):
            made = made.flatten(2 + 2 * dim, 3 + 2 * dim)
        return made


def _module(layer: RowLayer, layers: Sequence[RowLayer]) -> nn.Module | None:
    dims, kind = len(layer.extents), layer.kind
    made: Any
    if kind == "relu":
        return nn.Tanh()
    if kind == "groupnorm":
        return nn.GroupNorm(2, layer.channels)
    if kind.startswith("batchnorm"):
        made = getattr(nn, f"BatchNorm{dims}d")
        return made(layer.channels, track_running_stats=kind == "batchnorm")
    if not layer.windows:
        return None
    before = layers[layer.sources[0]].channels
    kernel, stride, padding, dilation, more = map(tuple, layer.columns)
    if kind in SHUFFLES:
        names = {"shuffle": nn.PixelShuffle, "unshuffle": nn.PixelUnshuffle}
        alike = dims == 2 and len(set(stride)) == 1
        return names[kind](stride[0]) if alike else Shuffle(stride, kind == "unshuffle")
    if kind == "conv":
        made = getattr(nn, f"Conv{dims}d")
        return made(before, layer.channels, kernel, stride, padding, dilation)
    if kind == "transposed":
        made = getattr(nn, f"ConvTranspose{dims}d")
        return made(before, layer.channels, kernel, stride, padding, more, dilation=dilation)
    if kind == "maxpool":
        return getattr(nn, f"MaxPool{dims}d")(kernel, stride, padding, dilation)
    if kind == "avgpool":
        return getattr(nn, f"AvgPool{dims}d")(kernel, stride, padding)
    return nn.Upsample(scale_factor=stride, mode="nearest")
