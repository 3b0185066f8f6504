"""Seconds of collectives on nested levels of links, for five algorithms.

`size` is always the whole buffer in bytes: the buffer of a rank after an all-gather or an all-reduce, and
before a reduce-scatter. A `Group` says how many members of a group are in one unit of each level.

    ring          (p-1) steps with messages of size/p. The slowest level that the ring crosses decides the
                  time of a step (Patarasu and Yuan, 2009)
    recursive     recursive halving or doubling, first with the neighbours in rank: the large messages of
                  the last steps cross the outer levels (Thakur et al., 2005; any p as in Bruck et al., 1997)
    round-robin   recursive with ranks assigned to the units in turn, so that the small messages cross the
                  outer levels (Eq. 5 and 6 of Li et al., swCaffe, CLUSTER 2018)
    tree          binomial trees with the whole buffer in every message
    hierarchical  a ring per level: inside a unit, then across units with 1/members of the buffer each
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from synth.machine.hierarchy import Level, Machine

Op = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast"]

ALGORITHMS = ("ring", "recursive", "round-robin", "tree", "hierarchical")


@dataclass(frozen=True)
class Group:
    """The placement of a group of ranks on the levels of a machine, innermost level first.

    `inside[l]`: members in one unit of level l. The last entry is the size of the group.
    `flows[l]`: messages that leave one unit of the level below l if all ranks of all groups send at once.
    """

    inside: tuple[int, ...]
    flows: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Number of members."""
        return self.inside[-1]

    def units(self) -> list[tuple[int, int]]:
        """The levels that the group crosses, as (level, units of the level below that have members)."""
        below, crossed = 1, []
        for level, members in enumerate(self.inside):
            if members > below:
                crossed.append((level, -(-members // below)))
                below = members
        return crossed

    def shared(self, level: int) -> float:
        """Messages that share the links of a unit of the level below `level` if all ranks send at once."""
        return self.flows[level] if self.flows else 1.0


@dataclass(frozen=True)
class Cost:
    """The seconds of a collective, its algorithm, and the bytes that one rank sends per level."""

    seconds: float
    algorithm: str
    bytes_at: tuple[float, ...]


Stage = tuple[int, float, float]  # level, bytes of one message, concurrent messages per unit
Steps = Iterator[tuple[int, list[Stage]]]  # (repetitions of a step, its messages)


def best(machine: Machine, op: Op, size: float, group: Group) -> Cost:
    """The cost of the fastest algorithm that the machine allows. A group of one costs nothing."""
    if group.size == 1 or size <= 0:
        return Cost(0.0, "none", (0.0,) * len(machine.levels))
    names = machine.algorithms or ALGORITHMS
    costs = (cost(machine, op, size, group, name) for name in names)
    return min(costs, key=lambda each: (each.seconds, ALGORITHMS.index(each.algorithm)))


def cost(machine: Machine, op: Op, size: float, group: Group, algorithm: str) -> Cost:
    """The cost of one algorithm: messages, base latency of the outermost level, and local additions."""
    if group.size == 1:
        return Cost(0.0, algorithm, (0.0,) * len(machine.levels))
    gathers, reduces = _PHASES[op]
    seconds, sent = 0.0, [0.0] * len(machine.levels)
    for _ in range(gathers + reduces if op != "broadcast" else 1):
        for times, step in _STEPS[algorithm](size, group, op):
            seconds += times * max(_message(machine.levels[level], op, size, n) for level, size, n in step)
            for level, message, _ in step:
                sent[level] += times * message
    outermost = group.units()[-1][0]
    seconds += machine.levels[outermost].base
    seconds += reduces * machine.compute.gamma * size * _summed(algorithm, group)
    return Cost(seconds, algorithm, tuple(sent))


def exchange_seconds(machine: Machine, size: float, group: Group, messages: int = 1) -> float:
    """Seconds in which a rank receives `size` bytes, on the outermost level that its group crosses."""
    if not size or not group.units():
        return 0.0
    level, _ = group.units()[-1]
    return machine.levels[level].exchange(size, group.shared(level), messages)


def _message(level: Level, op: Op, size: float, flows: float) -> float:
    alone = op in ("all_gather", "reduce_scatter")
    return level.piece(size, flows) if alone else level.message(size, flows)


_PHASES: dict[str, tuple[int, int]] = {
    "all_gather": (1, 0),
    "reduce_scatter": (0, 1),
    "all_reduce": (1, 1),
    "broadcast": (1, 0),
}


def _summed(algorithm: str, group: Group) -> float:
    """How many times the size of the buffer a rank adds in a reduction."""
    return math.ceil(math.log2(group.size)) if algorithm == "tree" else (group.size - 1) / group.size


def _ring(size: float, group: Group, op: Op) -> Steps:
    """Every member sends to the next one, and one message per group leaves a unit."""
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
    """The size of messages doubles from step to step. `order` lists the crossed levels, first steps first."""
    part = size / group.size
    for level, units in order:
        gathered = 1
        while gathered < units:
            more = min(gathered, units - gathered)
            yield 1, [(level, part * more, group.shared(level))]
            gathered += more
        part *= units


def _tree(size: float, group: Group, op: Op) -> Steps:
    """One message with the whole buffer per pair of units and step, then a gather or scatter at the root."""
    scattered = op in ("all_gather", "reduce_scatter")
    for level, units in group.units()[::-1]:
        below = group.inside[level - 1] if level else 1
        yield math.ceil(math.log2(units)), [(level, size, group.shared(level) / below)]
    if scattered:  # to or from the root, with halved or doubled messages
        yield from _doubling(size, group, group.units())


def _hierarchical(size: float, group: Group, op: Op) -> Steps:
    """A ring on each crossed level. On outer levels each member has an equal part of its unit's buffer."""
    del op
    part = size
    for level, units in group.units():
        yield units - 1, [(level, part / units, group.shared(level))]
        part /= units


_STEPS: dict[str, Callable[[float, Group, Op], Steps]] = {
    "ring": _ring,
    "recursive": _recursive,
    "round-robin": _round_robin,
    "tree": _tree,
    "hierarchical": _hierarchical,
}
