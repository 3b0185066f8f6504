"""Ranks join each other at the start of a program and leave together at its end."""

from __future__ import annotations

import datetime
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from synth.runtime.grid.launched_job import (
    NO_ADDRESS,
    has_address,
    launched,
    ranks_here,
    reason_of,
)
from synth.runtime.grid.liveness import Watch
from synth.runtime.grid.meeting import meet, part
from synth.runtime.grid.process_grid import At, coordinates, grid_size, place_at
from synth.runtime.grid.rank_tree import Said, StoreTree
from synth.runtime.grid.torch_version import require_torch
from synth.runtime.grid.transport import default_backend, transport_of
from synth.runtime.kernels.context import Context

WAIT_FOR_WORD = 5.0  # seconds


@dataclass(frozen=True)
class World:
    """What one rank of a program knows of all ranks, and the program's state."""

    rank: int
    size: int
    device: torch.device
    at: At | None  # None: the grid has no place for this rank
    watch: Watch | None  # None: there is only one rank
    context: Context = field(default_factory=Context)


def refuse(rank: int, sentence: str, code: int = 2) -> NoReturn:
    """Exit on every rank; rank 0 prints why, in one line.

    The others wait for it: a launcher ends all ranks as soon as one has ended, and rank
    0 may still be importing torch.
    """
    if rank == 0:
        print(sentence, file=sys.stderr, flush=True)
    else:
        time.sleep(WAIT_FOR_WORD)
    sys.exit(code)


def start(
    plan: str, grid: dict[str, int], procs: int, timeout: float, device: str = "auto"
) -> World:
    """Join the other ranks of a program for `grid`, which may run on `procs` ranks.

    device: "auto" uses GPUs if every rank has one of its own, "cpu" uses none, "cuda"
        lets ranks share GPUs. The backend sends from the GPUs if no two ranks share
        one, else from the host.
    timeout: bounds every wait, in seconds.

    Exits with code 2 if the world has another size, the ranks run different plans or a
    rank has no GPU to share, and with code 6 if the ranks do not find each other.
    """
    require_torch(str(torch.__version__))
    rank, size, local = launched()
    used = grid_size(grid)
    if size not in (used, procs):
        shown = " x ".join(f"{axis}={parts}" for axis, parts in grid.items()) or "1"
        wanted = f"{used}" if used == procs else f"{used} or {procs}"
        refuse(
            rank,
            f"this program is for {wanted} ranks, a grid {shown}, but was started with"
            f" {size}; use torchrun --nproc-per-node={used}",
        )
    if size > 1 and not has_address():
        refuse(rank, NO_ADDRESS)

    def name_of(peer: int) -> str:
        place = place_at(coordinates(peer, grid) if peer < used else None)
        return f"rank {peer} ({place})"

    at = coordinates(rank, grid) if rank < used else None
    watch = None
    if size > 1:
        watch = Watch(rank, size, name_of, at is None, timeout)
        watch.begin()
    limit = datetime.timedelta(seconds=timeout)
    try:
        store = meet(rank, size, watch, limit)
        gpus = device != "cpu" and torch.cuda.device_count() >= ranks_here(local)
        own_gpus = agree(store, rank, size, plan, gpus, timeout)
        here = device_of(rank, local, device, own_gpus)
        # A group bound to a device would be split off the world, in which all ranks
        # take part. Idle ranks create no groups.
        dist.init_process_group(
            default_backend("cuda" if own_gpus else "cpu"),
            store=store,
            rank=rank,
            world_size=size,
            timeout=limit,
        )
    except RuntimeError as error:
        reason = f"did not find the others: {reason_of(error)}"
        if watch:
            watch.end(reason)
        print(f"rank {rank}: {reason}", file=sys.stderr)
        sys.exit(6)
    if watch:
        watch.meet()
    return World(rank, size, here, at, watch)


def device_of(rank: int, local: int, device: str, own_gpus: bool) -> torch.device:
    """The device that a rank computes on. Exits with code 2 if it has no GPU."""
    gpus = torch.cuda.device_count()
    if device == "cuda" and not gpus:
        text = f"rank {rank} has no GPU, but --device is cuda; use --device cpu"
        print(text, file=sys.stderr, flush=True)
        sys.exit(2)
    if not own_gpus and device != "cuda":
        return torch.device("cpu")
    here = torch.device("cuda", local % gpus)
    torch.cuda.set_device(here)
    return here


def agree(
    store: Any, rank: int, size: int, plan: str, gpu: bool, timeout: float
) -> bool:
    """Whether all ranks have a GPU of their own. Exits unless all run the same plan."""
    mine = [Said(plan, rank), Said(versions(), rank), gpu]

    def combine(own: Any, child: Any) -> Any:
        pairs = zip(own[:2], child[:2], strict=True)
        both = (Said(*one).with_child(Said(*other)) for one, other in pairs)
        return [*both, own[2] and child[2]]

    tree = StoreTree(store, "plan", rank, size, timeout)
    found = tree.up(mine, combine)
    fault = difference(Said(*found[1][0]), Said(*found[1][1]))
    if rank == 0 and fault:  # said before another rank ends, and a launcher all
        print(fault, file=sys.stderr, flush=True)
    plans, packages, all_gpu = tree.down(found)
    if difference(Said(*plans), Said(*packages)):
        part(store, rank, size)
        sys.exit(2)
    return bool(all_gpu)


def versions() -> str:
    """The versions of packages on this rank that must be the same on all."""
    package = sys.modules.get("synth")  # a standalone program imports none of it
    synth = f" and synth {package.__version__}" if package else ""
    return f"torch {torch.__version__}{synth}"


def difference(plans: Said, versions: Said) -> str:
    """In words, why ranks must not start: another plan, or another version."""
    if plans.other >= 0:
        text = f"rank {plans.other} runs another plan than rank 0"
        return f"{text}; start all ranks with one program"
    if versions.other >= 0:
        return (
            f"rank {versions.other} has {versions.other_text}, but rank 0 has"
            f" {versions.text}; install one version for all ranks"
        )
    return ""


def wait_for_all(world: World) -> None:
    """A barrier of all ranks."""
    queued = transport_of(None, world.device).queued
    dist.barrier(device_ids=[world.device.index] if queued else None)


def stop(world: World) -> None:
    """Leave together. The failure detector stops first: only the exit remains."""
    if world.watch:
        world.watch.close()
    wait_for_all(world)
    world.context.process_groups.clear()  # a group must not outlive its threads
    dist.destroy_process_group()
