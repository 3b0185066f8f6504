"""Measures the machine: collectives, the local kernel, memory, and both at once.

The ranks are started by torchrun or srun. They measure in rounds (see `rounds`). Rank 0
writes one JSON file atomically.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.grid.launched_job import launched, ranks_here
from synth.runtime.grid.rules.processors import this_processor
from synth.runtime.program.machine_jobs import LAYERS, measured_groups, summary, timings
from synth.runtime.program.report import write_part
from synth.runtime.program.rounds import Nodes, timed_in_rounds
from synth.runtime.program.world import refuse, start, stop, wait_for_all

SERIES = 0.1  # seconds of kernels in a row
SECONDS = 20.0  # of rounds, until medians hold still


def main() -> int:
    """What one rank does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE", required=True, help="JSON, by rank 0")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--repeat", type=int, default=7, metavar="N")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="SECONDS")
    args = parser.parse_args()
    found = measured(args.repeat, args.timeout, args.seconds)
    if found is not None:
        folder, name = os.path.split(os.path.abspath(args.out))
        write_part(folder, name, json.dumps(found).encode())
    return 0


def measured(
    repeat: int, timeout: float, seconds: float = SECONDS
) -> dict[str, Any] | None:
    """All measurements; on rank 0 only. `timeout` in seconds bounds every wait.

    repeat: rounds; more follow until medians hold still, for some seconds at most.

    Exits with code 2 on a single rank, or where nodes have different numbers of ranks.
    """
    rank, size, _ = launched()
    local = ranks_here(size - 1)  # without a launcher: all of them
    if size < 2:
        refuse(rank, "a network is measured between ranks; start at least 2")
    if size % local:
        refuse(rank, f"{size} ranks on nodes of {local}: start as many on each")
    grid, lines = measured_groups(local, size // local)
    world = start("calibrate", grid, size, timeout)
    assert world.at is not None
    context, device = world.context, world.device
    groups = context.make_groups(world.at, grid, lines, timeout)
    if rank == 0:
        print(f"synth: measuring {size} ranks in rounds", file=sys.stderr, flush=True)
    made = timings(groups, LAYERS, device, torch.float32, context, SERIES)
    nodes = Nodes(context.ranks, local, device, lambda: wait_for_all(world))
    times = timed_in_rounds(made.jobs, nodes, repeat, seconds)
    found = {**facts(size, local, device, None), **summary(made, times)}
    found["processors"] = processors(size)
    stop(world)
    return found if rank == 0 else None


def facts(size: int, local: int, device: torch.device, group: Any) -> dict[str, Any]:
    """What the numbers are of. local: ranks on a node."""
    return {
        "ranks": size,
        "local": local,
        "backend": dist.get_backend(group),
        "device": str(device.type),
        "memory": memory(device, local),
    }


def processors(size: int) -> list[str]:
    """The processors of all ranks; none if one is not known."""
    found: list[str] = [""] * size
    dist.all_gather_object(found, str(this_processor() or ""))
    return sorted(set(found)) if all(found) else []


def memory(device: torch.device, local: int) -> int:
    """Bytes of memory per rank, if the ranks of a node take equal parts."""
    if device.type == "cuda":
        sharing = -(-local // max(1, torch.cuda.device_count()))
        return int(torch.cuda.get_device_properties(device).total_memory) // sharing
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local


if __name__ == "__main__":
    sys.exit(main())
