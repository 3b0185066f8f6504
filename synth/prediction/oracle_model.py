"""The strategies of Kahira et al., HPDC'21, Table 3: seconds per step and bytes per rank, layer by layer.

Legend (theirs): B samples per step, p ranks, G layers with weights, |x| |y| |w| |bi| words of a layer's
input, output, weights and bias, δ bytes per word, S segments of a pipeline, γ the share of the plain memory
that remains when frameworks reuse buffers.

Times are per step (theirs are per epoch: D/B steps). A collective costs what the machine's best algorithm
costs on the group's place; with one level and `algorithms: [ring]` the sums are those of Table 3.
Per layer, the gradient exchange is the layer's share of one all-reduce of all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from synth.base.errors import InfeasibleError
from synth.layer.axes import ROW_MAJOR, PerAxis
from synth.machine.collectives import Group, Op, best
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of
from synth.network.graph import Node
from synth.prediction.profile import Times


@dataclass(frozen=True)
class Row:
    """One layer under a strategy; seconds per step, bytes per rank."""

    name: str
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    comm_forward: float = 0.0
    comm_backward: float = 0.0
    exchange: float = 0.0
    used_bytes: float = 0.0

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return self.forward + self.backward + self.update

    @property
    def comm(self) -> float:
        """Seconds of communication."""
        return self.comm_forward + self.comm_backward + self.exchange


@dataclass(frozen=True)
class Setting:
    """What every strategy starts from."""

    nodes: tuple[Node, ...]
    times: tuple[Times, ...]
    machine: Machine
    procs: int
    batch: int
    samples: int  # samples that the nodes' shapes hold
    groups: int | None = None  # p1 of a hybrid
    segments: int = 8
    flows: float | None = None
    reuse: float = 1.0
    word: int = 4

    def words(self, node: Node, what: str) -> float:
        """Words per sample of "x" or "y", or in all of "w" or "bi"."""
        bias = node.shape[1] if node.bias else 0
        return {
            "x": node.in_words / self.samples,
            "y": node.out_words / self.samples,
            "w": node.parameters - bias,
            "bi": bias,
        }[what]

    def group(self, size: int, stride: int = 1) -> Group:
        """A group of `size` ranks, `stride` apart."""
        grid = PerAxis(b=max(1, self.procs // (size * stride)), c=size, k=stride)
        made = group_of(self.machine, grid, ROW_MAJOR, ("c",))
        if self.flows is None:
            return made
        return replace(made, flows=tuple(self.flows for _ in made.inside))

    def collective(self, op: Op, words: float, group: Group) -> float:
        """Seconds of a collective whose whole buffer has some words."""
        return best(self.machine, op, words * self.word, group).seconds

    def message(self, words: float, group: Group) -> float:
        """Seconds of one message to a neighbour in a group."""
        if not group.units() or words <= 0:
            return 0.0
        level, _ = group.units()[-1]
        return self.machine.levels[level].message(words * self.word, group.shared(level))


@dataclass(frozen=True)
class Strategy:
    """A row of Table 3: its scaling limit, and how to price it."""

    name: str
    limit: Callable[[Setting], tuple[int, str]]  # the most ranks, and why
    price: Callable[[Setting], list[Row]]
    hybrid: bool = False
    note: str = field(default="")


def _rows(s: Setting, share: float, update: float, memory: Callable[[Node], float]) -> list[Row]:
    """Compute and memory: `share` of the samples' work and `update` of the weights on every rank."""
    return [
        Row(
            node.name,
            s.batch * share * t.forward,
            s.batch * share * t.backward,
            update * t.update,
            used_bytes=s.reuse * s.word * memory(node),
        )
        for node, t in zip(s.nodes, s.times, strict=True)
    ]


def _memory(s: Setting, x: float, y: float, w: float) -> Callable[[Node], float]:
    """2B(|x|·x + |y|·y) + 2|w|·w + |bi|, in words."""
    return lambda n: (
        2 * s.batch * (s.words(n, "x") * x + s.words(n, "y") * y) + 2 * s.words(n, "w") * w + s.words(n, "bi")
    )


def _exchanged(s: Setting, rows: list[Row], group: Group, parts: int) -> list[Row]:
    """One all-reduce of all gradients (a `parts`-th of them per rank), by the layers' shares."""
    words = [(s.words(n, "w") + s.words(n, "bi")) / parts for n in s.nodes]
    total = sum(words)
    seconds = s.collective("all_reduce", total, group)
    shares = (w / total if total else 0.0 for w in words)
    return [replace(row, exchange=seconds * share) for row, share in zip(rows, shares, strict=True)]


def serial(s: Setting) -> list[Row]:
    """One rank."""
    return _rows(s, 1.0, 1.0, _memory(s, 1, 1, 1))


def data(s: Setting) -> list[Row]:
    """Samples are split; gradients are all-reduced."""
    p = s.procs
    return _exchanged(s, _rows(s, 1 / p, 1.0, _memory(s, 1 / p, 1 / p, 1)), s.group(p), 1)


def spatial(s: Setting) -> list[Row]:
    """Positions are split; halos are exchanged, gradients all-reduced."""
    return _spatial(s, 1, s.procs)


