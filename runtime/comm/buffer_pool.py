"""Buffer pool: memory that messages and kernel transforms use again.

The system hands out fresh memory page by page. For a message or a transform that costs
about as much as the copy or the sums that the memory is for.
"""

from __future__ import annotations

import math

import torch


class BufferPool:
    """Free buffers by (dtype, device); the next caller takes one of them.

    The pool holds as many buffers as were ever in use at once, and never shrinks. If it
    `keeps` none, as under a limit of memory, buffers are freed when they are released.
    """

    def __init__(self) -> None:
        self.keeps = True
        self.free: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}

    def take(self, like: torch.Tensor, *sizes: int) -> torch.Tensor:
        """An uninitialized tensor of these sizes, with the dtype and device of `like`.

        It is a view of the smallest free buffer that fits. If none fits, a new buffer
        replaces the largest one.
        """
        words = math.prod(sizes)
        if not words or torch.compiler.is_compiling():  # nothing needs no buffer
            return like.new_empty(sizes)
        free = self.free.setdefault((like.dtype, like.device), [])
        free.sort(key=torch.Tensor.numel)
        fits = [place for place, each in enumerate(free) if each.numel() >= words]
        if fits:
            flat = free.pop(fits[0])
        else:
            if free:
                free.pop()  # the larger one takes its place
            with torch.inference_mode(False):  # later calls may be in another mode
                flat = torch.empty(words, dtype=like.dtype, device=like.device)
        return flat[:words].view(sizes)

    def release(self, *taken: torch.Tensor) -> None:
        """Return taken tensors, or views of them, that nothing reads or writes."""
        for tensor in taken if self.keeps and not torch.compiler.is_compiling() else ():
            if not tensor.numel():
                continue
            flat = tensor.view(-1) if tensor._base is None else tensor._base
            self.free[flat.dtype, flat.device].append(flat)
