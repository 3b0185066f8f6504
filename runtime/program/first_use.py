"""Measures the machine on the ranks of a process group that runs: some seconds.

`benchmark` measures more kernels, and for longer. All ranks of the group must call
`measure`.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.comm.group_tree import combined
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.hosts import host_here
from synth.runtime.grid.process_grid import coordinates
from synth.runtime.grid.ranks import Ranks
from synth.runtime.kernels.context import Context
from synth.runtime.program.benchmark import facts
from synth.runtime.program.machine_jobs import FEW, measured_groups, summary, timings
from synth.runtime.program.rounds import Nodes, timed_in_rounds

# a node's name and number -> how many ranks, the first and the last of them
Nodewise = dict[tuple[str, str], tuple[int, int, int]]
SERIES = 0.02  # seconds of kernels in a row
ROUNDS = 3  # at least
SECONDS = 15.0  # of rounds, until medians hold still


def measure(ranks: Ranks, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What `benchmark.measured` finds, on every rank, and who else computed meanwhile.

    ranks: at least two. dtype: of the kernels.
    """
    began = time.perf_counter(), time.process_time(), busy_seconds()
    local = ranks_of_nodes(ranks)
    grid, used = measured_groups(local, ranks.size // local)
    context = Context(process_groups=ProcessGroups(ranks, reused=True))
    groups = context.make_groups(coordinates(ranks.me, grid), grid, used)
    made = timings(groups, FEW, device, dtype, context, SERIES)
    nodes = Nodes(ranks, local, device, lambda: dist.barrier(group=ranks.group))
    times = timed_in_rounds(made.jobs, nodes, ROUNDS, SECONDS)
    found = facts(ranks.size, local, device, ranks.group) | summary(made, times)
    found["others"] = used_by_others(ranks, began)
    return found


def used_by_others(ranks: Ranks, began: tuple[float, float, float]) -> float:
    """The share of a node's cores that other processes used since then, at most.

    began: clock, processor seconds of this rank, and `busy_seconds`, at the start.
    """
    passed = time.perf_counter() - began[0]
    mine, busy = time.process_time() - began[1], busy_seconds() - began[2]
    # node -> cores that its ranks used, and that all its processes used
    own = {platform.node(): (mine / passed, busy / passed)}

    def both(
        one: dict[str, tuple[float, float]], other: dict[str, tuple[float, float]]
    ) -> dict[str, tuple[float, float]]:
        joint = dict(one)
        for node, (used, most) in other.items():
            before = joint.get(node, (0.0, 0.0))
            joint[node] = before[0] + used, max(before[1], most)
        return joint

    cores = os.cpu_count() or 1
    share: float = combined(
        ranks, own, both, lambda told: max(most - used for used, most in told.values())
    )
    return max(0.0, share) / cores


def busy_seconds() -> float:
    """Processor seconds of all processes of this node since its start; 0 if unknown."""
    try:
        with open("/proc/stat") as file:
            fields = [int(each) for each in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    idle, waiting = fields[3:5]
    return (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def ranks_of_nodes(ranks: Ranks) -> int:
    """The number of ranks on each node; 1 if ranks are not laid out node by node.

    They are if all nodes have equally many ranks, with consecutive numbers.
    """
    own = {host_here(): (1, ranks.me, ranks.me)}  # ranks, the first, the last

    def both(one: Nodewise, other: Nodewise) -> Nodewise:
        joint = dict(one)
        for name, (count, first, last) in other.items():
            n, low, high = joint.get(name, (0, first, last))
            joint[name] = n + count, min(low, first), max(high, last)
        return joint

    def conclude(told: Nodewise) -> int:
        local = next(n for n, first, _ in told.values() if first == 0)
        alike = all(
            n == local == last - first + 1 and first % local == 0
            for n, first, last in told.values()
        )
        return local if alike else 1

    found: int = combined(ranks, own, both, conclude)
    return found
