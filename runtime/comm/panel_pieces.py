"""Memory for the pieces of a panel that ranks of a group carry."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from synth.runtime.comm.process_groups import Group
from synth.runtime.grid.boxes import Box, consecutive, shape, volume, within


def joint_pieces(
    panel: Box,
    parts: Sequence[Box],
    own: torch.Tensor,
    group: Group,
    taken: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Memory for all pieces, the own piece filled in; and the panel, if it is joint.

    The pieces are views of the panel if every part is consecutive in it, or if one part
    is the whole panel. Pieces from the buffer pool are added to `taken`.
    """
    filled = [part for part in parts if volume(part)]
    if len(filled) < 2 or not all(consecutive(part, panel) for part in filled):
        return separate_pieces(parts, own, group, taken), []
    whole = own.new_empty(shape(panel))
    pieces = [whole[within(part, panel)] for part in parts]
    pieces[group.me].copy_(own)
    return pieces, [whole]


def separate_pieces(
    parts: Sequence[Box], own: torch.Tensor, group: Group, taken: list[torch.Tensor]
) -> list[torch.Tensor]:
    """The own piece, and buffers for the others, which are added to `taken`.

    A single piece is the panel, so it takes no buffer that would have to come back.
    """
    pieces, alone = [], sum(map(bool, map(volume, parts))) < 2
    for rank, part in enumerate(parts):
        piece = own
        if rank != group.me and alone:
            piece = own.new_empty(shape(part))
        elif rank != group.me:
            piece = group.buffers.take(own, *shape(part))
            taken.append(piece)
        pieces.append(piece)
    return pieces


def split_pieces(
    flat: torch.Tensor, panel: Box, parts: Sequence[Box], fits: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Views of a buffer with one part after the other; and the panel, if it is that."""
    rows = torch.split(flat, [volume(part) for part in parts])
    pieces = [row.view(shape(part)) for row, part in zip(rows, parts, strict=True)]
    in_order = fits and list(parts) == sorted(parts)
    return pieces, [flat.view(shape(panel))] if in_order else []


def concatenated(
    sums: torch.Tensor, panel: Box, parts: Sequence[Box], group: Group
) -> torch.Tensor:
    """The words of some parts of a panel, one part after the other, in a buffer."""
    flat = group.buffers.take(sums, sum(volume(part) for part in parts))
    begin = 0
    for part in parts:
        piece = flat[begin : begin + volume(part)]
        piece.view(shape(part)).copy_(sums[within(part, panel)])
        begin += volume(part)
    return flat
