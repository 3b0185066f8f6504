"""The state of one network or program on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.comm.ghost_rows import Rooms
from synth.runtime.comm.process_groups import Group, ProcessGroups
from synth.runtime.grid.boxes import Box
from synth.runtime.grid.process_grid import At
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.word_counter import TrafficCounter
from synth.runtime.kernels.autotune import Tuner


class Pending(Protocol):
    """Communication that has started and must be waited for."""

    def wait(self) -> Any:
        """Wait for it, and remove it from the context's list."""


@dataclass(frozen=True)
class Context:
    """Everything that changes while a network or a program runs on this rank.

    Two networks in one process have two contexts and share nothing but the process
    group of all ranks. The views that `counting` and `for_pass` return share all but
    the counter.

    traffic: counts the words that this rank receives.
    buffers: scratch memory for messages and kernels.
    tuner: measured times of the kernel variants.
    process_groups: the process groups that were created, and the ranks that run it.
    rooms: buffers in which shards live with their ghost rows.
    pending: prefetches and deferred sums that nobody has waited for.
    passes: what `for_pass` has made, since each step asks for the same passes.
    """

    traffic: TrafficCounter = field(default_factory=TrafficCounter)
    buffers: BufferPool = field(default_factory=BufferPool)
    tuner: Tuner = field(default_factory=Tuner)
    process_groups: ProcessGroups = field(default_factory=ProcessGroups)
    rooms: Rooms = field(default_factory=Rooms)
    pending: list[Pending] = field(default_factory=list)
    passes: dict[str, Context] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ranks(self) -> Ranks:
        """The ranks that run the network or program; all of the job by default."""
        return self.process_groups.ranks

    def counting(self, traffic: TrafficCounter) -> Context:
        """The same context with another counter, for one layer or one run."""
        return replace(self, traffic=traffic, passes={})

    def for_pass(self, pass_: str) -> Context:
        """The same context; the counter's phases begin with the name of a pass."""
        found = self.passes.get(pass_)
        if found is None:
            found = replace(self, traffic=self.traffic.for_pass(pass_), passes={})
            self.passes[pass_] = found
        return found

    def make_groups(
        self,
        at: At,
        grid: dict[str, int],
        group_axes: dict[str, tuple[str, ...]],
        timeout: float | None = None,
    ) -> dict[str, Group]:
        """Name -> the group of the rank at `at` along the axes of that name.

        All members of a group must call this in the same order. `timeout` in seconds
        bounds every wait (None: as in the process group of all the ranks).
        """
        return self.process_groups.along(at, grid, group_axes, self.buffers, timeout)

    def keep_no_buffers(self) -> None:
        """Free what messages take as soon as they end: a limit has no room for it."""
        self.buffers.keeps = False
        self.buffers.free.clear()

    def wait_pending(self) -> None:
        """Wait for every prefetch and every deferred sum."""
        for each in tuple(self.pending):
            each.wait()

    def counter(self, phase: str, step: int, tensor: str) -> Callable[[int], None]:
        """A function that adds received words to one entry of the counter."""
        return self.traffic.counter(phase, step, tensor)

    def count(self, phase: str, tensor: str, words: int, step: int) -> None:
        """Record that a step of a phase starts, and add the words that it receives."""
        self.traffic.count(phase, tensor, words, step)

    def check_shard(
        self, tensor: str, values: torch.Tensor, box: Box, dtype: torch.dtype
    ) -> None:
        """Raise `ValueError` unless `values` have the box's shape and this dtype."""
        self.traffic.check_shard(tensor, values, box, dtype)

    def check_finite(self, tensor: str, step: int, values: torch.Tensor) -> None:
        """Raise `FloatingPointError` for NaN or infinity, if the run checks values."""
        self.traffic.check_finite(tensor, step, values)
