"""Sums over the ranks of one host, in memory that they share.

A word that a socket carries is copied into the system and out of it, and the sum reads
it once more. Here each rank writes its terms into memory that all map, adds up its
share of the words, and reads the other shares. Sums of 36 MB over two ranks take a
quarter of the processor time.

The ranks say by messages of one word when terms and shares are there: these fail, and
have the timeouts, as any message of their group.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.comm.host_links import told
from synth.runtime.comm.host_memory import SharedBytes
from synth.runtime.comm.messages import all_reduce
from synth.runtime.grid.boxes import cut
from synth.runtime.grid.forks import require_rank
from synth.runtime.grid.hosts import host_here
from synth.runtime.grid.launched_job import ranks_here, usable_cores
from synth.runtime.grid.spans import waiting
from synth.runtime.grid.transport import carries_host

LEAST = 2**21  # bytes below which one message takes less time
WHERE = "/dev/shm"  # files there are memory, on Linux


class SharedMemory:
    """Memory for the terms of a sum: that of this rank, and what the others wrote.

    group: of torch. own: for the terms of this rank. others: by their places in the
    group, those of the other ranks.
    """

    def __init__(
        self, group: Any, own: torch.Tensor, others: dict[int, torch.Tensor]
    ) -> None:
        self.group, self.own, self.others = group, own, others
        self.me, self.size = dist.get_rank(group), len(others) + 1

    @classmethod
    def of(cls, group: Any, words: int, dtype: torch.dtype) -> SharedMemory | None:
        """For sums of at most so many words over a group, all of whose ranks call this.

        None where they do not share a host with a core for each, or a rank has no room.
        """
        size = words * dtype.itemsize
        if not carries_host(group) or dist.get_world_size(group) < 2:
            return None
        made = _made(size)
        path, own = made or (None, None)
        try:
            roomy = usable_cores() >= ranks_here(dist.get_world_size() - 1)
            said = told((host_here() if roomy else None, path), group)
            alike = len({host for host, _ in said}) == 1 and None not in said[0]
            me, others = dist.get_rank(group), dict[int, mmap.mmap]()
            for place, (_, other) in enumerate(said):
                found = _opened(other, size) if alike and other else None
                if place != me and found is not None:
                    others[place] = found
            opened = all(told(len(others) == len(said) - 1, group))
        finally:
            if path is not None:
                os.unlink(path)
        if own is None or not opened:
            return None
        mapped = {at: _tensor(each, dtype) for at, each in others.items()}
        return cls(group, _tensor(own, dtype), mapped)

    def start(self, parts: Sequence[torch.Tensor], free: bool) -> SharedSum:
        """Write the terms of this rank, one part after another.

        free: whether nothing else lies in the own memory. Else the sum is a message.
        """
        require_rank(self.group)
        words = sum(part.numel() for part in parts)
        flat = self.own[:words] if free else parts[0].new_empty(words)
        torch.cat([part.reshape(-1) for part in parts], out=flat)
        return SharedSum(self, flat, free)


class SharedSum:
    """A sum on its way. flat: the terms of this rank, then the sums."""

    def __init__(self, memory: SharedMemory, flat: torch.Tensor, there: bool) -> None:
        self.memory, self.flat = memory, flat
        self.absent = torch.tensor([int(not there)], dtype=torch.int32)
        self.told = all_reduce(self.absent, memory.group)

    def wait(self) -> None:
        """Wait for the terms of all ranks; `flat` then has the sums, on every rank."""
        memory, flat, words = self.memory, self.flat, len(self.flat)
        with waiting("wait for sums of gradients"):
            self.told.wait()
            if int(self.absent):
                dist.all_reduce(flat, group=memory.group)
                return
        low, high = cut((0, words), memory.size, memory.me)
        for other in memory.others.values():
            flat[low:high].add_(other[low:high])
        mine = (high - low) * flat.element_size()
        self._meet()
        for place, other in memory.others.items():
            low, high = cut((0, words), memory.size, place)
            flat[low:high].copy_(other[low:high])
        moved = words * flat.element_size() + (memory.size - 2) * mine
        SharedBytes.sent += moved  # its terms of the others' shares, its sums to each
        SharedBytes.received += moved
        self._meet()  # from here on the user may change gradients

    def _meet(self) -> None:
        with waiting("wait for sums of gradients"):
            all_reduce(self.absent, self.memory.group).wait()


def _made(size: int) -> tuple[str, mmap.mmap] | None:
    """(a file in memory, its words), with room for all of them; None for no room."""
    try:
        handle, path = tempfile.mkstemp(prefix="synth-", dir=WHERE)
    except OSError:
        return None
    try:
        os.posix_fallocate(handle, 0, size)
        return path, mmap.mmap(handle, size)
    except OSError:
        os.unlink(path)
        return None
    finally:
        os.close(handle)


def _opened(path: str, size: int) -> mmap.mmap | None:
    """The words of the file of another rank; None where there is no such file here."""
    try:
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), size)
    except (OSError, ValueError):
        return None


def _tensor(memory: mmap.mmap, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=dtype)
