"""The derivation, as the paper outlines it: layer, nest, optimum, grid, distribution, schedule, plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.base.work_balance import MOST_BALANCE
from synth.layer.axes import AXES, SPATIAL, Axis, PerAxis, Tensor, placement
from synth.layer.layer import Layer, load_layer
from synth.layer.nest import Nest
from synth.layer.passes import TURNED, Pass, Task
from synth.layer.residue_classes import Classes
from synth.machine.file import load_machine
from synth.machine.hierarchy import Machine
from synth.planning.algorithm import algorithm_name
from synth.planning.plan import Plan
from synth.planning.request import PlanRequest, asks
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.search.class_search import search_classes
from synth.search.request import STATIONARY, Request

if TYPE_CHECKING:
    from synth.search.fastest import Fastest


@asks(PlanRequest)
def plan(*args: Any, **options: Any) -> Plan:
    """The plan of a layer with the fewest words of its family; `PlanRequest` describes the arguments.

    Raises `UsageError` for arguments out of range, `InputError` for a wrong file, and `InfeasibleError`
    when nothing fits; the message then says what would.
    """
    return derive(PlanRequest(*args, **options))


def derive(request: PlanRequest, ghosts: bool = True) -> Plan:
    """The plan of a request. Raises `UsageError`, `InputError` and `InfeasibleError` as `plan` does.

    ghosts: whether shards live with their ghost rows; see `Distribution`. False for a layer of a network.

    The stages, named as in `--stop-after`, and the value of each:

        layer         `Layer`, read and checked
        nest          `Nest`, the loop nest of the layer
        optimum       `Plan` with the best grid and pass plans, its ranks in row-major order
        grid          `PerAxis`, the processes along each axis
        distribution  `Distribution`, who works on what and owns what
        schedule      the pass plans, one `PassPlan` per pass; `schedule.pass_program` is the tree of each
        plan          `Plan`, all decisions
    """
    layer = read_layer(request)
    if request.as_ is not None:
        from synth.planning.typed_plan import typed_plan  # imports msgspec, which a search does not need

        return typed_plan(request, layer, nest_task(request, layer), ghosts)
    optimum = find_optimum(request, layer, ghosts)
    distribution = distribute(optimum.distribution.nest, optimum.grid, request.order)
    return named(request, replace(optimum, order=distribution.order), distribution)


# -- the stages ---------------------------------------------------------------------------------------


def read_layer(request: PlanRequest) -> Layer:
    """The layer of a request, checked against the rest of it."""
    layer = request.layer if isinstance(request.layer, Layer) else load_layer(request.layer)
    request.check_layer(layer)
    return layer


def find_optimum(request: PlanRequest, layer: Layer, ghosts: bool = True) -> Plan:
    """The optimum over all grids, stationary tensors and tilings that the request allows.

    Its limit of memory is that of the request, else of the machine if its memory is too small for the
    optimum without a limit.
    """
    machine = None if request.machine is None else load_machine(request.machine)
    optimum = _optimum_within(request, layer, machine, request.limit_bytes, ghosts)
    if request.limit_bytes is not None or machine is None or machine.limit_bytes is None:
        return optimum
    if optimum.used_bytes <= machine.limit_bytes:
        return optimum
    return _optimum_within(request, layer, machine, machine.limit_bytes, ghosts)


def distribute(nest: Nest, grid: PerAxis, order: Sequence[str] | None) -> Distribution:
    """The distribution over a grid. Raises `UsageError` where the order lacks a split axis."""
    if order is None:
        return Distribution(nest, grid)
    missing = [axis for axis in AXES if getattr(grid, axis) > 1 and axis not in order]
    if missing:
        raise UsageError(
            f"order {','.join(order)} lacks {', '.join(missing)}, which the grid {grid.shown()} "
            "splits; add it"
        )
    return Distribution(nest, grid, placement(grid, order))


def named(request: PlanRequest, plan: Plan, distribution: Distribution) -> Plan:
    """The plan with the name of the algorithm that its decisions amount to."""
    if _is_unrestricted(request, plan):
        return plan  # 2D or 3D
    name = algorithm_name(plan.layer, plan.procs, distribution, plan.pass_plans)
    return replace(plan, algorithm=name)


def _is_unrestricted(request: PlanRequest, plan: Plan) -> bool:
    """Whether the search was for the fewest words, with any memory and grid: then no grid moves fewer."""
    restricted = bool(request.grid or request.strategy or request.rows) or request.stationary != "auto"
    restricted = restricted or request.panels is not None
    return request.objective == "words" and plan.limit_bytes is None and not restricted


# -- the search ---------------------------------------------------------------------------------------


def _optimum_within(
    request: PlanRequest, layer: Layer, machine: Machine | None, limit_bytes: int | None, ghosts: bool
) -> Plan:
    query = replace(search_request(request, layer, limit_bytes), ghosts=ghosts)
    make = partial(_plan, request, layer, query, limit_bytes)
    if request.objective == "time":
        assert machine is not None  # `PlanRequest` checks it
        timed = _fastest(query, machine)
        return make(timed.grid, timed.pass_plans, timed.least_work, timed=(machine, timed))
    found = search_classes(query, asked_classes(request))
    return make(
        found.grid,
        found.tiling.pass_plans,
        found.least_work,
        turned=found.turned,
        classes=found.classes,
        proven_words=found.proven_words,
    )


def _plan(
    request: PlanRequest,
    layer: Layer,
    query: Request,
    limit_bytes: int | None,
    grid: PerAxis,
    pass_plans: Sequence[PassPlan],
    least_work: int,
    **decided: Any,
) -> Plan:
    """The plan of what a search has found; decided: more fields of `Plan`."""
    first, *later = pass_plans
    return Plan(
        layer,
        request.procs,
        grid,
        first,
        later=tuple(later),
        limit_bytes=limit_bytes,
        balance=request.balance,
        exact_procs=request.exact_procs,
        least_work=least_work,
        pinned=_pinned(query, decided.get("classes", ())),
        ghosts=query.ghosts,
        **decided,
    )


def _fastest(query: Request, machine: Machine) -> Fastest:
    from synth.search.fastest import fastest

    if machine.most_ranks is not None and query.procs > machine.most_ranks:
        raise UsageError(
            f"{machine.name} has {machine.most_ranks} ranks, fewer than {option('procs', query.procs)};"
            " take fewer"
        )
    return fastest(query, machine)


def asked_classes(request: PlanRequest) -> Mapping[str, int]:
    """Axis -> the number of residue classes that the request fixes, 1 for none.

    The fewest words decide. Named strategies, Eq. 10 of the paper and the time model know no classes.
    """
    if request.objective != "words" or request.strategy is not None:
        return dict.fromkeys(SPATIAL, 1)
    return request.classes or {}


def _pinned(query: Request, classes: Classes = ()) -> tuple[Axis, ...]:
    """The axes whose counts are fixed, of those that could be split."""
    extents = query.nest.by_classes(classes).extents
    return tuple(axis for axis in AXES if axis in query.fixed and getattr(extents, axis) > 1)


def search_request(request: PlanRequest, layer: Layer, limit_bytes: int | None) -> Request:
    """The request as the search understands it: memory in words, the passes of the nest."""
    strategy = request.named_strategy
    fixed = (strategy.fixed if strategy else {}) | dict(request.grid or {})
    required_stationary = strategy.stationary if strategy else None
    stationary: tuple[Tensor, ...] = (required_stationary,) if required_stationary else STATIONARY
    if request.stationary != "auto":
        stationary = tuple(tensor for tensor in STATIONARY if tensor.lower() == request.stationary)
    limit_words = None if limit_bytes is None else limit_bytes // layer.nest.word_bytes
    balance = request.balance
    if request.objective == "paper":
        from synth.bounds.paper_cost import distributed_optimum

        fixed = distributed_optimum(layer.nest, request.procs, limit_words).grid._asdict()
        balance = MOST_BALANCE
    may, must = _turns(request, layer)
    return Request(
        layer.nest,
        request.procs,
        limit_words,
        stationary=stationary,
        fixed=fixed,
        balance=balance,
        exact=request.exact_procs,
        pass_=nest_task(request, layer),
        transposed=layer.transposed,
        panels=request.panels,
        gradients=request.gradient_tensors,
        turnable=may,
        turned=must,
    )


def _turns(request: PlanRequest, layer: Layer) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The axes along which blocks may, and those along which they must, be cut by input rows.

    The fewest words decide. Named strategies, Eq. 10 of the paper and the time model know output rows only.
    """
    free = request.objective == "words" and request.strategy is None
    asked = request.rows or {}
    may = tuple(axis for axis in layer.nest.turnable if free and axis not in asked)
    return may, tuple(axis for axis in SPATIAL if asked.get(axis) == "in")


def nest_task(request: PlanRequest, layer: Layer) -> Task:
    """The pass of the nest: forward of a transposed layer is backward-data of its convolution."""
    if layer.transposed and request.pass_ != "training":
        return TURNED[cast(Pass, request.pass_)]
    return cast(Task, request.pass_)
