"""The objective `time` for one layer: the grid, stationary tensors and panels with the fewest seconds.

Ranks are placed in row-major order, as in the emitted programs, so the grid decides which axes are inside a
node. The search also chooses the tensors that the passes of a training step reuse; with unlimited memory it
is all of them. The search is best first: it computes the time of a grid only if a lower bound, computing or
all communication at the fastest level, is below the best time so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from synth.base.doors import option
from synth.base.errors import InfeasibleError
from synth.layer.axes import ROW_MAJOR, Order, PerAxis, Tensor
from synth.layer.passes import Pass
from synth.machine.hierarchy import Machine
from synth.machine.layer_time import LayerTimer, PassTime, along, compute_seconds
from synth.machine.rank_groups import ORDERS, distinct_orders
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import ONES, PassPlan
from synth.schedule.training_memory import unused_resident_words
from synth.search.grids import Space, all_grids, no_grid
from synth.search.request import Request
from synth.search.training_step import pass_templates, preferred_orders, reuse_choices

SLACK = 0.02  # more panels must be faster by this fraction, which is the accuracy of the time model
TimedPasses = list[tuple[PassPlan, PassTime]]  # one per pass


@dataclass(frozen=True)
class Fastest:
    """The fastest plan of a layer with row-major ranks, and the fastest placement of its ranks."""

    grid: PerAxis
    pass_plans: tuple[PassPlan, ...]  # one per pass
    times: tuple[PassTime, ...]  # one per pass
    least_work: int  # w*, in iterations
    order: Order  # the fastest order of the axes for this grid
    order_seconds: float  # the time with that order

    @property
    def seconds(self) -> float:
        """Seconds of all passes with row-major ranks."""
        return sum(time.total for time in self.times)


def fastest(request: Request, machine: Machine) -> Fastest:
    """The plan of a request with the least time on a machine. There is no limit of the work balance.

    The search covers every grid of P processes and, unless the request is exact, of P/2, P/4, ...: if
    start-up costs dominate, fewer processes are faster. Raises `InfeasibleError` if no grid exists or no
    plan without inner tiles fits the memory.
    """
    nest, space = request.nest, Space(request.nest, request.procs, request.fixed, request.exact)
    least_work = space.least_work
    if least_work is None:
        raise no_grid(space)
    grids = sorted((bound(request, machine, grid), grid) for grid in _grids(request))
    best: tuple[float, Footprints, TimedPasses] | None = None
    for least, grid in grids:
        if best and least >= best[0]:
            break
        footprints = Footprints(Distribution(nest, grid, ghosts=request.ghosts))
        timed = _fastest_passes(request, machine, footprints, best[0] if best else None)
        if timed is None:
            continue
        seconds = sum(time.total for _, time in timed)
        if best is None or seconds < best[0]:
            best = seconds, footprints, timed
    if best is None:
        raise InfeasibleError(
            f"no plan for {request.procs} processes that streams whole tiles fits the memory; plan for "
            f"{option('objective', 'words')}, which can tile further, or raise {option('memory')}"
        )
    _, footprints, timed = best
    orders = distinct_orders(footprints.grid, ORDERS)
    seconds, order = min((_seconds(request, machine, footprints, o), i) for i, o in enumerate(orders))
    pass_plans, times = tuple(zip(*timed, strict=True))
    return Fastest(footprints.grid, pass_plans, times, least_work, orders[order], seconds)


def _seconds(request: Request, machine: Machine, footprints: Footprints, order: Order) -> float:
    """The seconds of a grid whose ranks have the given axis order, if passes reuse all they can."""
    timer = _timer(request, machine, footprints, order, next(_reuse_choices(request)))
    return sum(timer.least(pass_) for pass_ in timer.sequence)


def _timer(
    request: Request, machine: Machine, footprints: Footprints, order: Order, reused: frozenset[Tensor]
) -> LayerTimer:
    sequence = request.sequences[0]
    if request.pass_ == "training":
        sequence = preferred_orders(footprints, request.transposed, request.gradients)[0]
    return LayerTimer(machine, footprints, order, saved=reused, sequence=sequence)


def _reuse_choices(request: Request) -> Iterator[frozenset[Tensor]]:
    """The sets of tensors that passes may reuse, largest first."""
    return reuse_choices(request.sequences[0], request.limit_words is None)


def _grids(request: Request) -> list[PerAxis]:
    """The grids of exactly P, P/2, P/4, ... processes, or all grids if there are none."""
    procs, grids = request.procs, list[PerAxis]()
    while procs >= 1:
        grids += all_grids(Space(request.nest, procs, request.fixed, True), procs)
        procs = 0 if request.exact else procs // 2
    if grids or request.exact:
        return grids
    return all_grids(Space(request.nest, request.procs, request.fixed, False), request.procs)


def bound(request: Request, machine: Machine, grid: PerAxis) -> float:
    """Lower bound of the seconds of a grid: computing, or all communication at the fastest level."""
    nest, words, parts = request.nest, request.nest.words, grid.size
    alpha = min(level.alpha + level.staging_alpha for level in machine.levels)
    beta = min(min([level.beta, *(b for _, b in level.small)]) for level in machine.levels)
    passes, moves = request.sequences[0], request.moves
    slices = {
        "In": grid.x * grid.g * grid.c,
        "Ker": grid.g * grid.c * grid.k,
        "Out": grid.x * grid.g * grid.k,
    }
    seconds = 0.0
    for tensor, group in (("In", grid.k), ("Ker", grid.x), ("Out", grid.c)):
        received = words[tensor] * (1 / slices[tensor] - 1 / parts)  # type: ignore[index]
        if group > 1:
            each = alpha * math.ceil(math.log2(group)) + received * nest.word_bytes * beta * (1 - 1e-9)
            seconds += moves[tensor] * each  # type: ignore[index]
    work = nest.extents.blocks(grid)
    return max(float(sum(compute_seconds(machine, nest, work, True, pass_) for pass_ in passes)), seconds)


def _fastest_passes(
    request: Request, machine: Machine, footprints: Footprints, below: float | None
) -> TimedPasses | None:
    """The fastest plans of all passes that fit the memory, or None if they take `below` seconds or more."""
    best: TimedPasses | None = None
    for reused in _reuse_choices(request):
        timer = _timer(request, machine, footprints, ROW_MAJOR, reused)
        if sum(timer.least(pass_) for pass_ in timer.sequence) >= (math.inf if below is None else below):
            continue
        found = [_fastest_pass(request, timer, each) for each in pass_templates(reused, timer.sequence)]
        timed = [each for each in found if each is not None]
        seconds = sum(time.total for _, time in timed)
        if len(timed) == len(found) and (below is None or seconds < below):
            best, below = timed, seconds
    return best


def _fastest_pass(
    request: Request, timer: LayerTimer, template: PassPlan
) -> tuple[PassPlan, PassTime] | None:
    """The fastest plan of one pass that fits the memory beside the resident words of other passes."""
    limit_words: float = math.inf
    if request.limit_words is not None:
        limit_words = request.limit_words - unused_resident_words(
            timer.footprints, timer.saved, timer.sequence, template.pass_
        )
    best: tuple[PassPlan, PassTime] | None = None
    enough = math.inf
    for time in sorted(
        _pass_times(request, timer, template.pass_), key=lambda t: (t.total, t.panels, t.stationary)
    ):
        if best and (time.total > enough or time.panels >= best[1].panels):
            continue
        counts = ONES.with_(along(time.stationary), time.panels)
        pass_plan = replace(template, stationary=time.stationary, counts=counts)
        if limit_words == math.inf or timer.footprints.memory(pass_plan).words <= limit_words:
            best, enough = (pass_plan, time), min(enough, (1 + SLACK) * time.total)
    return best


def _pass_times(request: Request, timer: LayerTimer, pass_: Pass) -> list[PassTime]:
    """The times of a pass, for each stationary tensor and each number of panels."""
    return [
        timer.passed(pass_, tensor, min(panels, most))
        for tensor in request.stationary
        for most in [timer.most_panels(tensor) if request.panels else timer.streams(tensor)]
        for panels in ((request.panels,) if request.panels else timer.counts(tensor))
        if panels <= most or request.panels
    ]
