"""synth: a compiler for distributed convolutions.

    import synth
    plan = synth.plan("conv.yaml", procs=64)
    print(plan)

Everything is imported when it is first asked for, so `import synth` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from synth.codegen.module import distributed_conv
    from synth.layer.layer import Layer, load_layer
    from synth.parallel.parallelize import parallelize, plan_model
    from synth.parallel.sharded_input import feed, open_samples
    from synth.planning.derive import plan
    from synth.planning.plan import Plan
    from synth.planning.plan_json import read_plan
    from synth.runtime.kernels.autotune import tune
    from synth.simulation.simulate import simulated as simulate

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
    "distributed_conv": ("synth.codegen.module", "distributed_conv"),
    "feed": ("synth.parallel.sharded_input", "feed"),
    "Layer": ("synth.layer.layer", "Layer"),
    "load_layer": ("synth.layer.layer", "load_layer"),
    "open_samples": ("synth.parallel.sharded_input", "open_samples"),
    "parallelize": ("synth.parallel.parallelize", "parallelize"),
    "plan": ("synth.planning.derive", "plan"),
    "plan_model": ("synth.parallel.parallelize", "plan_model"),
    "Plan": ("synth.planning.plan", "Plan"),
    "read_plan": ("synth.planning.plan_json", "read_plan"),
    "simulate": ("synth.simulation.simulate", "simulated"),
    "tune": ("synth.runtime.kernels.autotune", "tune"),
}


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
