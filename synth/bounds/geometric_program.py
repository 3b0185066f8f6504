"""Relaxations to real-valued blocks and tiles, with halos and memory limits, as geometric programs.

Every term is a posynomial in the blocks W and tiles T. So the programs are convex in the logarithms and
their optima are global. Two accountings must not be mixed:

* `relax_accessed`: Eq. 3 of SPAA'21, words that tiles load from a global virtual memory;
* `relax_received`: words that a process receives and does not own, without padding.

cvxpy is imported only when a program is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from synth.base.errors import InfeasibleError, UsageError
from synth.bounds.posynomials import Expression, minimised, product, total, values_of, variables
from synth.layer.axes import AXES, KERNEL_OF, LACKS, SPATIAL, TENSORS, Axis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import PASSES, Passes, moves
from synth.layer.window import Window

FILL: tuple[Axis, ...] = ("w", "h", "d", "b")  # the order in which interchangeable tiles are enlarged


@dataclass(frozen=True)
class Relaxed:
    """The optimum of a relaxation: real blocks W and tiles T by axis, and the words per process."""

    cost: float  # words
    W: Mapping[Axis, float]
    T: Mapping[Axis, float]
    stationary: Tensor
    accounting: str  # accessed or received

    def __str__(self) -> str:
        def text(values: Mapping[Axis, float]) -> str:
            return " ".join(f"{axis}={value:.4g}" for axis, value in values.items() if value > 1.0005) or "1"

        tiles = f"; tiles {text(self.T)}" if self.accounting == "accessed" else ""
        return (
            f"{self.cost:.1f} words {self.accounting}, {self.stationary} stationary, "
            f"blocks {text(self.W)}{tiles}"
        )


# --- accessed: Eq. 3 -------------------------------------------------------------------------------------


def _halo(nest: Nest, axis: Axis) -> int:
    """δ(N-1)+1-σ: the rows that a spatial tile reads beyond σT."""
    extent = nest.accesses["In"].dims[3 + SPATIAL.index(axis)].extent
    return int(extent({axis: 0, KERNEL_OF[axis]: nest.windows[axis].kernel}))


def _rows(nest: Nest, axis: Axis, tile: Expression) -> Expression:
    """Input rows of a tile: `σT + halo`, or, if the halo is negative, the smaller or equal `(σ+halo)·T`."""
    stride, halo = nest.windows[axis].stride, _halo(nest, axis)
    if halo > 0:
        return stride * tile + halo
    return (stride + halo) * tile


def tile_footprints(nest: Nest, T: Mapping[Axis, Expression]) -> dict[Tensor, Expression]:
    """Words of each tensor that a tile touches, padding included."""
    return {
        "In": product([T["b"], T["g"], T["c"], *(_rows(nest, a, T[a]) for a in SPATIAL if _in(nest, a))]),
        "Ker": nest.taps * product([T["g"], T["k"], T["c"]]),
        "Out": product([T["b"], T["g"], T["k"], *(T[a] for a in SPATIAL)]),
    }


def _in(nest: Nest, axis: Axis) -> bool:
    """Whether a spatial dimension contributes to the In footprint."""
    return nest.loop_extents()[axis] > 1 or nest.windows[axis].kernel > 1


def relax_accessed(nest: Nest, procs: int, limit_words: float | None, stationary: Tensor) -> Relaxed:
    """Eq. 3 of SPAA'21 over real W and T: accessed words of one of `procs` processes.

    The three tiles must fit `limit_words`, None for unlimited. Footprints include padding. Every visit of
    an Out tile counts once. The returned tiles are canonical: the tile of the streamed index has length 1
    if possible, and interchangeable tiles are enlarged in the order w, h, d, b. Raises `InfeasibleError`
    if tiles of one position do not fit `limit_words`, and `UsageError` if `procs` < 1.
    """
    if procs < 1:
        raise UsageError(f"Eq. 3 needs at least 1 process, not {procs}.")
    least = sum(a.footprint({**dict.fromkeys(AXES, 1), **_kernels(nest)}) for a in nest.accesses.values())
    if limit_words is not None and limit_words < least:
        raise InfeasibleError(
            f"One position of each tensor's tile needs {least} words and the tile memory has "
            f"{limit_words:g}; allow at least {least}."
        )
    W, T = variables(nest, "W"), variables(nest, "T")
    sizes = nest.extents._asdict()
    footprints = tile_footprints(nest, T)
    cost: Expression = 0.0
    for tensor in TENSORS:
        moved = set(AXES) if tensor != stationary else set(AXES) - set(LACKS[tensor])
        trips = [W[a] / T[a] for a in AXES if a in moved and sizes[a] > 1]
        cost = cost + product([footprints[tensor], *trips])
    constraints: list[Any] = [product(list(W.values())) >= max(1.0, nest.extents.size / procs)]
    for axis in AXES:
        if sizes[axis] > 1:
            constraints += [T[axis] >= 1, T[axis] <= W[axis], W[axis] <= sizes[axis]]
    if limit_words is not None:
        constraints.append(sum(footprints.values()) <= limit_words)
    value = minimised(cost, constraints)
    if value is None:
        raise InfeasibleError(
            f"Eq. 3 has no solution for {procs} processes and {limit_words} words of tile memory."
        )
    blocks, tiles = _canonical(nest, procs, stationary, values_of(W), values_of(T))
    return Relaxed(value, blocks, tiles, stationary, "accessed")


def _kernels(nest: Nest) -> dict[str, int]:
    return {KERNEL_OF[axis]: nest.windows[axis].kernel for axis in SPATIAL}


def _canonical(
    nest: Nest, procs: int, stationary: Tensor, W: dict[Axis, float], T: dict[Axis, float]
) -> tuple[dict[Axis, float], dict[Axis, float]]:
    """An optimal point that does not depend on the path of the solver; the optimum is not unique."""
    sizes = nest.extents._asdict()
    smooth = [a for a in FILL if a == "b" or _halo(nest, a) <= 0]  # only the product of their tiles matters
    streamed = [a for a in LACKS[stationary] if a in ("c", "k") or a in smooth]
    for axis in ("g", *streamed):
        T[axis] = 1.0  # a longer tile lowers no term, and a shorter one saves memory
    if stationary != "Ker":
        T.update(_filled(math.prod(T[a] for a in smooth), smooth, dict.fromkeys(smooth, 1.0), sizes))
    # Blocks keep the words of the stationary slice. Its lacking index gets the remaining iterations.
    axes = [a for a in (*FILL, "k", "c", "g") if a not in LACKS[stationary]]
    slice_size = math.prod(W[a] for a in axes)
    blocks = {**T, **_filled(slice_size, axes, T, sizes)}
    rest = max(1.0, nest.extents.size / procs) / math.prod(blocks[a] for a in axes)
    lacked = [a for a in FILL if a in LACKS[stationary]] or list(LACKS[stationary])
    blocks.update(_filled(rest, lacked, {a: T[a] for a in lacked}, sizes))
    return {a: blocks[a] for a in AXES}, {a: T[a] for a in AXES}


def _filled(
    product: float, axes: list[Any], start: Mapping[Any, float], sizes: Mapping[str, int]
) -> dict[Any, float]:
    """`start`, enlarged axis by axis, each up to its extent, until the product of its values is `product`."""
    result = {a: start[a] for a in axes}
    for axis in axes:
        missing = product / math.prod(result.values())
        result[axis] = min(float(sizes[axis]), max(result[axis], result[axis] * missing))
    return result


# --- received ------------------------------------------------------------------------------------------


def average_rows(window: Window, out: int, block: Expression, halos: bool = True) -> Expression:
    """Lower bound of the average number of rows that a block reads, if `out` positions are cut into blocks.

    P blocks together read `size` rows, and every cut makes at least `overlap` rows count twice. So the
    average is at least `overlap + W·(size - overlap)/N` with W = N/P. Without `halos` it is `W·size/N`.
    """
    if out == 1:
        return float(window.size)
    overlap = window.overlap if halos else 0
    slope = (window.size - overlap) / out
    if slope == 0:
        return float(overlap)
    return overlap + slope * block if overlap else slope * block


def slices(nest: Nest, W: Mapping[Axis, Expression], halos: bool = True) -> dict[Tensor, Expression]:
    """Lower bounds of the words of each tensor's slice, without padding. `halos` as for `average_rows`.

    Along a turned axis blocks are intervals of input rows, and neighbours share rows of Out.
    """
    sizes = nest.extents._asdict()
    framed = {a: average_rows(nest.windows[a], sizes[a], W[a], halos) for a in SPATIAL}
    inputs = [W[a] if a in nest.turned else framed[a] for a in SPATIAL]
    outputs = [framed[a] if a in nest.turned else W[a] for a in SPATIAL]
    return {
        "In": product([W["b"], W["g"], W["c"], *inputs]),
        "Ker": nest.taps * product([W["g"], W["k"], W["c"]]),
        "Out": product([W["b"], W["g"], W["k"], *outputs]),
    }


def turns(nest: Nest) -> list[Nest]:
    """The nest with each choice of turned axes that may change a relaxation, the nest itself first.

    Choices with the same windows, in another order of the axes, have the same relaxation.
    """
    found: dict[tuple[Any, ...], Nest] = {}
    for count in range(len(nest.turnable) + 1):
        for axes in combinations(nest.turnable, count):
            turned = nest.turn(axes)
            key = sorted((str(turned.windows[a]), getattr(turned.extents, a), a in axes) for a in SPATIAL)
            found.setdefault(tuple(key), turned)
    return list(found.values())


def _received_program(nest: Nest, procs: int, words: Callable[[dict[Tensor, Expression]], Expression]) -> Any:
    """(W, slices, constraints, objective `words(slices)`) of a program of the received accounting."""
    W = variables(nest, "W")
    touched = slices(nest, W)
    constraints: list[Any] = [product(list(W.values())) >= max(1.0, nest.extents.size / procs)]
    for axis, size in zip(AXES, nest.extents, strict=True):
        if size > 1:
            constraints += [W[axis] >= 1, W[axis] <= size]
    return W, touched, constraints, words(touched)


def relax_received(nest: Nest, procs: int, limit_words: float | None = None) -> Relaxed:
    """A lower bound on the words that a process of any grid plan receives, average over its processes.

    The program minimizes the slices of In, Ker and Out of a real-valued grid on `procs` working processes,
    without padding and less the `total_words/procs` that each process owns on average. For a plan with idle
    processes, take the relaxation at the number of processes that work. Received words may grow with P (if
    one axis is split and one tensor gathered), so fewer processes may receive less.

    `limit_words` is all memory of a process (M_D). The stationary slice and the owned shards of the other
    two tensors must fit. This is Eq. 11 of SPAA'21 without streaming buffers, because a plan may make them
    arbitrarily thin. The result is for the best stationary tensor, and for the best choice of the axes along
    which blocks are cut by input rows. Raises `InfeasibleError` if no stationary slice fits, and `UsageError`
    if `procs` < 1.
    """
    if procs < 1:
        raise UsageError(f"A grid needs at least 1 process, not {procs}.")
    owned = nest.total_words / procs
    limits = stationary_limits(nest, procs, limit_words)
    found = [_received(each, procs, t, limit) for each in turns(nest) for t, limit in limits.items()]
    solved = [relaxed for relaxed in found if relaxed is not None]
    if not solved:
        least = min(_least_memory(each, procs, tensor) for each in turns(nest) for tensor in TENSORS)
        raise InfeasibleError(
            f"A stationary slice and the owned shards need at least {math.ceil(least)} words on each of "
            f"{procs} processes and {limit_words:g} are allowed; allow {math.ceil(least)} "
            "or use more processes."
        )
    first = min(relaxed.cost for relaxed in solved)
    chosen = next(relaxed for relaxed in solved if relaxed.cost <= first * (1 + 1e-7))
    return Relaxed(max(0.0, chosen.cost - owned), chosen.W, chosen.W, chosen.stationary, "received")


def stationary_limits(nest: Nest, procs: int, limit_words: float | None) -> dict[Tensor, float]:
    """Stationary tensor -> words that its slice may have beside the owned shards of the other two.

    Without a limit all stationary tensors are alike, and one is given.
    """
    if limit_words is None:
        return {"Out": math.inf}
    return {t: limit_words - (nest.total_words - nest.words[t]) / procs for t in reversed(TENSORS)}


def _received(nest: Nest, procs: int, stationary: Tensor, limit_words: float) -> Relaxed | None:
    """The least words of all slices if the stationary slice must fit `limit_words`, or None."""
    if limit_words <= 0:
        return None
    W, touched, constraints, cost = _received_program(nest, procs, lambda s: total(s.values()))
    if not math.isinf(limit_words):
        constraints.append(touched[stationary] <= limit_words)
    value = minimised(cost, constraints)
    return None if value is None else Relaxed(value, values_of(W), values_of(W), stationary, "received")


def relax_training(
    nest: Nest, procs: int, kept: Collection[Tensor] = TENSORS, passes: Passes = PASSES
) -> Relaxed:
    """A lower bound on the received words of a training step on one grid, average over `procs` processes.

    A tensor is communicated once per pass, and once less if it is in `kept`, the tensors that a later pass
    reuses. These counts weigh the slices and the owned words. `training_step.one_grid_bound` is the same
    bound without blocks. Raises `UsageError` if `procs` < 1.
    """
    if procs < 1:
        raise UsageError(f"A grid needs at least 1 process, not {procs}.")
    times = moves(passes, kept)
    owned = sum(times[tensor] * nest.words[tensor] for tensor in TENSORS) / procs
    found = []
    for each in turns(nest):
        W, _, constraints, cost = _received_program(
            each, procs, lambda s: total(times[t] * s[t] for t in TENSORS)
        )
        value = minimised(cost, constraints)
        assert value is not None  # without a memory limit W = N is a solution
        blocks = values_of(W)
        found.append(Relaxed(max(0.0, value - owned), blocks, blocks, "Out", "received"))
    return min(found, key=lambda relaxed: relaxed.cost)


def _least_memory(nest: Nest, procs: int, stationary: Tensor) -> float:
    """Words of the smallest stationary slice and of the owned shards of the other tensors."""
    _, _, constraints, objective = _received_program(nest, procs, lambda s: s[stationary])
    least = minimised(objective, constraints)
    assert least is not None  # without a memory limit W = N is a solution
    return least + (nest.total_words - nest.words[stationary]) / procs
