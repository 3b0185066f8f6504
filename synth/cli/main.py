"""The command line: `synth plan | emit | run | simulate | bounds | certify | report | plot | ...`.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 2 usage, 3 the input file is wrong,
4 no plan is feasible, 5 a check failed, 6 a distributed run failed, 130 interrupted. Output files appear
whole or not at all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from synth.base.errors import SynthError, UsageError
from synth.base.units import whole
from synth.cli import bounds, certify, errata, html, import_, plot

if TYPE_CHECKING:
    from synth.planning.plan import Plan

OBJECTIVES = (
    "the fewest words received (the default), the least time on --machine, or the least cost "
    "by Eq. 10 of the paper (Li et al., SPAA'21)"
)
STAYING = "the tensor that stays where it is (default: whichever moves the fewest words)"
MOST_RANKS = 512  # that `synth run` starts on this machine

Command = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """An argument parser that complains in one line, with a guess at what was meant."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


class Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        from synth import __version__

        print(f"synth {__version__}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        args = parser().parse_args(argv)
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except SynthError as fault:
        print(f"synth: {printable(str(fault))}", file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        print("synth: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = None  # the reader left; nothing more can be said
        return 0
    except OSError as fault:
        sys.stdout = None  # Python would try again to write what is left, and fail with a traceback
        what = "the output" if fault.filename is None else str(fault.filename)
        said = f"{what} cannot be written or read ({fault.strerror}); check space and rights"
        print(f"synth: {printable(said)}", file=sys.stderr)
        return UsageError.exit_code


def printable(text: str) -> str:
    """One line without control characters, whatever of the input is quoted in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def parser() -> Parser:
    """All commands and flags."""
    top = Parser(
        prog="synth",
        description="Derive communication-optimal distributed algorithms of convolutions, emit and run them.",
    )
    top.add_argument("--version", action=Version, nargs=0, help="print the version and stop")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    plan = commands.add_parser("plan", help="derive grid, distribution and schedule; print the report")
    _planning(plan, required=True)
    plan.add_argument("--relax", action="store_true", help="solve the geometric program, too")
    plan.add_argument(
        "--stop-after",
        choices=("layer", "nest", "optimum", "grid", "distribution", "schedule", "plan"),
        default="plan",
        help="print what this stage of the derivation made, and stop",
    )
    shape = plan.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    shape.add_argument("--certify", action="store_true", help="print a certificate of the lower bound")
    shape.add_argument("--explain", nargs="?", const="text", choices=("text", "latex"), help="derive it")
    plan.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")
    plan.set_defaults(run=_plan)

    emit = commands.add_parser("emit", help="write the runnable torch.distributed program")
    _planning(emit, required=False)
    emit.add_argument("--plan", metavar="FILE", help="emit this plan instead of deriving one")
    emit.add_argument("--standalone", action="store_true", help="one file that needs torch alone")
    emit.add_argument("--module", action="store_true", help="a torch.nn.Module instead of a command line")
    emit.add_argument("--sbatch", metavar="FILE", help="write an sbatch file for SLURM, too")
    emit.add_argument("--ranks-per-node", type=int, default=8, metavar="N", help="for --sbatch (default 8)")
    emit.add_argument("--walltime", default="00:10:00", metavar="HH:MM:SS", help="for --sbatch")
    emit.add_argument("-o", "--output", metavar="FILE", help="write the program to FILE instead of stdout")
    emit.set_defaults(run=_emit)

    run = commands.add_parser("run", help="plan, emit, run under torchrun here, check values and words")
    _planning(run, required=False)
    run.add_argument("--plan", metavar="FILE", help="run this plan instead of deriving one")
    run.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds a rank may wait")
    run.add_argument("--bench", type=int, default=3, metavar="N", help="timed repetitions (default 3)")
    run.add_argument("--tune", action="store_true", help="time forms of the local kernel first, use the best")
    run.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
    run.set_defaults(run=_run)

    for command in (bounds, certify, html, plot, errata, import_):
        command.add(commands)

    simulate = commands.add_parser("simulate", help="interpret the schedule of all ranks in one process")
    _planning(simulate, required=False)
    simulate.add_argument("--count", action="store_true", help="count words and memory only, no values")
    simulate.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
    simulate.set_defaults(run=_simulate, plan=None)

    from synth.cli import network, predict

    network.register(commands, plan)
    predict.register(commands)

    schema = commands.add_parser("schema", help="print the JSON Schema of the layer file")
    schema.set_defaults(run=_schema)
    doctor = commands.add_parser("doctor", help="say what of the environment is there")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(run=_doctor)
    return top


def _planning(command: argparse.ArgumentParser, required: bool) -> None:
    """The flags that ask for a plan."""
    what = "layer file (YAML)" if required else "layer file (YAML), or a plan file (.json)"
    command.add_argument("layer", metavar="LAYER", nargs=None if required else "?", help=what)
    command.add_argument("--procs", type=whole, metavar="P", required=required, help="processes")
    command.add_argument("--memory", metavar="SIZE", help="bytes per process, e.g. 16GiB")
    command.add_argument("--objective", choices=("words", "time", "paper"), default="words", help=OBJECTIVES)
    command.add_argument("--machine", metavar="FILE", help="machine file, or the name of a shipped machine")
    command.add_argument("--stationary", choices=("auto", "out", "in", "ker"), default="auto", help=STAYING)
    command.add_argument("--grid", metavar="b=4,k=2", help="fix parts of the grid")
    command.add_argument("--balance", type=float, default=0.10, metavar="F", help="extra work allowed (0.10)")
    command.add_argument("--order", metavar="b,h,k,c", help="axes over the ranks, the last fastest")
    command.add_argument("--exact-procs", action="store_true", help="leave no process idle")
    tasks = ("forward", "backward-data", "backward-filter", "training")
    command.add_argument(
        "--pass",
        dest="pass_",
        choices=tasks,
        default="forward",
        help="what is computed; training: all passes on one grid",
    )
    command.add_argument(
        "--gradients",
        metavar="in,ker",
        help="of a training step: ker for a network's first layer, in for frozen weights (both)",
    )
    command.add_argument("--strategy", metavar="NAME", help="the best plan of a named strategy, e.g. 2.5D")
    command.add_argument("--panels", type=int, metavar="N", help="panels wanted in the streaming loop")


def _asked(args: argparse.Namespace) -> Plan:
    """The plan that the flags ask for: derived, or read from a file."""
    named = getattr(args, "plan", None) or (args.layer if str(args.layer).endswith(".json") else None)
    if named:
        if args.procs is not None:
            raise UsageError(f"the plan {named} has its own processes; leave out --procs {args.procs}")
        from synth.planning.plan_json import read_plan

        return read_plan(named)
    if args.layer is None:
        raise UsageError(f"synth {args.command} needs a layer file, or --plan FILE")
    if args.procs is None:
        raise UsageError(f"synth {args.command} {args.layer} needs --procs P")
    from synth.planning.derive import plan

    return plan(
        args.layer,
        args.procs,
        args.memory,
        objective=args.objective,
        stationary=args.stationary,
        grid=_grid(args.grid),
        balance=args.balance,
        exact_procs=args.exact_procs,
        pass_=args.pass_,
        machine=args.machine,
        strategy=args.strategy,
        order=None if args.order is None else [each.strip() for each in args.order.split(",")],
        panels=args.panels,
        **({} if args.gradients is None else {"gradients": args.gradients.split(",")}),
    )


def _grid(text: str | None) -> dict[str, int]:
    """`b=4,k=2` -> {"b": 4, "k": 2}."""
    parts: dict[str, int] = {}
    for item in (text or "").split(",") if text else []:
        axis, _, count = item.strip().partition("=")
        if not count.isdecimal() or len(count) > 18 or axis in parts:
            raise UsageError(f"--grid {text!r} is not like b=4,k=2; name each axis once, with a count")
        parts[axis] = int(count)
    return parts


def _json(data: Any) -> str:
    import json

    return json.dumps(data, indent=1) + "\n"


def _plan(args: argparse.Namespace) -> int:
    from synth.base.atomic_write import put

    if str(args.layer).endswith((".yaml", ".yml")):
        from synth.cli import network

        if network.is_network_file(args.layer):
            return network.plan(args)
    made = _asked(args)
    if args.certify:
        from synth.analysis.certificate import certificate

        put(_json(certificate(made)), args.output)
        return 0
    if args.explain:
        from synth.reports.derivation import explain

        put(explain(made, args.explain), args.output)
        return 0
    relaxed = None
    if args.relax:
        from synth.bounds.geometric_program import relax_received

        relaxed = relax_received(made.nest, made.used_procs, made.limit_words).cost
    if args.json:
        from synth.planning.plan_json import to_json

        put(_json(to_json(made, relaxed)), args.output)
        return 0
    from synth.reports.text import stage_text

    text = stage_text(made, args.stop_after).rstrip("\n") + "\n"
    if relaxed is not None:
        text += f"\nrelaxation (geometric program): {relaxed:.1f} received words\n"
    put(text, args.output)
    return 0


def _emit(args: argparse.Namespace) -> int:
    import os

    made = _asked(args)
    from synth.base.atomic_write import put, write_whole
    from synth.codegen.render import render

    name = os.path.basename(args.output) if args.output else "PROGRAM.py"
    text = render(made, args.standalone, _command(args), args.module, name)
    if args.sbatch:
        from synth.codegen.sbatch import render_sbatch

        program = os.path.basename(args.output or "program.py")  # the script stands beside the program
        script = render_sbatch(made, program, args.ranks_per_node, args.walltime)
        write_whole(args.sbatch, script)
    put(text, args.output)
    return 0


def _command(args: argparse.Namespace) -> str:
    """The command that emitted a program, for its header: no absolute paths but file names."""
    import shlex

    if args.plan or str(args.layer).endswith(".json"):
        words = ["synth", "emit", "--plan", _named(args.plan or args.layer)]
        return " ".join(shlex.quote(word) for word in [*words, *_shape(args)])
    words = ["synth", "emit", _named(args.layer), "--procs", str(args.procs)]
    for flag in ("memory", "grid", "order", "gradients"):
        words += [f"--{flag}", getattr(args, flag)] if getattr(args, flag) else []
    words += ["--strategy", args.strategy] if args.strategy else []
    words += ["--pass", args.pass_] if args.pass_ != "forward" else []
    words += ["--objective", args.objective] if args.objective != "words" else []
    words += ["--stationary", args.stationary] if args.stationary != "auto" else []
    words += ["--balance", f"{args.balance:g}"] if args.balance != 0.10 else []
    words += ["--exact-procs"] if args.exact_procs else []
    words += ["--panels", str(args.panels)] if args.panels else []
    return " ".join(shlex.quote(word) for word in [*words, *_shape(args)])


def _named(path: str) -> str:
    """A path as it was given, or the file's name where it says more of this machine."""
    from pathlib import PurePath

    told = PurePath(path)
    return told.name if told.is_absolute() or ".." in told.parts or "~" in told.parts else path


def _shape(args: argparse.Namespace) -> list[str]:
    """The flags of `synth emit` that say what the text is and where it went."""
    words = ["--standalone"] if args.standalone else []
    words += ["--module"] if args.module else []
    return [*words, *(["-o", _named(args.output)] if args.output else [])]


def _run(args: argparse.Namespace) -> int:
    if not 0 < args.timeout < 1e9 or not 0 <= args.bench < 1e9:
        raise UsageError("--timeout must be positive and --bench at least 0; both below 1e9")
    made = _asked(args)
    if made.procs > MOST_RANKS:
        raise UsageError(
            f"{made.procs} processes are too many for one machine, at most {MOST_RANKS}; "
            "write the program with `synth emit --sbatch` and start it on a cluster"
        )
    from synth.launch.run import run

    outcome = run(made, timeout=args.timeout, repetitions=args.bench, tune=args.tune)
    sys.stdout.write(_json(outcome.to_json()) if args.json else f"{outcome}\n")
    return 0


def _simulate(args: argparse.Namespace) -> int:
    made = _asked(args)
    from synth.simulation.simulate import simulated

    outcome = simulated(made, values=not args.count)
    sys.stdout.write(_json(outcome.to_json()) if args.json else f"{outcome}\n")
    return 0


def _schema(args: argparse.Namespace) -> int:
    from synth.layer.layer import layer_file_schema

    sys.stdout.write(_json(layer_file_schema()))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from synth.launch.doctor import examine

    found = examine()
    sys.stdout.write(_json(found.to_json()) if args.json else f"{found}\n")
    return 0 if found.well else 1
