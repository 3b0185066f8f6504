"""synth: a compiler for distributed convolutions.

    import synth
    plan = synth.plan("conv.yaml", procs=64)
    print(plan)                 # a summary
    print(synth.report(plan))   # the full report
    synth.compare(plan)         # the named strategies on the same layer

A name is imported at its first use, so `import synth` takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from synth.codegen.module import distributed_conv
    from synth.layer.layer import Layer, load_layer
    from synth.parallel.input.feed import feed
    from synth.parallel.input.order import sampler
    from synth.parallel.input.samples import open_samples
    from synth.parallel.parallelize import parallelize, plan_model
    from synth.planning.comparison import compare
    from synth.planning.derive import plan
    from synth.planning.plan import Plan
    from synth.planning.plan_file import read_plan
    from synth.reports.text import report
    from synth.runtime.kernels.autotune import tune
    from synth.runtime.model.replicas import check_replicas
    from synth.runtime.tracing.inputs import Inputs
    from synth.simulation.simulate import simulated as simulate

__all__ = [
    "Inputs",
    "Layer",
    "Plan",
    "check_replicas",
    "compare",
    "distributed_conv",
    "feed",
    "load_layer",
    "open_samples",
    "parallelize",
    "plan",
    "plan_model",
    "read_plan",
    "report",
    "sampler",
    "simulate",
    "tune",
]

_HOMES = {
    "check_replicas": ("synth.runtime.model.replicas", "check_replicas"),
    "compare": ("synth.planning.comparison", "compare"),
    "distributed_conv": ("synth.codegen.module", "distributed_conv"),
    "feed": ("synth.parallel.input.feed", "feed"),
    "Inputs": ("synth.runtime.tracing.inputs", "Inputs"),
    "Layer": ("synth.layer.layer", "Layer"),
    "load_layer": ("synth.layer.layer", "load_layer"),
    "open_samples": ("synth.parallel.input.samples", "open_samples"),
    "parallelize": ("synth.parallel.parallelize", "parallelize"),
    "plan": ("synth.planning.derive", "plan"),
    "plan_model": ("synth.parallel.parallelize", "plan_model"),
    "Plan": ("synth.planning.plan", "Plan"),
    "read_plan": ("synth.planning.plan_file", "read_plan"),
    "report": ("synth.reports.text", "report"),
    "sampler": ("synth.parallel.input.order", "sampler"),
    "simulate": ("synth.simulation.simulate", "simulated"),
    "tune": ("synth.runtime.kernels.autotune", "tune"),
}


def _version() -> str:
    """The version in the pyproject.toml of a source tree, else that of the installed package."""
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