def data_spatial(s: Setting) -> list[Row]:
    """p1 groups of samples, positions split p2 ways within each; gradients all-reduced over all ranks."""
    p1, p2 = hybrid_split(s)
    return _spatial(s, p1, p2)


def _spatial(s: Setting, p1: int, p2: int) -> list[Row]:
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
    """Words per sample that one of `parts` blocks gets from one neighbour per split dimension."""
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
    """Parts along every dimension, the longest block cut first."""
    cuts, left, prime = [1] * len(extents), parts, 2
    while left > 1:
        while left % prime:
            prime += 1
        longest = max(range(len(extents)), key=lambda i: (extents[i] / cuts[i], -i))
        cuts[longest] *= prime
        left //= prime
    return cuts


def filters(s: Setting) -> list[Row]:
    """Filters are split; outputs are all-gathered, gradients of inputs all-reduced."""
    return _filters(s, 1, s.procs)


def data_filter(s: Setting) -> list[Row]:
    """p1 groups of samples, filters split p2 ways within each."""
    return _filters(s, *hybrid_split(s))


def _filters(s: Setting, p1: int, p2: int) -> list[Row]:
    rows = _rows(s, 1 / (p1 * p2), 1 / p2, _memory(s, 1 / p1, 1 / p1, 1 / p2))
    inside, last, samples = s.group(p2), len(rows) - 1, s.batch / p1
    result = []
    for i, (node, row) in enumerate(zip(s.nodes, rows, strict=True)):
        gather = s.collective("all_gather", samples * s.words(node, "y"), inside) if i < last else 0.0
        reduce = s.collective("all_reduce", samples * s.words(node, "x"), inside) if i > 0 else 0.0
        result.append(replace(row, comm_forward=gather, comm_backward=reduce))
    return result if p1 == 1 else _exchanged(s, result, s.group(p1, p2), p2)


def channels(s: Setting) -> list[Row]:
    """Input channels are split; outputs are all-reduced, gradients of inputs all-gathered."""
    rows = _rows(s, 1 / s.procs, 1 / s.procs, _memory(s, 1, 1, 1 / s.procs))
    group, last, result = s.group(s.procs), len(rows) - 1, []
    for i, (node, row) in enumerate(zip(s.nodes, rows, strict=True)):
        reduce = s.collective("all_reduce", s.batch * s.words(node, "y"), group) if i < last else 0.0
        gather = s.collective("all_gather", s.batch * s.words(node, "x"), group) if i > 0 else 0.0
        result.append(replace(row, comm_forward=reduce, comm_backward=gather))
    return result


def pipeline(s: Setting) -> list[Row]:
    """Layers are split in p runs, B samples in S segments (GPipe). One row per stage.

    (p+S-1)/S·B·(max FW + max BW) + max WU, and 2(p+S-2)·max(α + B/S·|y|·δ·β): the slowest stage sets the
    pace, so its row carries all the time.
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
    held = [s.reuse * s.word * sum(memory(s.nodes[i]) for i in stage) for stage in stages]
    names = [f"stage {n}: {s.nodes[g[0]].name} .. {s.nodes[g[-1]].name}" for n, g in enumerate(stages, 1)]
    rows = [Row(name, used_bytes=held_bytes) for name, held_bytes in zip(names, held, strict=True)]
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
    """Runs of layers, `parts` of them, whose longest is as short as possible."""
    if parts > len(times):
        raise InfeasibleError(
            f"a pipeline of {parts} stages needs as many layers, not {len(times)}; use fewer"
        )
    most, n = [[math.inf] * (len(times) + 1) for _ in range(parts + 1)], len(times)
    cut = [[0] * (n + 1) for _ in range(parts + 1)]
    total = [0.0]
    for t in times:
        total.append(total[-1] + t)
    most[0][0] = 0.0
    for k in range(1, parts + 1):
        for end in range(k, n + 1):
            for start in range(k - 1, end):
                longest = max(most[k - 1][start], total[end] - total[start])
                if longest < most[k][end]:
                    most[k][end], cut[k][end] = longest, start
    stages, end = [], n
    for k in range(parts, 0, -1):
        start = cut[k][end]
        stages.append(list(range(start, end)))
        end = start
    return stages[::-1]


def hybrid_split(s: Setting) -> tuple[int, int]:
    """p1 groups of p2 ranks: as asked, or p2 the ranks of a node, of more where samples are few."""
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


def _convs(s: Setting) -> list[Node]:
    return [n for n in s.nodes if n.layer is not None and n.weighted]


def _positions(s: Setting) -> tuple[int, str]:
    least = min((math.prod(n.in_shape[2:]) for n in s.nodes if math.prod(n.in_shape[2:]) > 1), default=1)
    return least, "positions of the smallest feature map (fully connected layers are not split)"


def _filters_limit(s: Setting) -> tuple[int, str]:
    return min((n.shape[1] for n in _convs(s)), default=1), "filters of the narrowest layer"


def _channels_limit(s: Setting) -> tuple[int, str]:
    convs = _convs(s)[1:] or _convs(s)
    return min(
        (n.in_shape[1] for n in convs), default=1
    ), "input channels of the narrowest layer but the first"


def _hybrid(inner: Callable[[Setting], tuple[int, str]]) -> Callable[[Setting], tuple[int, str]]:
    def limit(s: Setting) -> tuple[int, str]:
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
