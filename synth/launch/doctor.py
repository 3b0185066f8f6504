"""`synth doctor`: which parts of the environment are installed, without starting anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import Any

from synth.base.extras import PURPOSE

NEEDED = ("PyYAML", "jinja2", "msgspec", "numpy", "rich")  # always
OPTIONAL = {  # package -> the extra that brings it
    "shtab": "completion",
    "sympy": "explain",
    "matplotlib": "plot",
    "cvxpy": "solver",
    "networkx": "solver",
    "scipy": "torch",
    "torch": "torch",
}


@dataclass(frozen=True)
class Examined:
    """Python, cores, and per package its version or None; backends of torch.distributed."""

    python: str
    cores: int
    packages: dict[str, str | None]
    backends: dict[str, bool]
    devices: int
    commands: dict[str, bool]

    @property
    def well(self) -> bool:
        """Whether everything that `synth run` needs is there."""
        needed = (*NEEDED, "torch", "scipy")
        return all(self.packages[name] for name in needed) and any(self.backends.values())

    def __str__(self) -> str:
        lines = [f"python     {self.python}, {self.cores} cores"]
        lines += [f"{name:<10} {version or _remedy(name)}" for name, version in self.packages.items()]
        lines += [f"{name:<10} {'there' if there else 'not there'}" for name, there in self.backends.items()]
        lines += [f"cuda       {self.devices} devices"]
        lines += [f"{name:<10} {'there' if there else 'not there'}" for name, there in self.commands.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "schema": "synth.doctor/1",
            "python": self.python,
            "cores": self.cores,
            "packages": self.packages,
            "backends": self.backends,
            "cuda_devices": self.devices,
            "commands": self.commands,
            "well": self.well,
        }


def _remedy(name: str) -> str:
    """What is said of a package that is absent."""
    if name not in OPTIONAL:
        return f"MISSING: pip install {name}"
    extra = OPTIONAL[name]
    return f"not there; {PURPOSE[extra]}: pip install 'synth-conv[{extra}]'"


def examine() -> Examined:
    """Look around."""
    packages: dict[str, str | None] = {}
    for name in (*NEEDED, *OPTIONAL):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    backends, devices = dict[str, bool](), 0
    if packages["torch"]:
        import torch
        import torch.distributed as dist

        from synth.runtime.grid.transport import TRANSPORTS

        backends = {name: dist.is_backend_available(name) for name in TRANSPORTS}
        devices = torch.cuda.device_count()
    folder = os.path.dirname(sys.executable)
    commands = {
        "torchrun": bool(shutil.which("torchrun", path=folder) or shutil.which("torchrun")),
        "srun": bool(shutil.which("srun")),
    }
    return Examined(platform.python_version(), os.cpu_count() or 1, packages, backends, devices, commands)
