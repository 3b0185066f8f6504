"""Sample values that every rank can compute for any part of a tensor by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.blocks import Box, Window, source_rows


def sample(
    tensor: str,
    whole: Sequence[int],
    positions: Sequence[Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Values of a tensor of shape `whole` at the given positions along each dimension.

    Whole numbers from -4 to 4, a hash of an element's place in the whole tensor: the
    same on every rank and device, and small enough that sums of products are exact.
    """
    index = torch.zeros((), dtype=torch.int64, device=device)
    for extent, places in zip(whole, positions, strict=True):
        along = torch.tensor(list(places), dtype=torch.int64, device=device)
        index = index.unsqueeze(-1) * extent + along
    mixed = (index % 2**31 + sum(map(ord, tensor))) * 1103515245 % 2**31
    mixed = (mixed ^ (mixed >> 15)) * 747796405 % 2**31
    return ((mixed ^ (mixed >> 13)) % 9 - 4).to(dtype)


def sample_box(
    tensor: str,
    whole: Sequence[int],
    box: Box,
    dtype: torch.dtype,
    device: torch.device,
    windows: Sequence[Window] = (),
) -> torch.Tensor:
    """The sample values of a box whose last dimensions count what `windows` read."""
    plain = len(box) - len(windows)
    positions: list[Sequence[int]] = [range(*interval) for interval in box[:plain]]
    rows = zip(box[plain:], windows, strict=True)
    positions += [source_rows(interval, window) for interval, window in rows]
    return sample(tensor, whole, positions, dtype, device)
