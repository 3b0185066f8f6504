"""small: conv2d forward on 8 ranks as a grid b=2 x k=4.

Emitted by `synth emit layer.yaml --procs 8 --standalone` (plan 1bcc65013f8a).
Change the plan, not this file.

Run    torchrun --nproc-per-node=8 PROGRAM.py --check
Nest   Out[b,k,h,w] += In[b,c,h+r-1,w+s-1] * Ker[k,c,r,s]
       b=4 h=8 w=8 c=16 k=16 r=3 s=3
Form   2D: Out stays, In and Ker pass in 4 panels along c, ranks that share In at
       different ones
Owned  In: b over b, c over k
       Ker: k over k, c over x (x: b)
       Out: b over b, k over k
Moves  In 1536, Ker 288, Out 0: at most 1824 words received per rank
Memory at most 3136 words of 4 bytes per rank
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import itertools
import json
import math
import os
import select
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.rendezvous import rendezvous


class Window(NamedTuple):
    """How output rows read input rows along one dimension; unread rows do not count.

    Output row `o` reads input rows `stride·o + dilation·tap - padding`. Input row `i`
    is row `first + step·i` of the user's tensor; where the stride leaves gaps, only
    `run` of every `period` rows, counted from the first padded one, are read.
    """

    size: int  # input rows
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    first: int = 0
    step: int = 1
    period: int = 1
    run: int = 1


NAME = "small"
PLAN = "1bcc65013f8a"
DTYPE = torch.float32

P_b, P_k = 2, 4  # ranks along each axis
GRID = {"b": P_b, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 8  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("b",),  # a slice of Ker
}

N_b, N_c, N_k = 4, 16, 16  # samples, input and output channels
N_h, N_w = 8, 8  # output positions
N_r, N_s = 3, 3  # kernel taps
I_h, I_w = 8, 8  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1),
    "w": Window(I_w, N_s, padding=1),
}
STEPS = 4  # tiles of a work block along c

# The layer in its own numbers: for sample values and the check.
IN_SHAPE = (N_b, N_c, 8, 8)
KER_SHAPE = (N_k, N_c, N_r, N_s)
STRIDE, PADDING, DILATION = (1, 1), (1, 1), (1, 1)
FLOPS = 1_179_648  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 1536, "Ker": 288, "Out": 0, "halo": 0, "total": 1824}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 1536, "Ker": 288, "Out": 0, "halo": 0, "total": 1824},
}


def work(at):
    """The block of the nest that the rank at `at` works on: axis -> interval."""
    return {
        "b": cut((0, N_b), P_b, at["b"]),
        "h": (0, N_h),
        "w": (0, N_w),
        "c": (0, N_c),
        "k": cut((0, N_k), P_k, at["k"]),
    }


def tile(at, step):
    """The part of that block which one step works on."""
    block = work(at)
    # Ranks that share a slice of In are at different panels.
    first = at["k"]
    step = (first + step) % STEPS
    block["c"] = cut(block["c"], STEPS, step)
    return block


def owned_in(at):
    """The box of In[b, c, h, w] that the rank at `at` alone stores."""
    return cut((0, N_b), P_b, at["b"]), cut((0, N_c), P_k, at["k"]), (0, I_h), (0, I_w)


def touched_in(block):
    """The box of In[b, c, h, w] that a block of the nest reads."""
    return (
        block["b"],
        block["c"],
        input_rows(block["h"], WINDOWS["h"]),
        input_rows(block["w"], WINDOWS["w"]),
    )


def owned_ker(at):
    """The box of Ker[k, c, r, s] that the rank at `at` alone stores."""
    return cut((0, N_k), P_k, at["k"]), cut((0, N_c), P_b, at["b"]), (0, N_r), (0, N_s)


def touched_ker(block):
    """The box of Ker[k, c, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] that the rank at `at` alone stores."""
    return cut((0, N_b), P_b, at["b"]), cut((0, N_k), P_k, at["k"]), (0, N_h), (0, N_w)


def touched_out(block):
    """The box of Out[b, k, h, w] that a block of the nest adds to."""
    return block["b"], block["k"], block["h"], block["w"]


def gather(panel, here, carried, group, count):
    """Start to gather a panel on all ranks of a group; each sends what it carries.

    `here` holds `carried(at)` of this rank.
    """
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    mine = parts[group.me]
    own = here[within(mine, carried(group.peers[group.me]))].contiguous()
    count(volume(panel) - volume(mine))
    return all_gather(panel, parts, own, group)


def gather_rotated(panels, here, carried, group, count):
    """Start to gather on each rank of a group a panel of its own (rotation).

    panels: the panel of every rank. `here` holds `carried(at)` of this rank, which is
    part of one panel.
    """
    panel, mine = panels[group.me], carried(group.peers[group.me])
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    uses = [volume(overlap(mine, theirs)) > 0 for theirs in panels]
    count(volume(panel) - volume(parts[group.me]))
    return all_gather_rotated(panel, parts, here, uses, group)


def run(in_own, ker_own, at, groups, context):
    """This rank's share of Out: its words of the box `owned_out(at)`.

    `in_own` and `ker_own` hold the boxes `owned_in(at)` and `owned_ker(at)`, `groups`
    the group of this rank for every entry of GROUP_AXES; `context` counts what arrives.
    """
    context.check_shard("In", in_own, owned_in(at), DTYPE)
    context.check_shard("Ker", ker_own, owned_ker(at), DTYPE)

    out_box = touched_out(work(at))
    out = in_own.new_zeros(shape(out_box))

    def fetch(step):
        """Start to gather the panels that `step` waits for."""
        block, pending = tile(at, step), {}
        # All ranks along k need the same slice of In.
        group = groups["k"]
        wanted = [touched_in(tile(peer, step)) for peer in group.peers]
        count = context.counter("loop", step, "In")
        pending["In"] = gather_rotated(wanted, in_own, owned_in, group, count)
        # All ranks along x need the same slice of Ker.
        panel, count = touched_ker(block), context.counter("loop", step, "Ker")
        pending["Ker"] = gather(panel, ker_own, owned_ker, groups["x"], count)
        return pending

    panels, pending = {}, fetch(0)

    for step in range(STEPS):
        block = tile(at, step)
        wait_gathers(pending, panels)
        if step + 1 < STEPS:
            pending = fetch(step + 1)  # travels while this step computes
        out += convolve(F.conv2d, panels["In"], panels["Ker"], block, WINDOWS)
        context.check_finite("Out", step, out)

    return out


# What follows is the same in every program: set-up, sample values, checks, reports.


REMEMBERED = 2**14  # answers per function: a step asks the same questions every time
Interval = tuple[int, int]
Box = tuple[Interval, ...]


@lru_cache(REMEMBERED)
def cut(whole: Interval, parts: int, index: int) -> Interval:
    """Part `index` of `parts`, as torch.tensor_split cuts: longer parts come first."""
    low, high = whole
    size, longer = divmod(high - low, parts)
    start = low + index * size + min(index, longer)
    return start, start + size + (1 if index < longer else 0)


def intersect(one: Interval, other: Interval) -> Interval:
    """The positions in both intervals."""
    low = max(one[0], other[0])
    return low, max(low, min(one[1], other[1]))


@lru_cache(REMEMBERED)
def overlap(one: Box, other: Box) -> Box:
    """The words in both boxes."""
    return tuple(intersect(a, b) for a, b in zip(one, other, strict=True))


@lru_cache(REMEMBERED)
def shape(box: Box) -> tuple[int, ...]:
    """Extent of a box along each dimension."""
    return tuple(high - low for low, high in box)


@lru_cache(REMEMBERED)
def volume(box: Box) -> int:
    """TrafficCounter in a box."""
    return math.prod(shape(box))


@lru_cache(REMEMBERED)
def within(box: Box, frame: Box) -> tuple[slice, ...]:
    """The slices that pick `box` out of a tensor that holds `frame`."""
    pairs = zip(box, frame, strict=True)
    return tuple(slice(b[0] - f[0], b[1] - f[0]) for b, f in pairs)


def consecutive(box: Box, frame: Box) -> bool:
    """Whether the words of `box` lie one after the other in a tensor over `frame`."""
    sizes = shape(box)
    first = next((dim for dim, size in enumerate(sizes) if size != 1), len(sizes))
    return box[first + 1 :] == frame[first + 1 :]


@lru_cache(REMEMBERED)
def input_rows(rows: Interval, window: Window) -> Interval:
    """The input rows that a block of output rows reads; padding is not read."""
    low, high = rows
    if high <= low:
        return 0, 0
    first = max(0, window.stride * low - window.padding)
    last = window.stride * (high - 1) + window.dilation * (window.kernel - 1) + 1
    last = min(window.size, last - window.padding)
    return (first, last) if first < last else (0, 0)


@lru_cache(REMEMBERED)
def zeros_around(rows: Interval, window: Window) -> tuple[int, int]:
    """Zeros that a block of output rows sees before and after the rows it reads."""
    low, high = rows
    begin = window.stride * low - window.padding
    frame = window.stride * (high - low - 1) + window.dilation * (window.kernel - 1) + 1
    first, last = input_rows(rows, window)
    if first == last:
        return frame, 0
    return first - begin, begin + frame - last


def source_rows(rows: Interval, window: Window) -> list[int]:
    """The rows of the user's tensor that the input rows of an interval are."""
    found = []
    for row in range(*rows):
        whole, rest = divmod(row + window.padding, window.run)
        if window.period == window.run:
            whole, rest = 0, row
        found.append(window.first + window.step * (whole * window.period + rest))
    return found


