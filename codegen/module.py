"""A training plan as a `torch.nn.Module`: its emitted text, imported.

plan = synth.plan("conv.yaml", procs=8, pass_="training", exact_procs=True)
conv = synth.distributed_conv(plan)
"""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from synth.codegen.render import render
from synth.planning.plan import Plan

if TYPE_CHECKING:
    from synth.runtime.layers.distributed_layer import DistributedLayer


def distributed_conv(plan: Plan, **options: Any) -> DistributedLayer:
    """The layer of a training plan on the ranks of the default process group; every rank must call this.

    The options are those of `DistributedLayer`. Raises `UsageError` if the plan is not of a training step,
    `ValueError` if the number of ranks is not that of the plan.
    """
    module = imported(render(plan, module=True), f"synth_plan_{plan.id}")
    layer: DistributedLayer = module.layer(**options)
    return layer


def imported(text: str, name: str) -> ModuleType:
    """The module of an emitted text; tracebacks show its lines."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module
