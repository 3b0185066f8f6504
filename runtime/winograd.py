"""Convolutions with three taps per dimension by fewer products: Winograd's F(4, 3).

Tiles of 4 positions of Out per dimension are made from 6 rows of In by 6 products
instead of 12; in two dimensions by 36 instead of 144 (Lavin and Gray, CVPR 2016,
section 4). The transforms of all tiles at once are products with small matrices, and
between them stands one matrix product per point. Both gradients are the adjoints of
the same three transforms.

The points are 0, 1, -1, 2, -2 and infinity. Rounding is some ten times that of direct
sums: in float32 about 1e-5 of the largest value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch

from runtime.forms import Fit

TILE = 4
POINTS = 6
OF_IN = (  # 6 rows of In at 6 points
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
OF_KER = (  # 3 taps at 6 points
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
TO_OUT = (  # 4 positions of Out from 6 points
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


class Scratch:
    """Room for what lies between the transforms; the same for all calls, it only grows.

    Fresh memory for every call would cost as much time as some of the transforms.
    """

    held: ClassVar[dict[tuple[str, torch.dtype, torch.device], torch.Tensor]] = {}

    @classmethod
    def room(cls, name: str, like: torch.Tensor, *sizes: int) -> torch.Tensor:
        """A tensor of some sizes, with whatever the last one of this name held."""
        key, words = (name, like.dtype, like.device), math.prod(sizes)
        if key not in cls.held or cls.held[key].numel() < words:
            cls.held.pop(key, None)
            cls.held[key] = torch.empty(words, dtype=like.dtype, device=like.device)
        return cls.held[key][:words].view(sizes)


def at_points(
    matrix: Sequence[Sequence[float]], dims: int, like: torch.Tensor
) -> torch.Tensor:
    """The transform along all dimensions at once."""
    one = torch.tensor(matrix, dtype=like.dtype, device=like.device)
    whole = one
    for _ in range(dims - 1):
        whole = torch.kron(whole, one)
    return whole


def tiles_of(rows: list[int]) -> list[int]:
    """Tiles along each dimension of Out; the last one may reach beyond its end."""
    return [-(-n // TILE) for n in rows]


def tile_rows(
    values: torch.Tensor, before: list[int], tiles: list[int], width: int
) -> torch.Tensor:
    """The `width` rows per dimension that each tile begins with: [rows, n·tiles, c].

    values: [n, c, *rows]; zeros stand `before` it in each dimension, and behind it as
    far as tiles reach.
    """
    n, channels, *sizes = values.shape
    around = [TILE * t + width - TILE for t in tiles]
    wide = Scratch.room("wide", values, n, *around, channels).zero_()
    inner = [slice(low, low + size) for low, size in zip(before, sizes, strict=True)]
    wide[(slice(None), *inner)] = values.movedim(1, -1)
    starts = list(itertools.product(range(width), repeat=len(tiles)))
    rows = Scratch.room("rows", values, len(starts), n, *tiles, channels)
    for place, start in enumerate(starts):
        lines = zip(start, tiles, strict=True)
        every = [slice(first, first + TILE * (t - 1) + 1, TILE) for first, t in lines]
        rows[place] = wide[(slice(None), *every)]
    return rows.view(len(starts), -1, channels)


def transformed(name: str, matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The transform of [rows, ...] to [points, ...], or from points back."""
    out = Scratch.room(name, values, len(matrix), values[0].numel())
    torch.mm(matrix, values.view(len(values), -1), out=out)
    return out.view(-1, *values.shape[1:])


