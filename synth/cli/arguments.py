"""The arguments that ask for a plan, shared by `plan`, `emit`, `run` and `simulate`.

Every default is that of `PlanRequest`; what the arguments mean together is checked there, too.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from synth.base.errors import InputError, UsageError
from synth.base.file_kinds import refuse_other_file
from synth.base.flags import flag_words
from synth.base.units import whole
from synth.base.user_files import read_text
from synth.cli.output import detail, note
from synth.layer.passes import TASKS
from synth.planning.request import OBJECTIVES, STATIONARY, PlanRequest

if TYPE_CHECKING:
    from synth.planning.plan import Plan


def add_request(command: argparse.ArgumentParser, *, file_only: bool) -> None:
    """Adds the arguments of `PlanRequest`; without `file_only` a plan file may replace the layer file."""
    add = command.add_argument
    if file_only:
        add("layer", metavar="FILE", help="layer file or network file (YAML); - is stdin")
    else:
        add(
            "layer",
            metavar="LAYER",
            nargs="?",
            help="layer file (YAML), or its plan file (.json); - is stdin",
        )
        add("--plan", metavar="FILE", help="take this plan instead of deriving one")
    add("--procs", type=whole, metavar="P", required=file_only, help="processes")
    add("--memory", metavar="SIZE", help="bytes per process, e.g. 16GiB")
    add(
        "--objective",
        choices=OBJECTIVES,
        help="the fewest words received (the default), the least time on --machine, or the least cost "
        "by Eq. 10 of the paper (Li et al., SPAA'21)",
    )
    add("--machine", metavar="FILE", help="machine file, or the name of a shipped machine")
    add(
        "--stationary",
        choices=STATIONARY,
        help="the tensor that stays in memory for the whole loop (default: whichever moves the fewest words)",
    )
    add("--pass", dest="pass_", choices=TASKS, help="what is computed; training: all passes on one grid")
    add(
        "--gradients",
        type=parse_names,
        metavar="in,ker",
        help="of a training step: ker for a network's first layer, in for frozen weights (default: both)",
    )
    add(
        "--strategy",
        metavar="NAME",
        help="the best plan of a layer within a named strategy, e.g. data or 2.5D",
    )
    _add_decisions(command)
    command.set_defaults(**{field.name: field.default for field in fields(PlanRequest)[2:]})


def _add_decisions(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that fix what the search would choose."""
    add = command.add_argument
    add("--grid", type=parse_grid, metavar="b=4,k=2", help="processes along some axes (default: searched)")
    add_balance(command)
    add(
        "--rows",
        type=parse_rows,
        metavar="h=in,w=out",
        help="whether blocks are cut by input or by output rows (default: whichever moves the fewest words)",
    )
    add(
        "--classes",
        type=parse_classes,
        metavar="h=4,w=1",
        help="residue classes of a dilated layer along an axis, a divisor of the dilation (default: "
        "whichever moves the fewest words)",
    )
    add(
        "--order",
        type=parse_names,
        metavar="b,h,k,c",
        help="grid axes in the order in which ranks are counted, the last one fastest",
    )
    add("--exact-procs", action="store_true", help="leave no process idle")
    add(
        "--panels",
        type=int,
        metavar="N",
        help="panels of the streaming loop (default: as many as overlap and memory need)",
    )


def add_balance(command: argparse.ArgumentParser) -> None:
    """Adds `--balance` with its default."""
    default = PlanRequest.balance
    command.add_argument(
        "--balance",
        type=float,
        default=default,
        metavar="F",
        help="extra multiply-adds that the busiest process may do so that fewer words move, as a fraction "
        f"(default {default:.2f})",
    )


def parse_names(text: str) -> list[str]:
    """`b, h,k` -> ["b", "h", "k"]."""
    return [name.strip() for name in text.split(",")]


def parse_grid(text: str) -> dict[str, int]:
    """`b=4,k=2` -> {"b": 4, "k": 2}. Raises `UsageError`."""
    return _counts(text, "--grid", "b=4,k=2")


def _counts(text: str, flag: str, example: str) -> dict[str, int]:
    """Axis -> count, as a flag has them."""
    parts: dict[str, int] = {}
    for item in text.split(",") if text else []:
        axis, _, count = item.strip().partition("=")
        if not count.isdecimal() or len(count) > 18 or axis in parts:
            raise UsageError(f"{flag} {text!r} is not like {example}; name each axis once, with a count")
        parts[axis] = int(count)
    return parts


def parse_classes(text: str) -> dict[str, int]:
    """`h=4,w=1` -> {"h": 4, "w": 1}. Raises `UsageError`."""
    return _counts(text, "--classes", "h=4,w=1")


def parse_rows(text: str) -> dict[str, str]:
    """`h=in,w=out` -> {"h": "in", "w": "out"}. Raises `UsageError`."""
    pairs = [item.strip().partition("=") for item in text.split(",")] if text else []
    rows = {axis: side for axis, _, side in pairs}
    if len(rows) < len(pairs):
        raise UsageError(f"--rows {text!r} names an axis twice; write it like h=in,w=out")
    return rows


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
        raise UsageError(f"synth {args.command} needs a layer file, or --plan FILE")
    if args.procs is None:
        refuse_other_file(text_or_nothing(args.layer), args.layer, "layer")
        raise UsageError(f"synth {args.command} {args.layer} needs --procs P")
    return PlanRequest(**{field.name: getattr(args, field.name) for field in fields(PlanRequest)})


def _require_alone(named: str, args: argparse.Namespace) -> None:
    """Raises `UsageError` for a layer or a request beside a plan file, which has decided them."""
    if args.layer not in (None, named):
        raise UsageError(f"the plan {named} has its own layer; leave out {args.layer}, or --plan")
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


def json_text(data: Any) -> str:
    """JSON as the commands print it."""
    return json.dumps(data, indent=1) + "\n"
