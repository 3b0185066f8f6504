"""The plan of a network that takes the fewest seconds on the machine at hand.

A weight may be cut over the ranks that use one slice of it: they gather it and sum its gradient layer by
layer. Or each of them may hold a copy, as with DDP: then gradients travel in large messages, overlapped with
the backward pass, but the optimizer updates every copy. Both are priced by what was measured here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from synth.base.errors import InfeasibleError, UsageError
from synth.layer.axes import LACKS, Tensor
from synth.machine.file import parse_machine
from synth.machine.hierarchy import Machine
from synth.machine.measured import machine_text
from synth.network.graph import Network
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.planner.request import OBJECTIVES, NetworkRequest
from synth.network.planner.resident_weights import slice_words
from synth.parallel.layer_plans import LayerPlans

TOUCHED = 8  # times that an optimizer with momentum reads or writes a word of weight, gradient and momentum
SHARE = 0.1  # of the memory of a rank that copies of weights may take, with gradients and momenta
HELD = 4  # copies of a weight that training holds: itself, its gradient, two momenta


@dataclass(frozen=True)
class WeightCosts:
    """Seconds of a training step for the weights of one layer, from measured collectives.

    found: see `runtime.program.first_use.measure`.
    """

    found: dict[str, Any]

    def gathered(self, size: float, members: int) -> float:
        """Gather the slice of Ker, and reduce and scatter its gradient. size: bytes of the slice."""
        both = ("all_gather", "reduce_scatter")
        moved = sum(self._measured(size, members, op) for op in both)
        return moved + self._updated(size / members)

    def copied(self, size: float, members: int) -> float:
        """A part of a large all-reduce, and the update of the whole slice."""
        largest = max(self.found["all_reduce"], key=lambda each: each["bytes"])
        share = (1 - 1 / members) / (1 - 1 / self.found["ranks"])
        return float(size * share * largest["seconds"] / largest["bytes"] + self._updated(size))

    def _updated(self, size: float) -> float:
        return float(TOUCHED * size / self.found["bandwidth"])

    def _measured(self, size: float, members: int, op: str) -> float:
        """Interpolated in the size; of other numbers of ranks in proportion to the messages."""
        measured = self.found["collectives"]
        outermost = measured[-1]["level"]
        points = sorted(
            (each["bytes"], each["seconds"], each["members"])
            for each in measured
            if each["op"] == op and each["level"] == outermost
        )
        sizes, seconds, counts = zip(*points, strict=True)
        most = sizes[-1]
        one = float(np.interp(size, sizes, seconds)) * max(1.0, size / most)
        return float(one * (members - 1) / (counts[0] - 1))


def layer_plans(network: Network, request: NetworkRequest, found: dict[str, Any] | None) -> LayerPlans:
    """For the fewest words, or the fewest seconds on the machine where something was measured."""
    if found is None:
        return LayerPlans.of(plan_network(network, request))
    plan, copied = fast_plan(network, request, found)
    return replace(LayerPlans.of(plan), replicated=copied)


def objective_of(given: str | None) -> str:
    """What a plan made here is for. Raises `UsageError` for what it cannot be."""
    objective = given or os.environ.get("SYNTH_OBJECTIVE") or "time"
    if objective not in OBJECTIVES:
        where = "objective" if given else "the environment variable SYNTH_OBJECTIVE"
        raise UsageError(f"{where} is {objective!r}; it must be time or words")
    return objective


def fast_plan(
    network: Network, request: NetworkRequest, found: dict[str, Any]
) -> tuple[NetworkPlan, frozenset[str]]:
    """The fastest plan, and the layers of which every rank holds its whole slice of Ker.

    request: its objective and machine are replaced. found: what was measured on these ranks.
    The data-parallel plan is among those that are compared. Raises `InfeasibleError` where nothing fits.
    """
    machine = parse_machine(machine_text(found, "here"), "here")
    timed = replace(request, objective="time", machine=machine)
    plans = [plan_network(network, timed)]
    if request.procs <= network.input[0]:
        with_samples = replace(timed, axes="b", strict_axes=False)
        with suppress(InfeasibleError):
            plans.append(plan_network(network, with_samples))
    if request.resident_weights or request.limit_bytes is not None:
        return min(plans, key=lambda plan: plan.cost), frozenset()
    rated = [(*copied_weights(plan, machine, WeightCosts(found)), plan) for plan in plans]
    _, names, plan = min(rated, key=lambda each: each[2].cost - each[0])
    return plan, names


def copied_weights(plan: NetworkPlan, machine: Machine, costs: WeightCosts) -> tuple[float, frozenset[str]]:
    """Seconds that copies of weights save, and the layers to copy: those that save most for their memory."""
    room: float = np.inf if machine.limit_bytes is None else SHARE * machine.limit_bytes / HELD
    found: list[tuple[float, float, str]] = []
    ker: Tensor = "Ker"
    pairs = zip(plan.network.planned, plan.placed_grids, plan.layer_classes, strict=True)
    for node, placed, kind in pairs:
        members = placed.grid.of(LACKS[ker])
        if not node.weighted or members == 1:
            continue
        size = slice_words(kind.nest, placed.grid) * kind.nest.word_bytes
        saved = costs.gathered(size, members) - costs.copied(size, members)
        if saved > 0:
            found.append((saved / size, size, node.name))
    total, names = 0.0, set[str]()
    for rate, needed, name in sorted(found, reverse=True):
        if needed <= room:
            room -= needed
            total += rate * needed
            names.add(name)
    return total, frozenset(names)
