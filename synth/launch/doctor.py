"""`synth doctor`: what of the environment is there, without starting anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import Any

NEEDED = (
    *("PyYAML", "cvxpy", "jinja2", "matplotlib", "msgspec", "networkx", "numpy", "rich", "scipy", "sympy"),
    "torch",
)


@dataclass(frozen=True)
class Examined:
    """Python, cores, and per needed package its version or None; backends of torch.distributed."""

    python: str
    cores: int
    packages: dict[str, str | None]
    backends: dict[str, bool]
    devices: int
    commands: dict[str, bool]

    @property
    def well(self) -> bool:
        """Whether everything that `synth run` needs is there."""
        return all(self.packages.values()) and any(self.backends.values())

    def __str__(self) -> str:
        lines = [f"python     {self.python}, {self.cores} cores"]
        lines += [
            f"{name:<10} {version or 'MISSING: pip install ' + name}"
            for name, version in self.packages.items()
        ]
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


def examine() -> Examined:
    """Look around."""
    packages: dict[str, str | None] = {}
    for name in NEEDED:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    backends, devices = {"gloo": False, "nccl": False}, 0
    if packages["torch"]:
        import torch
        import torch.distributed as dist

        backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
        devices = torch.cuda.device_count()
    folder = os.path.dirname(sys.executable)
    commands = {
        "torchrun": bool(shutil.which("torchrun", path=folder) or shutil.which("torchrun")),
        "srun": bool(shutil.which("srun")),
    }
    return Examined(platform.python_version(), os.cpu_count() or 1, packages, backends, devices, commands)
