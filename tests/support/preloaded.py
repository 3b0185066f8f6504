"""What the fork server of the ranks has loaded: importing this module loads what ranks of the tests use."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path

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
    "synth.codegen.module",
    "synth.parallel.parallelize",
    "synth.parallel.sharded_input",
    "synth.simulation.interpreter",
    "benchmarks.suite.rank",
    "cases",
    "network_ranks",
    "zoo",
]


def load() -> None:
    """Load the modules, all of the runtime among them, and the texts that emitted programs are made of.

    No process has a pool of threads, and none collects these objects as garbage, which would copy them.
    """
    runtime = Path(__file__).parents[2] / "runtime"
    parts = (path.relative_to(runtime).with_suffix("").parts for path in runtime.rglob("*.py"))
    for name in [*MODULES, *(".".join(["synth.runtime", *each]) for each in parts if "__init__" not in each)]:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module("synth.codegen.inline_runtime").runtime_library()
    gc.collect()
    gc.freeze()


load()
