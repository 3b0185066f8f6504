"""The objective `time` for one layer: the grid, stationary tensor and panels with the fewest seconds.

Ranks are placed row-major, as the emitted programs place them, so the choice of the grid is also the choice
of which axes lie inside a node. What is kept between the passes of a training step is part of the choice;
with memory unlimited everything is. Best first: a grid is timed only while a
lower bound of its time (its computing, or all it moves at the fastest level) is below the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from synth.base.errors import InfeasibleError
from synth.layer.axes import ROW_MAJOR, Order, PerAxis, Tensor
from synth.layer.passes import Pass
from synth.machine.hierarchy import Machine
from synth.machine.layer_time import LayerTimer, PassTime, along, compute_seconds
from synth.machine.rank_groups import ORDERS, distinct_orders
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import ONES, PassPlan
from synth.search.branch_and_bound import Request
from synth.search.grids import Space, all_grids
from synth.search.training_step import pass_templates, preferred_orders, reuse_choices, unused_resident_words

SLACK = 0.02  # more panels have to be faster by this share: the model is no better than that
Timed = list[tuple[PassPlan, PassTime]]  # per pass


@dataclass(frozen=True)
class Fastest:
    """The fastest plan of a layer; `order` is a placement of the same grid that may be faster still."""

    grid: PerAxis
    pass_plans: tuple[PassPlan, ...]  # one per pass
    times: tuple[PassTime, ...]
    least_work: int
    order: Order
    order_seconds: float

    @property
    def seconds(self) -> float:
        """All passes together."""
        return sum(time.total for time in self.times)


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
    best: tuple[float, Footprints, Timed] | None = None
    for least, grid in grids:
        if best and least >= best[0]:
            break
        footprints = Footprints(Distribution(nest, grid))
        timed = _timed(request, machine, footprints, best[0] if best else None)
        if timed is None:
            continue
        seconds = sum(time.total for _, time in timed)
        if best is None or seconds < best[0]:
            best = seconds, footprints, timed
    if best is None:
        raise InfeasibleError(
            f"no plan for {request.procs} processes that streams whole tiles fits the memory; plan for "
            f"--objective words, which can tile further, or raise --memory"
        )
    _, footprints, timed = best
    orders = distinct_orders(footprints.grid, ORDERS)
    seconds, order = min((_placed(request, machine, footprints, o), i) for i, o in enumerate(orders))
    pass_plans, times = tuple(zip(*timed, strict=True))
    return Fastest(footprints.grid, pass_plans, times, space.least_work or 1, orders[order], seconds)


def _placed(request: Request, machine: Machine, footprints: Footprints, order: Order) -> float:
    timer = _timer(request, machine, footprints, order, next(_kept(request)))
    return sum(timer.least(pass_) for pass_ in timer.sequence)


def _timer(
    request: Request, machine: Machine, footprints: Footprints, order: Order, kept: frozenset[Tensor]
) -> LayerTimer:
    sequence = request.sequences[0]
    if request.pass_ == "training":
        sequence = preferred_orders(footprints, request.transposed, request.gradients)[0]
    return LayerTimer(machine, footprints, order, kept=kept, sequence=sequence)


def _kept(request: Request) -> Iterator[frozenset[Tensor]]:
    """What may be kept between passes, most first."""
    return reuse_choices(request.sequences[0], request.limit_words is None)


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
    passes, moves = len(request.sequences[0]), request.moves
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
    work = PerAxis(*(-(-n // p) for n, p in zip(nest.extents, grid, strict=True)))
    return max(passes * compute_seconds(machine, nest, work, True), seconds)


def _timed(request: Request, machine: Machine, footprints: Footprints, below: float | None) -> Timed | None:
    """The fastest plan of every pass that fits the memory; None when none fits or none is fast enough."""
    best: Timed | None = None
    for kept in _kept(request):
        timer = _timer(request, machine, footprints, ROW_MAJOR, kept)
        if sum(timer.least(pass_) for pass_ in timer.sequence) >= (math.inf if below is None else below):
            continue
        found = [_fastest_pass(request, timer, role) for role in pass_templates(kept, timer.sequence)]
        timed = [each for each in found if each is not None]
        seconds = sum(time.total for _, time in timed)
        if len(timed) == len(found) and (below is None or seconds < below):
            best, below = timed, seconds
    return best


def _fastest_pass(request: Request, timer: LayerTimer, role: PassPlan) -> tuple[PassPlan, PassTime] | None:
    """The fastest plan of one pass within the memory, beside what waits for other passes."""
    limit_words: float = math.inf
    if request.limit_words is not None:
        limit_words = request.limit_words - unused_resident_words(
            timer.footprints, timer.kept, timer.sequence, role.pass_
        )
    best: tuple[PassPlan, PassTime] | None = None
    enough = math.inf
    for time in sorted(_choices(request, timer, role.pass_), key=lambda t: (t.total, t.panels, t.stationary)):
        if best and (time.total > enough or time.panels >= best[1].panels):
            continue
        counts = ONES.with_(along(time.stationary), time.panels)
        pass_plan = replace(role, stationary=time.stationary, counts=counts)
        if limit_words == math.inf or timer.footprints.memory(pass_plan).words <= limit_words:
            best, enough = (pass_plan, time), min(enough, (1 + SLACK) * time.total)
    return best


def _choices(request: Request, timer: LayerTimer, pass_: Pass) -> list[PassTime]:
    return [
        timer.passed(pass_, stays, min(panels, most))
        for stays in request.stationary
        for most in [timer.most_panels(stays) if request.panels else timer.streams(stays)]
        for panels in ((request.panels,) if request.panels else timer.counts(stays))
        if panels <= most or request.panels
    ]
