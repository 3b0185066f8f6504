"""Why a plan for time leaves processes idle: what the same step would take with all of them.

The same options are chosen from again, without those on fewer processes than a layer can use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from synth.network.graph import Edge
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.plan.plan import NetworkPlan, incoming
from synth.network.step_time.choice import TimedStep


@dataclass(frozen=True)
class BusyStep:
    """The fastest step found in which every layer uses as many processes as it can.

    placed_grids: by layer. timed: its seconds by layer. edge_costs: seconds of redistributions.
    """

    placed_grids: tuple[PlacedGrid, ...]
    timed: TimedStep
    edge_costs: Mapping[Edge, float]

    @property
    def seconds(self) -> float:
        """Of the step, redistributions included."""
        return sum(each.total for each in self.timed.layers) + sum(self.edge_costs.values())


@dataclass(frozen=True)
class _LayerParts:
    """Seconds of a layer on a number of processes; redistributions into it are moves."""

    procs: int
    computing: float
    moving: float

    @property
    def seconds(self) -> float:
        return self.computing + self.moving


def idle_processes(plan: NetworkPlan) -> list[str]:
    """How many processes are idle, and what is slower without idle ones; no line if none is idle."""
    procs = plan.request.procs
    idle = {
        node.name: procs - placed.grid.size
        for node, placed in zip(plan.network.planned, plan.placed_grids, strict=True)
        if placed.grid.size < procs
    }
    if not idle:
        return []
    most = max(idle, key=lambda name: idle[name])
    line = (
        f"processes idle: some in {len(idle)} of {len(plan.placed_grids)} layers, at most {idle[most]} of "
        f"{procs} ({most})"
    )
    return [line + _reason(plan, idle)]


def _reason(plan: NetworkPlan, idle: Iterable[str]) -> str:
    """The step with all processes, and the layer with idle ones that it slows most.

    If it slows none of them, the layer that it slows most. Nothing where words are counted.
    """
    busy = plan.busy() if plan.busy is not None else None
    if busy is None or plan.timed is None or busy.seconds <= plan.cost:
        return ""
    now = _parts(plan, plan.placed_grids, plan.timed, plan.incoming_costs)
    then = _parts(plan, busy.placed_grids, busy.timed, incoming(busy.edge_costs))
    lost = {name: then[name].seconds - now[name].seconds for name in now}
    name = max(idle, key=lambda each: lost[each])
    name = name if lost[name] > 0 else max(lost, key=lambda each: lost[each])
    before, after = now[name], then[name]
    changes = [
        f"{what} {_ms(abs(more))} {'more' if more > 0 else 'less'}"
        for what, more in (
            ("computing", after.computing - before.computing),
            ("moving words", after.moving - before.moving),
        )
    ]
    return (
        f", because with all that each layer can use the step takes {_ms(busy.seconds)} instead of "
        f"{_ms(plan.cost)}; {name} then takes {_ms(after.seconds)} on {after.procs} instead of "
        f"{_ms(before.seconds)} on {before.procs}: {', '.join(changes)}"
    )


def _parts(
    plan: NetworkPlan, grids: Sequence[PlacedGrid], timed: TimedStep, into: Mapping[str, float]
) -> dict[str, _LayerParts]:
    """into: layer -> seconds of what moves to it beside its own exchanges."""
    rows = zip(plan.network.planned, grids, timed.layers, strict=True)
    return {
        node.name: _LayerParts(
            placed.grid.size,
            each.forward + each.backward + each.update,
            each.comm_forward + each.comm_backward + each.exchange + into.get(node.name, 0.0),
        )
        for node, placed, each in rows
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
