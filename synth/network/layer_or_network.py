"""`synth.plan` and `synth.read_plan`: one function each for layers and for networks.

This module imports little, so that a layer is planned without the planner of networks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from synth.base.errors import InputError, UsageError
from synth.base.user_files import read_text
from synth.base.yaml_positions import shown
from synth.planning.request import Options, PlanRequest

if TYPE_CHECKING:
    from synth.layer.layer import Layer
    from synth.network.graph import Network
    from synth.network.plan.plan import NetworkPlan
    from synth.network.plan.plan_file import NetworkPlanFile
    from synth.network.request import NetworkRequest
    from synth.planning.plan import Plan

# fields of a request that have no meaning for a network
ONE_LAYER = ("grid", "order", "strategy", "panels", "rows", "classes", "stationary")


def is_network_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file describes a network; a file that cannot be read is left to the layer reader."""
    try:
        return any(line.startswith(("layers:", "network:")) for line in read_text(path).splitlines())
    except InputError:
        return False


@overload
def plan(layer: Layer, procs: int, memory: int | str | None = None, **options: Unpack[Options]) -> Plan: ...


@overload
def plan(
    layer: Network, procs: int, memory: int | str | None = None, **options: Unpack[Options]
) -> NetworkPlan: ...


@overload
def plan(
    layer: str | os.PathLike[str], procs: int, memory: int | str | None = None, **options: Unpack[Options]
) -> Plan | Any: ...


def plan(
    layer: Layer | Network | str | os.PathLike[str],
    procs: int,
    memory: int | str | None = PlanRequest.memory,
    *,
    objective: str = PlanRequest.objective,
    stationary: str = PlanRequest.stationary,
    grid: Mapping[str, int] | None = PlanRequest.grid,
    balance: float = PlanRequest.balance,
    exact_procs: bool = PlanRequest.exact_procs,
    pass_: str = PlanRequest.pass_,
    machine: str | os.PathLike[str] | None = PlanRequest.machine,
    strategy: str | None = PlanRequest.strategy,
    order: Sequence[str] | None = PlanRequest.order,
    panels: int | None = PlanRequest.panels,
    gradients: Sequence[str] = PlanRequest.gradients,
    rows: Mapping[str, str] | None = PlanRequest.rows,
    classes: Mapping[str, int] | None = PlanRequest.classes,
) -> Plan | NetworkPlan:
    """The plan of a layer or of a network with the fewest words of its family (Li et al., SPAA'21).

    layer: a `Layer`, a `Network`, or the path of a layer file or network file (YAML).
    procs: processes, from 1 to 2^30, of a network to 2^20. The plan may leave a few idle.
    memory: bytes per process, as a number or text like "16GiB"; None for the machine's, or any amount.
    objective: "words" (the most that any process receives), "time" (seconds on `machine`) or, for a layer,
        "paper" (Eq. 10 of SPAA'21 on exactly `procs` processes).
    balance: extra work that the most loaded process may do, as a fraction of the least.
    exact_procs: whether every process must work.
    pass_: "forward", "training" or, for a layer, "backward-data" or "backward-filter".
    machine: a machine file, or the name of a shipped machine.
    gradients: those that a training step computes: "in", "ker" or both.

    The others are for a layer alone:
    stationary: the tensor that stays in memory: "out", "in", "ker", or "auto".
    grid: fixed parts of the grid, e.g. {"b": 4, "k": 2}.
    strategy: a named strategy within which the plan must stay, in upper or lower case, e.g. "2.5D".
    order: the axes as they run over the ranks, the last one fastest; None for row-major.
    panels: panels of the streaming loop; None for as many as overlap and memory ask for.
    rows: spatial axis -> whether blocks are cut by "in"put or by "out"put rows, e.g. {"h": "in"}.
    classes: spatial axis -> residue classes of a dilated layer, a divisor of the dilation, 1 for none, e.g.
        {"h": 4}; None for whichever moves the fewest words.

    Raises `UsageError` for arguments out of range or against each other, `InputError` for a wrong file, and
    `InfeasibleError` when nothing fits; the message then says what would.
    """
    from synth.layer.layer import Layer

    request = {
        "objective": objective,
        "balance": balance,
        "exact_procs": exact_procs,
        "pass_": pass_,
        "machine": machine,
        "gradients": gradients,
    }
    alone = dict(zip(ONE_LAYER, (grid, order, strategy, panels, rows, classes, stationary), strict=True))
    if isinstance(layer, str | os.PathLike) and is_network_file(layer):
        from synth.network.file import load_network

        return _planned(load_network(layer), procs, memory, request, alone)
    if isinstance(layer, Layer | str | os.PathLike):
        from synth.planning.derive import derive

        return derive(PlanRequest(layer, procs, memory, **request, **alone))  # type: ignore[arg-type]
    from synth.network.graph import Network

    if not isinstance(layer, Network):
        raise UsageError(
            f"layer is {layer!r}; give a Layer, a Network, or the path of a layer file or network file"
        )
    return _planned(layer, procs, memory, request, alone)


