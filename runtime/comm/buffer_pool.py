"""Memory that is used again: for words on their way, and between transforms.

Fresh memory comes page by page from the system; for a message or a transform that costs
about as much as the copy or the sums that it is for.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch


class Room:
    """Buffers that were left, for whoever takes one next.

    They are as many as were ever in use at a time, and only grow.
    """

    free: ClassVar[dict[Any, list[torch.Tensor]]] = {}

    @classmethod
    def take(cls, like: torch.Tensor, *sizes: int) -> torch.Tensor:
        """A tensor of some sizes, with whatever its memory held before."""
        words = math.prod(sizes)
        free = cls.free.setdefault((like.dtype, like.device), [])
        free.sort(key=torch.Tensor.numel)
        fits = [place for place, each in enumerate(free) if each.numel() >= words]
        if fits:
            flat = free.pop(fits[0])
        else:
            if free:
                free.pop()  # a larger one takes its place
            with torch.inference_mode(False):  # for later calls in any mode
                flat = torch.empty(words, dtype=like.dtype, device=like.device)
        return flat[:words].view(sizes)

    @classmethod
    def leave(cls, *taken: torch.Tensor) -> None:
        """Give back what was taken, or views of it, once nobody reads or writes it."""
        for tensor in taken:
            flat = tensor.view(-1) if tensor._base is None else tensor._base
            cls.free[flat.dtype, flat.device].append(flat)
