"""A training plan as a `torch.nn.Module`: its emitted text, imported.

plan = synth.plan("conv.yaml", procs=8, pass_="training", exact_procs=True)
conv = synth.distributed_conv(plan)
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from synth.codegen.render import render
from synth.layer.passes import gathers
from synth.planning.plan import Plan
from synth.schedule.pass_plan import ONES

if TYPE_CHECKING:
    from synth.runtime.layers.distributed_layer import DistributedLayer


def distributed_conv(plan: Plan, **options: Any) -> DistributedLayer:
    """The layer of a training plan on the ranks of the default process group; every rank must call this.

    plan: with `pass_="training"`; its module takes and gives partitioned tensors, in the layout that
    docs/training.md describes. options: those of `DistributedLayer`.

    Raises `UsageError` if the plan is not of a training step, `ValueError` if the number of ranks is not that
    of the plan.
    """
    name = f"synth_plan_{plan.id}"
    module = _run(_compiled(plan, name), name)
    layer: DistributedLayer = module.layer(lean=is_lean(plan), **options)
    return layer


def imported(text: str, name: str) -> ModuleType:
    """The module of an emitted text; tracebacks show its lines."""
    return _run(_code(text, name), name)


def is_lean(plan: Plan) -> bool:
    """Whether passes compute tile by tile, or fetch a halo again, to hold less than one call of torch."""
    again = gathers(plan.passes, plan.first.saves)["In"] > 1 and plan.distribution.halo_axes("In")
    return bool(again) or any(each.counts != ONES for each in plan.pass_plans)


def module_texts(plans: Iterable[Plan]) -> dict[Plan, str]:
    """The texts of the modules of some plans, for `expect` on other ranks."""
    return {replace(plan): _text(plan) for plan in plans}  # copies have no derived values, which are large


def expect(texts: Mapping[Plan, str]) -> None:
    """Take the texts that another rank rendered by the same code in place of rendering these plans here."""
    _expected().clear()
    _expected().update(texts)


@cache
def _expected() -> dict[Plan, str]:
    return {}


@lru_cache(maxsize=256)  # models have equal layers, and are made again for batches of other shapes
def _compiled(plan: Plan, name: str) -> CodeType:
    return _code(_expected().get(plan) or _text(plan), name)


@lru_cache(maxsize=256)
def _text(plan: Plan) -> str:
    return render(plan, module=True, described=False)


def _code(text: str, name: str) -> CodeType:
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec")


def _run(code: CodeType, name: str) -> ModuleType:
    """A new module, as the code may be run for several layers."""
    module = ModuleType(name)
    module.__file__ = code.co_filename
    sys.modules[name] = module
    exec(code, module.__dict__)
    return module
