"""Whole tensors and the shards that ranks own of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from synth.runtime.grid.boxes import Box, Window, shape, source_rows, volume, within
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.transport import transport_of


def shard_of(
    whole: torch.Tensor, box: Box, windows: Sequence[Window] = ()
) -> torch.Tensor:
    """A box of a whole tensor; its last dimensions count only rows that are read."""
    plain = len(box) - len(windows)
    frame = tuple((0, extent) for extent in whole.shape[:plain])
    shard = whole[within(box[:plain], frame)]
    for dim, window in enumerate(windows, plain):
        rows = torch.tensor(source_rows(box[dim], window), dtype=torch.int64)
        shard = shard.index_select(dim, rows.to(shard.device))
    return shard.contiguous()


def gather_shards(
    shard: torch.Tensor,
    boxes: Sequence[Box],
    whole: Sequence[int],
    ranks: Ranks,
) -> torch.Tensor:
    """The whole tensor on every rank, from the boxes that the ranks own.

    boxes: by the index of a rank.
    """
    most = max(map(volume, boxes))
    mine = shard.new_zeros(most)
    mine[: shard.numel()] = shard.flatten()
    parts = [torch.empty_like(mine) for _ in boxes]
    carried = transport_of(ranks.group, mine.device).carried
    dist.all_gather(list(map(carried, parts)), carried(mine), group=ranks.group)
    result = shard.new_empty(tuple(whole))
    frame = tuple((0, extent) for extent in whole)
    for box, part in zip(boxes, parts, strict=True):
        result[within(box, frame)] = part[: volume(box)].reshape(shape(box))
    return result
