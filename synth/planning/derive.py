"""The derivation, as the paper outlines it: layer, nest, optimum, grid, distribution, schedule, plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from synth.base.errors import UsageError
from synth.base.units import as_bytes
from synth.layer.axes import AXES, Tensor, placement
from synth.layer.layer import Layer, load_layer
from synth.layer.passes import GRADIENTS, TASKS, TURNED
from synth.machine.file import load_machine
from synth.machine.hierarchy import Machine
from synth.planning.plan import Plan
from synth.search.branch_and_bound import STATIONARY, Request, search

MOST_PANELS = 2**40
Stationary = Literal["auto", "out", "in", "ker"]
STAYS: dict[str, tuple[Tensor, ...]] = {
    "auto": STATIONARY,
    "out": ("Out",),
    "in": ("In",),
    "ker": ("Ker",),
}


def plan(
    layer: Layer | str | os.PathLike[str],
    procs: int,
    memory: int | str | None = None,
    *,
    objective: str = "words",
    stationary: str = "auto",
    grid: Mapping[str, int] | None = None,
    balance: float = 0.10,
    exact_procs: bool = False,
    pass_: str = "forward",
    machine: str | os.PathLike[str] | None = None,
    strategy: str | None = None,
    order: Sequence[str] | None = None,
    panels: int | None = None,
    gradients: Sequence[str] = ("in", "ker"),
) -> Plan:
    """The communication-optimal plan of a layer (a `Layer` or the path of a layer file).

    objective: "words" (received words, exact), "paper" (Eq. 10 of SPAA'21, on exactly `procs` processes) or
    "time" (seconds on a machine; the only one that needs `machine`).
    procs: processes; a few may stay idle within `balance`, none with `exact_procs`.
    memory: bytes per process, as an int or like "16GiB"; None for as much as the machine has, or as it takes.
    machine: a machine file, or the name of a shipped one.
    pass_: "forward", "backward-data", "backward-filter", or "training" for all three on one grid.
    gradients: that a training step makes, "in" and "ker" or one of them: the first layer of a network needs
    no dIn, and frozen weights no dKer.
    grid: parts of the grid to keep fixed, e.g. {"b": 4, "k": 2}.
    strategy: a name of `strategies.STRATEGIES`, e.g. "stationary-x": the best plan within it.
    order: axes as they run over the ranks, the last one fastest, e.g. "bhkc"; those that are not split may be
    missing. None is row-major. It moves no word, but says which ranks are neighbours.
    panels: wanted in the streaming loop, more where memory is short; by default as many as overlap pays for.

    Raises `UsageError` for arguments out of range, `InputError` for a wrong file, and `InfeasibleError`
    when nothing fits; the message then says what would.
    """
    if not isinstance(layer, Layer):
        if not isinstance(layer, str | os.PathLike):
            raise UsageError(f"layer is {layer!r}; give a Layer, or the path of a layer file")
        layer = load_layer(layer)
    limit = as_bytes(memory)
    if grid is not None and not isinstance(grid, Mapping):
        raise UsageError(f'grid is {grid!r}; write it like {{"b": 4, "k": 2}}')
    if not isinstance(balance, int | float):
        raise UsageError(f"balance is {balance!r}; it must be between 0 (no extra work) and 10")
    pinned, balance = dict(grid or {}), float(balance)  # as a plan file gives it back
    if strategy is not None:
        pinned, stationary = _within(strategy, pinned, stationary)
    request = checked(layer, procs, limit, stationary, pinned, balance, exact_procs)
    if pass_ not in TASKS:
        raise UsageError(f"pass is {pass_!r}; it must be one of {', '.join(TASKS)}")
    if panels is not None and not (isinstance(panels, int) and 1 <= panels <= MOST_PANELS):
        raise UsageError(f"panels is {panels!r}; it must be from 1 to {MOST_PANELS}")
    wanted = asked_gradients(gradients, pass_)
    check_order(order)
    if layer.transposed and pass_ != "training":  # forward is the backward-data pass of the nest
        pass_ = TURNED[pass_]
    request = replace(request, pass_=pass_, panels=panels, transposed=layer.transposed, gradients=wanted)
    if objective == "paper":
        if strategy is not None:
            raise UsageError(f"objective paper chooses its own grid; leave out strategy {strategy}")
        request = replace(request, fixed=_paper_grid(request, layer), balance=10.0)
    elif objective not in ("words", "time"):
        raise UsageError(f"objective is {objective!r}; it must be words, time or paper")
    if objective == "time" and machine is None:
        raise UsageError("objective time needs a machine; name a file, or one of those that are shipped")
    where = None if machine is None else load_machine(machine)

    def found(within: int | None) -> Plan:
        asked = replace(request, limit_words=None if within is None else within // layer.nest.word_bytes)
        if objective == "time":
            assert where is not None
            return _fastest(asked, layer, procs, within, balance, exact_procs, where)
        return _fewest(asked, layer, procs, within, balance, exact_procs)

    made = found(limit)
    most = None if where is None else where.limit_bytes
    if limit is None and most is not None and made.used_bytes > most:
        made = found(most)
    return placed(made, order)


def asked_gradients(gradients: Sequence[str], pass_: str) -> tuple[Tensor, ...]:
    """The tensors whose gradients are asked for. Raises `UsageError`."""
    known = {tensor.lower(): tensor for tensor in GRADIENTS}
    if isinstance(gradients, str) or not gradients or not set(gradients) <= known.keys():
        raise UsageError(f"gradients is {gradients!r}; it must name in, ker or both")
    found = tuple(tensor for name, tensor in known.items() if name in gradients)
    if found != GRADIENTS and pass_ != "training":
        raise UsageError(
            f"gradients {','.join(gradients)} are those of a training step, not of pass {pass_}; "
            "leave them out or ask for pass training"
        )
    return found


def check_order(order: Sequence[str] | None) -> None:
    """Raises `UsageError` where an order names what is no axis, or an axis twice."""
    if order is None:
        return
    if not isinstance(order, Sequence):
        raise UsageError(f"order is {order!r}; write axes, the last one fastest, like 'bhkc'")
    for axis in order:
        if axis not in AXES or list(order).count(axis) > 1:
            raise UsageError(
                f"order {','.join(map(str, order))} has {axis!r}; name each of {', '.join(AXES)} at most once"
            )


def placed(made: Plan, order: Sequence[str] | None) -> Plan:
    """The plan with its ranks in another order. Raises `UsageError` where the order lacks a split axis."""
    if order is None:
        return made
    missing = [axis for axis in AXES if getattr(made.grid, axis) > 1 and axis not in order]
    if missing:
        raise UsageError(
            f"order {','.join(order)} lacks {', '.join(missing)}, which the grid {made.grid.shown()} "
            "splits; add it"
        )
    return replace(made, order=placement(made.grid, order))


def _fewest(
    request: Request, layer: Layer, procs: int, limit: int | None, balance: float, exact: bool
) -> Plan:
    """The plan with the fewest words."""
    found = search(request)
    pass_plan, *later = found.tiling.pass_plans
    return Plan(layer, procs, found.grid, pass_plan, limit, balance, exact, found.least_work, tuple(later))


def _fastest(
    request: Request,
    layer: Layer,
    procs: int,
    limit: int | None,
    balance: float,
    exact: bool,
    where: Machine,
) -> Plan:
    """The plan with the fewest seconds on a machine."""
    from synth.search.fastest import fastest

    if where.most_ranks is not None and procs > where.most_ranks:
        raise UsageError(f"{where.name} has {where.most_ranks} ranks, fewer than --procs {procs}; take fewer")
    found = fastest(request, where)
    pass_plan, *later = found.pass_plans
    made = Plan(layer, procs, found.grid, pass_plan, limit, balance, exact, found.least_work, tuple(later))
    return replace(made, timed=(where, found))


def _within(strategy: str, grid: dict[str, int], stationary: str) -> tuple[dict[str, int], str]:
    """The parts of the grid and the stationary tensor that a named strategy leaves no choice of."""
    from synth.search.strategies import STRATEGIES

    known = {each.name: each for each in STRATEGIES}
    if strategy not in known:
        raise UsageError(f"strategy is {strategy!r}; it must be one of {', '.join(known)}")
    named = known[strategy]
    for axis, parts in grid.items():
        if axis in AXES and axis not in named.axes and parts != 1:
            raise UsageError(
                f"strategy {strategy} does not split axis {axis}; leave {axis}={parts} out of grid"
            )
    stays = named.stationary.lower() if named.stationary else stationary
    if stationary not in ("auto", stays):
        raise UsageError(f"strategy {strategy} keeps {named.stationary} stationary, not {stationary}")
    return {**{axis: 1 for axis in AXES if axis not in named.axes}, **grid}, stays


def _paper_grid(request: Request, layer: Layer) -> dict[str, int]:
    """The grid with the least Eq. 10 under Eq. 11."""
    from synth.bounds.paper_cost import distributed_optimum

    if request.fixed or request.stationary not in (STATIONARY, ("Out",)):
        raise UsageError(
            f"objective paper chooses grid and stationary tensor of {layer.name}; leave them out"
        )
    return distributed_optimum(request.nest, request.procs, request.limit_words).grid._asdict()


def checked(
    layer: Layer,
    procs: int,
    memory: int | None,
    stationary: str,
    grid: dict[str, int],
    balance: float,
    exact: bool,
) -> Request:
    """The search request for some arguments, each looked at. Raises `UsageError`."""
    if isinstance(procs, bool) or not isinstance(procs, int) or not 1 <= procs <= 2**30:
        raise UsageError(f"procs is {procs!r}; it must be a whole number from 1 to {2**30}")
    if stationary not in STAYS:
        raise UsageError(f"stationary is {stationary!r}; it must be one of {', '.join(STAYS)}")
    if not 0 <= balance <= 10:
        raise UsageError(f"balance is {balance}; it must be between 0 (no extra work) and 10")
    if memory is not None and memory < layer.nest.word_bytes:
        raise UsageError(f"memory is {memory} bytes; it must hold at least one {layer.dtype} word")
    extents = layer.nest.extents
    for axis, parts in grid.items():
        if axis not in AXES:
            raise UsageError(f"grid has no axis {axis!r}; the axes are {', '.join(AXES)}")
        most = getattr(extents, axis)
        if isinstance(parts, bool) or not isinstance(parts, int):
            raise UsageError(f"grid {axis}={parts!r} is no count; it must be a whole number from 1 to {most}")
        if not 1 <= parts <= most:
            raise UsageError(f"grid {axis}={parts} cannot cut N_{axis}={most}; it must be from 1 to {most}")
    words = None if memory is None else memory // layer.nest.word_bytes
    return Request(layer.nest, procs, words, STAYS[stationary], grid, balance, exact)