def _planned(
    network: Network,
    procs: int,
    memory: int | str | None,
    request: Mapping[str, Any],
    alone: Mapping[str, Any],
) -> NetworkPlan:
    from synth.network.planner.planner import plan_network

    for name, value in alone.items():
        if value not in (getattr(PlanRequest, name), None):
            raise UsageError(
                f"{name}={value!r} is for one layer, not for the network {network.name}; leave it out"
            )
    return plan_network(network, network_request(procs, memory, **request))


def network_request(
    procs: int,
    memory: int | str | None = None,
    *,
    objective: str = "words",
    balance: float = PlanRequest.balance,
    exact_procs: bool = False,
    pass_: str = "forward",
    machine: str | os.PathLike[str] | None = None,
    gradients: Sequence[str] = PlanRequest.gradients,
    whole_weights: bool = False,
    dash: str = "",
) -> NetworkRequest:
    """The request of a network plan. A forward pass has resident weights. Raises `UsageError`.

    whole_weights: see `NetworkRequest`. dash: stands before the names of arguments in messages.
    """
    from synth.machine.file import load_machine
    from synth.network.request import NetworkRequest, limit_of

    if objective == "paper":
        raise UsageError("objective paper is for one layer; for a network use words or time")
    if pass_ not in ("forward", "training"):
        raise UsageError(f"{dash}pass {pass_} is for one layer; for a network use forward or training")
    if set(gradients) != set(PlanRequest.gradients) and (set(gradients), pass_) != ({"ker"}, "training"):
        raise UsageError(
            f"{dash}gradients {','.join(gradients)} says nothing about a network; with {dash}pass training, "
            "ker leaves out the gradient of its input"
        )
    if isinstance(procs, bool) or not isinstance(procs, int):
        raise UsageError(f"procs is {procs!r}; it must be a whole number")
    where = None if machine is None else load_machine(machine)
    return NetworkRequest(
        procs,
        objective,
        training=pass_ == "training",
        resident_weights=pass_ == "forward",
        limit_bytes=limit_of(memory, where),
        machine=where,
        balance=balance,
        exact_procs=exact_procs,
        input_gradient="in" in gradients,
        whole_weights=whole_weights,
    )


def read_plan(path: str | os.PathLike[str]) -> Plan | NetworkPlanFile | Any:
    """The plan of a file that `synth plan --json` wrote: a `Plan`, or the `NetworkPlanFile` of a network.

    All numbers that follow from others are derived again and compared. Raises `InputError` where the file
    is no plan, was edited, or is of another version.
    """
    from synth.planning.plan_file import parse_plan, plan_text

    text, name = plan_text(path), shown(os.fspath(path), 4096)
    from synth.network.plan.plan_json import is_network_plan, parse_network_plan

    if not is_network_plan(text):
        return parse_plan(text, name)
    from synth.network.plan.plan_file import NetworkPlanFile

    return NetworkPlanFile(name, parse_network_plan(text, name))
