"""`synth.plan` and `synth.read_plan`: one function each for layers and for networks.

This module imports little, so that a layer is planned without the planner of networks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, cast, overload

from synth.base.doors import option
from synth.base.errors import InputError, UsageError
from synth.base.user_files import read_text
from synth.base.yaml_positions import shown
from synth.planning.request import ALONE, PlanRequest, asks

if TYPE_CHECKING:
    from synth.layer.layer import Layer
    from synth.network.graph import Network
    from synth.network.plan.plan import NetworkPlan
    from synth.network.plan.plan_file import NetworkPlanFile
    from synth.network.request import NetworkRequest
    from synth.planning.plan import Plan

P = ParamSpec("P")


def is_network_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file describes a network; a file that cannot be read is left to the layer reader."""
    try:
        return any(line.startswith(("layers:", "network:")) for line in read_text(path).splitlines())
    except InputError:
        return False


class Planner(Protocol[P]):
    """`synth.plan`: its arguments after the first are those of `PlanRequest`."""

    @overload
    def __call__(self, layer: Layer, /, *args: P.args, **options: P.kwargs) -> Plan: ...

    @overload
    def __call__(self, layer: Network, /, *args: P.args, **options: P.kwargs) -> NetworkPlan: ...

    @overload
    def __call__(
        self, layer: str | os.PathLike[str], /, *args: P.args, **options: P.kwargs
    ) -> Plan | Any: ...


def _planner(
    _: Callable[Concatenate[Any, P], PlanRequest],
) -> Callable[[Callable[..., Plan | NetworkPlan]], Planner[P]]:
    """The type of a function that takes a layer or a network, and the other arguments of `PlanRequest`."""
    return cast("Callable[[Callable[..., Plan | NetworkPlan]], Planner[P]]", asks(PlanRequest))


@_planner(PlanRequest)
def plan(layer: Any, *args: Any, **options: Any) -> Plan | NetworkPlan:
    """The plan of a layer or of a network with the fewest words of its family (Li et al., SPAA'21).

    Raises `UsageError` for arguments out of range or against each other, `InputError` for a wrong file, and
    `InfeasibleError` when nothing fits; the message then says what would.
    """
    from synth.layer.layer import Layer

    if isinstance(layer, str | os.PathLike) and is_network_file(layer):
        from synth.network.file import load_network

        return _planned(load_network(layer), PlanRequest(layer, *args, **options))
    if isinstance(layer, Layer | str | os.PathLike):
        from synth.planning.derive import derive

        return derive(PlanRequest(layer, *args, **options))
    from synth.network.graph import Network

    if not isinstance(layer, Network):
        raise UsageError(
            f"layer is {layer!r}; give a Layer, a Network, or the path of a layer file or network file"
        )
    return _planned(layer, PlanRequest(layer.name, *args, **options))


def _planned(network: Network, request: PlanRequest) -> NetworkPlan:
    from synth.network.planner.planner import plan_network

    return plan_network(network, network_request(request))


def network_request(
    request: PlanRequest, whole_weights: bool = False, recompute: float | None = None
) -> NetworkRequest:
    """What a request asks of the plan of a network. A forward pass has resident weights.

    whole_weights, recompute: see `NetworkRequest`. Raises `UsageError` for what is of one layer only.
    """
    from synth.machine.file import load_machine
    from synth.network.request import NetworkRequest, limit_of

    alone = request.given(*ALONE)
    if alone is not None:
        given = option(alone.name, getattr(request, alone.name))
        raise UsageError(f"{given} is for one layer, not for the network {request.layer}; leave it out")
    if request.objective == "paper":
        raise UsageError("objective paper is for one layer; for a network use words or time")
    if request.pass_ not in ("forward", "training"):
        given = option("pass_", request.pass_)
        raise UsageError(f"{given} is for one layer; for a network use forward or training")
    if request.gradients not in (PlanRequest.gradients, ("ker",)):
        raise UsageError(
            f"{option('gradients', request.gradients)} says nothing about a network; with "
            f"{option('pass_', 'training')}, ker leaves out the gradient of its input"
        )
    where = None if request.machine is None else load_machine(request.machine)
    return NetworkRequest(
        request.procs,
        request.objective,
        training=request.pass_ == "training",
        resident_weights=request.pass_ == "forward",
        limit_bytes=limit_of(request.memory, where),
        machine=where,
        balance=request.balance,
        exact_procs=request.exact_procs,
        input_gradient="in" in request.gradients,
        whole_weights=whole_weights,
        recompute=recompute,
    )


def read_plan(path: str | os.PathLike[str], edited: bool = False) -> Plan | NetworkPlanFile | Any:
    """The plan of a file that `synth plan --json` wrote: a `Plan`, or the `NetworkPlanFile` of a network.

    All numbers that follow from others are derived again and compared. Raises `InputError` where the file
    is no plan, was edited, or is of another version.

    edited: take the decisions of a layer's plan file that a user has edited (grid, order, rows, classes,
        passes, processes, limit of memory), and derive all else from them.
    """
    if edited:
        from synth.planning.edited_plan import read_edited_plan

        return read_edited_plan(path)
    from synth.planning.plan_file import parse_plan, plan_text

    text, name = plan_text(path), shown(os.fspath(path), 4096)
    from synth.network.plan.plan_json import is_network_plan, parse_network_plan

    if not is_network_plan(text):
        return parse_plan(text, name)
    from synth.network.plan.plan_file import NetworkPlanFile

    return NetworkPlanFile(name, parse_network_plan(text, name))
