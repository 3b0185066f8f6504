"""The strategies of Kahira et al., HPDC'21, Table 3: seconds per step and bytes per rank, layer by layer.

Legend (theirs): B samples per step, p ranks, G layers with weights, |x| |y| |w| |bi| words of a layer's
input, output, weights and bias, δ bytes per word, S segments of a pipeline, γ the fraction of the plain
memory that remains when frameworks reuse buffers.

Times are per step (theirs are per epoch: D/B steps). A collective costs what the machine's best algorithm
costs for the group's ranks; with one level and `algorithms: [ring]` the sums are those of Table 3.
The gradient exchange of a layer is its part of one all-reduce of all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from synth.base.errors import InfeasibleError
from synth.machine.collectives import Group
from synth.network.graph import Node
from synth.prediction.oracle_setting import LayerCost, OracleSetting


@dataclass(frozen=True)
class Strategy:
    """A row of Table 3: the most ranks that it scales to and why, and its cost per layer."""

    name: str
    limit: Callable[[OracleSetting], tuple[int, str]]
    price: Callable[[OracleSetting], list[LayerCost]]
    hybrid: bool = False


def _rows(s: OracleSetting, work: float, updates: float, memory: Callable[[Node], float]) -> list[LayerCost]:
    """Compute and memory of a rank that has a fraction of the work, and a fraction of the updates."""
    return [
        LayerCost(
            node.name,
            s.batch * work * t.forward,
            s.batch * work * t.backward,
            updates * t.update,
            used_bytes=s.reuse * s.word_bytes * memory(node),
        )
        for node, t in zip(s.nodes, s.times, strict=True)
    ]


def _memory(s: OracleSetting, x: float, y: float, w: float) -> Callable[[Node], float]:
    """2B(|x|·x + |y|·y) + 2|w|·w + |bi| words; x, y and w are the fractions that a rank holds."""
    return lambda n: (
        2 * s.batch * (s.words(n, "x") * x + s.words(n, "y") * y) + 2 * s.words(n, "w") * w + s.words(n, "bi")
    )


def _exchanged(s: OracleSetting, rows: list[LayerCost], group: Group, parts: int) -> list[LayerCost]:
    """Add one all-reduce of all gradients, 1/`parts` of them per rank, divided over layers by their words."""
    words = [(s.words(n, "w") + s.words(n, "bi")) / parts for n in s.nodes]
    total = sum(words)
    seconds = s.collective("all_reduce", total, group)
    shares = (w / total if total else 0.0 for w in words)
    return [replace(row, exchange=seconds * share) for row, share in zip(rows, shares, strict=True)]


def serial(s: OracleSetting) -> list[LayerCost]:
    """One rank."""
    return _rows(s, 1.0, 1.0, _memory(s, 1, 1, 1))


def data(s: OracleSetting) -> list[LayerCost]:
    """Samples are split; gradients are all-reduced."""
    p = s.procs
    return _exchanged(s, _rows(s, 1 / p, 1.0, _memory(s, 1 / p, 1 / p, 1)), s.group(p), 1)


def spatial(s: OracleSetting) -> list[LayerCost]:
    """Positions are split; halos are exchanged, gradients all-reduced."""
    return _spatial(s, 1, s.procs)


def data_spatial(s: OracleSetting) -> list[LayerCost]:
    """p1 groups of samples, positions split p2 ways within each; gradients all-reduced over all ranks."""
    p1, p2 = hybrid_split(s)
    return _spatial(s, p1, p2)


def _spatial(s: OracleSetting, p1: int, p2: int) -> list[LayerCost]:
    p = p1 * p2
    rows = _rows(s, 1 / p, 1.0, _memory(s, 1 / p, 1 / p, 1))
    near = s.group(p2)
    result = []
    for node, row in zip(s.nodes, rows, strict=True):
        strips = s.batch / p1 * halo_words(node, p2)
        seconds = 2 * s.message(strips, near) if strips else 0.0
        # the halo of dL/dy has the rows of the halo of x and the channels of y
        scale = node.shape[1] / node.in_shape[1]
        back = 2 * s.message(strips * scale, near) if strips else 0.0
        result.append(replace(row, comm_forward=seconds, comm_backward=back))
    return _exchanged(s, result, s.group(p), 1)


def halo_words(node: Node, parts: int) -> float:
    """Words per sample that one of `parts` blocks receives from one neighbour per split dimension."""
    if node.layer is None or len(node.in_shape) < 3 or parts == 1:
        return 0.0
    extents, words = node.in_shape[2:], 0.0
    cuts = _near_cube(parts, extents)
    kernels = node.layer.kernel or (1,) * len(extents)
    for axis, (cut, kernel) in enumerate(zip(cuts, kernels, strict=True)):
        if cut > 1:
            face = math.prod(
                -(-e // c) for i, (e, c) in enumerate(zip(extents, cuts, strict=True)) if i != axis
            )
            words += (kernel // 2) * face * node.in_shape[1]
    return words


def _near_cube(parts: int, extents: Sequence[int]) -> list[int]:
    """Parts along every dimension; each prime factor cuts the longest block."""
    cuts, remaining, prime = [1] * len(extents), parts, 2
    while remaining > 1:
        while remaining % prime:
            prime += 1
        longest = max(range(len(extents)), key=lambda i: (extents[i] / cuts[i], -i))
        cuts[longest] *= prime
        remaining //= prime
    return cuts


def filters(s: OracleSetting) -> list[LayerCost]:
    """Filters are split; outputs are all-gathered, gradients of inputs all-reduced."""
    return _filters(s, 1, s.procs)


def data_filter(s: OracleSetting) -> list[LayerCost]:
    """p1 groups of samples, filters split p2 ways within each."""
    return _filters(s, *hybrid_split(s))


def _filters(s: OracleSetting, p1: int, p2: int) -> list[LayerCost]:
    rows = _rows(s, 1 / (p1 * p2), 1 / p2, _memory(s, 1 / p1, 1 / p1, 1 / p2))
    inside, last, samples = s.group(p2), len(rows) - 1, s.batch / p1
    result = []
    for i, (node, row) in enumerate(zip(s.nodes, rows, strict=True)):
        gather = s.collective("all_gather", samples * s.words(node, "y"), inside) if i < last else 0.0
        reduce = s.collective("all_reduce", samples * s.words(node, "x"), inside) if i > 0 else 0.0
        result.append(replace(row, comm_forward=gather, comm_backward=reduce))
    return result if p1 == 1 else _exchanged(s, result, s.group(p1, p2), p2)


def channels(s: OracleSetting) -> list[LayerCost]:
    """Input channels are split; outputs are all-reduced, gradients of inputs all-gathered."""
    rows = _rows(s, 1 / s.procs, 1 / s.procs, _memory(s, 1, 1, 1 / s.procs))
    group, last, result = s.group(s.procs), len(rows) - 1, []
    for i, (node, row) in enumerate(zip(s.nodes, rows, strict=True)):
        reduce = s.collective("all_reduce", s.batch * s.words(node, "y"), group) if i < last else 0.0
        gather = s.collective("all_gather", s.batch * s.words(node, "x"), group) if i > 0 else 0.0
        result.append(replace(row, comm_forward=reduce, comm_backward=gather))
    return result


def pipeline(s: OracleSetting) -> list[LayerCost]:
    """Layers are split into p stages, B samples into S segments (GPipe). One row per stage.

    Computing takes (p+S-1)/S·B·(max FW + max BW) + max WU, messages 2(p+S-2)·max(α + B/S·|y|·δ·β).
    The row of the slowest stage contains all of this time.
    """
    p, S = s.procs, s.segments
    stages = split_stages([t.forward + t.backward for t in s.times], p)
    pace = (p + S - 1) / S * s.batch
    forward = max(sum(s.times[i].forward for i in stage) for stage in stages) * pace
    backward = max(sum(s.times[i].backward for i in stage) for stage in stages) * pace
    update = max(sum(s.times[i].update for i in stage) for stage in stages)
    group = s.group(p)
    hops = [s.message(s.batch / S * s.words(s.nodes[stage[-1]], "y"), group) for stage in stages[:-1]]
    comm = (p + S - 2) * max(hops, default=0.0)
    memory = _memory(s, 1, 1, 1)
    stage_bytes = [s.reuse * s.word_bytes * sum(memory(s.nodes[i]) for i in stage) for stage in stages]
    names = [f"stage {n}: {s.nodes[g[0]].name} .. {s.nodes[g[-1]].name}" for n, g in enumerate(stages, 1)]
    rows = [
        LayerCost(name, used_bytes=held_bytes) for name, held_bytes in zip(names, stage_bytes, strict=True)
    ]
    slowest = max(range(p), key=lambda n: sum(s.times[i].forward for i in stages[n]))
    rows[slowest] = replace(
        rows[slowest],
        forward=forward,
        backward=backward,
        update=update,
        comm_forward=comm,
        comm_backward=comm,
    )
    return rows


def split_stages(times: Sequence[float], parts: int) -> list[list[int]]:
    """Consecutive layers in `parts` stages, so that the longest stage is as short as possible."""
    if parts > len(times):
        raise InfeasibleError(
            f"a pipeline of {parts} stages needs as many layers, not {len(times)}; use fewer"
        )
    n = len(times)
    least = [[math.inf] * (n + 1) for _ in range(parts + 1)]  # [k][end] -> longest of k stages up to `end`
    cut = [[0] * (n + 1) for _ in range(parts + 1)]  # [k][end] -> where stage k begins
    total = [0.0]
    for t in times:
        total.append(total[-1] + t)
    least[0][0] = 0.0
    for k in range(1, parts + 1):
        for end in range(k, n + 1):
            for start in range(k - 1, end):
                longest = max(least[k - 1][start], total[end] - total[start])
                if longest < least[k][end]:
                    least[k][end], cut[k][end] = longest, start
    stages, end = [], n
    for k in range(parts, 0, -1):
        start = cut[k][end]
        stages.append(list(range(start, end)))
        end = start
    return stages[::-1]


def hybrid_split(s: OracleSetting) -> tuple[int, int]:
    """p1 groups of p2 ranks: as requested; else p2 is the ranks of a node, or more if samples are few."""
    if s.groups:
        if s.procs % s.groups:
            raise InfeasibleError(f"{s.groups} groups do not divide {s.procs} ranks; take a divisor")
        return s.groups, s.procs // s.groups
    node = min(s.procs, s.machine.levels[0].ranks or s.procs)
    while s.procs % node:
        node -= 1
    while s.procs % node or s.procs // node > s.batch:
        node += 1
    return s.procs // node, node


def _convs(s: OracleSetting) -> list[Node]:
    return [n for n in s.nodes if n.layer is not None and n.weighted]


def _positions(s: OracleSetting) -> tuple[int, str]:
    least = min((math.prod(n.in_shape[2:]) for n in s.nodes if math.prod(n.in_shape[2:]) > 1), default=1)
    return least, "positions of the smallest feature map (fully connected layers are not split)"


def _filters_limit(s: OracleSetting) -> tuple[int, str]:
    return min((n.shape[1] for n in _convs(s)), default=1), "filters of the narrowest layer"


def _channels_limit(s: OracleSetting) -> tuple[int, str]:
    convs = _convs(s)[1:] or _convs(s)
    return min(
        (n.in_shape[1] for n in convs), default=1
    ), "input channels of the narrowest layer but the first"


def _hybrid(inner: Callable[[OracleSetting], tuple[int, str]]) -> Callable[[OracleSetting], tuple[int, str]]:
    def limit(s: OracleSetting) -> tuple[int, str]:
        most, why = inner(s)
        return s.batch * most, f"samples times {why}"

    return limit


STRATEGIES: dict[str, Strategy] = {
    each.name: each
    for each in (
        Strategy("serial", lambda s: (1, "one rank"), serial),
        Strategy("data", lambda s: (s.batch, "samples"), data),
        Strategy("spatial", _positions, spatial),
        Strategy("pipeline", lambda s: (len(s.nodes), "layers"), pipeline),
        Strategy("filter", _filters_limit, filters),
        Strategy("channel", _channels_limit, channels),
        Strategy("data+filter", _hybrid(_filters_limit), data_filter, True),
        Strategy("data+spatial", _hybrid(_positions), data_spatial, True),
    )
}
