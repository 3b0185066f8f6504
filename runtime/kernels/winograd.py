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

import torch

from synth.runtime.comm.buffer_pool import Room
from synth.runtime.kernels.autotune import Fit

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
    wide = Room.take(values, n, *around, channels).zero_()
    inner = [slice(low, low + size) for low, size in zip(before, sizes, strict=True)]
    wide[(slice(None), *inner)] = values.movedim(1, -1)
    starts = list(itertools.product(range(width), repeat=len(tiles)))
    rows = Room.take(values, len(starts), n, *tiles, channels)
    for place, start in enumerate(starts):
        lines = zip(start, tiles, strict=True)
        every = [slice(first, first + TILE * (t - 1) + 1, TILE) for first, t in lines]
        rows[place] = wide[(slice(None), *every)]
    Room.leave(wide)
    return rows.view(len(starts), -1, channels)


def transformed(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The transform of [rows, ...] to [points, ...], or from points back.

    The room of `values` is free afterwards.
    """
    out = Room.take(values, len(matrix), values[0].numel())
    torch.mm(matrix, values.view(len(values), -1), out=out)
    Room.leave(values)
    return out.view(-1, *values.shape[1:])


def multiplied(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """One matrix product per point; the room of both is free afterwards."""
    out = Room.take(one, len(one), one.shape[1], other.shape[2])
    torch.bmm(one, other, out=out)
    Room.leave(one, other)
    return out


def joined(points: torch.Tensor, n: int, rows: list[int]) -> torch.Tensor:
    """[n, k, *rows] from the sums of all tiles at all points, [points, n·tiles, k]."""
    dims, tiles, channels = len(rows), tiles_of(rows), points.shape[-1]
    out = transformed(at_points(TO_OUT, dims, points), points)
    order, sizes = [dims, 2 * dims + 1], [n, channels]
    for dim, count in enumerate(tiles):
        order += [dims + 1 + dim, dim]
        sizes += [count, TILE]
    whole = points.new_empty(sizes)
    whole.copy_(out.view(*[TILE] * dims, n, *tiles, channels).permute(order))
    Room.leave(out)
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
    lines = tile_rows(values, before, tiles_of(rows), POINTS)
    points = transformed(at_points(OF_IN, dims, values), lines)
    of_ker = at_points(OF_KER, dims, values)
    of_ker = of_ker.flip(1) if flip else of_ker
    pairs = ker.shape[0] * ker.shape[1]
    taps = Room.take(values, len(of_ker), pairs)
    torch.mm(of_ker, ker.reshape(pairs, -1).t(), out=taps)
    taps = taps.view(-1, *ker.shape[:2])
    sums = multiplied(points, taps if flip else taps.mT)
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
    dims, tiles = dout.dim() - 2, tiles_of(list(dout.shape[2:]))
    lines = tile_rows(wide, padding, tiles, POINTS)
    points = transformed(at_points(OF_IN, dims, wide), lines)
    ends = tile_rows(dout, [0] * dims, tiles, TILE)
    sums = transformed(at_points(TO_OUT, dims, wide).t(), ends)
    taps = multiplied(sums.mT, points)  # [points, k, c]
    dker = at_points(OF_KER, dims, wide).t() @ taps.flatten(1)
    Room.leave(taps)
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
