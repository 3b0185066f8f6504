"""What collectives cost on nested levels: ring, tree, recursive, hierarchical, round-robin.

`size` is always the whole buffer in bytes: what every rank has after an all-gather or an all-reduce, and
before a reduce-scatter. A group is described by how many of its members lie in one unit of every level.

    ring          (p-1) steps of size/p, each as slow as the slowest level that the ring crosses
                  (Patarasu and Yuan, 2009)
    recursive     recursive halving or doubling, neighbours in rank first: the large messages of the last
                  steps cross the outer levels (Thakur et al., 2005; any p as Bruck et al., 1997)
    round-robin   the same with ranks dealt over the units in turn, so that small messages cross: Eq. 5 and 6
                  of Li et al., swCaffe, CLUSTER 2018
    tree          binomial trees, whole buffer per step
    hierarchical  a ring per level: inside a unit, then across units with a share per member
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from synth.machine.hierarchy import Machine

Op = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast"]

ALGORITHMS = ("ring", "recursive", "round-robin", "tree", "hierarchical")


@dataclass(frozen=True)
class Group:
    """`inside[l]`: members in one unit of level l, innermost first; the last entry is the group's size.

    `flows[l]`: messages that leave one unit of the level below l at once when every member sends one.
    """

    inside: tuple[int, ...]
    flows: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Members."""
        return self.inside[-1]

    def units(self) -> list[tuple[int, int]]:
        """(level, units of the level below it that the group joins there), where there are several."""
        below, joined = 1, []
        for level, members in enumerate(self.inside):
            if members > below:
                joined.append((level, -(-members // below)))
                below = members
        return joined

    def shared(self, level: int) -> float:
        """Messages that share the links of a unit when all members send at once."""
        return self.flows[level] if self.flows else 1.0


@dataclass(frozen=True)
class Cost:
    """Seconds of a collective, the algorithm, and bytes that one rank sends per level."""

    seconds: float
    algorithm: str
    bytes_at: tuple[float, ...]


Stage = tuple[int, float, float]  # level, bytes of one message, messages at once per unit
Steps = Iterator[tuple[int, list[Stage]]]  # how often a step is repeated, and its messages


def best(machine: Machine, op: Op, size: float, group: Group) -> Cost:
    """The cheapest algorithm of those the machine allows. A group of one costs nothing."""
    if group.size == 1 or size <= 0:
        return Cost(0.0, "none", (0.0,) * len(machine.levels))
    names = machine.algorithms or ALGORITHMS
    costs = (cost(machine, op, size, group, name) for name in names)
    return min(costs, key=lambda each: (each.seconds, ALGORITHMS.index(each.algorithm)))


def cost(machine: Machine, op: Op, size: float, group: Group, algorithm: str) -> Cost:
    """Seconds of one algorithm: its messages, the base latency of its outermost level, and local sums."""
    if group.size == 1:
        return Cost(0.0, algorithm, (0.0,) * len(machine.levels))
    gathers, reduces = _PHASES[op]
    seconds, sent = 0.0, [0.0] * len(machine.levels)
    for _ in range(gathers + reduces if op != "broadcast" else 1):
        for times, step in _STEPS[algorithm](size, group, op):
            seconds += times * max(machine.levels[level].message(size, n) for level, size, n in step)
            for level, message, _ in step:
                sent[level] += times * message
    outermost = group.units()[-1][0]
    seconds += machine.levels[outermost].base
    seconds += reduces * machine.compute.gamma * size * _summed(algorithm, group)
    return Cost(seconds, algorithm, tuple(sent))


_PHASES: dict[str, tuple[int, int]] = {
    "all_gather": (1, 0),
    "reduce_scatter": (0, 1),
    "all_reduce": (1, 1),
    "broadcast": (1, 0),
}


def _summed(algorithm: str, group: Group) -> float:
    """Parts of the buffer that a rank adds up in a reduction."""
    return math.ceil(math.log2(group.size)) if algorithm == "tree" else (group.size - 1) / group.size


def _ring(size: float, group: Group, op: Op) -> Steps:
    """Every member sends to the next; one message per group leaves a unit."""
    del op
    stages: list[Stage] = []
    for level, _ in group.units():
        below = group.inside[level - 1] if level else 1
        stages.append((level, size / group.size, group.shared(level) / below))
    yield group.size - 1, stages


def _recursive(size: float, group: Group, op: Op) -> Steps:
    del op
    yield from _doubling(size, group, group.units())


def _round_robin(size: float, group: Group, op: Op) -> Steps:
    del op
    yield from _doubling(size, group, group.units()[::-1])


def _doubling(size: float, group: Group, order: list[tuple[int, int]]) -> Steps:
    """Message sizes double from step to step; `order` says which level the first steps cross."""
    share = size / group.size
    for level, units in order:
        have = 1
        while have < units:
            more = min(have, units - have)
            yield 1, [(level, share * more, group.shared(level))]
            have += more
        share *= units


def _tree(size: float, group: Group, op: Op) -> Steps:
    """One message per pair of units and step; the whole buffer in each. A scatter halves it on the way."""
    scattered = op in ("all_gather", "reduce_scatter")
    for level, units in group.units()[::-1]:
        below = group.inside[level - 1] if level else 1
        yield math.ceil(math.log2(units)), [(level, size, group.shared(level) / below)]
    if scattered:  # to or from the root, halving
        yield from _doubling(size, group, group.units())


def _hierarchical(size: float, group: Group, op: Op) -> Steps:
    """Across the outer units with a share per member, then inside."""
    del op
    share = size
    for level, units in group.units():
        yield units - 1, [(level, share / units, group.shared(level))]
        share /= units


_STEPS: dict[str, Callable[[float, Group, Op], Steps]] = {
    "ring": _ring,
    "recursive": _recursive,
    "round-robin": _round_robin,
    "tree": _tree,
    "hierarchical": _hierarchical,
}


def swcaffe(
    p: int, q: int, alpha: float, beta1: float, beta2: float, size: float, gamma: float = 0.0
) -> dict[str, float]:
    """Eq. 2 to 6 of swCaffe as printed: seconds of an all-reduce of `size` bytes over p nodes.

    q nodes share a supernode; β1 inside, β2 across. The paper prints β2 ≈ β1/4, but its text (a quarter of
    the bandwidth) means β2 ≈ 4·β1. γ is seconds per byte summed.
    """
    log, part, summed = math.log2(p), size / p, (p - 1) / p * size * gamma
    gather = log * alpha + (q - 1) * beta1 * part + (p - q) * beta2 * part  # Eq. 4
    new_gather = log * alpha + (p - p / q) * beta1 * part + (p / q - 1) * beta2 * part  # Eq. 6
    return {
        "reduce-scatter": gather + summed,  # Eq. 3
        "all-gather": gather,
        "all-reduce": 2 * gather + summed,  # Eq. 2
        "new reduce-scatter": new_gather + summed,  # Eq. 5
        "new all-gather": new_gather,
        "new all-reduce": 2 * new_gather + summed,
    }
