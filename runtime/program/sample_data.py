"""Sample values of a tensor: every rank computes any part of them by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from synth.runtime.comm.precision import HALF
from synth.runtime.grid.boxes import Box, Window, source_rows


def sample(
    tensor: str,
    whole: Sequence[int],
    positions: Sequence[Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
    dims: int = 0,
) -> torch.Tensor:
    """Values of a tensor of shape `whole` at the given positions along each dimension.

    Integers from -4 to 4, a hash of an element's place in the whole tensor. They are
    the same on every rank and device, and small enough that sums of products are exact.
    Half types: 1 or -1, and 0 where `nonzero` is false; `dims` dimensions are spatial.
    """
    index = torch.zeros((), dtype=torch.int64, device=device)
    for extent, places in zip(whole, positions, strict=True):
        along = torch.tensor(list(places), dtype=torch.int64, device=device)
        index = index.unsqueeze(-1) * extent + along
    mixed = (index % 2**31 + sum(map(ord, tensor))) * 1103515245 % 2**31
    mixed = (mixed ^ (mixed >> 15)) * 747796405 % 2**31
    mixed = mixed ^ (mixed >> 13)
    if dtype not in HALF:
        return (mixed % 9 - 4).to(dtype)
    signs = mixed % 2 * 2 - 1
    if tensor != "In":
        most = round(2 / torch.finfo(dtype).eps)
        signs *= nonzero(tensor, whole, positions, most, dims).to(device)
    return signs.to(dtype)


def nonzero(
    tensor: str,
    whole: Sequence[int],
    positions: Sequence[Sequence[int]],
    most: int,
    dims: int,
) -> torch.Tensor:
    """Where Ker and dOut are not 0, so that no sum has more than `most` terms.

    Integers up to `most` are exact in the type, and so is every partial sum, in any
    order. Ker has at most `most` nonzeros per input channel and per output channel,
    which bounds the terms of Out and dIn. dOut has at most `most` per channel, which
    bounds the terms of dKer. The words of a channel are numbered, and one in `apart` of
    them is not 0.
    """
    lead = len(whole) - dims
    inner = math.prod(whole[lead:])  # taps of Ker, positions of dOut
    outer = max(whole[lead - 2 : lead]) if tensor == "Ker" else whole[0]
    apart = max(1, -(-outer * inner // most))
    while tensor == "Ker" and math.gcd(apart, inner) > 1:  # else some taps are always 0
        apart += 1
    weights = [math.prod(whole[dim + 1 :]) for dim in range(lead, len(whole))]
    if tensor == "Ker":  # number the taps of all other channels
        weights = [inner] * lead + weights
    else:  # number the samples; each channel has another offset
        weights = [inner, *[round(apart * 0.618)] * (lead - 1), *weights]
    place = torch.zeros((), dtype=torch.int64)
    for weight, places in zip(weights, positions, strict=True):
        along = torch.tensor(list(places), dtype=torch.int64) * weight
        place = place.unsqueeze(-1) + along
    return place % apart == 0


def sample_box(
    tensor: str,
    whole: Sequence[int],
    box: Box,
    dtype: torch.dtype,
    device: torch.device,
    windows: Sequence[Window] = (),
    dims: int = 0,
) -> torch.Tensor:
    """Sample values of a box whose last dimensions count the rows that windows read.

    dims: as in `sample`.
    """
    plain = len(box) - len(windows)
    positions: list[Sequence[int]] = [range(*interval) for interval in box[:plain]]
    rows = zip(box[plain:], windows, strict=True)
    positions += [source_rows(interval, window) for interval, window in rows]
    return sample(tensor, whole, positions, dtype, device, dims)
