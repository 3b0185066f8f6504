"""Random networks of layers that read rows around their own: windows, skips, concatenations, norms.

A network is a list of `RowLayer`. `yaml_of` writes its network file, `models.row_model` builds its model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple


class RowLayer(NamedTuple):
    """A layer: its kind, the layers that it reads, channels and extents of its result, and its windows.

    windows: per dimension (kernel, stride, padding, dilation, output padding).
    """

    kind: str
    sources: tuple[int, ...]
    channels: int
    extents: tuple[int, ...]
    windows: tuple[tuple[int, int, int, int, int], ...] = ()

    @property
    def columns(self) -> list[list[int]]:
        """Kernel, stride, padding, dilation and output padding, each per dimension."""
        return [list(each) for each in zip(*self.windows, strict=True)]


KINDS = [*["conv"] * 5, "maxpool", "avgpool", "up", "transposed", "relu", *["groupnorm", "add", "cat"] * 2]
SHUFFLES = ["shuffle", "unshuffle"] * 3
SELECTIONS = ["half", "twice", "mean"]  # of channels: the first half, each twice, the mean of every two


def random_layers(
    rng: random.Random, dims: int, most: int = 10, shuffles: bool = False, selects: bool = False
) -> list[RowLayer]:
    """A network with 3 to `most` layers behind its input, of maps with `dims` dimensions.

    shuffles: whether some make positions of channels, or channels of positions. selects: or select channels.
    """
    start = (9, 14) if dims < 3 else (6, 8)
    layers = [RowLayer("input", (), 2, tuple(rng.randint(*start) for _ in range(dims)))]
    count = rng.randint(4, most + 1)
    kinds = KINDS + SHUFFLES * shuffles + SELECTIONS * selects
    while len(layers) < count:
        made = _layer(rng, layers, kinds)
        largest = 40 if dims == 1 else 20 if dims == 2 else 10
        if made is not None and min(made.extents) >= 3 and max(made.extents) <= largest:
            layers.append(made)
    return layers


def _layer(rng: random.Random, layers: Sequence[RowLayer], kinds: Sequence[str]) -> RowLayer | None:
    """A layer behind others; None where what was drawn does not fit them."""
    place = len(layers) - 1 if rng.random() < 0.75 else rng.randrange(len(layers))
    kind, like = rng.choice(kinds), layers[place]
    if kind in ("add", "cat"):
        fits = [i for i, y in enumerate(layers) if i != place and y.extents == like.extents]
        fits = fits if kind == "cat" else [i for i in fits if layers[i].channels == like.channels]
        if not fits:
            return None
        sources = (place, rng.choice(fits))
        channels = sum(layers[i].channels for i in sources) if kind == "cat" else like.channels
        return RowLayer(kind, sources, channels, like.extents)
    if kind == "groupnorm" and like.channels % 2:
        return None
    if kind in ("shuffle", "unshuffle"):
        return _shuffle(rng, kind, place, like)
    if kind in SELECTIONS:
        channels, rest = divmod(like.channels, 1 if kind == "twice" else 2)
        channels *= 2 if kind == "twice" else 1
        return None if rest or channels > 48 else RowLayer(kind, (place,), channels, like.extents)
    if kind in ("relu", "groupnorm"):
        return RowLayer(kind, (place,), like.channels, like.extents)
    windows = tuple(_window(rng, kind) for _ in like.extents)
    rows = tuple(_rows(kind, n, *each) for n, each in zip(like.extents, windows, strict=True))
    wide = [2, 4] if kinds == KINDS else [2, 4, 8, 12]
    channels = rng.choice(wide) if kind in ("conv", "transposed") else like.channels
    return RowLayer(kind, (place,), channels, rows, windows)


def _shuffle(rng: random.Random, kind: str, place: int, like: RowLayer) -> RowLayer | None:
    factors = [rng.choice([1, 2, 2, 3]) for _ in like.extents]
    words, pairs = math.prod(factors), list(zip(like.extents, factors, strict=True))
    windows = tuple((each, each, 0, 1, 0) for each in factors)
    if kind == "shuffle":
        channels, rest = divmod(like.channels, words)
        rows = tuple(n * each for n, each in pairs)
    else:
        channels, rest = like.channels * words, sum(n % each for n, each in pairs)
        rows = tuple(n // each for n, each in pairs)
    fits = words > 1 and not rest and channels <= 48
    return RowLayer(kind, (place,), channels, rows, windows) if fits else None


def _window(rng: random.Random, kind: str) -> tuple[int, int, int, int, int]:
    kernel, stride, dilation = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 2)
    match kind:
        case "conv":
            if rng.random() < 0.5:
                return 3, 1, dilation, dilation, 0
            return kernel, stride, rng.randint(0, 3), dilation, 0
        case "maxpool":
            return kernel, stride, rng.randint(0, kernel // 2), dilation, 0
        case "avgpool":
            return kernel, stride, rng.randint(0, kernel // 2), 1, 0
        case "transposed":
            return kernel, stride, rng.randint(0, kernel - 1), dilation, rng.randint(0, stride - 1)
        case _:
            factor = rng.randint(1, 2)
            return factor, factor, 0, 1, 0


def _rows(kind: str, rows: int, kernel: int, stride: int, padding: int, dilation: int, more: int) -> int:
    reach = dilation * (kernel - 1)
    if kind in ("up", "transposed"):
        return (rows - 1) * stride - 2 * padding + reach + more + 1
    return (rows + 2 * padding - reach - 1) // stride + 1


def name_of(place: int, layers: Sequence[RowLayer]) -> str:
    """What a layer is called in the network file."""
    return f"l{place}" if place else "input"


def yaml_of(layers: Sequence[RowLayer], samples: int = 1) -> str:
    """The network file."""
    dims = len(layers[0].extents)
    lines = ["network: rows", f"input: {[samples, layers[0].channels, *layers[0].extents]}", "layers:"]
    for place, layer in enumerate(layers):
        if not place:
            continue
        sources = [name_of(each, layers) for each in layer.sources]
        lines.append(f"  - {{name: {name_of(place, layers)}, {_entry(layer, dims)}, from: {sources}}}")
    return "\n".join(lines).replace("'", "") + "\n"


def _entry(layer: RowLayer, dims: int) -> str:
    if layer.kind == "mean":
        return "channelmean: {size: 2}"
    if layer.kind in SELECTIONS:
        rows = range(layer.channels) if layer.kind == "half" else (row // 2 for row in range(layer.channels))
        return f"reindex: {{rows: {[[1, row, 1] for row in rows]}}}"
    if not layer.windows:
        return f"{layer.kind}: {{groups: 2}}" if layer.kind == "groupnorm" else f"{layer.kind}: {{}}"
    kernel, stride, padding, dilation, more = layer.columns
    if layer.kind == "up":
        return f"upsample: {{scale: {stride}}}"
    if layer.kind in SHUFFLES:
        return f"pixel{layer.kind}: {{factor: {stride}}}"
    window = f"kernel: {kernel}, stride: {stride}, padding: {padding}, dilation: {dilation}"
    if layer.kind.endswith("pool"):
        return f"pool: {{{window}}}"
    if layer.kind == "transposed":
        window += f", transposed: true, output_padding: {more}"
    return f"conv{dims}d: {{out_channels: {layer.channels}, {window}}}"
