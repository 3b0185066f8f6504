"""Ranks agree on what they do before they communicate.

All ranks of a network run the same program. A rank that calls something alone, such as
a loss on rank 0 only, would wait for ever, or would add words that do not belong
together. So ranks first exchange what each is about to do, on a process group of its
own, in messages of one size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from synth.runtime.comm.process_groups import ProcessGroups, backend_of

TEXT = 120  # bytes for what a rank does
CHANGED = "a pass after changes"  # of the network; see `runtime.model.live`
ROUNDING = 1e-6  # of a checksum, between machines of different kinds


class Agreement:
    """The channel on which the ranks of a network agree.

    members: their global ranks, ascending. groups: where it has a process group of
        torch for these messages alone.
    alike: the sets of places in `members` of which the tensors must be the same; None
        for all. device: of the messages: the host, but a GPU where the group has nccl
        alone.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        groups: ProcessGroups,
        alike: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.members, self.groups = members, groups
        self.group = groups.of(range(len(members)), purpose="agreement")
        self.alike = [range(len(members))] if alike is None else alike
        host = backend_of(self.group, "cpu")
        self.device = torch.device("cpu" if host else "cuda")
        self.noted = (0.0, 0.0)  # a checksum that goes with the next message

    def note(self, values: torch.Tensor) -> None:
        """Compare a tensor that must be the same on all ranks when they next agree."""
        if len(self.members) == 1:
            return
        own = checksum(values)
        self.noted = self.noted[0] + own[0], self.noted[1] + own[1]

    def require(self, what: str, values: torch.Tensor | None = None) -> None:
        """Raise `RuntimeError` on all ranks unless all are about to do `what`.

        values: a tensor that is the same on all ranks; its checksum is compared.
        """
        if not self.same(what, values):
            raise RuntimeError(
                f"{what}: the ranks have plain tensors with other values (a batch, or"
                " the gradient of full_tensor()); a plain tensor must be the same on"
                " all ranks, and each computes the same loss from it"
            )

    def same(self, what: str, values: torch.Tensor | None = None) -> bool:
        """Whether the tensors of all ranks have the same checksum.

        Raises `RuntimeError` on all ranks unless all are about to do `what`.
        """
        return self.apart(what, () if values is None else (values,)) is None

    def apart(
        self, what: str, tensors: Iterable[torch.Tensor] = ()
    ) -> tuple[int, int] | None:
        """Two ranks whose tensors must have the same checksum but do not.

        Raises `RuntimeError` on all ranks unless all are about to do `what`.
        """
        if len(self.members) == 1:
            return None
        given = [self.noted, *map(checksum, tensors)]
        sums = sum(one for one, _ in given), sum(other for _, other in given)
        self.noted = 0.0, 0.0
        text = what.encode()[:TEXT].ljust(TEXT)
        sent = bytearray(text + struct.pack("dd", *sums))
        mine = torch.frombuffer(sent, dtype=torch.uint8).to(self.device)
        rows = mine.new_empty(len(self.members), len(sent))
        # to each rank directly: a rank then sees at once that any other is gone
        sent_to_all = mine.expand(len(rows), -1).contiguous()
        dist.all_to_all_single(rows, sent_to_all, group=self.group)
        return self._compared(rows.cpu(), bytes(sent))

    def _compared(self, rows: torch.Tensor, sent: bytes) -> tuple[int, int] | None:
        told = [bytes(row) for row in rows.numpy()]
        if all(each == sent for each in told):
            return None
        doing = [each[:TEXT].decode(errors="replace").rstrip() for each in told]
        for rank, other in zip(self.members, doing, strict=True):
            if other != doing[0]:
                remedy = (
                    "make the same changes on every rank"
                    if any(each.startswith(CHANGED) for each in doing)
                    else "all ranks must call the same in the same order (compute a"
                    " loss, a norm or full_tensor() on every rank)"
                )
                raise RuntimeError(
                    f"rank {self.members[0]} is at {doing[0]}, but rank {rank} at"
                    f" {other}: {remedy}"
                )
        sums = [struct.unpack("dd", each[TEXT:]) for each in told]
        for places in self.alike:
            first, *others = places
            for place in others:
                pairs = zip(sums[first], sums[place], strict=True)
                if not all(_close(*pair, sums[first][1]) for pair in pairs):
                    return self.members[first], self.members[place]
        return None


def checksum(values: torch.Tensor) -> tuple[float, float]:
    """The sum of all words, and that of their absolute values.

    In the first sum each sample has a weight of its own, so that the same samples in
    another order have another checksum.
    """
    values = values.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    wide = torch.float64 if values.device.type != "mps" else torch.float32
    sizes = values.abs() if values.dtype != torch.bool else values
    others = tuple(range(1, values.dim()))
    rows = values.sum(others, dtype=wide) if others else values.to(wide)
    places = torch.arange(len(rows) if others else rows.numel(), device=rows.device)
    weighted = rows * (1 + places.to(wide) / max(1, len(places))).reshape(rows.shape)
    both = torch.stack([weighted.sum(), sizes.sum(dtype=wide)])
    first, second = both.tolist()  # a GPU is waited for once
    return first, second


def _close(one: float, other: float, size: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) == math.isnan(other)
    if math.isinf(one) or math.isinf(other):
        return one == other
    return abs(one - other) <= ROUNDING * abs(size)
