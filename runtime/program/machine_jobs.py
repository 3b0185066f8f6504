"""What is timed of a machine: collectives, local kernels, memory, and both at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
from synth.runtime.grid.rules.shared_rounds import LARGE as ALONE
from synth.runtime.grid.transport import transport_of
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.conv import convolve, input_gradient, kernel_gradient
from synth.runtime.program.rounds import Job, Timed

Kernel = tuple[int, int, int, int, tuple[int, ...]]
PAIRS = {"node": "pairs of a node", "system": "pairs of nodes"}
SIZES_OF_PAIRS = 2**12, 2**18, 2**20
SIZES = 2**12, 2**16, 2**18, 2**19, 2**20, 2**22  # bytes of a whole buffer
LAYERS: tuple[Kernel, ...] = (  # samples, input and output channels, taps, rows
    (4, 64, 64, 3, (56, 56)),
    (8, 256, 64, 1, (28, 28)),
    (8, 128, 128, 3, (28, 28)),
    (8, 256, 128, 3, (14, 14)),
    (8, 512, 256, 3, (7, 7)),
    (8, 16, 32, 3, (56, 56)),  # few channels
    (1, 16, 16, 3, (32, 48, 48)),
    (1, 4, 16, 3, (16, 32, 32)),
    (4, 512, 512, 3, (2, 2)),  # few pixels
    (4, 1024, 512, 1, (2, 2)),
)
BEFORE = LAYERS[5]  # the kernel behind, and beside which collectives are timed
SHORTEST = 0.01  # of both, that a collective takes
FEW = tuple(LAYERS[place] for place in (0, 1, 2, 4, 5, 7, 8, 9))  # where a user waits
PANEL = 2**20  # words that travel while kernels compute
MOST_BESIDE = 50  # of these kernels
POOLED = 1, 8, 24, 24, 24  # by windows of 3 with a stride of 2
TAPS = 8 * 12**3 * 27
WORDS = 2**20  # of a tensor that elementwise kernels read
TENSORS, MOST_TENSORS = 8, 64  # in turn: of a rank at least, and of a node or more
LARGE = 2**25 + 2**20  # bytes that glibc gives back when freed, and gets page by page


class Timings(NamedTuple):
    """Jobs by name, and what is known of those of collectives and kernels.

    pieces: bytes below which pieces of a collective go in one all-to-all; 0 if all do.
    """

    jobs: dict[str, Job]
    known: dict[str, dict[str, Any]]
    pieces: int = 0


def timings(
    groups: Mapping[str, Group],
    layers: Sequence[Kernel],
    device: torch.device,
    dtype: torch.dtype,
    context: Context,
    series: float,
) -> Timings:
    """All that is timed.

    groups: name -> the ranks whose collectives are timed, as `measured_groups` says.
    series: seconds of kernels in a row; see `Job`.
    """
    any_group = next(iter(groups.values()))
    own_collectives = transport_of(any_group.handle, device).own_collectives
    apart = 0 if own_collectives else ALONE
    made = Timings({}, {}, apart)
    for name, group in groups.items():
        _collectives(made, name, group, device, series)
    made.jobs["before"] = Job(_kernel(BEFORE, device), series)
    for layer in layers:
        _kernels(made, layer, {"device": device, "dtype": dtype}, context, series)
    made.jobs["call"] = Job(lambda: _tiny(device), series)
    _crowd(made, device, series)
    ranks = len(groups["node"].peers) if "node" in groups else 1
    _memory(made, device, series, max(TENSORS, MOST_TENSORS // ranks))
    _overlap(made, any_group, device, series)
    return made


def summary(made: Timings, times: Mapping[str, Timed]) -> dict[str, Any]:
    """What was found. Each number has its relative error beside it, or in `errors`.

    bandwidth: bytes per second that an elementwise kernel reads and writes. gamma:
    seconds per byte added up. fresh: seconds per byte of new memory in large tensors.
    tap: seconds per word that a window of a pooling reads.
    overlap: the part of the shorter of kernels and a collective that the longer one
    hides. crowd: seconds of a kernel on all ranks over those on one rank per host.
    pieces: bytes below which pieces of a collective go in one all-to-all; 0 if all do.
    lost: whether noise of the kernel before it hides a collective.
    """
    found: dict[str, Any] = {"collectives": [], "kernels": [], "pieces": made.pieces}
    for name, facts in made.known.items():
        seconds, error = times[name]
        if "op" in facts:
            seconds, error = _behind(times[name], times["before"])
            facts = {**facts, "lost": seconds <= SHORTEST * times[name].seconds}
        kind = "collectives" if "op" in facts else "kernels"
        found[kind].append({**facts, "seconds": seconds, "error": error})
    size = 4 * WORDS
    copy, add, new, old = (times[name] for name in ("copy", "add", "new", "old"))
    compute, travel, both = (times[name] for name in ("compute", "travel", "both"))
    shorter = min(compute.seconds, travel.seconds)
    hidden = compute.seconds + travel.seconds - both.seconds
    spread = sum((each.seconds * each.error) ** 2 for each in (compute, travel, both))
    numbers = {
        "call": times["call"],
        "bandwidth": Timed(2 * size / copy.seconds, copy.error),
        "gamma": Timed(add.seconds / size, add.error),
        "fresh": _more(new, old, LARGE),
        "tap": Timed(times["pool"].seconds / TAPS, times["pool"].error),
        "overlap": Timed(min(1.0, max(0.0, hidden / shorter)), spread**0.5 / shorter),
        "crowd": _ratio(times["all"], times["one"]),
    }
    found["errors"] = {name: each.error for name, each in numbers.items()}
    return found | {name: each.seconds for name, each in numbers.items()}


def _more(one: Timed, other: Timed, size: int) -> Timed:
    """What a job takes more than another, per byte, and the error by the first one."""
    more = max(0.0, one.seconds - other.seconds)
    spread = (one.seconds * one.error) ** 2 + (other.seconds * other.error) ** 2
    return Timed(more / size, spread**0.5 / one.seconds)


def _behind(both: Timed, kernel: Timed) -> Timed:
    """What a collective takes behind a kernel, and the relative error."""
    left = max(both.seconds - kernel.seconds, SHORTEST * both.seconds)
    spread = (both.seconds * both.error) ** 2 + (kernel.seconds * kernel.error) ** 2
    return Timed(left, spread**0.5 / left)


def _ratio(one: Timed, other: Timed) -> Timed:
    """What a job takes over what another takes, and the relative error."""
    error = (one.error**2 + other.error**2) ** 0.5
    return Timed(one.seconds / other.seconds, error)


def measured_groups(local: int, nodes: int) -> tuple[dict[str, int], dict[str, Any]]:
    """A grid of all ranks, and the axes of the groups whose collectives are timed.

    The ranks of a node, and ranks of one place on all nodes; of both the pairs, which
    tell a latency of any group from one per message.
    """
    halves, pairs = (n // 2 if n > 2 and n % 2 == 0 else 1 for n in (nodes, local))
    grid = {"half": halves, "node": nodes // halves}
    grid |= {"pair": pairs, "rank": local // pairs}
    axes = {"node": ("pair", "rank"), "system": ("half", "node")}
    of_pairs = {PAIRS["node"]: ("rank",), PAIRS["system"]: ("node",)}
    used = {"node": local > 1, "system": nodes > 1}
    used |= {PAIRS["node"]: pairs > 1, PAIRS["system"]: halves > 1}
    return grid, {name: each for name, each in (axes | of_pairs).items() if used[name]}


def evenly(words: int, members: int) -> tuple[Box, list[Box]]:
    """A panel of one dimension, and the parts of it with `words` each."""
    parts: list[Box] = [((i * words, (i + 1) * words),) for i in range(members)]
    return ((0, words * members),), parts


def _collectives(
    made: Timings, line: str, group: Group, device: torch.device, series: float
) -> None:
    """All-gather and reduce-scatter behind a kernel, in all groups of a level at once.

    A layer's exchanges are behind its kernels. They wait for ranks that end later, and
    for a core where ranks outnumber cores.
    """
    members, kernel = len(group.peers), _kernel(BEFORE, device)
    levels = {name: level for level, name in PAIRS.items()}
    level, sizes = (levels[line], SIZES_OF_PAIRS) if line in levels else (line, SIZES)
    for size in sizes:
        words = max(1, size // 4 // members)
        panel, parts = evenly(words, members)
        own = torch.ones(words, device=device)
        sums = torch.ones(words * members, device=device)
        jobs: dict[str, Callable[[], object]] = {
            "all_gather": lambda a=panel, b=parts, c=own: wait_gather(  # type: ignore[misc]
                all_gather(a, b, c, group)
            ),
            "reduce_scatter": lambda a=sums, b=panel, c=parts: wait_reduce(  # type: ignore[misc]
                reduce_scatter(a, b, c, group)
            ),
        }
        for op, run in jobs.items():
            name, moved = f"{line} {op} {size}", 4 * words * members
            facts = {"level": level, "members": members, "op": op, "bytes": moved}
            made.jobs[name], made.known[name] = _after(kernel, run, series), facts


def _after(
    kernel: Callable[[], object], run: Callable[[], object], series: float
) -> Job:
    """Both, one after the other."""

    def both() -> None:
        kernel()
        run()

    return Job(both, series)


def _kernel(layer: Kernel, device: torch.device) -> Callable[[], object]:
    """The forward pass of a layer with two spatial axes."""
    samples, c, k, taps, rows = layer
    inputs = torch.rand(samples, c, *rows, device=device)
    ker = torch.rand(k, c, taps, taps, device=device)
    return lambda: F.conv2d(inputs, ker, padding=taps // 2)


def _kernels(
    made: Timings, layer: Kernel, options: Any, context: Context, series: float
) -> None:
    """The three passes of a layer's local kernel, on all ranks at once.

    On processors they are in turn, so that no kernel finds its tensors in a cache.
    """
    samples, c, k, taps, rows = layer
    axes = "dhw"[-len(rows) :]
    conv = {2: F.conv2d, 3: F.conv3d}[len(rows)]
    windows = {
        a: Window(n, taps, padding=taps // 2) for a, n in zip(axes, rows, strict=True)
    }
    extents = {"b": samples, "c": c, "k": k, **dict(zip(axes, rows, strict=True))}
    block = {axis: (0, extent) for axis, extent in extents.items()}
    in_tile = torch.rand(samples, c, *rows, **options)
    ker_tile = torch.rand(k, c, *[taps] * len(rows), **options)
    dout = torch.rand(samples, k, *rows, **options)
    jobs: dict[str, Callable[[], object]] = {
        "forward": lambda: convolve(conv, in_tile, ker_tile, block, windows, context),
        "backward-data": lambda: input_gradient(
            ker_tile, dout, block, windows, context
        ),
        "backward-filter": lambda: kernel_gradient(
            in_tile, dout, block, windows, context
        ),
    }
    for pass_, run in jobs.items():
        name = f"{layer} {pass_}"
        made.jobs[name] = Job(run, series, in_turn=options["device"].type == "cpu")
        made.known[name] = {
            "layer": list(layer),
            "pass": pass_,
            "flops": 2 * dout.numel() * ker_tile[0].numel(),
            "bytes": in_tile.nbytes + dout.nbytes,
            "weights": ker_tile.nbytes,
            "channels": min(c, k),
        }


def _tiny(device: torch.device) -> None:
    """A convolution so small that only its call takes time."""
    one = torch.ones(1, 1, 1, 1, device=device)
    F.conv2d(one, one)


def _crowd(made: Timings, device: torch.device, series: float) -> None:
    """A kernel on all ranks at once, and on the first rank of every host alone.

    Ranks of one host share its cores and memory. Emulated hosts share them too, but
    stand for hosts that do not: with one rank each, all of them compute both times.
    """
    compute = _kernel(LAYERS[2], device)
    first = dist.get_node_local_rank(fallback_rank=dist.get_rank()) == 0
    made.jobs["all"] = Job(compute, series)
    made.jobs["one"] = Job(compute if first else lambda: None, series)


def _memory(made: Timings, device: torch.device, series: float, tensors: int) -> None:
    """Copies, sums, a pooling, and large tensors in new memory and in old.

    Copies and sums read other tensors each time, as the kernels of a network do. No
    cache of a node has those of all its ranks.
    """
    ring = [torch.ones(WORDS, device=device) for _ in range(tensors)]
    turn = itertools.cycle(zip(ring, ring[1:] + ring[:1], strict=True))

    def copy() -> None:
        one, other = next(turn)
        other.copy_(one)

    def add() -> None:
        one, other = next(turn)
        other.add_(one)

    pooled = torch.rand(POOLED, device=device)
    made.jobs["pool"] = Job(lambda: F.max_pool3d(pooled, 3, 2, 1), series)
    old = torch.ones(LARGE // 4, device=device)
    made.jobs["copy"], made.jobs["add"] = Job(copy, series), Job(add, series)
    made.jobs["new"] = Job(lambda: torch.empty_like(old).fill_(1))
    made.jobs["old"] = Job(lambda: old.fill_(1))


def _overlap(made: Timings, group: Group, device: torch.device, series: float) -> None:
    """Some kernels, an all-gather that takes about as long, and both at once.

    Where the links are slow, sending and receiving need a part of the processor. It
    shows only beside kernels that compute for as long.
    """
    kernel = _kernel(BEFORE, device)
    words = PANEL // len(group.peers)
    panel, parts = evenly(words, len(group.peers))
    own = torch.ones(words, device=device)

    def travel() -> None:
        wait_gather(all_gather(panel, parts, own, group))

    kernels = _as_long(travel, kernel, group, device)

    def compute() -> None:
        for _ in range(kernels):
            kernel()

    def both() -> None:
        pending = all_gather(panel, parts, own, group)
        compute()
        wait_gather(pending)

    jobs = {"compute": compute, "travel": travel, "both": both}
    made.jobs.update((name, Job(run, series)) for name, run in jobs.items())


def _as_long(
    travel: Callable[[], object],
    kernel: Callable[[], object],
    group: Group,
    device: torch.device,
) -> int:
    """How many kernels take about as long as a collective; the same on all ranks."""
    spans = []
    for run in (travel, kernel):
        run()  # the first run warms up
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spans.append(time.perf_counter() - begin)
    both = torch.tensor(spans, dtype=torch.float64, device=device)
    dist.all_reduce(both, group=group.handle)
    long, short = both.tolist()
    return int(max(1, min(MOST_BESIDE, round(long / short))))
