"""synth: a compiler for distributed convolutions.

    import synth
    plan = synth.plan("conv.yaml", procs=64)             # or a network file, a Layer, a Network
    print(plan)                                          # a summary; a notebook shows a picture
    print(synth.report(plan))                            # the full report
    synth.compare(plan)                                  # the named strategies on the same layer
    print(synth.lower_bounds("conv.yaml", "1:4096"))     # what no schedule can go below
    net = synth.parallelize(model, (32, 3, 224, 224))    # a torch model, on all ranks of the job

A name is imported at its first use, so `import synth` takes no time. Planning needs no torch; a name whose
packages are absent raises `MissingExtraError`, which says what to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from synth.analysis.explanation import explain
    from synth.analysis.lower_bounds import lower_bounds
    from synth.analysis.plan_diff import diff
    from synth.analysis.sweep_table import Study
    from synth.base.errors import (
        CheckError,
        InfeasibleError,
        InputError,
        MissingExtraError,
        RunError,
        SynthError,
        UsageError,
    )
    from synth.codegen.module import distributed_conv
    from synth.layer.layer import Layer, load_layer
    from synth.network.file import load_network
    from synth.network.graph import Network
    from synth.network.layer_or_network import plan, read_plan
    from synth.network.plan.plan import NetworkPlan
    from synth.network.plan.plan_file import NetworkPlanFile
    from synth.parallel.input.feed import feed
    from synth.parallel.input.order import sampler
    from synth.parallel.input.samples import open_samples
    from synth.parallel.parallelize import parallelize
    from synth.parallel.plan_model import plan_model
    from synth.parallel.self_check.check import check
    from synth.parallel.vae import parallelize_vae
    from synth.planning.comparison import compare
    from synth.planning.plan import Plan
    from synth.prediction.prediction import Comparison, Prediction
    from synth.prediction.public import predict
    from synth.reports.text import report
    from synth.runtime.kernels.autotune import tune
    from synth.runtime.model.checkpoint import load_checkpoint, save_checkpoint
    from synth.runtime.model.checks.replicas import check_replicas
    from synth.runtime.model.checks.start import init_process_group
    from synth.runtime.tracing.inputs import Inputs
    from synth.simulation.simulate import simulated as simulate

__all__ = [
    "CheckError",
    "Comparison",
    "InfeasibleError",
    "InputError",
    "Inputs",
    "Layer",
    "MissingExtraError",
    "Network",
    "NetworkPlan",
    "NetworkPlanFile",
    "Plan",
    "Prediction",
    "RunError",
    "Study",
    "SynthError",
    "UsageError",
    "__version__",
    "check",
    "check_replicas",
    "compare",
    "diff",
    "distributed_conv",
    "explain",
    "feed",
    "init_process_group",
    "load_checkpoint",
    "load_layer",
    "load_network",
    "lower_bounds",
    "open_samples",
    "parallelize",
    "parallelize_vae",
    "plan",
    "plan_model",
    "predict",
    "read_plan",
    "report",
    "sampler",
    "save_checkpoint",
    "simulate",
    "tune",
]

_HOMES = {
    "check": ("synth.parallel.self_check.check", "check"),
    "check_replicas": ("synth.runtime.model.checks.replicas", "check_replicas"),
    "CheckError": ("synth.base.errors", "CheckError"),
    "Comparison": ("synth.prediction.prediction", "Comparison"),
    "compare": ("synth.planning.comparison", "compare"),
    "diff": ("synth.analysis.plan_diff", "diff"),
    "distributed_conv": ("synth.codegen.module", "distributed_conv"),
    "explain": ("synth.analysis.explanation", "explain"),
    "feed": ("synth.parallel.input.feed", "feed"),
    "InfeasibleError": ("synth.base.errors", "InfeasibleError"),
    "InputError": ("synth.base.errors", "InputError"),
    "init_process_group": ("synth.runtime.model.checks.start", "init_process_group"),
    "Inputs": ("synth.runtime.tracing.inputs", "Inputs"),
    "Layer": ("synth.layer.layer", "Layer"),
    "load_checkpoint": ("synth.runtime.model.checkpoint", "load_checkpoint"),
    "load_layer": ("synth.layer.layer", "load_layer"),
    "load_network": ("synth.network.file", "load_network"),
    "lower_bounds": ("synth.analysis.lower_bounds", "lower_bounds"),
    "MissingExtraError": ("synth.base.errors", "MissingExtraError"),
    "Network": ("synth.network.graph", "Network"),
    "NetworkPlan": ("synth.network.plan.plan", "NetworkPlan"),
    "NetworkPlanFile": ("synth.network.plan.plan_file", "NetworkPlanFile"),
    "open_samples": ("synth.parallel.input.samples", "open_samples"),
    "parallelize": ("synth.parallel.parallelize", "parallelize"),
    "parallelize_vae": ("synth.parallel.vae", "parallelize_vae"),
    "plan": ("synth.network.layer_or_network", "plan"),
    "plan_model": ("synth.parallel.plan_model", "plan_model"),
    "Plan": ("synth.planning.plan", "Plan"),
    "predict": ("synth.prediction.public", "predict"),
    "Prediction": ("synth.prediction.prediction", "Prediction"),
    "read_plan": ("synth.network.layer_or_network", "read_plan"),
    "report": ("synth.reports.text", "report"),
    "RunError": ("synth.base.errors", "RunError"),
    "sampler": ("synth.parallel.input.order", "sampler"),
    "save_checkpoint": ("synth.runtime.model.checkpoint", "save_checkpoint"),
    "simulate": ("synth.simulation.simulate", "simulated"),
    "Study": ("synth.analysis.sweep_table", "Study"),
    "SynthError": ("synth.base.errors", "SynthError"),
    "tune": ("synth.runtime.kernels.autotune", "tune"),
    "UsageError": ("synth.base.errors", "UsageError"),
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
    try:
        value = getattr(importlib.import_module(home), attribute)
    except ModuleNotFoundError as fault:
        from synth.base.extras import missing_extra

        raise missing_extra(fault) from fault
    finally:
        _require_torch()
    globals()[name] = value
    return value


def _require_torch() -> None:
    """Raises `ImportError` for a torch that is too old, if one is imported."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None:
        from synth.runtime.grid.torch_version import require_torch

        require_torch(str(getattr(torch, "__version__", "")))


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
