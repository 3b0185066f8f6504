"""One GPU at world size 1: our programs and networks beside plain torch and DDP, with rates and memory.

    python -m benchmarks.gpu [networks] [layers] [rates] [--device cuda] [--rounds 7] [--small] [-o FOLDER]

It writes gpu.json and gpu.md. A ratio is the peer's time by ours, round by round, in rounds that take turns;
each time is of steps in a row between two synchronizations. cuDNN tries its kernels (`cudnn.benchmark`) for
all contenders alike. --small: small batches, to try the command on a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu import layers, networks, rates
from benchmarks.gpu.table import page
from benchmarks.ranks import free_port

RESULTS = Path(__file__).parents[1] / "results"
PARTS = ("rates", "layers", "networks")


def main() -> int:
    """Measure the parts that were asked for, and write them beside those of an earlier run."""
    args = arguments()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("benchmarks.gpu: no GPU here; --device cpu --small tries the command", file=sys.stderr)
        return 2
    alone(device)
    file = args.output / "gpu.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part in args.parts or PARTS:
        begin = time.perf_counter()
        found[part] = measured(part, device, args)
        found.setdefault("facts", {})[part] = facts(device)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(page(found), encoding="utf-8")
        print(f"{part}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    return 0


def measured(part: str, device: torch.device, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of a part. What fails is a line, too."""
    if part == "rates":
        return rates.measured(device, args.rounds, args.small)
    jobs: list[tuple[tuple[str, ...], Callable[..., dict[str, Any]]]] = []
    if part == "layers":
        each = product(layers.LAYERS, layers.MODES, layers.WORKS)
        jobs += [(names, partial(layers.measured, *names)) for names in each]
    else:
        pairs = product(networks.CASES, networks.MODES)
        jobs += [(names, partial(networks.measured, *names)) for names in pairs]
    lines = []
    for names, job in jobs:
        if args.only and not any(text in " ".join(names) for text in args.only):
            continue
        try:
            lines.append(job(device, args.rounds, args.small))
        except Exception as error:
            traceback.print_exc()
            lines.append({"line": names, "failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
        print(json.dumps(lines[-1]), file=sys.stderr, flush=True)
    return lines


def alone(device: torch.device) -> None:
    """A process group of this process: nccl on a GPU, gloo on a processor."""
    if device.type == "cuda":
        torch.cuda.set_device(0)
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def facts(device: torch.device) -> dict[str, str]:
    """What was measured on."""
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device.type,
        "cores": str(os.cpu_count()),
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
        libraries: Any = torch.backends.cudnn, torch.cuda.nccl
        found |= {name: str(each.version()) for name, each in zip(("cudnn", "nccl"), libraries, strict=True)}
    return found


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what is measured (all)")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a try")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of each line (7)")
    parser.add_argument("--small", action="store_true", help="small batches")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="TEXT", help="lines that contain one of these"
    )
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FOLDER", help="of the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
