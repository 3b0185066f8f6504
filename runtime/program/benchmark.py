"""Measures the machine: collectives, the local kernel, and both at once.

Every number is the time of the slowest rank, which a schedule waits for: the median of
several runs that all ranks begin together. The ranks are started by torchrun or srun.
Rank 0 writes one JSON file atomically.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name

from synth.runtime.comm.collectives import (
    all_gather,
    reduce_scatter,
    wait_gather,
    wait_reduce,
)
from synth.runtime.comm.process_groups import Group
from synth.runtime.grid.boxes import Box, Window
from synth.runtime.kernels.conv import convolve, input_gradient, kernel_gradient
from synth.runtime.program.report import write_part
from synth.runtime.program.world import (
    World,
    launched,
    ranks_here,
    refuse,
    start,
    stop,
    wait_for_all,
)

Kernel = tuple[int, int, int, int, tuple[int, ...]]
SERIES = 0.1  # seconds of jobs in a row
SHORT_SERIES = 0.02  # the same where a user waits
MOST_CALLS = 500
SIZES = 2**12, 2**16, 2**18, 2**20, 2**22  # bytes of a whole buffer
LAYERS: tuple[Kernel, ...] = (  # samples, input and output channels, taps, rows
    (4, 64, 64, 3, (56, 56)),
    (8, 256, 64, 1, (28, 28)),
    (8, 128, 128, 3, (28, 28)),
    (8, 256, 128, 3, (14, 14)),
    (8, 512, 256, 3, (7, 7)),
    (8, 16, 32, 3, (56, 56)),  # few channels
    (1, 16, 16, 3, (32, 48, 48)),
)


@dataclass(frozen=True)
class RunningRanks(World):
    """The ranks of a process group that runs already. local: how many on a node."""

    local: int = 1


def main() -> int:
    """What one rank does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE", required=True, help="JSON, by rank 0")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--repeat", type=int, default=7, metavar="N")
    args = parser.parse_args()
    found = measured(args.repeat, args.timeout)
    if found is not None:
        folder, name = os.path.split(os.path.abspath(args.out))
        write_part(folder, name, json.dumps(found).encode())
    return 0


