"""Messages between the ranks of a group: they start together and are awaited later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

Pieces = Sequence[tuple[int, torch.Tensor]]  # the other rank of the group, the words


def start_messages(receives: Pieces, sends: Pieces, group: Any) -> list[Any]:
    """Start to receive some pieces and to send others; returns what to wait for.

    All receives are posted before the first send: the notice that a receive is ready
    queues behind the words that leave on the same connection, which would then carry
    words in one direction at a time.

    group: torch's; None for the default one.
    """
    if any(piece.is_cuda for _, piece in (*receives, *sends)):  # nccl joins them
        calls = [
            dist.P2POp(call, piece, group=group, group_peer=rank)
            for call, pieces in ((dist.irecv, receives), (dist.isend, sends))
            for rank, piece in pieces
        ]
        return dist.batch_isend_irecv(calls)
    # gloo joins none, and a batch would check every message twice more
    return [
        *(dist.irecv(piece, group=group, group_src=rank) for rank, piece in receives),
        *(dist.isend(piece, group=group, group_dst=rank) for rank, piece in sends),
    ]


def wait_for(requests: list[Any]) -> None:
    """Wait for messages, and let go of each at once: a request holds what it sends."""
    while requests:
        requests.pop(0).wait()
