"""The objective `time` for one layer: the grid, stationary tensor and panels with the fewest seconds.

Ranks are placed row-major, as the emitted programs place them, so the choice of the grid is also the choice
of which axes lie inside a node. Best first: a grid is timed only while a lower bound of its time (its
computing, or the words of an average rank at the fastest level) is below the best time so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.axes import PerAxis
from synth.errors import InfeasibleError
from synth.machine.groups import ORDERS, ROW_MAJOR, Order, distinct_orders
from synth.machine.layer_time import PANELS, LayerTimer, PassTime, compute_seconds, layer_seconds
from synth.machine.levels import Machine
from synth.search import STATIONARY, Request
from synth.space import Space, all_grids
from synth.tiling import ONES, Tiling


@dataclass(frozen=True)
class Fastest:
    """The fastest plan of a layer; `order` is a placement of the same grid that would be faster still."""

    grid: PerAxis
    tiling: Tiling
    time: PassTime
    least_work: int
    order: Order
    order_seconds: float


def fastest(request: Request, machine: Machine) -> Fastest:
    """The plan of a request with the least time on a machine; work balance is left to time itself.

    The family is every grid of P processes and, unless the request is exact, of P/2, P/4, ...: where start-up
    costs dominate, idle processes are faster.
    Raises `InfeasibleError` where no grid exists or none fits the memory.
    """
    nest, space = request.nest, Space(request.nest, request.procs, request.fixed, request.exact)
    grids = sorted((bound(request, machine, grid), grid) for grid in _family(request))
    if not grids:
        raise InfeasibleError(
            f"no grid of exactly {request.procs} processes exists for {nest}; allow idle ones"
        )
    best: tuple[float, PerAxis, Tiling, PassTime] | None = None
    for least, grid in grids:
        if best and least >= best[0]:
            break
        timed = _timed(request, machine, grid, best[0] if best else None)
        if timed and (best is None or timed[1].total < best[0]):
            best = timed[1].total, grid, *timed
    if best is None:
        raise InfeasibleError(
            f"no plan for {request.procs} processes that streams whole tiles fits the memory; plan for "
            f"--objective words, which can tile further, or raise --memory"
        )
    _, grid, tiling, time = best
    orders = distinct_orders(grid, ORDERS)
    seconds, order = min((layer_seconds(machine, nest, grid, o), i) for i, o in enumerate(orders))
    return Fastest(grid, tiling, time, space.least_work or 1, orders[order], seconds)


def _family(request: Request) -> list[PerAxis]:
    procs, grids = request.procs, list[PerAxis]()
    while procs >= 1:
        grids += all_grids(Space(request.nest, procs, request.fixed, True), procs)
        procs = 0 if request.exact else procs // 2
    return grids or ([] if request.exact else all_grids(_loose(request), request.procs))


def _loose(request: Request) -> Space:
    return Space(request.nest, request.procs, request.fixed, False)


def bound(request: Request, machine: Machine, grid: PerAxis) -> float:
    """Seconds that no schedule of a grid can beat: computing, or all it moves over the fastest level."""
    nest, words, parts = request.nest, request.nest.words, grid.size
    alpha = min(level.alpha + level.staging_alpha for level in machine.levels)
    beta = min(min([level.beta, *(b for _, b in level.small)]) for level in machine.levels)
    slices = {
        "In": grid.x * grid.g * grid.c,
        "Ker": grid.g * grid.c * grid.k,
        "Out": grid.x * grid.g * grid.k,
    }
    seconds = 0.0
    for tensor, group in (("In", grid.k), ("Ker", grid.x), ("Out", grid.c)):
        received = words[tensor] * (1 / slices[tensor] - 1 / parts)  # type: ignore[index]
        if group > 1:
            seconds += alpha * math.ceil(math.log2(group)) + received * nest.word_bytes * beta * (1 - 1e-9)
    work = PerAxis(*(-(-n // p) for n, p in zip(nest.extents, grid, strict=True)))
    return max(compute_seconds(machine, nest, work, True), seconds)


def _timed(
    request: Request, machine: Machine, grid: PerAxis, below: float | None
) -> tuple[Tiling, PassTime] | None:
    """The fastest schedule of a grid that fits the memory; None when none fits or none is fast enough."""
    timer = LayerTimer(machine, request.nest, grid, ROW_MAJOR)
    if request.stationary == STATIONARY:
        time = timer.passed("forward")
        if below is not None and time.total >= below:
            return None
        if request.memory is None:
            return Tiling(time.stationary, _counts(time)), time
    for time in sorted(_choices(request, timer), key=lambda t: (t.total, t.panels, t.stationary)):
        tiling = Tiling(time.stationary, _counts(time))
        if request.memory is None or timer.footprints.memory(tiling).words <= request.memory:
            return tiling, time
    return None


def _choices(request: Request, timer: LayerTimer) -> list[PassTime]:
    return [
        timer.passed("forward", stays, panels)
        for stays in request.stationary
        for panels in PANELS
        if panels <= max(1, timer.streams(stays))
    ]


def _counts(time: PassTime) -> PerAxis:
    stream = Tiling(time.stationary).stream
    return ONES.with_("b" if stream == "x" else stream, time.panels)
