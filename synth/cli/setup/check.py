"""`synth check`: whether the network of a torch model computes what the model does."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from synth.base.errors import UsageError
from synth.base.extras import require
from synth.cli.output import json_text
from synth.cli.parser import declare
from synth.cli.setup.import_ import extents_of, own_stdout


def register(subparsers: Any) -> None:
    """Declares the command."""
    command = declare(
        subparsers,
        "check",
        "compare the network of a torch model with the model, whose code is run",
        "torchvision.models:resnet50 --input 32,3,224,224",
        "mymodel:make --input 8,1,64,64,64",
        description="Compare the network that ranks would run with the torch model, in this process: outputs,"
        " gradients and running statistics, in training and evaluation. This imports MODULE, also from the "
        "current folder, and calls FACTORY: name only code that you would run.",
    )
    command.add_argument(
        "model", metavar="MODULE:FACTORY", help="a function without arguments that returns the model"
    )
    command.add_argument("--input", metavar="N,C,H,W", required=True, help="shape of the whole batch")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints what was compared. The exit code is 5 where the two differ, 1 where nothing can be compared."""
    extents = extents_of(args.input)
    require("torch")
    with own_stdout() as stdout:
        from synth.parallel.front_end.import_model import make_model
        from synth.parallel.self_check.check import check

        try:
            found = check(make_model(args.model), extents)
        except ValueError as error:
            raise UsageError(str(error)) from error
        if args.json:
            data = {"schema": "synth.checked/1", "compared": found.done, **asdict(found)}
            stdout.write(json_text(data))
        else:
            stdout.write(f"{found}\n")
        stdout.flush()
    return 0 if found.done else 1
