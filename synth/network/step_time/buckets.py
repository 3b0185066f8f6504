"""Buckets of gradients: how large they are, and what of their all-reduces the backward pass does not hide.

A bucket starts when the last of its gradients is there. The first layers of a network complete the last
bucket, so nothing hides it. Where one bucket has room for all weights, it is the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import split_over

LARGEST = 25 * 2**20  # bytes: DDP's
SMALLEST = 2**16
LATENCY = 0.05  # of the seconds of a bucket, at most, in one smaller than the largest


def bucket_bytes(machine: Machine | None, procs: int) -> int:
    """The size of buckets on a machine, in bytes: small, but few latencies; DDP's without a machine.

    With p ranks a bucket of n bytes takes base + 2(p - 1)(α + n/p·β), so latencies are a share LATENCY of it
    for n = p·(α + base / 2(p - 1)) / (LATENCY·β).
    """
    group = None if machine is None else split_over(machine, procs)
    if machine is None or group is None or not group.units():
        return LARGEST
    index, _ = group.units()[-1]
    level = machine.levels[index]
    per_byte = level.message(2.0**20, group.shared(index)) - level.message(0.0, group.shared(index))
    if per_byte <= 0:
        return LARGEST
    latency = level.message(0.0) + level.base / (2 * (procs - 1))
    size = procs * latency / (LATENCY * per_byte / 2**20)
    return int(min(LARGEST, max(SMALLEST, size)))


class Gradient(NamedTuple):
    """A layer's whole gradient. seconds: its part of all-reduces. group: of the ranks that share it.

    part: its bytes, as a part of a full bucket.
    """

    seconds: float
    group: float
    part: float


def exposed(gradients: Sequence[Gradient | None], free: Sequence[float]) -> float:
    """Seconds of the buckets of a step that the backward pass does not hide.

    gradients: by layer, in the order of the forward pass; None without a whole one. free: seconds of a
    layer's backward pass beside which buckets may travel. All buckets share the links, and travel in the
    order in which they are complete.
    """
    open_: dict[float, list[Gradient]] = {}  # group -> the gradients of its bucket that is not full
    last: dict[float, int] = {}
    ready = list[tuple[int, float]]()  # (layer that completes a bucket, its seconds)

    def close(group: float) -> None:
        ready.append((last[group], sum(each.seconds for each in open_.pop(group))))

    for layer in range(len(gradients) - 1, -1, -1):
        each = gradients[layer]
        if each is None:
            continue
        if each.part >= 1:  # in a bucket of its own, and the open one stays open
            ready.append((layer, each.seconds))
            continue
        if each.group in open_ and sum(one.part for one in open_[each.group]) + each.part > 1:
            close(each.group)
        open_.setdefault(each.group, []).append(each)
        last[each.group] = layer
    for group in list(open_):
        close(group)
    most = left = 0.0
    for layer, seconds in sorted(ready):  # from the last bucket on
        left += seconds
        most = max(most, left - sum(free[:layer]))
    return most
