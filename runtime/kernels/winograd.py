"""Winograd's F(4, 3): convolutions with three taps per dimension by fewer products.

A tile of 4 output positions per dimension takes 6 products of 6 input rows instead of
12; in two dimensions 36 instead of 144 (Lavin and Gray, CVPR 2016, section 4). The
transforms of all tiles are products with small matrices. Between the transforms there
is one matrix product per point. Both gradients are the adjoints of the same three
transforms.

The points are 0, 1, -1, 2, -2 and infinity. Rounding errors are about ten times those
of direct sums: in float32 about 1e-5 of the largest value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.kernels.frame import Frame
from synth.runtime.kernels.matrix_product import onednn_linear, suits_onednn

TILE = 4  # output positions
POINTS = 6
IN_TO_POINTS = (  # 6 rows of In at 6 points
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
KER_TO_POINTS = (  # 3 taps at 6 points
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
POINTS_TO_OUT = (  # 4 positions of Out from 6 points
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


def transform_matrix(
    matrix: Sequence[Sequence[float]], dims: int, like: torch.Tensor
) -> torch.Tensor:
    """The transform along all dimensions at once: a Kronecker power of `matrix`."""
    one = torch.tensor(matrix, dtype=like.dtype, device=like.device)
    whole = one
    for _ in range(dims - 1):
        whole = torch.kron(whole, one)
    return whole


def tile_counts(rows: list[int]) -> list[int]:
    """Tiles along each dimension of Out; the last one may reach beyond its end."""
    return [-(-n // TILE) for n in rows]


def tile_rows(
    values: torch.Tensor,
    before: list[int],
    tiles: list[int],
    width: int,
    buffers: BufferPool,
) -> torch.Tensor:
    """The first `width` rows per dimension of each tile: [rows, n·tiles, c].

    values: [n, c, *rows]. There are `before` zeros in front of them along each
    dimension, and behind them as many as the tiles need.
    """
    n, channels, *sizes = values.shape
    around = [TILE * t + width - TILE for t in tiles]
    wide = buffers.take(values, n, *around, channels).zero_()
    inner = [slice(low, low + size) for low, size in zip(before, sizes, strict=True)]
    wide[(slice(None), *inner)] = values.movedim(1, -1)
    starts = list(itertools.product(range(width), repeat=len(tiles)))
    rows = buffers.take(values, len(starts), n, *tiles, channels)
    for place, start in enumerate(starts):
        pairs = zip(start, tiles, strict=True)
        every = [slice(first, first + TILE * (t - 1) + 1, TILE) for first, t in pairs]
        rows[place] = wide[(slice(None), *every)]
    buffers.release(wide)
    return rows.view(len(starts), -1, channels)


def transformed(
    matrix: torch.Tensor, values: torch.Tensor, buffers: BufferPool
) -> torch.Tensor:
    """`values` [rows, ...] as [points, ...], or back; releases `values`."""
    out = buffers.take(values, len(matrix), values[0].numel())
    torch.mm(matrix, values.view(len(values), -1), out=out)
    buffers.release(values)
    return out.view(-1, *values.shape[1:])


def multiplied(
    one: torch.Tensor, other: torch.Tensor, buffers: BufferPool
) -> torch.Tensor:
    """One matrix product per point; releases both operands."""
    out = buffers.take(one, len(one), one.shape[1], other.shape[2])
    if suits_onednn(one[0], other[0]):
        for point, (left, right) in enumerate(zip(one, other, strict=True)):
            out[point] = onednn_linear(left, right.mT, None)
    else:
        torch.bmm(one, other, out=out)
    buffers.release(one, other)
    return out


def joined_tiles(
    points: torch.Tensor, n: int, rows: list[int], buffers: BufferPool
) -> torch.Tensor:
    """Out [n, k, *rows] from the sums of all tiles, [points, n·tiles, k]."""
    dims, tiles, channels = len(rows), tile_counts(rows), points.shape[-1]
    to_out = transform_matrix(POINTS_TO_OUT, dims, points)
    out = transformed(to_out, points, buffers)
    order, sizes = [dims, 2 * dims + 1], [n, channels]
    for dim, count in enumerate(tiles):
        order += [dims + 1 + dim, dim]
        sizes += [count, TILE]
    whole = points.new_empty(sizes)
    whole.copy_(out.view(*[TILE] * dims, n, *tiles, channels).permute(order))
    buffers.release(out)
    whole = whole.view(n, channels, *(TILE * count for count in tiles))
    crop = slice(None), slice(None), *map(slice, rows)
    return whole[crop].contiguous()


def correlate(
    values: torch.Tensor,
    before: list[int],
    ker: torch.Tensor,
    rows: list[int],
    flip: bool,
    buffers: BufferPool,
) -> torch.Tensor:
    """Ker [k, c, *3] over values. `flip` reverses the taps and sums over k, not c."""
    dims = len(rows)
    tiles = tile_rows(values, before, tile_counts(rows), POINTS, buffers)
    to_points = transform_matrix(IN_TO_POINTS, dims, values)
    points = transformed(to_points, tiles, buffers)
    of_ker = transform_matrix(KER_TO_POINTS, dims, values)
    of_ker = of_ker.flip(1) if flip else of_ker
    pairs = ker.shape[0] * ker.shape[1]
    taps = buffers.take(values, len(of_ker), pairs)
    torch.mm(of_ker, ker.reshape(pairs, -1).t(), out=taps)
    taps = taps.view(-1, *ker.shape[:2])
    sums = multiplied(points, taps if flip else taps.mT, buffers)
    return joined_tiles(sums, values.shape[0], rows, buffers)


def winograd(
    wide: torch.Tensor, ker: torch.Tensor, padding: list[int], buffers: BufferPool
) -> torch.Tensor:
    """Out [n, k, *rows] of In [n, c, *rows] and Ker [k, c, 3, ...]; stride 1."""
    rows = [n + 2 * p - 2 for n, p in zip(wide.shape[2:], padding, strict=True)]
    return correlate(wide, padding, ker, rows, False, buffers)


def winograd_input(
    dout: torch.Tensor, ker: torch.Tensor, padding: list[int], buffers: BufferPool
) -> torch.Tensor:
    """dIn of the same convolution: dOut convolved with the reversed Ker."""
    rows = [n + 2 - 2 * p for n, p in zip(dout.shape[2:], padding, strict=True)]
    return correlate(dout, [2 - p for p in padding], ker, rows, True, buffers)


def winograd_filter(
    wide: torch.Tensor, dout: torch.Tensor, padding: list[int], buffers: BufferPool
) -> torch.Tensor:
    """dKer of the same convolution."""
    dims, tiles = dout.dim() - 2, tile_counts(list(dout.shape[2:]))
    in_tiles = tile_rows(wide, padding, tiles, POINTS, buffers)
    to_points = transform_matrix(IN_TO_POINTS, dims, wide)
    points = transformed(to_points, in_tiles, buffers)
    dout_tiles = tile_rows(dout, [0] * dims, tiles, TILE, buffers)
    from_out = transform_matrix(POINTS_TO_OUT, dims, wide).t()
    sums = transformed(from_out, dout_tiles, buffers)
    taps = multiplied(sums.mT, points, buffers)  # [points, k, c]
    dker = transform_matrix(KER_TO_POINTS, dims, wide).t() @ taps.flatten(1)
    buffers.release(taps)
    return dker.t().contiguous().view(*taps.shape[1:], *[3] * dims)


def suits_winograd(
    like: torch.Tensor,
    shape: Sequence[int],
    ker: Sequence[int],
    frame: Frame,
    groups: int,
) -> bool:
    """Whether F(4, 3) applies to a convolution and needs at most one GiB of scratch.

    like: an operand. shape: of In [n, c, *rows]. ker: the sizes of Ker. On GPUs cuDNN
    has its own Winograd.
    """
    k, c, *taps = ker
    rows = (n + 2 * p for n, p in zip(shape[2:], frame.padding, strict=True))
    tiles = shape[0] * math.prod(tile_counts(list(rows)))
    words = POINTS ** len(taps) * (tiles * (2 * k + 2 * c) + k * c)
    return (
        like.device.type == "cpu"
        and like.dtype in (torch.float32, torch.float64)
        and groups == 1
        and {*taps} == {3}
        and {*frame.stride, *frame.dilation} == {1}
        and all(0 <= p <= 2 for p in frame.padding)
        and words * like.element_size() <= 2**30
    )
