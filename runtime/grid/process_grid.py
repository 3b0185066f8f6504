"""Ranks on a grid: coordinates, the groups along its axes, start and stop."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from synth.runtime.grid.liveness import Watch
from synth.runtime.grid.word_counter import TrafficCounter

At = dict[str, int]  # axis -> coordinate of a rank on the grid
_groups = dict[Any, Any]()  # ranks, timeout, purpose -> what torch calls their group


def uncounted(words: int, step: int) -> None:
    """Count nothing."""


class Group(NamedTuple):
    """The ranks that differ only along some axes, and what torch calls their group."""

    handle: Any
    peers: list[At]  # their coordinates, in the order of the group
    me: int  # the index of this rank among them
    record: Callable[[int, int], None] = uncounted  # received words, and their step

    def counted(self, context: TrafficCounter, phase: str, tensor: str) -> Group:
        """The same group; words received in it count for a phase and a tensor."""
        return self._replace(record=partial(context.count, phase, tensor))


class Neighbours(NamedTuple):
    """The ranks with which a rank exchanges rows."""

    at: At
    peers: list[At]  # the rank itself is one of them
    grid: dict[str, int]
    record: Callable[[int], None]  # received words


class World(NamedTuple):
    """What one rank knows of the world."""

    rank: int
    size: int
    device: torch.device
    at: At | None  # None: the grid has no place for this rank
    watch: Watch | None  # None: nobody else is there


def coordinates(rank: int, grid: dict[str, int]) -> At:
    """The place of a rank on the grid; the last axis varies fastest."""
    at = {}
    for axis, parts in reversed(grid.items()):
        rank, at[axis] = divmod(rank, parts)
    return {axis: at[axis] for axis in grid}


def rank_of(at: At, grid: dict[str, int]) -> int:
    """The rank at some coordinates."""
    rank = 0
    for axis, parts in grid.items():
        rank = rank * parts + at[axis]
    return rank


def grid_size(grid: dict[str, int]) -> int:
    """Ranks on a grid."""
    size = 1
    for parts in grid.values():
        size *= parts
    return size


def peers_along(at: At, grid: dict[str, int], axes: tuple[str, ...]) -> list[At]:
    """Coordinates of the ranks that differ from `at` only along `axes`, in order."""
    peers = [at]
    for axis in axes:
        peers = [{**peer, axis: i} for peer in peers for i in range(grid[axis])]
    return peers


def neighbours_along(
    at: At, grid: dict[str, int], axes: tuple[str, ...], count: Callable[[int], None]
) -> Neighbours:
    """The ranks that differ from `at` only along `axes`."""
    return Neighbours(at, peers_along(at, grid, axes), grid, count)


def ranks_group(
    ranks: Sequence[int], timeout: float | None = None, purpose: str = ""
) -> Any:
    """The group of some ranks, made once for a purpose; its members ask in one order.

    Only they take part in making it, so the cost does not grow with the number of
    groups. `timeout` in seconds bounds every wait in it (None: torch's own limit).
    """
    know_world()
    key = tuple(sorted(ranks)), timeout, purpose
    if key not in _groups:
        _count_alike(f"synth/groups/{_groups['lives']}/{key}", key[0])
        limit = None if timeout is None else datetime.timedelta(seconds=timeout)
        _groups[key] = dist.new_group(
            list(key[0]), limit, use_local_synchronization=True
        )
    return _groups[key]


def know_world() -> None:
    """Forget the groups of another life of this process; all ranks must be told."""
    if _groups.get("world") is not dist.group.WORLD:
        lives = _groups.get("lives", 0) + 1
        _groups.clear()
        _groups.update(world=dist.group.WORLD, lives=lives)


def _count_alike(name: str, ranks: Sequence[int]) -> None:
    """Let ranks that are to make a group have as many groups, alone in those they lack.

    torch names a group after its ranks and the number of groups that a member has
    made: members with different numbers would wait for each other for ever.
    """
    torch_own: Any = dist.distributed_c10d
    store, me = torch_own._get_default_store(), dist.get_rank()
    made = torch_own._world.pg_names
    store.set(f"{name}/{me}", str(len(made)))
    most = max(int(store.get(f"{name}/{rank}")) for rank in ranks)
    while len(made) < most:
        dist.new_group([me], use_local_synchronization=True)


def make_groups(
    at: At,
    grid: dict[str, int],
    group_axes: dict[str, tuple[str, ...]],
    timeout: float | None = None,
) -> dict[str, Group]:
    """Name -> the group of this rank along some axes. All ranks ask in the same order.

    See `ranks_group` for `timeout`.
    """
    groups = {}
    for name, axes in group_axes.items():
        # torch numbers the members of a group by their ranks
        peers = sorted(
            peers_along(at, grid, axes), key=lambda peer: rank_of(peer, grid)
        )
        ranks = [rank_of(peer, grid) for peer in peers]
        groups[name] = Group(ranks_group(ranks, timeout), peers, peers.index(at))
    return groups


def place_at(at: At | None) -> str:
    """For people: `b=0 k=1`."""
    if at is None:
        return "no place on the grid"
    return " ".join(f"{axis}={index}" for axis, index in at.items()) or "the only place"


def launched() -> tuple[int, int, int]:
    """(rank, world size, local rank) from torchrun or srun; (0, 1, 0) without them."""
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if names[0] in os.environ and names[1] in os.environ:
            rank, size = int(os.environ[names[0]]), int(os.environ[names[1]])
            return rank, size, int(os.environ.get(names[2], "0"))
    return 0, 1, 0


def refuse(rank: int, sentence: str, code: int = 2) -> NoReturn:
    """End every rank; rank 0 says why, in one line."""
    if rank == 0:
        print(sentence, file=sys.stderr, flush=True)
    sys.exit(code)


def ranks_here(local: int) -> int:
    """Ranks on this machine as torchrun or srun tells, else those up to this one."""
    told = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_TASKS_PER_NODE")
    digits = (told or "").partition("(")[0].partition(",")[0]
    return int(digits) if digits.isdecimal() else local + 1


def start(
    plan: str, grid: dict[str, int], procs: int, timeout: float, device: str = "auto"
) -> World:
    """Join the other ranks of a program for `grid`, started with as many or `procs`.

    device: "auto" takes GPUs where every rank has one of its own, "cpu" none; "cuda"
    lets ranks share GPUs. The backend is nccl where no two ranks share one, else gloo.
    `timeout` in seconds bounds every wait. Exits with code 2 when the world has another
    size, the ranks run different plans or a rank has no GPU to share, with code 6 when
    the ranks do not find each other.
    """
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
    if size > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        refuse(rank, "set MASTER_ADDR and MASTER_PORT, as torchrun does")
    at = coordinates(rank, grid) if rank < used else None
    watch = None
    gpus = torch.cuda.device_count()
    limit = datetime.timedelta(seconds=timeout)
    url = "env://"
    try:
        if size == 1:  # nobody to meet: any port will do
            url = "tcp://127.0.0.1:0"
        store, _, _ = next(rendezvous(url, rank, size, timeout=limit))
        if size > 1:
            who = f"rank {rank} ({place_at(at)})"
            watch = Watch(rank, size, who, at is None, timeout)
        own = device != "cpu" and gpus >= ranks_here(local)
        nccl = agree(store, rank, size, plan, own)
        if device == "cuda" and not gpus:
            who = f"rank {rank} has no GPU, but --device is cuda; use --device cpu"
            print(who, file=sys.stderr, flush=True)
            sys.exit(2)
        here = torch.device("cpu")
        if nccl or device == "cuda":
            here = torch.device("cuda", local % gpus)
            torch.cuda.set_device(here)
        # bound to a device, torch would split groups off the world: a task for all
        # ranks, of which those that are idle make none
        dist.init_process_group(
            "nccl" if nccl else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=limit,
        )
        know_world()
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"rank {rank}: did not find the others: {reason}", file=sys.stderr)
        sys.exit(6)
    if watch:
        watch.begin()
    return World(rank, size, here, at, watch)


def agree(store: Any, rank: int, size: int, plan: str, gpu: bool) -> bool:
    """Whether all ranks have a GPU of their own. Exits unless all run the same plan."""
    store.set(f"plan of rank {rank}", f"{plan} {int(gpu)}")
    if rank == 0:
        told = [store.get(f"plan of rank {peer}").decode() for peer in range(size)]
        other = [peer for peer in range(size) if told[peer].split()[0] != plan]
        all_gpu = all(text.endswith("1") for text in told)
        verdict = f"no {other[0]}" if other else "gpu" if all_gpu else "cpu"
        store.set("agreed", verdict)
    agreed = store.get("agreed").decode()
    if agreed.startswith("no"):
        store.set(f"rank {rank} heard", "")
        if rank == 0:  # who may keep the store
            store.wait([f"rank {peer} heard" for peer in range(size)])
        other_rank = agreed.partition(" ")[2]
        refuse(
            rank,
            f"rank {other_rank} runs another plan than rank 0;"
            " start all ranks with one program",
        )
    return bool(agreed == "gpu")


def through_host(values: torch.Tensor) -> bool:
    """Whether messages pass through host memory: gloo sends none from a GPU."""
    return bool(values.is_cuda and dist.get_backend() != "nccl")


def wait_for_all(world: World) -> None:
    """A barrier."""
    gpu = world.device.index if dist.get_backend() == "nccl" else None
    dist.barrier(device_ids=None if gpu is None else [gpu])


def stop(world: World) -> None:
    """Leave together, with nobody watching any more: only the way out is left."""
    if world.watch:
        world.watch.close()
    wait_for_all(world)
    for key in _groups.keys() - {"lives"}:  # none outlives its threads
        del _groups[key]
    dist.destroy_process_group()
