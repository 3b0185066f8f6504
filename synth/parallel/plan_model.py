"""The plan of a torch model's layers, on ranks that need not run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from synth.base.doors import Door, entered_by
from synth.machine.file import load_machine
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.parallel.counted_plan import least_counted
from synth.parallel.front_end.trace_model import trace_model
from synth.parallel.mode import check_mode
from synth.parallel.recipe import counting, request_of, within

if TYPE_CHECKING:
    from torch import nn

    from synth.runtime.tracing.inputs import Inputs


@entered_by(Door.MODEL)
def plan_model(
    model: nn.Module,
    input: Sequence[int] | Sequence[Any] | Mapping[str, Any] | Inputs,
    procs: int,
    *,
    memory: int | str | None = None,
    axes: str = "",
    input_gradient: bool = False,
    objective: str = "words",
    machine: str | os.PathLike[str] | None = None,
    batch_norm: Literal["global", "local"] = "global",
    mode: str = "training",
    whole_weights: bool = False,
    recompute: float | None = None,
    state: str | None = None,
) -> NetworkPlan:
    """A training plan of all layers of a model together: the fewest words in layers and between them.

    objective: or "time", the fewest seconds on a machine: a file, or the name of a shipped one.
    memory: bytes per process, of all that a step holds: `plan.held_bytes` fits it. None: the memory of the
        machine, if one is named. The passes of a layer save what they have gathered for later passes, if
        that fits; otherwise only dOut is saved, by backward-data for backward-filter.
    axes: the grids split no other axes than these, but where a layer cannot use all processes so; "" for
        all axes.
    input_gradient: whether a step makes the gradient of the batch, too; else layers with nothing trained
        before them make that of their weights alone.
    batch_norm: as for `parallelize`. It decides `statistics_words` of the plan, and its seconds.
    mode: "training", or "inference" for a forward pass with resident weights.
    whole_weights: for time, whether ranks may hold whole slices of weights, as with DDP, where that is
        faster and fits; `plan.whole` then tells by layer.
    recompute: as for `parallelize`; `plan.margins` then tells what ranks compute.
    state: as for `parallelize`; `plan.words` has what moves to where the next call takes it.

    Raises `InfeasibleError` where no plan fits; the message says what would. `UsageError` for a wrong
    argument, `InputError` for a wrong machine file.
    """
    from synth.runtime.grid.rules.processors import this_processor
    from synth.runtime.tracing.inputs import Inputs
    from synth.runtime.tracing.plain_model import uncompiled

    model = uncompiled(model)
    check_mode(mode)
    where, here = None if machine is None else load_machine(machine), this_processor()
    request = request_of(
        mode == "inference",
        procs=procs,
        objective=objective,
        machine=where,
        axes=axes,
        strict_axes=False,
        input_gradient=input_gradient,
        batch_norm=batch_norm,
        whole_weights=whole_weights,
        processors=(here,) if where is None and here else (),
        recompute=recompute,
    )
    traced = trace_model(model, input)
    words_of = counting(model, Inputs.of(input), traced, state or "")
    plan = plan_network(traced.network, within(request, memory))
    return least_counted(replace(plan, words_of=words_of))