class TrafficCounter:
    """Counts the words that this rank receives: (phase, step, tensor) -> words.

    finite: check shards and sums for NaN and infinity, and raise `FloatingPointError`
        with the tensor and the step.
    """

    def __init__(self, finite: bool = False) -> None:
        self.finite = finite
        self.steps: dict[tuple[str, int, str], int] = {}
        self.started, self.latest = 0, "no communication yet"
        self.prefix, self.whole = "", self

    def for_pass(self, pass_: str) -> TrafficCounter:
        """The same counter for one pass of a step: its phases begin with that name."""
        counter = TrafficCounter(self.finite)
        counter.steps, counter.whole = self.steps, self.whole
        counter.prefix = f"{pass_} "
        return counter

    def enter(self, stage: str) -> None:
        """Record what this rank starts; the failure detector reports it."""
        self.whole.started, self.whole.latest = self.whole.started + 1, stage

    def counter(self, phase: str, step: int, tensor: str) -> Callable[[int], None]:
        """A function that adds received words to one entry."""
        phase = self.prefix + phase
        self.enter(f"{tensor}, {phase} step {step}")

        def count(words: int) -> None:
            key = phase, step, tensor
            if words:
                self.steps[key] = self.steps.get(key, 0) + words

        return count

    def check_shard(
        self, tensor: str, values: torch.Tensor, box: Box, dtype: torch.dtype
    ) -> None:
        """Raise `ValueError` unless `values` have the box's shape and this dtype."""
        if values.shape != shape(box) or values.dtype != dtype:
            raise ValueError(
                f"{tensor} is {tuple(values.shape)} of {values.dtype}, but this rank"
                f" owns {shape(box)} of {dtype}; give every rank its own box"
            )
        self.require_finite(tensor, values, "as it was given")

    def check_finite(self, tensor: str, step: int, values: torch.Tensor) -> None:
        """Check the sums of a rank after a step for NaN and infinity."""
        self.require_finite(tensor, values, f"after {self.prefix}loop step {step}")

    def require_finite(self, tensor: str, values: torch.Tensor, when: str) -> None:
        """Raise `FloatingPointError` for NaN or infinity, if checks are on."""
        if not self.finite or bool(torch.isfinite(values).all()):
            return
        count = int((~torch.isfinite(values)).sum())
        raise FloatingPointError(
            f"{tensor} has NaN or infinity in {count} of {values.numel()} words {when}"
        )

    def received(self) -> dict[str, int]:
        """Words received per tensor, as halo rows (fetched or returned), in total."""
        words = dict.fromkeys(("In", "Ker", "Out", "halo", "total"), 0)
        for (phase, _, tensor), received in self.steps.items():
            words[tensor] += received
            words["total"] += received
            halo = phase.endswith(("halo", "return"))
            words["halo"] += received if halo else 0
        return words


At = dict[str, int]  # axis -> coordinate of a rank on the grid
_groups = dict[Any, Any]()  # ranks, timeout, purpose -> what torch calls their group


class Group(NamedTuple):
    """The ranks that differ only along some axes, and what torch calls their group."""

    handle: Any
    peers: list[At]  # their coordinates, in the order of the group
    me: int  # the index of this rank among them


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


