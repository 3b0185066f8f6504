"""The arguments that ask for a plan, shared by `plan`, `emit`, `run` and `simulate`.

Every default is that of `PlanRequest`; what the arguments mean together is checked there, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from synth.base.errors import InputError, UsageError, said_of
from synth.base.file_kinds import refuse_other_file
from synth.base.flags import flag_of, flag_words
from synth.base.units import whole
from synth.base.user_files import read_text
from synth.cli.output import detail, note
from synth.planning.decisions import Option
from synth.planning.request import OPTIONS, PlanRequest, default_of

if TYPE_CHECKING:
    from synth.planning.plan import Plan


def add_request(command: argparse.ArgumentParser, *, edited: bool = False) -> None:
    """Adds the arguments of `PlanRequest`; a plan file may replace the layer file.

    edited: the plan file is one that a user has edited, and the layer file may be one of a network.
    """
    add = command.add_argument
    if edited:
        add("layer", metavar="FILE", nargs="?", help="layer file or network file (YAML); - is stdin")
        add(
            "--from",
            dest="from_",
            metavar="FILE",
            help="plan again from an edited plan file: its processes, grid, order, rows, classes and passes",
        )
    else:
        add(
            "layer",
            metavar="LAYER",
            nargs="?",
            help="layer file (YAML), or its plan file (.json); - is stdin",
        )
        add("--plan", metavar="FILE", help="take this plan instead of deriving one")
    add("--procs", type=whole, metavar="P", help="processes")
    add_options(command, OPTIONS)


def add_options(command: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Adds the flags of options of `PlanRequest`, with their defaults."""
    for each in options:
        words: dict[str, Any] = {"dest": each.name, "default": default_of(each), "help": each.about}
        if each.switch:
            words["action"] = "store_true"
        else:
            words |= {"metavar": each.example, "type": partial(_typed, each), "choices": each.choices}
        command.add_argument(flag_of(each.name), **words)


def _typed(asked: Option, text: str) -> Any:
    """The value of a flag. Raises `UsageError`, which names it."""
    with said_of(flag_of(asked.name)):
        return asked.typed(text) if asked.typed else text


def add_recompute(command: Any) -> None:
    """Declares --recompute, of plans of networks."""
    command.add_argument(
        "--recompute",
        metavar="F",
        type=_fraction,
        help="network files: extra multiply-adds that the busiest process may do on rows of others, so that"
        " fewer words move between layers, e.g. 10%%; in inference for time as many as pay, 0: none",
    )


def _fraction(text: str) -> float:
    """A fraction, written as 0.1 or 10%."""
    number, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    try:
        return float(number) / percent
    except ValueError as fault:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction; write 0.1 or 10%") from fault


def add_balance(command: argparse.ArgumentParser) -> None:
    """Adds `--balance` with its default."""
    add_options(command, [each for each in OPTIONS if each.name == "balance"])


def plan_path(args: argparse.Namespace) -> str | None:
    """The plan file that the arguments name, by `--plan` or in place of the layer file."""
    named: str | None = getattr(args, "plan", None)
    if named or args.layer is None:
        return named
    is_plan = args.layer.endswith(".json") or (args.layer == "-" and read_text("-").lstrip().startswith("{"))
    return args.layer if is_plan else None


def request_of(args: argparse.Namespace) -> PlanRequest:
    """The request that the arguments make. Raises `UsageError`."""
    if args.layer is None:
        other = "--from" if hasattr(args, "from_") else "--plan"
        raise UsageError(f"synth {args.command} needs a layer file, or {other} FILE")
    if args.procs is None:
        refuse_other_file(text_or_nothing(args.layer), args.layer, "layer")
        raise UsageError(f"synth {args.command} {args.layer} needs --procs P")
    names = [field.name for field in fields(PlanRequest) if hasattr(args, field.name)]
    return PlanRequest(**{name: getattr(args, name) for name in names})


def _require_alone(named: str, args: argparse.Namespace) -> None:
    """Raises `UsageError` for a layer or a request beside a plan file, which has decided them."""
    if args.layer not in (None, named):
        other = "--from" if hasattr(args, "from_") else "--plan"
        raise UsageError(f"the plan {named} has its own layer; leave out {args.layer}, or {other}")
    for field in fields(PlanRequest)[1:]:
        value, default = getattr(args, field.name), getattr(PlanRequest, field.name, None)
        if value != default:
            what = {"procs": "processes"}.get(field.name, field.name.rstrip("_").replace("_", " "))
            flag = " ".join(flag_words(field.name, value))
            raise UsageError(f"the plan {named} has its own {what}; leave out {flag}")


def text_or_nothing(path: str) -> str:
    """The text of a file, "" if there is none: its reader says why."""
    from synth.planning.plan_file import plan_text

    try:
        return plan_text(path)
    except InputError:
        return ""


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan that the arguments ask for: derived, or read from a file."""
    if getattr(args, "from_", None):
        from synth.planning.edited_plan import read_edited_plan

        _require_alone(args.from_, args)
        return read_edited_plan(args.from_)
    named = plan_path(args)
    if named:
        from synth.planning.plan_file import read_plan

        if named == args.layer:  # by its name a plan; what it holds comes before what else was given
            refuse_other_file(text_or_nothing(named), named, "plan")
        _require_alone(named, args)
        return read_plan(named)
    request = request_of(args)
    from synth.planning.derive import derive

    plan = derive(request)
    idle = plan.procs - plan.used_procs
    if idle and request.strategy:
        note(
            args,
            f"warning: strategy {request.strategy} leaves {idle} of {plan.procs} processes idle on "
            f"{plan.layer.name}; take fewer processes, or another strategy",
        )
    detail(args, f"plan {plan.id} in {time.process_time():.2f} s of processor time since the start")
    return plan
