"""synth: a compiler for distributed convolutions.

    import synth
    plan = synth.plan("conv.yaml", procs=64)
    print(plan)

Everything is imported when it is first asked for, so `import synth` costs nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from codegen.module import distributed_conv
    from runtime.forms import tune
    from synth.layer import Layer, load_layer
    from synth.parallel import parallelize, plan_model
    from synth.pipeline import plan
    from synth.plan import Plan
    from synth.plan_file import read_plan
    from synth.samples import feed, open_samples
    from synth.simulated import simulated as simulate

__all__ = [
    "Layer",
    "Plan",
    "distributed_conv",
    "feed",
    "load_layer",
    "open_samples",
    "parallelize",
    "plan",
    "plan_model",
    "read_plan",
    "simulate",
    "tune",
]

_HOMES = {
    "distributed_conv": ("codegen.module", "distributed_conv"),
    "feed": ("synth.samples", "feed"),
    "Layer": ("synth.layer", "Layer"),
    "load_layer": ("synth.layer", "load_layer"),
    "open_samples": ("synth.samples", "open_samples"),
    "parallelize": ("synth.parallel", "parallelize"),
    "plan": ("synth.pipeline", "plan"),
    "plan_model": ("synth.parallel", "plan_model"),
    "Plan": ("synth.plan", "Plan"),
    "read_plan": ("synth.plan_file", "read_plan"),
    "simulate": ("synth.simulated", "simulated"),
    "tune": ("runtime.forms", "tune"),
}


class _Package(ModuleType):
    """Keeps the functions `plan` and `simulate` when the modules of these names are imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def _version() -> str:
    """That of the source tree which this is, else that of the installed package."""
    from pathlib import Path

    project = Path(__file__).parent.parent / "pyproject.toml"
    if project.is_file():
        import tomllib

        about = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if about.get("name") == "synth-conv":
            return str(about["version"])
    from importlib.metadata import version

    return version("synth-conv")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return globals().setdefault(name, _version())
    if name not in _HOMES:
        raise AttributeError(f"module 'synth' has no attribute {name!r}")
    import importlib

    home, attribute = _HOMES[name]
    value = getattr(importlib.import_module(home), attribute)
    globals()[name] = value
    return value
