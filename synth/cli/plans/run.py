"""`synth run`: plans, emits and runs a program on ranks of this machine, and checks the outcome."""

from __future__ import annotations

import argparse
from typing import Any

from synth.base.errors import UsageError
from synth.base.extras import require
from synth.cli.arguments import add_request, plan_of
from synth.cli.output import note, tell
from synth.cli.parser import declare

MOST_RANKS = 512  # that `synth run` starts on this machine


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "run",
        "plan a layer, emit, run on ranks of this machine, check values and words",
        "conv.yaml --procs 4",
        "--plan plan.json --bench 10",
    )
    add_request(command)
    command.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds a rank may wait")
    command.add_argument("--bench", type=int, default=3, metavar="N", help="timed repetitions (default 3)")
    command.add_argument(
        "--tune", action="store_true", help="time variants of the local kernel first and use the fastest"
    )
    command.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="cuda: ranks may share GPUs; auto: one GPU per rank, or none",
    )
    command.add_argument("--json", action="store_true", help="print the outcome as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Runs the program and prints the outcome. Raises `RunError` or `CheckError`."""
    if not 0 < args.timeout < 1e9 or not 0 <= args.bench < 1e9:
        raise UsageError("--timeout must be positive and --bench at least 0; both below 1e9")
    require("torch")
    plan = plan_of(args)
    if plan.procs > MOST_RANKS:
        raise UsageError(
            f"{plan.procs} processes are too many for one machine, at most {MOST_RANKS}; "
            "write the program with `synth emit --sbatch` and start it on a cluster"
        )
    from synth.launch import capacity
    from synth.launch import run as launch

    capacity.require_memory(plan.used_procs, plan.used_bytes)
    if warning := capacity.crawl(plan.used_procs):
        note(args, warning)
    outcome = launch.run(
        plan, timeout=args.timeout, repetitions=args.bench, tune=args.tune, device=args.device
    )
    tell(args, outcome)
    return 0