def padded(sizes: Sequence[int], around: Sequence[int]) -> list[int]:
    """Extents with some zeros around, which are as `F.pad` takes them."""
    extents = list(sizes)
    for place, zeros in enumerate(around):
        extents[-1 - place // 2] += zeros
    return extents


def clear_around(whole: torch.Tensor, around: Sequence[int]) -> torch.Tensor:
    """Write those zeros into a tensor; what they are around is returned."""
    inner = whole
    for place, (low, high) in enumerate(zip(around[::2], around[1::2], strict=True)):
        dim = whole.dim() - 1 - place
        inner.narrow(dim, 0, low).zero_()
        inner.narrow(dim, inner.shape[dim] - high, high).zero_()
        inner = inner.narrow(dim, low, inner.shape[dim] - low - high)
    return inner


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


LARGE = 2**18  # bytes of a piece that goes as a message of its own


class PendingGather(NamedTuple):
    """A panel on its way: the parts that ranks of a group carry, and their values."""

    panel: Box
    parts: Sequence[Box]
    pieces: list[torch.Tensor]
    whole: list[torch.Tensor]  # what all pieces are parts of, where they fit together
    requests: list[Any]
    taken: list[torch.Tensor]  # those pieces of which the room is free afterwards


def all_gather(
    panel: Box, parts: Sequence[Box], own: torch.Tensor, group: Group
) -> PendingGather:
    """Start to bring a panel together on all ranks of a group.

    parts: for each rank of the group the box that it carries of the panel, maybe empty.
    own: the values of this rank's part.
    """
    carriers = [rank for rank, part in enumerate(parts) if volume(part)]
    whole, fits = list[torch.Tensor](), all(consecutive(part, panel) for part in parts)
    taken: list[torch.Tensor] = []
    if len(carriers) == 1 or through_host(own):  # gloo broadcasts from a GPU, too
        pieces = _places(parts, own, group, taken)
        requests = [
            dist.broadcast(
                pieces[source], group=group.handle, group_src=source, async_op=True
            )
            for source in carriers
        ]
    elif native(group) and len({volume(part) for part in parts}) == 1:
        flat = own.new_empty(len(parts) * own.numel())
        call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        requests = [call(flat, own.view(-1), group=group.handle, async_op=True)]
        pieces, whole = _rows(flat, panel, parts, fits)
    elif native(group) or large(own, parts):
        pieces, whole = _room(panel, parts, own, group, taken)
        requests = _to_each_other([own] * len(parts), pieces, group)
    else:
        words = [volume(part) for part in parts]
        flat, leave = own.new_empty(sum(words)), [own.numel()] * len(parts)
        sent = own.flatten().repeat(len(parts))
        requests = [_at_once(flat, sent, words, leave, group)]
        pieces, whole = _rows(flat, panel, parts, fits)
    return PendingGather(panel, parts, pieces, whole, requests, taken)


def all_gather_rotated(
    panel: Box,
    parts: Sequence[Box],
    own: torch.Tensor,
    wanted: Sequence[bool],
    group: Group,
) -> PendingGather:
    """Start to bring each rank of a group a panel of its own.

    parts: for each rank the box that it carries of this rank's panel, maybe empty.
    own: this rank's part of a panel; `wanted` says for each rank whether it uses that.
    """
    own = own.contiguous()
    none = own.new_empty(0)
    leave = [own if used else none for used in wanted]
    mine = own if volume(parts[group.me]) else none.view(shape(parts[group.me]))
    taken = list[torch.Tensor]()
    if through_host(own):
        words = [volume(part) for part in parts]
        flat, sent = own.new_empty(sum(words)), torch.cat([p.flatten() for p in leave])
        sizes = [piece.numel() for piece in leave]
        requests = [_at_once(flat, sent, words, sizes, group)]
        pieces, whole = _rows(flat, panel, parts, fits=False)
    else:
        pieces, whole = _room(panel, parts, mine, group, taken)
        requests = _to_each_other(leave, pieces, group)
    return PendingGather(panel, parts, pieces, whole, requests, taken)


def _room(
    panel: Box,
    parts: Sequence[Box],
    own: torch.Tensor,
    group: Group,
    taken: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Where the parts of a panel arrive, in their places if they fit; the own is there.

    A single part is the panel. Room that is free afterwards is noted in `taken`.
    """
    filled = [part for part in parts if volume(part)]
    if len(filled) < 2 or not all(consecutive(part, panel) for part in filled):
        return _places(parts, own, group, taken), []
    whole = own.new_empty(shape(panel))
    pieces = [whole[within(part, panel)] for part in parts]
    pieces[group.me].copy_(own)
    return pieces, [whole]


def _rows(
    flat: torch.Tensor, panel: Box, parts: Sequence[Box], fits: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parts, one behind the other in a buffer, and the panel if they are it."""
    rows = torch.split(flat, [volume(part) for part in parts])
    pieces = [row.view(shape(part)) for row, part in zip(rows, parts, strict=True)]
    in_order = fits and list(parts) == sorted(parts)
    return pieces, [flat.view(shape(panel))] if in_order else []


def large(values: torch.Tensor, parts: Sequence[Box]) -> bool:
    """Whether pieces go as messages of their own; the same on all ranks of a group."""
    return max(map(volume, parts)) * values.element_size() >= LARGE


def _places(
    parts: Sequence[Box], own: torch.Tensor, group: Group, taken: list[torch.Tensor]
) -> list[torch.Tensor]:
    """The own piece, and room for those of the others, which is noted in `taken`."""
    pieces = []
    for rank, part in enumerate(parts):
        pieces.append(own if rank == group.me else Room.take(own, *shape(part)))
        if rank != group.me:
            taken.append(pieces[-1])
    return pieces


def _at_once(
    arriving: torch.Tensor,
    sent: torch.Tensor,
    come: Sequence[int],
    leave: Sequence[int],
    group: Group,
) -> Any:
    """One all-to-all of so many words from, and to, each rank of the group."""
    ends = {"group": group.handle, "async_op": True}
    return dist.all_to_all_single(arriving, sent, come, leave, **ends)


def _to_each_other(
    leave: Sequence[torch.Tensor], come: Sequence[torch.Tensor], group: Group
) -> list[Any]:
    """Send every other rank of the group its piece, get one from each."""
    ranks = len(come)
    calls = [
        dist.P2POp(call, pieces[rank], group=group.handle, group_peer=rank)
        for call, pieces, way in ((dist.irecv, come, -1), (dist.isend, leave, 1))
        for step in range(1, ranks)  # all start with another partner
        for rank in [(group.me + way * step) % ranks]
        if pieces[rank].numel()
    ]
    return dist.batch_isend_irecv(calls) if calls else []


def wait_gather(coming: PendingGather) -> torch.Tensor:
    """Wait for the pieces of a panel and put them together; `coming` is then empty."""
    panel, parts, pieces, wholes, requests, _ = coming
    for request in requests:
        request.wait()
    requests.clear()
    whole = wholes.pop() if wholes else None
    if whole is None and panel in parts:
        whole = pieces[parts.index(panel)]
    if whole is None:
        whole = pieces[0].new_empty(shape(panel))
        for part, values in zip(parts, pieces, strict=True):
            whole[within(part, panel)] = values
    Room.leave(*(piece for piece in coming.taken if piece is not whole))
    pieces.clear()
    coming.taken.clear()
    return whole


def wait_gathers(
    coming: dict[str, PendingGather], panels: dict[str, torch.Tensor]
) -> None:
    """Wait for the panels on their way; each takes the place of the one before."""
    while coming:
        tensor, panel = coming.popitem()
        panels.pop(tensor, None)
        panels[tensor] = wait_gather(panel)


def native(group: Group) -> bool:
    """Whether even pieces go by the backend's own collectives."""
    return bool(dist.get_backend(group.handle) == "nccl")


TICK = 0.5  # seconds between two signs of life
SILENCE = 2.0  # seconds without one that make a rank lost once a run breaks off


class Watch:
    """A thread that tells the other ranks where this one is, and ends it with code 6.

    It ends when the launcher is gone or sends a signal, and when another rank gives no
    sign of life; the main thread may hang in a collective meanwhile. Whoever ends says
    which ranks are lost or behind, and where they were last.
    """

    def __init__(
        self, rank: int, size: int, who: str, idle: bool, timeout: float
    ) -> None:
        self.rank, self.who, self.idle = rank, who, idle
        self.timeout = timeout
        self.traffic = TrafficCounter()
        self.ticks, self.state = 0, "here"
        self.parent, self.lock = os.getppid(), threading.Lock()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.keys = [f"sign of rank {peer} in {attempt}" for peer in range(size)]
        self.first_key = f"first fault in {attempt}"
        self.store = dist.TCPStore(  # type: ignore[attr-defined,unused-ignore]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=datetime.timedelta(seconds=timeout),
            wait_for_workers=False,
        )
        self.own = socket.gethostname(), os.getpid(), birth(os.getpid())
        self.sign()

    def begin(self) -> None:
        """Start watching, and take over what would end this rank without a word."""
        self.bell, self.ring = os.pipe()
        os.set_blocking(self.ring, False)
        signal.set_wakeup_fd(self.ring)  # rings even while the main thread hangs
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        sys.excepthook = lambda kind, error, trace: self.end(reason_of(error))
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop watching: only the way out is left."""
        with self.lock:
            self.state = "done"
            self.sign()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.write(self.ring, b"\0")
        self.thread.join()  # in the store as the process ends, it would abort it

    def sign(self) -> None:
        """Give a sign of life."""
        self.ticks += 1
        place = 0 if self.idle else self.traffic.started, self.traffic.latest
        told = [self.ticks, self.state, self.who, *place, *self.own]
        self.store.set(self.keys[self.rank], json.dumps(told))

    def signs(self) -> list[list[Any]]:
        """The latest sign of every rank."""
        return [json.loads(told) for told in self.store.multi_get(self.keys)]

    def look(self) -> None:
        """What the thread does: sign, and look for what ends this rank."""
        since, started = time.monotonic(), -1
        heard: list[
            tuple[int, float]
        ] = []  # by rank: its ticks, and when they were new
        while self.state == "here":
            rung, _, _ = select.select([self.bell], [], [], TICK)
            if self.state != "here":
                return
            if rung:
                number = os.read(self.bell, 1)[0]
                self.end(f"stopped by {signal.Signals(number).name}")
            if os.getppid() != self.parent:
                self.end("its launcher is gone")
            try:
                with self.lock:
                    self.sign()
                now = time.monotonic()
                if started != self.traffic.started:
                    since, started, heard = now, self.traffic.started, []
                if now - since < self.timeout / 2:  # others are asked when all is slow
                    continue
                signs = self.signs()
            except RuntimeError:
                if self.state == "here":
                    self.end("the launcher or rank 0, who keeps the store, is gone")
                return
            heard = heard or [(0, now)] * len(signs)
            heard = [
                old if sign[0] == old[0] or sign[1] != "here" else (sign[0], now)
                for sign, old in zip(signs, heard, strict=True)
            ]
            if any(
                now - when > self.timeout / 2 and sign[1] == "here"
                for sign, (_, when) in zip(signs, heard, strict=True)
            ):
                self.end(f"no sign of life from every rank in {self.timeout:g} s")

    def end(self, reason: str) -> NoReturn:
        """Say why this rank ends and who is to blame, and end it at once."""
        with self.lock:  # whoever comes second waits for the end
            self.state, latest = "failed", self.traffic.latest
            told = f"{self.who}: failed, last started {latest}: {reason}"
            try:
                blamed = self.blame(f"{self.who}, last started {latest}: {reason}")
            except RuntimeError:  # the store is gone
                blamed = ""
            say(told + blamed, sys.stderr)
            os._exit(6)

    def blame(self, own: str) -> str:
        """The ranks that are lost, else those behind, else the first that failed."""
        self.sign()
        reached = self.traffic.started
        first = self.store.compare_set(self.first_key, "", own).decode()
        before, begin = self.signs(), time.monotonic()
        lost = before
        while lost and time.monotonic() - begin < SILENCE:
            time.sleep(0.1)
            pairs = list(zip(before, self.signs(), strict=True))
            lost = [new for old, new in pairs if old[0] == new[0] and new[1] == "here"]
        for sign in lost:
            end_lost(*sign[5:])
        signs = self.signs()
        least = min((sign[3] for sign in signs if sign[3]), default=0)
        late = [
            sign for sign in signs if sign[1] == "here" and sign[3] == least < reached
        ]
        named = [f"; {who} is lost, last seen at {at}" for _, _, who, _, at, *_ in lost]
        if not named:
            named = [f"; {who} is late, still at {at}" for _, _, who, _, at, *_ in late]
        if not named and first != own:
            named = [f"; the first to fail was {first}"]
        return "".join(named[:8])


def birth(pid: int) -> str:
    """When a process of this machine began, so that no other is taken for it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def end_lost(host: str, pid: int, began: str) -> None:
    """End a lost rank of a run that breaks off, where it is on this machine."""
    if host == socket.gethostname() and began and began == birth(pid):
        os.kill(pid, signal.SIGKILL)


def reason_of(error: BaseException) -> str:
    """One line about an error."""
    text = (str(error).strip().splitlines() or [""])[0]
    text = text.partition(". This is typically")[
        0
    ]  # gloo's guess, after its source line
    text = text.partition("] ")[2] if text.startswith("[/") else text
    if text and isinstance(error, RuntimeError | ValueError | OSError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def say(line: str, to: Any = None) -> None:
    """One line, at once, in one piece even when many ranks print."""
    stream = to or sys.stdout
    stream.write(line + "\n")
    stream.flush()


Form = Callable[[], torch.Tensor]
TRIES = 3  # timed calls per form; the least counts, so the first may warm up
TRIALS = 4 * TRIES  # calls after which all forms of a kernel are timed
SLOW = 3.0  # times the best so far: a form that was so slow is not tried again
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
Key = tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype]  # pass, In, Ker


class Tuning:
    """What has been timed: kernel -> form -> seconds; `on` where it was asked for."""

    on = False
    times: ClassVar[dict[Key, dict[str, list[float]]]] = {}


def tune(on: bool = True) -> None:
    """From now on the local kernels of this process are timed in several forms.

    The first calls of each kernel try them, all later ones take the fastest.
    """
    Tuning.on = on


class Fit(NamedTuple):
    """How a block's rows are given to torch: zeros to write out, what torch adds."""

    zeros: list[int]  # as `F.pad` takes them, the last dimension first; often none
    padding: list[int]
    stride: list[int]
    dilation: list[int]


def fastest(key: Key, forms: dict[str, Form], device: torch.device) -> torch.Tensor:
    """The result of one of the forms: each is timed in turn, then the best is used."""
    times = Tuning.times.setdefault(key, {name: [] for name in forms})
    rarest = min(hopeful(times), key=lambda name: len(times[name]))
    if len(times[rarest]) >= TRIES:
        return forms[min(forms, key=lambda name: min(times[name]))]()
    begin = clock(device)
    result = forms[rarest]()
    times[rarest].append(clock(device) - begin)
    return result


def clock(device: torch.device) -> float:
    """Seconds; where one thread computes its own, as ranks may outnumber the cores."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time() if alone else time.perf_counter()


def hopeful(times: dict[str, list[float]]) -> list[str]:
    """The forms that may still turn out to be the fastest: all that were never slow."""
    least = min((min(each) for each in times.values() if each), default=0.0)
    return [n for n, each in times.items() if not each or min(each) <= SLOW * least]


def chosen() -> list[str]:
    """For people: the form of every kernel that was timed to the end."""
    lines = []
    for key, times in Tuning.times.items():
        if all(len(times[name]) >= TRIES for name in hopeful(times)):
            order = sorted(times, key=lambda name: min(times[name]))
            shown = (f"{name} {min(times[name]) * 1e3:.2f} ms" for name in order)
            name, wide, ker, dtype = key
            lines.append(
                f"{name} {list(wide)} * {list(ker)} {dtype}: {', '.join(shown)}"
            )
    return lines


def windows_of(wide: torch.Tensor, fit: Fit, taps: tuple[int, ...]) -> torch.Tensor:
    """In as its windows, [b, c, *rows, *taps]; a view but for the padding."""
    if any(fit.padding):
        wide = F.pad(wide, [n for n in reversed(fit.padding) for _ in range(2)])
    rows = []
    for dim, tap in enumerate(taps):
        frame = fit.dilation[dim] * (tap - 1) + 1
        rows.append((wide.shape[dim + 2] - frame) // fit.stride[dim] + 1)
    flat, lines = wide.stride()[:2], wide.stride()[2:]
    along = [line * step for line, step in zip(lines, fit.stride, strict=True)]
    inside = [line * step for line, step in zip(lines, fit.dilation, strict=True)]
    sizes = *wide.shape[:2], *rows, *taps
    return wide.as_strided(sizes, (*flat, *along, *inside))


def product(wide: torch.Tensor, ker: torch.Tensor, fit: Fit) -> torch.Tensor:
    """Out by one matrix product over the windows; one group."""
    dims = len(fit.stride)
    windows = windows_of(wide, fit, tuple(ker.shape[2:]))
    summed = [1, *range(2 + dims, 2 + 2 * dims)], list(range(1, 2 + dims))
    out: torch.Tensor = torch.tensordot(windows, ker, summed)
    return out.movedim(-1, 1).contiguous()


def reordered(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in channels-last order."""
    return tensor.contiguous(memory_format=LAST[tensor.dim() - 2])


def overlooked(wide: torch.Tensor, groups: int) -> bool:
    """Whether torch would take its plain 3-D kernel, several times as slow as oneDNN's.

    So it does on a CPU for one sample of at most 20480 words in its first dimensions.
    """
    return (
        wide.dim() == 5
        and wide.device.type == "cpu"
        and wide.dtype == torch.float32
        and groups == 1
        and math.prod(wide.shape[:4]) <= 20480
        and wide.shape[0] == 1
        and bool(torch.backends.mkldnn.enabled)
    )


def fits_in_memory(wide: torch.Tensor, taps: tuple[int, ...]) -> bool:
    """Whether the windows may be written out: at most a GiB."""
    return wide.numel() * wide.element_size() * math.prod(taps) <= 2**30


TILE = 4
POINTS = 6
OF_IN = (  # 6 rows of In at 6 points
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
OF_KER = (  # 3 taps at 6 points
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
TO_OUT = (  # 4 positions of Out from 6 points
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


def at_points(
    matrix: Sequence[Sequence[float]], dims: int, like: torch.Tensor
) -> torch.Tensor:
    """The transform along all dimensions at once."""
    one = torch.tensor(matrix, dtype=like.dtype, device=like.device)
    whole = one
    for _ in range(dims - 1):
        whole = torch.kron(whole, one)
    return whole


def tiles_of(rows: list[int]) -> list[int]:
    """Tiles along each dimension of Out; the last one may reach beyond its end."""
    return [-(-n // TILE) for n in rows]


def tile_rows(
    values: torch.Tensor, before: list[int], tiles: list[int], width: int
) -> torch.Tensor:
    """The `width` rows per dimension that each tile begins with: [rows, n·tiles, c].

    values: [n, c, *rows]; zeros stand `before` it in each dimension, and behind it as
    far as tiles reach.
    """
    n, channels, *sizes = values.shape
    around = [TILE * t + width - TILE for t in tiles]
    wide = Room.take(values, n, *around, channels).zero_()
    inner = [slice(low, low + size) for low, size in zip(before, sizes, strict=True)]
    wide[(slice(None), *inner)] = values.movedim(1, -1)
    starts = list(itertools.product(range(width), repeat=len(tiles)))
    rows = Room.take(values, len(starts), n, *tiles, channels)
    for place, start in enumerate(starts):
        lines = zip(start, tiles, strict=True)
        every = [slice(first, first + TILE * (t - 1) + 1, TILE) for first, t in lines]
        rows[place] = wide[(slice(None), *every)]
    Room.leave(wide)
    return rows.view(len(starts), -1, channels)


def transformed(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The transform of [rows, ...] to [points, ...], or from points back.

    The room of `values` is free afterwards.
    """
    out = Room.take(values, len(matrix), values[0].numel())
    torch.mm(matrix, values.view(len(values), -1), out=out)
    Room.leave(values)
    return out.view(-1, *values.shape[1:])


def multiplied(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """One matrix product per point; the room of both is free afterwards."""
    out = Room.take(one, len(one), one.shape[1], other.shape[2])
    torch.bmm(one, other, out=out)
    Room.leave(one, other)
    return out


def joined(points: torch.Tensor, n: int, rows: list[int]) -> torch.Tensor:
    """[n, k, *rows] from the sums of all tiles at all points, [points, n·tiles, k]."""
    dims, tiles, channels = len(rows), tiles_of(rows), points.shape[-1]
    out = transformed(at_points(TO_OUT, dims, points), points)
    order, sizes = [dims, 2 * dims + 1], [n, channels]
    for dim, count in enumerate(tiles):
        order += [dims + 1 + dim, dim]
        sizes += [count, TILE]
    whole = points.new_empty(sizes)
    whole.copy_(out.view(*[TILE] * dims, n, *tiles, channels).permute(order))
    Room.leave(out)
    whole = whole.view(n, channels, *(TILE * count for count in tiles))
    crop = slice(None), slice(None), *map(slice, rows)
    return whole[crop].contiguous()


def product_of(
    values: torch.Tensor,
    before: list[int],
    ker: torch.Tensor,
    rows: list[int],
    flip: bool,
) -> torch.Tensor:
    """Ker [k, c, *3] over values; with `flip` the taps turned round and k summed."""
    dims = len(rows)
    lines = tile_rows(values, before, tiles_of(rows), POINTS)
    points = transformed(at_points(OF_IN, dims, values), lines)
    of_ker = at_points(OF_KER, dims, values)
    of_ker = of_ker.flip(1) if flip else of_ker
    pairs = ker.shape[0] * ker.shape[1]
    taps = Room.take(values, len(of_ker), pairs)
    torch.mm(of_ker, ker.reshape(pairs, -1).t(), out=taps)
    taps = taps.view(-1, *ker.shape[:2])
    sums = multiplied(points, taps if flip else taps.mT)
    return joined(sums, values.shape[0], rows)


def winograd(wide: torch.Tensor, ker: torch.Tensor, padding: list[int]) -> torch.Tensor:
    """Out [n, k, *rows] of In [n, c, *rows] and Ker [k, c, 3, ...]; stride 1."""
    rows = [n + 2 * p - 2 for n, p in zip(wide.shape[2:], padding, strict=True)]
    return product_of(wide, padding, ker, rows, False)


def suits_winograd(
    wide: torch.Tensor, ker: Sequence[int], fit: Fit, groups: int
) -> bool:
    """Whether F(4, 3) is for a convolution, and its scratch takes at most a GiB.

    wide: In [n, c, *rows], or dOut of the same sizes but for the channels and padding.
    ker: the sizes of Ker. cuDNN has its own.
    """
    k, c, *taps = ker
    rows = (n + 2 * p for n, p in zip(wide.shape[2:], fit.padding, strict=True))
    tiles = wide.shape[0] * math.prod(tiles_of(list(rows)))
    words = POINTS ** len(taps) * (tiles * (2 * k + 2 * c) + k * c)
    return (
        wide.device.type == "cpu"
        and wide.dtype in (torch.float32, torch.float64)
        and groups == 1
        and {*taps} == {3}
        and {*fit.stride, *fit.dilation} == {1}
        and all(0 <= p <= 2 for p in fit.padding)
        and words * wide.element_size() <= 2**30
    )


def convolve(
    conv: Callable[..., torch.Tensor],
    in_tile: torch.Tensor,
    ker_tile: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
) -> torch.Tensor:
    """Out of one block, from exactly the input rows that it reads.

    `conv` is torch's conv1d, conv2d or conv3d. The rows may have the zeros of
    `explicit_zeros` around them.
    """
    dims = len(windows)
    rows = (high - low for low, high in (block[axis] for axis in windows))
    out_shape = (*in_tile.shape[: -dims - 1], ker_tile.shape[-dims - 2], *rows)
    if not (in_tile.numel() and ker_tile.numel() and all(out_shape)):
        return in_tile.new_zeros(out_shape)
    fit = fitted(block, windows)
    wide, copied = surrounded(flat(in_tile, dims), block, windows, fit.zeros)
    out = output(conv, wide, ker_tile, fit)
    Room.leave(*copied)
    return out.reshape(out_shape)


def output(
    conv: Callable[..., torch.Tensor],
    wide: torch.Tensor,
    ker: torch.Tensor,
    fit: Fit,
) -> torch.Tensor:
    """torch's convolution, or the form of it that was the fastest."""
    dims, groups = len(fit.stride), 1
    if ker.dim() == dims + 3:
        groups, ker = ker.shape[0], ker.flatten(0, 1)

    def direct() -> torch.Tensor:
        steps = fit.padding, fit.stride, fit.dilation, groups
        if overlooked(wide, groups):
            return torch.mkldnn_convolution(wide, ker, None, *steps)
        padding, stride, *rest = steps
        return conv(wide, ker, None, stride, padding, *rest)

    if not Tuning.on:
        return direct()
    forms: dict[str, Form] = {"direct": direct}
    if dims in LAST:
        forms["channels-last"] = lambda: conv(
            reordered(wide),
            reordered(ker),
            None,
            fit.stride,
            fit.padding,
            fit.dilation,
            groups,
        ).contiguous()
    if groups == 1 and fits_in_memory(wide, tuple(ker.shape[2:])):
        forms["unfold"] = lambda: product(wide, ker, fit)
    if suits_winograd(wide, ker.shape, fit, groups):
        forms["winograd"] = lambda: winograd(wide, ker, fit.padding)
    key = "forward", tuple(wide.shape), tuple(ker.shape), wide.dtype
    return fastest(key, forms, wide.device)


def fitted(block: dict[str, Interval], windows: dict[str, Window]) -> Fit:
    """The zeros around a block; written out along axes where `padding=` cannot."""
    around = [zeros_around(block[axis], window) for axis, window in windows.items()]
    stride = [window.stride for window in windows.values()]
    dilation = [window.dilation for window in windows.values()]
    zeros, padding = [], list[int]()
    for (before, after), step in zip(around, stride, strict=True):
        even = 0 <= before - after < step
        padding.append(before if even else 0)
        zeros.append((0, 0) if even else (before, after))
    written = [n for pair in reversed(zeros) for n in pair]
    return Fit(written if any(written) else [], padding, stride, dilation)


def surrounded(
    values: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
    zeros: list[int],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A block's rows with zeros around them; what of that is in `Room`, for a while.

    A copy, unless there are none or they are there already.
    """
    reads = [input_rows(block[axis], window) for axis, window in windows.items()]
    rows = [high - low for low, high in reads]
    if min(zeros, default=0) < 0:  # rows that nothing reads are cut off
        return F.pad(values, zeros), []
    if not zeros or list(values.shape[-len(rows) :]) == padded(rows, zeros):
        return values, []
    wide = Room.take(values, *padded(values.shape, zeros))
    clear_around(wide, zeros).copy_(values)
    return wide, [wide]


def flat(tile: torch.Tensor, dims: int) -> torch.Tensor:
    """In or Out as torch has it: groups and their channels are one dimension."""
    return tile.flatten(1, 2) if tile.dim() == dims + 3 else tile


HALF = torch.float16, torch.bfloat16


def sample(
    tensor: str,
    whole: Sequence[int],
    positions: Sequence[Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
    dims: int = 0,
) -> torch.Tensor:
    """Values of a tensor of shape `whole` at the given positions along each dimension.

    Whole numbers from -4 to 4, a hash of an element's place in the whole tensor: the
    same on every rank and device, and small enough that sums of products are exact.
    Half types: 1 or -1, and 0 where `kept` says so; `dims` dimensions are spatial.
    """
    index = torch.zeros((), dtype=torch.int64, device=device)
    for extent, places in zip(whole, positions, strict=True):
        along = torch.tensor(list(places), dtype=torch.int64, device=device)
        index = index.unsqueeze(-1) * extent + along
    mixed = (index % 2**31 + sum(map(ord, tensor))) * 1103515245 % 2**31
    mixed = (mixed ^ (mixed >> 15)) * 747796405 % 2**31
    mixed = mixed ^ (mixed >> 13)
    if dtype not in HALF:
        return (mixed % 9 - 4).to(dtype)
    signs = mixed % 2 * 2 - 1
    if tensor != "In":
        most = round(2 / torch.finfo(dtype).eps)
        signs *= kept(tensor, whole, positions, most, dims).to(device)
    return signs.to(dtype)


def kept(
    tensor: str,
    whole: Sequence[int],
    positions: Sequence[Sequence[int]],
    most: int,
    dims: int,
) -> torch.Tensor:
    """Where Ker and dOut are not 0, so that no sum has more than `most` terms.

    Whole numbers up to `most` are exact in the type, and so is every partial sum, in
    any order: Ker keeps at most `most` words of an input and of an output channel,
    which bounds the terms of Out and dIn, and dOut at most `most` of a channel, which
    bounds those of dKer. One word in `apart` of a numbered line of words is kept.
    """
    lead = len(whole) - dims
    inner = math.prod(whole[lead:])  # taps of Ker, positions of dOut
    outer = max(whole[lead - 2 : lead]) if tensor == "Ker" else whole[0]
    apart = max(1, -(-outer * inner // most))
    while tensor == "Ker" and math.gcd(apart, inner) > 1:  # else some taps get none
        apart += 1
    weights = [math.prod(whole[dim + 1 :]) for dim in range(lead, len(whole))]
    if tensor == "Ker":  # a channel is the line of the other channel's taps
        weights = [inner] * lead + weights
    else:  # a channel is the line of all samples, and begins elsewhere than the last
        weights = [inner, *[round(apart * 0.618)] * (lead - 1), *weights]
    place = torch.zeros((), dtype=torch.int64)
    for weight, places in zip(weights, positions, strict=True):
        along = torch.tensor(list(places), dtype=torch.int64) * weight
        place = place.unsqueeze(-1) + along
    return place % apart == 0


def sample_box(
    tensor: str,
    whole: Sequence[int],
    box: Box,
    dtype: torch.dtype,
    device: torch.device,
    windows: Sequence[Window] = (),
    dims: int = 0,
) -> torch.Tensor:
    """The sample values of a box whose last dimensions count what `windows` read.

    dims: as in `sample`.
    """
    plain = len(box) - len(windows)
    positions: list[Sequence[int]] = [range(*interval) for interval in box[:plain]]
    rows = zip(box[plain:], windows, strict=True)
    positions += [source_rows(interval, window) for interval, window in rows]
    return sample(tensor, whole, positions, dtype, device, dims)


def reference(
    conv: Callable[..., torch.Tensor] | None,
    in_shape: Sequence[int],
    ker_shape: Sequence[int],
    out_box: Box,
    dtype: torch.dtype,
    device: torch.device,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
) -> torch.Tensor:
    """A box of Out by one torch call on sample values, from the layer's own numbers.

    Uses nothing of the plan. `conv` is None for a matrix product In[b, c] · Ker[k, c].
    Half types are computed in float32.
    """
    wide = torch.promote_types(dtype, torch.float32)
    out_shape = shape(out_box)
    if not volume(out_box):
        return torch.zeros(out_shape, dtype=wide, device=device)
    lead = len(out_box) - len(stride)  # dimensions before the spatial ones
    positions = [range(*interval) for interval in out_box[: lead - 1]]
    positions.append(range(in_shape[lead - 1]))
    zeros: list[int] = []  # around the rows that are read, the last dimension first
    for dim, (low, high) in enumerate(out_box[lead:]):
        begin = stride[dim] * low - padding[dim]
        reach = dilation[dim] * (ker_shape[lead + dim] - 1) + 1
        frame = stride[dim] * (high - low - 1) + reach
        first = min(in_shape[lead + dim], max(0, begin))
        last = max(first, min(in_shape[lead + dim], begin + frame))
        before = max(0, min(first - begin, frame))
        positions.append(range(first, last))
        zeros = [before, frame - before - (last - first), *zeros]
    ker_positions = [range(*interval) for interval in out_box[1:lead]]
    ker_positions += [range(extent) for extent in ker_shape[lead - 1 :]]
    dims = len(stride)
    inputs = sample("In", in_shape, positions, dtype, device, dims).to(wide)
    ker = sample("Ker", ker_shape, ker_positions, dtype, device, dims).to(wide)
    if conv is None:
        return inputs @ ker.mT
    groups = 1
    if lead == 3:  # [b, g, k, *rows]: a grouped convolution
        groups = ker.shape[0]
        inputs, ker = inputs.flatten(1, 2), ker.flatten(0, 1)
    out = conv(F.pad(inputs, zeros), ker, None, list(stride), 0, list(dilation), groups)
    return out.reshape(out_shape)


def value_fault(
    name: str, out: torch.Tensor, expected: torch.Tensor, box: Box
) -> str | None:
    """What is wrong with the values of a share of a tensor, in one sentence, or None.

    Sample values are whole numbers, and so are exact results: an error below one half
    is the vendor's rounding (Winograd), anything more is a fault. In half types every
    partial sum is exact, see `kept`, and any difference is a fault.
    """
    if out.shape != expected.shape:
        return f"{name} has shape {tuple(out.shape)} instead of {tuple(expected.shape)}"
    if not out.numel():
        return None
    wrong = wrong_values(out, expected)
    count = int(wrong.sum())
    if count == 0:
        return None
    place = [int(i) for i in wrong.nonzero()[0]]
    got, right = float(out[tuple(place)]), float(expected[tuple(place)])
    first = [i + low for i, (low, _) in zip(place, box, strict=True)]
    shown = ", ".join(f"{low}:{high}" for low, high in box)
    return (
        f"{name} differs in {count} of {out.numel()} words of its box [{shown}],"
        f" first at {first}: {got:g} instead of {right:g}"
    )


def wrong_values(out: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where values are wrong; NaN is."""
    if out.dtype in HALF:
        return out.to(expected.dtype) != expected
    return ~((out.to(expected.dtype) - expected).abs() < 0.5)


def expected_words(
    words: dict[int, dict[str, int]], rank: int
) -> dict[str, int] | None:
    """The entry of a rank in a table that lists the ranks where entries change."""
    first = max((first for first in words if first <= rank), default=None)
    return None if first is None else words[first]


def word_faults(
    received: dict[str, int], predicted: dict[str, int] | None
) -> list[str]:
    """One sentence per tensor of which not the predicted number of words came."""
    return [
        f"received {received[name]} words of {name} instead of {expected}"
        for name, expected in (predicted or {}).items()
        if received[name] != expected
    ]


def write_report(folder: str, rank: int, facts: dict[str, Any]) -> None:
    """Write `rank-00003.json`; readers see all of it or nothing."""
    text = json.dumps(facts) + "\n"
    write_part(folder, f"rank-{rank:05d}.json", text.encode())


def save_shares(
    folder: str, rank: int, shares: dict[str, tuple[Box, torch.Tensor]]
) -> None:
    """Write `rank-00003.pt`: tensor -> the box of it that a rank made, its values."""
    saved = {
        name: {"box": box, "values": values.cpu()}
        for name, (box, values) in shares.items()
    }
    data = io.BytesIO()  # torch's own writer does not say why a file cannot be written
    torch.save(saved, data)
    write_part(folder, f"rank-{rank:05d}.pt", data.getbuffer())


def write_part(folder: str, name: str, data: bytes | memoryview) -> None:
    """Write a file through a neighbour; a full disk leaves nothing and no change."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    try:
        with open(path + ".part", "wb") as file:
            file.write(data)
        os.replace(path + ".part", path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path + ".part")
        raise


Tensors = torch.Tensor | tuple[torch.Tensor, ...]


class PlanSummary(NamedTuple):
    """Constants of an emitted program that describe its plan."""

    name: str
    plan: str
    dtype: torch.dtype
    flops: int  # of the whole layer; a multiply-add is two
    most: dict[str, int]  # predicted words received by the rank that receives most
    words: dict[int, dict[str, int]]  # the same by rank, see `expected_words`


class Result(NamedTuple):
    """A box of a tensor that a rank computes; `expected()` computes it with torch."""

    name: str
    box: Box
    expected: Callable[[], torch.Tensor]


class RankJob(NamedTuple):
    """What a rank computes: `run(context)` returns its box of every result."""

    run: Callable[[TrafficCounter], Tensors]
    results: list[Result]


def parse_arguments(
    about: str | None, argv: list[str] | None = None
) -> argparse.Namespace:
    """The flags of an emitted program. `about` is its docstring."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--check",
        action="store_true",
        help="compare with torch and the plan",
    )
    add("--bench", type=int, default=0, metavar="N", help="time N runs")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="cuda: ranks may share GPUs, over gloo; auto: one GPU per rank, or none",
    )
    add("--tune", action="store_true", help="time forms of the local kernel first")
    add("--report", metavar="DIR", help="write rank-00000.json and so on into DIR")
    add("--save", action="store_true", help="with --report: the results, too")
    add(
        "--timeout",
        type=float,
        default=60,
        metavar="S",
        help="patience with other ranks",
    )
    args = parser.parse_args(argv)
    if args.bench < 0 or not 0 < args.timeout < 1e9:
        parser.error("--bench and --timeout must be positive")
    if args.save and not args.report:
        parser.error("--save needs --report DIR")
    return args


def run_program(
    args: argparse.Namespace,
    world: World,
    summary: PlanSummary,
    job: RankJob | None = None,
) -> int:
    """Run the job of this rank (None: it has none) as the flags say, and stop.

    Returns the exit code: 0, or 5 where any rank found a fault. A run that breaks off
    ends the process with code 6.
    """
    context = TrafficCounter(finite=args.check)
    tune(args.tune)
    try:
        for _ in range(TRIALS if args.tune and args.bench else 0):
            timed(job, TrafficCounter(), world)  # check what is timed
        values, seconds = timed(job, context, world)
        for each, value in zip(job.results if job else [], values, strict=True):
            context.require_finite(each.name, value, "at the end")
        context.enter("the check")
        faults = check(world, summary, job, values, context) if args.check else []
        times = bench(args.bench, job, world)
        follow(world, context, "the gathering of the outcomes")
        outcome = {
            "words": context.received(),
            "seconds": seconds,
            "times": times,
            "faults": faults,
        }
        outcomes: list[Any] = [None] * world.size
        dist.all_gather_object(outcomes, outcome)
        most = {name: max(o["words"][name] for o in outcomes) for name in summary.most}
        most_wrong = args.check and most != summary.most
        context.enter("the writing of the report")
        if args.report:
            leave_report(args, world, summary, outcome, context)
        if args.save and job is not None:
            pairs = zip(job.results, values, strict=True)
            made = {each.name: (each.box, value) for each, value in pairs}
            save_shares(args.report, world.rank, made)
        for fault in faults:
            say(f"rank {world.rank} ({place_at(world.at)}): {fault}", sys.stderr)
        context.enter("the barrier at the end")
        wait_for_all(world)
        bad = sum(bool(o["faults"]) for o in outcomes)
        if world.rank == 0:
            slowest = max(o["seconds"] for o in outcomes)
            tell(args, world, summary, most, slowest, times, bad)
        stop(world)
    except Exception as error:
        break_off(world, context, error)
    return 5 if bad or most_wrong else 0


def timed(
    job: RankJob | None, context: TrafficCounter, world: World
) -> tuple[tuple[torch.Tensor, ...], float]:
    """This rank's results and the seconds they took; all ranks begin together."""
    follow(world, context, "the barrier before a run")
    wait_for_all(world)
    begin = time.perf_counter()
    made = () if job is None else job.run(context)
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    seconds = time.perf_counter() - begin
    return (made,) if isinstance(made, torch.Tensor) else made, seconds


def follow(world: World, context: TrafficCounter, stage: str) -> None:
    """A stage begins; from now on the other ranks hear of these words."""
    context.enter(stage)
    if world.watch:
        context.started = max(context.started, world.watch.traffic.started + 1)
        world.watch.traffic = context


def bench(runs: int, job: RankJob | None, world: World) -> list[float]:
    """Seconds of the slowest rank in each of some runs."""
    times = [timed(job, TrafficCounter(), world)[1] for _ in range(runs)]
    if times:
        slowest = torch.tensor(times, dtype=torch.float64, device=world.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times = slowest.tolist()
    return times


def check(
    world: World,
    summary: PlanSummary,
    job: RankJob | None,
    values: tuple[torch.Tensor, ...],
    context: TrafficCounter,
) -> list[str]:
    """What is wrong with the values and the words of this rank, one sentence each."""
    if job is None:
        return []
    faults = [
        value_fault(each.name, value, each.expected(), each.box)
        for each, value in zip(job.results, values, strict=True)
    ]
    wrong_words = word_faults(
        context.received(), expected_words(summary.words, world.rank)
    )
    return [*filter(None, faults), *wrong_words]


def leave_report(
    args: argparse.Namespace,
    world: World,
    summary: PlanSummary,
    outcome: dict[str, Any],
    context: TrafficCounter,
) -> None:
    """Write this rank's JSON report: what it did, what it received and when."""
    steps = [[*key, received] for key, received in sorted(context.steps.items())]
    checked = None if not args.check else not outcome["faults"]
    report = {"plan": summary.plan, "rank": world.rank, "at": world.at, **outcome}
    write_report(args.report, world.rank, {**report, "check": checked, "steps": steps})


def tell(
    args: argparse.Namespace,
    world: World,
    summary: PlanSummary,
    most: dict[str, int],
    seconds: float,
    times: list[float],
    bad: int,
) -> None:
    """The lines of rank 0."""
    shown = " ".join(f"{name} {words}" for name, words in most.items())
    say(
        f"{summary.name}: {world.size} ranks, {seconds:.4f} s;"
        f" words received per rank, at most: {shown}"
    )
    if times:
        median = statistics.median(times)
        rate = summary.flops / median / 1e9
        say(
            f"bench: {len(times)} runs, slowest rank: median {median:.6f} s,"
            f" min {min(times):.6f} s, {rate:.3f} GFlop/s; at most"
            f" {most['total']} words, {most['total'] * summary.dtype.itemsize} bytes"
            " received per rank and run"
        )
    for line in chosen():
        say(f"kernel on rank 0: {line}")
    if not args.check:
        return
    if bad:
        say(f"check: failed on {bad} of {world.size} ranks", sys.stderr)
    elif most != summary.most:
        say(f"check: words differ from the plan's, {summary.most}", sys.stderr)
    else:
        say("check: every share and every word count is as it should be")


def break_off(world: World, context: TrafficCounter, error: Exception) -> NoReturn:
    """Say which rank failed, where it was and who is lost, and end at once."""
    if world.watch:
        world.watch.end(reason_of(error))
    where = f"rank {world.rank} ({place_at(world.at)})"
    say(
        f"{where}: failed, last started {context.latest}: {reason_of(error)}",
        sys.stderr,
    )
    os._exit(6)


def expected_out(at, device):
    """The same share of Out from one torch call, with the layer's own numbers."""
    box = owned_out(at)
    return reference(
        F.conv2d, IN_SHAPE, KER_SHAPE, box, DTYPE, device, STRIDE, PADDING, DILATION
    )


def main():
    """What one rank does; whoever has real tensors calls `run` in the same way."""
    args = parse_arguments(__doc__)
    summary = PlanSummary(NAME, PLAN, DTYPE, FLOPS, MOST, WORDS)
    world = start(PLAN, GRID, PROCS, args.timeout, args.device)
    at, device = world.at, world.device
    groups = make_groups(at, GRID, GROUP_AXES, args.timeout)
    windows = tuple(WINDOWS.values())
    in_own = sample_box("In", IN_SHAPE, owned_in(at), DTYPE, device, windows)
    ker_own = sample_box("Ker", KER_SHAPE, owned_ker(at), DTYPE, device)
    job = partial(run, in_own, ker_own, at, groups)
    results = [
        Result("Out", owned_out(at), partial(expected_out, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