def measured(repeat: int, timeout: float) -> dict[str, Any] | None:
    """All measurements; on rank 0 only. `timeout` in seconds bounds every wait.

    Exits with code 2 on a single rank, or where nodes have different numbers of ranks.
    """
    rank, size, _ = launched()
    local = ranks_here(size - 1)  # without a launcher: all of them
    if size < 2:
        refuse(rank, "a network is measured between ranks; start at least 2")
    if size % local:
        refuse(rank, f"{size} ranks on nodes of {local}: start as many on each")
    grid = {"node": size // local, "rank": local}
    world = start("calibrate", grid, size, timeout)
    assert world.at is not None
    levels: dict[str, tuple[str, ...]] = {"node": ("rank",), "system": ("node",)}
    lines = {name: axes for name, axes in levels.items() if grid[axes[0]] > 1}
    groups = world.context.make_groups(world.at, grid, lines, timeout)
    found: dict[str, Any] = {
        "ranks": size,
        "local": local,
        "backend": dist.get_backend(),
        "device": str(world.device.type),
        "memory": memory(world.device, local),
        "collectives": [],
        "kernels": [],
    }
    for name, group in groups.items():
        tell(rank, f"measuring collectives of {len(group.peers)} ranks, level {name}")
        found["collectives"] += collectives(name, group, world, repeat)
    tell(rank, "measuring the local kernel on all ranks at once")
    for layer in LAYERS:
        found["kernels"] += kernels(layer, world, repeat)
    found["call"] = steadily(lambda: tiny(world.device), world, repeat)
    found |= memory_speed(world, repeat)
    found["overlap"] = overlap(next(iter(groups.values())), world, repeat)
    stop(world)
    return found if rank == 0 else None


def tell(rank: int, text: str) -> None:
    """Progress, on rank 0."""
    if rank == 0:
        print(f"synth: {text}", file=sys.stderr, flush=True)


def steadily(job: Callable[[], object], world: World, repeat: int) -> float:
    """Seconds of a job that needs no other rank, from many runs in a row on all ranks.

    If ranks outnumber cores, a single short run would mostly wait for a core.
    """
    series = SHORT_SERIES if isinstance(world, RunningRanks) else SERIES
    calls = int(min(MOST_CALLS, series / max(together(job, world, 1), 1e-9))) + 1
    return together(lambda: [job() for _ in range(calls)], world, repeat) / calls


def together(job: Callable[[], object], world: World, repeat: int) -> float:
    """Seconds of a job that all ranks begin together: median, of the slowest node.

    The time of a node is from its first rank's begin to its last rank's end, by the
    clock that they share. If ranks outnumber cores, some begin when others have ended.
    """
    assert world.at is not None
    times = []
    for _ in range(repeat + 1):  # the first run warms up
        begin_together(world)
        begin = time.perf_counter()
        job()
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        times.append((begin, time.perf_counter()))
    mine = torch.tensor(times[1:], dtype=torch.float64, device=world.device)
    found = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(found, mine, group=world.context.ranks.group)
    every = torch.stack(found).view(-1, ranks_of_node(world), repeat, 2)
    spans = every[..., 1].amax(1) - every[..., 0].amin(1)  # per node and run
    runs = spans.amax(0)  # a user does not wait until a machine is idle: the least
    return float(runs.amin() if isinstance(world, RunningRanks) else runs.median())


def begin_together(world: World) -> None:
    """A barrier of the ranks that measure."""
    group = world.context.ranks.group
    wait_for_all(world) if group is None else dist.barrier(group=group)


def ranks_of_node(world: World) -> int:
    """Ranks on each machine."""
    if isinstance(world, RunningRanks):
        return world.local
    return ranks_here(world.size - 1)


def evenly(words: int, members: int) -> tuple[Box, list[Box]]:
    """A panel of one dimension, and the parts of it with `words` each."""
    parts: list[Box] = [((i * words, (i + 1) * words),) for i in range(members)]
    return ((0, words * members),), parts


def collectives(
    level: str, group: Group, world: World, repeat: int
) -> list[dict[str, Any]]:
    """Seconds of all-gather and reduce-scatter, in all groups of a level at once."""
    members, found = len(group.peers), []
    for size in SIZES:
        words = max(1, size // 4 // members)
        panel, parts = evenly(words, members)
        own = torch.ones(words, device=world.device)
        sums = torch.ones(words * members, device=world.device)
        jobs: dict[str, Callable[[], object]] = {
            "all_gather": lambda a=panel, b=parts, c=own: wait_gather(  # type: ignore[misc]
                all_gather(a, b, c, group)
            ),
            "reduce_scatter": lambda a=sums, b=panel, c=parts: wait_reduce(  # type: ignore[misc]
                reduce_scatter(a, b, c, group)
            ),
        }
        for op, job in jobs.items():
            seconds = together(job, world, repeat)
            found.append(
                {
                    "level": level,
                    "members": members,
                    "op": op,
                    "bytes": 4 * words * members,
                    "seconds": seconds,
                }
            )
    return found


def kernels(
    layer: Kernel, world: World, repeat: int, dtype: torch.dtype = torch.float32
) -> list[dict[str, Any]]:
    """Seconds of the three passes of a layer's local kernel, on all ranks at once."""
    samples, c, k, taps, rows = layer
    axes = "dhw"[-len(rows) :]
    conv = {2: F.conv2d, 3: F.conv3d}[len(rows)]
    windows = {
        a: Window(n, taps, padding=taps // 2) for a, n in zip(axes, rows, strict=True)
    }
    extents = {"b": samples, "c": c, "k": k, **dict(zip(axes, rows, strict=True))}
    block = {axis: (0, extent) for axis, extent in extents.items()}
    made: dict[str, Any] = {"device": world.device, "dtype": dtype}
    in_tile = torch.rand(samples, c, *rows, **made)
    ker_tile = torch.rand(k, c, *[taps] * len(rows), **made)
    dout = torch.rand(samples, k, *rows, **made)
    context = world.context
    jobs: dict[str, Callable[[], object]] = {
        "forward": lambda: convolve(conv, in_tile, ker_tile, block, windows, context),
        "backward-data": lambda: input_gradient(
            ker_tile, dout, block, windows, context
        ),
        "backward-filter": lambda: kernel_gradient(
            in_tile, dout, block, windows, context
        ),
    }
    return [
        {
            "layer": list(layer),
            "pass": pass_,
            "flops": 2 * dout.numel() * ker_tile[0].numel(),
            "channels": min(c, k),
            "seconds": steadily(job, world, repeat),
        }
        for pass_, job in jobs.items()
    ]


def tiny(device: torch.device) -> None:
    """A convolution so small that only its call takes time."""
    one = torch.ones(1, 1, 1, 1, device=device)
    F.conv2d(one, one)


def memory_speed(world: World, repeat: int) -> dict[str, float]:
    """Bytes copied and seconds per byte added up, on all ranks at once."""
    one, other = (torch.ones(2**21, device=world.device) for _ in range(2))
    size = one.numel() * one.element_size()
    copy = steadily(lambda: other.copy_(one), world, repeat)
    add = steadily(lambda: other.add_(one), world, repeat)
    return {"bandwidth": 2 * size / copy, "gamma": add / size}


def overlap(group: Group, world: World, repeat: int) -> float:
    """The part of the shorter of kernel and collective that the longer one hides."""
    samples, c, k, taps, rows = LAYERS[2]
    inputs = torch.rand(samples, c, *rows, device=world.device)
    ker = torch.rand(k, c, taps, taps, device=world.device)
    members = len(group.peers)
    words = 2**20 // members
    panel, parts = evenly(words, members)
    own = torch.ones(words, device=world.device)

    def compute() -> None:
        F.conv2d(inputs, ker, padding=taps // 2)

    def communicate() -> None:
        wait_gather(all_gather(panel, parts, own, group))

    def both() -> None:
        pending = all_gather(panel, parts, own, group)
        compute()
        wait_gather(pending)

    alone, travel = (
        together(compute, world, repeat),
        together(communicate, world, repeat),
    )
    hidden = alone + travel - together(both, world, repeat)
    return min(1.0, max(0.0, hidden / min(alone, travel)))


def memory(device: torch.device, local: int) -> int:
    """Bytes of memory per rank, if the ranks of a node take equal parts."""
    if device.type == "cuda":
        sharing = -(-local // max(1, torch.cuda.device_count()))
        return int(torch.cuda.get_device_properties(device).total_memory) // sharing
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local


if __name__ == "__main__":
    sys.exit(main())
