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

RANKS_PER_NODE, WALLTIME = 8, "00:10:00"


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
    command.add_argument(
        "--module",
        action="store_true",
        help="a torch.nn.Module instead of a command line; needs --pass training, or a plan of it",
    )
    command.add_argument("--sbatch", metavar="FILE", help="write an sbatch file for SLURM, too; needs -o")
    command.add_argument(
        "--ranks-per-node", type=int, metavar="N", help="for --sbatch: ranks on a node (default 8)"
    )
    command.add_argument(
        "--walltime",
        metavar="HH:MM:SS",
        help="for --sbatch: the time limit of the job, as SLURM writes it (default 00:10:00, ten minutes)",
    )
    command.add_argument("-o", "--output", metavar="FILE", help="write the program to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Writes the program, and the sbatch file with `--sbatch`."""
    if args.lean:
        _require_lean_alone(args)
    _require_sbatch(args)
    text = _text(args, plan := plan_of(args))
    if args.sbatch:
        from synth.codegen.sbatch import render_sbatch

        program = os.path.basename(args.output)  # the script stands beside the program
        per_node = RANKS_PER_NODE if args.ranks_per_node is None else args.ranks_per_node
        script = render_sbatch(plan, program, per_node, WALLTIME if args.walltime is None else args.walltime)
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


def _require_sbatch(args: argparse.Namespace) -> None:
    """Raises `UsageError` for an option of the script without one, and for a script without its program."""
    if args.sbatch and not args.output:
        raise UsageError(
            f"--sbatch {args.sbatch} starts the file of the program; name that file with -o FILE"
        )
    for value, flag in ((args.walltime, "--walltime"), (args.ranks_per_node, "--ranks-per-node")):
        if value is not None and not args.sbatch:
            raise UsageError(
                f"{flag} {value} is for the script of SLURM; add --sbatch FILE, or leave out {flag}"
            )


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