def multiplied(name: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """One matrix product per point."""
    out = Scratch.room(name, one, len(one), one.shape[1], other.shape[2])
    return torch.bmm(one, other, out=out)


def joined(points: torch.Tensor, n: int, rows: list[int]) -> torch.Tensor:
    """[n, k, *rows] from the sums of all tiles at all points, [points, n·tiles, k]."""
    dims, tiles, channels = len(rows), tiles_of(rows), points.shape[-1]
    out = transformed("out", at_points(TO_OUT, dims, points), points)
    out = out.view(*[TILE] * dims, n, *tiles, channels)
    order, sizes = [dims, 2 * dims + 1], [n, channels]
    for dim, count in enumerate(tiles):
        order += [dims + 1 + dim, dim]
        sizes += [count, TILE]
    whole = points.new_empty(sizes).copy_(out.permute(order))  # not in the scratch
    whole = whole.view(n, channels, *(TILE * count for count in tiles))
    crop = slice(None), slice(None), *map(slice, rows)
    return whole[crop].contiguous()


def product_of(
    values: torch.Tensor,
    before: list[int],
    ker: torch.Tensor,
    rows: list[int],
    flip: bool,
) -> torch.Tensor:
    """Ker [k, c, *3] over values; with `flip` the taps turned round and k summed."""
    dims = len(rows)
    tiles = tiles_of(rows)
    of_in = at_points(OF_IN, dims, values)
    lines = transformed("in", of_in, tile_rows(values, before, tiles, POINTS))
    of_ker = at_points(OF_KER, dims, values)
    taps = Scratch.room("ker", values, len(of_ker), math.prod(ker.shape[:2]))
    turned = of_ker.flip(1) if flip else of_ker
    torch.mm(turned, ker.reshape(taps.shape[1], -1).t(), out=taps)
    taps = taps.view(-1, *ker.shape[:2])
    sums = multiplied("sums", lines, taps if flip else taps.mT)
    return joined(sums, values.shape[0], rows)


def winograd(wide: torch.Tensor, ker: torch.Tensor, padding: list[int]) -> torch.Tensor:
    """Out [n, k, *rows] of In [n, c, *rows] and Ker [k, c, 3, ...]; stride 1."""
    rows = [n + 2 * p - 2 for n, p in zip(wide.shape[2:], padding, strict=True)]
    return product_of(wide, padding, ker, rows, False)


def winograd_input(
    dout: torch.Tensor, ker: torch.Tensor, padding: list[int]
) -> torch.Tensor:
    """DIn of the same convolution: dOut over Ker turned round."""
    rows = [n + 2 - 2 * p for n, p in zip(dout.shape[2:], padding, strict=True)]
    return product_of(dout, [2 - p for p in padding], ker, rows, True)


def winograd_filter(
    wide: torch.Tensor, dout: torch.Tensor, padding: list[int]
) -> torch.Tensor:
    """DKer of the same convolution."""
    rows = list(dout.shape[2:])
    dims, tiles = len(rows), tiles_of(rows)
    of_in, to_out = (at_points(m, dims, wide) for m in (OF_IN, TO_OUT))
    lines = transformed("in", of_in, tile_rows(wide, padding, tiles, POINTS))
    sums = transformed("sums", to_out.t(), tile_rows(dout, [0] * dims, tiles, TILE))
    taps = multiplied("ker", sums.mT, lines)  # [points, k, c]
    of_ker = at_points(OF_KER, dims, wide)
    dker = of_ker.t() @ taps.flatten(1)
    return dker.t().contiguous().view(*taps.shape[1:], *[3] * dims)


def suits_winograd(
    wide: torch.Tensor, ker: Sequence[int], fit: Fit, groups: int
) -> bool:
    """Whether F(4, 3) is for a convolution, and its scratch takes at most a GiB.

    wide: In [n, c, *rows], or dOut of the same sizes but for the channels and padding.
    ker: the sizes of Ker. cuDNN has its own.
    """
    k, c, *taps = ker
    rows = (n + 2 * p for n, p in zip(wide.shape[2:], fit.padding, strict=True))
    tiles = wide.shape[0] * math.prod(tiles_of(list(rows)))
    words = POINTS ** len(taps) * (tiles * (2 * k + 2 * c) + k * c)
    return (
        wide.device.type == "cpu"
        and wide.dtype in (torch.float32, torch.float64)
        and groups == 1
        and {*taps} == {3}
        and {*fit.stride, *fit.dilation} == {1}
        and all(0 <= p <= 2 for p in fit.padding)
        and words * wide.element_size() <= 2**30
    )
