"""`synth import`: a torch model as a network file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from synth.base.errors import UsageError
from synth.base.extras import require
from synth.cli.output import json_text
from synth.cli.parser import declare

if TYPE_CHECKING:
    from synth.network.graph import Network


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "import",
        "write the network file of a torch model, whose code is run",
        "torchvision.models:resnet50 --input 32,3,224,224 -o resnet50.yaml",
        "mymodel:make --input 8,1,64,64,64",
        description="Write the network file of a torch model. This imports MODULE, also from the current "
        "folder, and calls FACTORY: name only code that you would run.",
    )
    command.add_argument(
        "model", metavar="MODULE:FACTORY", help="a function without arguments that returns the model"
    )
    command.add_argument("--input", metavar="N,C,H,W", required=True, help="shape of the whole batch")
    command.add_argument("--json", action="store_true", help="print one JSON object, the text included")
    command.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Traces the model and writes its layers; what cannot be written is a `UsageError`."""
    extents = extents_of(args.input)
    require("torch")
    with own_stdout() as stdout:
        return _write(args, extents, stdout)


def extents_of(text: str) -> list[int]:
    """The shape of a batch, from "32,3,224,224"."""
    extents = text.split(",")
    if not 2 <= len(extents) <= 5 or not all(each.isdecimal() and int(each) > 0 for each in extents):
        raise UsageError(f"--input is {text!r}; write 2 to 5 whole numbers, such as 32,3,224,224")
    return [int(each) for each in extents]


def _write(args: argparse.Namespace, extents: list[int], stdout: TextIO) -> int:
    from synth.network.file import parse_network
    from synth.parallel.front_end.import_model import import_model

    text = import_model(args.model, extents)
    network = parse_network(text, args.output or "network.yaml")  # what is written can be read
    if args.output:
        from synth.base.atomic_write import write_whole

        write_whole(args.output, text)
    if args.json or not args.output:
        stdout.write(json_text(imported(network, args.output, text)) if args.json else text)
        stdout.flush()
    if not args.quiet:
        if args.output:
            print(network, file=sys.stderr)
        _say_gathered(network)
    return 0


def imported(network: Network, path: str | None, text: str) -> dict[str, Any]:
    """`synth.imported/1`: what the network file has, and the words of calls that every rank gathers."""
    from synth.network.step_time.calls import gathered_calls, operations

    gathered, share = gathered_calls(network)
    return {
        "schema": "synth.imported/1",
        "file": path,
        "network": network.name,
        "input": list(network.input),
        "dtype": network.dtype,
        "layers": len(network.nodes),
        "planned_layers": len(network.planned),
        "parameters": network.parameters,
        "operations": operations(network),
        "gathered": [{"name": name, "words": words} for name, words in gathered.items()],
        "gathered_share": share,
        "text": text,
    }


def _say_gathered(network: Network) -> None:
    """What ranks cannot divide, on stderr."""
    from synth.network.step_time.calls import gathered_text

    said = gathered_text(network)
    if said:
        print(f"synth: {said}", file=sys.stderr)


@contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Standard output for the file alone: what the user's code prints, also at exit, goes to stderr."""
    if sys.stdout is not sys.__stdout__:
        yield sys.stdout
        return
    sys.stderr.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as own:
        os.dup2(2, 1)
        yield own
