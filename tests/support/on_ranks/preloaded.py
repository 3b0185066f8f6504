"""What the fork server of the ranks has loaded: importing this module loads what ranks of the tests use."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path

FOLDERS = {"runtime": "synth.runtime", "codegen": "synth.codegen", "synth/parallel": "synth.parallel"}
MODULES = [
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "torch.fx",
    "torch._dynamo",  # what tracing on "meta" loads
    "torch.testing",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "tomllib",
    "synth.planning.derive",
    "synth.simulation.interpreter",
    "benchmarks.suite.rank",
    "cases",
    "small_networks",
    "zoo",
]


def found() -> list[str]:
    """All modules of the folders."""
    root, names = Path(__file__).parents[3], []
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            names.append(".".join([package, *(part for part in parts if part != "__init__")]))
    return names


def load() -> None:
    """Load the modules, and the texts that emitted programs are made of.

    No process has a pool of threads, and none collects these objects as garbage, which would copy them.
    """
    for name in [*MODULES, *found()]:
        try:
            importlib.import_module(name)
        except ImportError as fault:  # which the fork server would pass over
            raise RuntimeError(f"{name}, which ranks use, cannot be imported") from fault
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module("synth.codegen.inline_runtime").runtime_library()
    gc.collect()
    gc.freeze()


load()
