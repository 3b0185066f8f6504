"""`synth emit`: writes the runnable torch.distributed program of a plan."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, Any

from synth.base.atomic_write import put, staged
from synth.base.errors import UsageError
from synth.base.flags import portable_path
from synth.cli.arguments import add_request, plan_of, plan_path, request_of
from synth.cli.parser import declare

if TYPE_CHECKING:
    from synth.planning.plan import Plan


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "emit",
        "write the runnable torch.distributed program of a layer",
        "conv.yaml --procs 8 -o conv_dist.py",
        "plan.json --standalone -o conv_dist.py",
        "conv.yaml --procs 8 --lean -o conv_lean.py",
        "plan.json -o conv_dist.py --sbatch job.sbatch --ranks-per-node 8",
    )
    add_request(command)
    command.add_argument("--standalone", action="store_true", help="one file that needs torch alone")
    command.add_argument(
        "--lean",
        action="store_true",
        help="a short program to copy from: torch alone, each move one all-to-all, no time-outs of its own",
    )
    command.add_argument("--module", action="store_true", help="a torch.nn.Module instead of a command line")
    command.add_argument("--sbatch", metavar="FILE", help="write an sbatch file for SLURM, too")
    command.add_argument(
        "--ranks-per-node", type=int, default=8, metavar="N", help="for --sbatch (default 8)"
    )
    command.add_argument("--walltime", default="00:10:00", metavar="HH:MM:SS", help="for --sbatch")
    command.add_argument("-o", "--output", metavar="FILE", help="write the program to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Writes the program, and the sbatch file with `--sbatch`."""
    if args.lean:
        _require_lean_alone(args)
    text = _text(args, plan := plan_of(args))
    if args.sbatch:
        from synth.codegen.sbatch import render_sbatch

        program = os.path.basename(args.output or "program.py")  # the script stands beside the program
        script = render_sbatch(plan, program, args.ranks_per_node, args.walltime)
        with staged(args.sbatch, script.encode()):  # both files, or none
            put(text, args.output)
    else:
        put(text, args.output)
    return 0


def _text(args: argparse.Namespace, plan: Plan) -> str:
    """The program that the arguments ask for."""
    name = os.path.basename(args.output) if args.output else "PROGRAM.py"
    if args.lean:
        from synth.codegen.lean import render_lean

        return render_lean(plan, command_line(args), name)
    from synth.codegen.render import render

    return render(plan, args.standalone, command_line(args), args.module, name)


def _require_lean_alone(args: argparse.Namespace) -> None:
    """Raises `UsageError` for another form of program beside the lean one."""
    for given, flag, why in (
        (args.standalone, "--standalone", "needs torch alone as it is"),
        (args.module, "--module", "is a command and no torch.nn.Module"),
        (args.sbatch, "--sbatch", "is started by torchrun, whose variables SLURM does not set"),
    ):
        if given:
            raise UsageError(f"a lean program {why}; leave out {flag}, or --lean")


def command_line(args: argparse.Namespace) -> str:
    """The command that emits the same program, for its header: no paths of this machine."""
    named = plan_path(args)
    words = (
        ["synth", "emit", "--plan", portable_path(named)] if named else request_of(args).command_line("emit")
    )
    words += ["--standalone"] if args.standalone else []
    words += ["--lean"] if args.lean else []
    words += ["--module"] if args.module else []
    words += ["-o", portable_path(args.output)] if args.output else []
    return shlex.join(words)
