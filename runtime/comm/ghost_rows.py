"""Ghost rows: a shard lives in a buffer with room for the rows that neighbours send.

So a halo costs its rows only, and no widened copy of the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from synth.runtime.grid.boxes import Box, shape, volume, within


class Room(NamedTuple):
    """A buffer with a shard and its ghost rows.

    values: those of the box `frame`, a view of `whole`.
    zeros: around them in `whole`, as `F.pad` takes them.
    """

    whole: torch.Tensor
    values: torch.Tensor
    frame: Box
    zeros: Sequence[int] = ()

    def widened(self, box: Box) -> torch.Tensor:
        """A view of the words of a box, with the zeros where it ends with the frame."""
        wide = list(self.frame)
        for place, (low, high) in enumerate(
            zip(self.zeros[::2], self.zeros[1::2], strict=True)
        ):
            first, last = wide[-1 - place]
            wide[-1 - place] = first - low, last + high
        ends = zip(box, self.frame, wide, strict=True)
        seen = (
            (w[0] if b[0] == f[0] else b[0], w[1] if b[1] == f[1] else b[1])
            for b, f, w in ends
        )
        return self.whole[within(tuple(seen), tuple(wide))]


class Rooms:
    """The buffers with ghost rows of one program, by the address of their memory."""

    def __init__(self) -> None:
        self.kept: dict[int, Room] = {}

    def keep(
        self, own: torch.Tensor, owned: Box, carried: Box, zeros: Sequence[int] = ()
    ) -> torch.Tensor:
        """The same shard in a buffer with room for its ghost rows: the only copy.

        `fetch_rows` receives into that buffer if it is given this tensor. The buffer
        lives until `leave`, or as long as the program.

        own: the words of `owned`. carried: the box with the ghost rows.
        zeros: zeros to keep around the carried box, as `F.pad` takes them: where the
            tensor ends. Without effect if own rows lie between.
        """
        frame = joint(owned, carried)
        if not volume(frame):
            return own
        around = (
            zeros if volume(carried) and _end_together(carried, frame, zeros) else ()
        )
        whole = own.new_empty(padded(shape(frame), around))
        values = clear_around(whole, around)
        shard = values[within(owned, frame)]
        shard.copy_(own)
        self.kept[whole.data_ptr()] = Room(whole, values, frame, around)
        return shard

    def leave(self, shard: torch.Tensor) -> None:
        """Forget the buffer that a shard lives in, if it does."""
        self.kept.pop(shard.untyped_storage().data_ptr(), None)

    def of(self, own: torch.Tensor, owned: Box) -> Room | None:
        """The buffer that `keep` made for a shard; None for any other tensor."""
        if not self.kept or not own.numel():
            return None
        room = self.kept.get(own.untyped_storage().data_ptr())
        if room is None:
            return None
        there = room.values[within(owned, room.frame)]
        same = own.data_ptr() == there.data_ptr() and own.stride() == there.stride()
        return room if same and own.shape == there.shape else None


def _end_together(box: Box, frame: Box, zeros: Sequence[int]) -> bool:
    """Whether a box ends with its frame wherever there are zeros."""
    pairs = zip(reversed(box), reversed(frame), zeros[::2], zeros[1::2], strict=False)
    return all(
        (not low or b[0] == f[0]) and (not high or b[1] == f[1])
        for b, f, low, high in pairs
    )


def joint(one: Box, other: Box) -> Box:
    """The smallest box around two; along each dimension the other if one is empty."""
    box = []
    for (low, high), (first, last) in zip(one, other, strict=True):
        if low == high or first == last:
            box.append((first, last) if low == high else (low, high))
        else:
            box.append((min(low, first), max(high, last)))
    return tuple(box)


def padded(sizes: Sequence[int], zeros: Sequence[int]) -> list[int]:
    """Extents with zeros around, which are as `F.pad` takes them."""
    extents = list(sizes)
    for place, each in enumerate(zeros):
        extents[-1 - place // 2] += each
    return extents


def clear_around(whole: torch.Tensor, zeros: Sequence[int]) -> torch.Tensor:
    """Write zeros around the inner part of a tensor; returns a view of that part."""
    inner = whole
    for place, (low, high) in enumerate(zip(zeros[::2], zeros[1::2], strict=True)):
        if not low and not high:
            continue
        dim = whole.dim() - 1 - place
        if low:
            inner.narrow(dim, 0, low).zero_()
        if high:
            inner.narrow(dim, inner.shape[dim] - high, high).zero_()
        inner = inner.narrow(dim, low, inner.shape[dim] - low - high)
    return inner
