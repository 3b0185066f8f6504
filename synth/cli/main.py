"""The command line: `synth plan | emit | run | simulate | bounds | certify | explain | diff | ...`.

Every command is a module of `plans`, `bounds` or `setup` with the function `register(subparsers)`. Results
go to stdout, everything else to stderr. Exit codes: 0 done, 2 usage, 3 the input file is wrong, 4 no plan is
feasible, 5 a check failed, 6 a distributed run failed, 128 + n ended by signal n (130: Ctrl-C). Output files
appear whole or not at all.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from keyword import iskeyword
from typing import NoReturn

from synth.base.doors import Door, entered_by
from synth.base.errors import SynthError, UsageError
from synth.base.extras import missing_extra
from synth.base.units import in_unit_of
from synth.cli.parser import EXAMPLES, Parser

FOLDERS = {  # command -> the folder of its module; in the order of `synth --help`
    **dict.fromkeys(("plan", "emit", "run"), "plans"),
    **dict.fromkeys(("bounds", "certify"), "bounds"),
    **dict.fromkeys(("explain", "diff", "report", "plot"), "plans"),
    "errata": "bounds",
    **dict.fromkeys(("import", "check"), "setup"),
    **dict.fromkeys(("simulate", "replay", "predict"), "plans"),
    **dict.fromkeys(("calibrate", "schema", "doctor", "completion"), "setup"),
}
COMMANDS = tuple(FOLDERS)
LONGEST = 4000  # characters of a message


class Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        from synth import __version__

        print(f"synth {__version__}")
        parser.exit()


class Ended(BaseException):
    """A signal told this process to end: what is open is closed, and started ranks are ended first."""


@contextmanager
def heeded_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack, unless the caller ignores or handles them."""
    mine = threading.current_thread() is threading.main_thread()
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if mine and signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # the first one is enough
    raise Ended(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = argparse.Namespace()
    try:
        with heeded_signals(), entered_by(Door.COMMAND_LINE):
            args = parsed(argv)
            code = int(args.run(args))
            sys.stdout.flush()
            return code
    except SynthError as fault:
        return _told(fault, args)
    except ModuleNotFoundError as fault:
        found = missing_extra(fault)
        if not isinstance(found, SynthError):
            raise
        return _told(found, args)
    except Ended as ended:
        number = signal.Signals(ended.args[0])
        with suppress(OSError):  # the terminal may be gone
            print(f"synth: ended by {number.name}", file=sys.stderr)
        return 128 + number
    except KeyboardInterrupt:
        print("synth: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = None  # the reader closed the pipe
        return 0
    except OSError as fault:
        sys.stdout = None  # else Python tries to flush the rest at exit, and fails with a traceback
        what = "the output" if fault.filename is None else str(fault.filename)
        message = f"{what} cannot be written or read ({fault.strerror}); check space and rights"
        print(f"synth: {printable(message)}", file=sys.stderr)
        return UsageError.exit_code


def _told(fault: SynthError, args: argparse.Namespace) -> int:
    """Prints a message, with sizes in the unit of `--memory`; returns the exit code."""
    given = getattr(args, "memory", None)
    text = in_unit_of(given, str(fault)) if given else str(fault)
    print(f"synth: {printable(text)}", file=sys.stderr)
    return fault.exit_code


def printable(text: str) -> str:
    """One line of bounded length without control characters, whatever of the input is quoted in it."""
    said = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return said if len(said) <= LONGEST else f"{said[: LONGEST // 2]} [...] {said[-LONGEST // 4 :]}"


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. Raises `UsageError`. Without any, `run` prints the help."""
    words = list(sys.argv[1:] if argv is None else argv)
    top = parser(words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS)
    args, rest = top.parse_known_args(words)
    if args.command is None:
        if rest:
            top.refuse_rest(rest)
        return argparse.Namespace(run=lambda _: print(top.format_help(), end="") or 0)
    if rest:
        args.parser.refuse_rest(rest)
    if getattr(args, "output", None) == "-":
        args.output = None
    return args


def commands(top: Parser) -> dict[str, Parser]:
    """Command -> its parser."""
    (choices,) = (action.choices for action in top._actions if action.dest == "command")
    return dict(choices)  # type: ignore[arg-type]


def parser(names: Sequence[str] = COMMANDS) -> Parser:
    """All commands and flags, or those of some commands, which takes less time."""
    top = Parser(
        prog="synth",
        description="Derive distributed algorithms of convolutions, with the fewest words of their family; "
        "emit and run them. Sizes are bytes, such as 16GiB; a file named - is stdin or stdout.",
        epilog=f"{EXAMPLES}  synth plan conv.yaml --procs 64\n  synth run conv.yaml --procs 4\n"
        "  synth bounds conv.yaml --procs 1:4096\n"
        "  synth import mymodel:make --input 32,3,224,224 -o net.yaml\n  synth COMMAND --help\n",
    )
    top.add_argument("--version", action=Version, nargs=0, help="print the version and stop")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name in names:
        path = f"synth.cli.{FOLDERS[name]}.{name}"
        module = import_module(f"{path}_" if iskeyword(name) else path)
        module.register(subparsers)
        subparsers.choices[name].set_defaults(run=module.run)
    return top
