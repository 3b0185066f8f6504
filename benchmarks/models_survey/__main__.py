"""Which convolutional models run on ranks, and equal one process?

    python -m benchmarks.models_survey [NAME ...] [--library timm] [--ranks 4] [--json FILE] [--earlier FILE]

Each model has random weights and small inputs. First one process traces it: it is accepted, or refused with
a sentence; the share of the multiply-adds that every rank would compute from gathered tensors is counted.
With --ranks, the model runs on that many gloo ranks in float64 and is compared with one process: the forward
pass in evaluation, and two steps of SGD.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.models_survey.entry import LIBRARIES, Entry, entries_of
from benchmarks.models_survey.look import checked, look
from benchmarks.models_survey.pool import forked
from benchmarks.models_survey.table import FURTHER, causes, page, row, verdict

RESULTS = Path(__file__).parents[1] / "results" / "models-survey.md"


def main() -> None:
    """Look at all models, print a line for each, and write the table."""
    args = _arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    console, found, missing = Console(width=160), list[dict[str, Any]](), list[str]()
    earlier = {
        (each["library"], each["name"]): each
        for file in args.earlier
        for each in json.loads(file.read_text())
    }
    for library in args.library:
        try:
            entries = entries_of(library)
        except ImportError as error:
            missing.append(library)
            console.print(f"{library} is skipped: {error}", markup=False)
            continue
        for entry in entries:
            if args.names and not any(name in entry.name for name in args.names):
                continue
            found.append(earlier.get((entry.library, entry.name)) or _measured(entry, args))
            line = _full_graph_row(found[-1]) if args.fullgraph else row(found[-1])
            console.print(line, markup=False, highlight=False)
            if args.json:
                args.json.write_text(json.dumps(found, indent=1))
    if args.fullgraph:
        _write_full_graphs(found, args)
        return
    console.print("\n".join(causes(found)), markup=False, highlight=False)
    console.print(verdict(found), markup=False)
    if args.output:
        output = args.output
        if output == RESULTS and all(each["library"] in FURTHER for each in found):
            output = RESULTS.with_name("models-survey-further.md")
        output.write_text(page(found, missing, args.ranks))


def _measured(entry: Entry, args: argparse.Namespace) -> dict[str, Any]:
    """All that is found out about a model."""
    names = {"library": entry.library, "name": entry.name}
    if args.fullgraph:
        from benchmarks.models_survey.full_graphs import compare_full_graph

        run = partial(compare_full_graph, entry, args.fullgraph)
        return {**names, "backend": args.fullgraph, **forked(run, args.ranks or 2, args.seconds)}
    one = forked(partial(look, entry, 4, args.plan), 0, args.seconds)
    result = {**names, **one}
    if args.ranks and "refused" not in one and "failed" not in one:
        from benchmarks.models_survey.ranks import compare

        result |= {"self-check": forked(partial(checked, entry), 0, args.seconds)}
        result |= {"ranks": forked(partial(compare, entry), args.ranks, args.seconds)}
    return result


def _full_graph_row(found: dict[str, Any]) -> str:
    from benchmarks.models_survey.full_graphs import verdict_of

    return f"{found['library']:<12} {found['name']:<40} {verdict_of(found)}"


def _write_full_graphs(found: list[dict[str, Any]], args: argparse.Namespace) -> None:
    from benchmarks.models_survey.full_graphs import page

    if args.output:
        asked = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=True)
        output = RESULTS.with_name("models-full-graphs.md") if args.output == RESULTS else args.output
        output.write_text(page(found, args.ranks or 2, commit.stdout.strip()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of the names of models")
    parser.add_argument("--library", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--ranks", type=int, default=0, help="run on as many gloo ranks, too")
    parser.add_argument("--plan", action="store_true", help="measure the time of planning for 4 processes")
    parser.add_argument(
        "--fullgraph",
        metavar="BACKEND",
        help="instead, run each as one operator of a full graph",
    )
    parser.add_argument("--seconds", type=float, default=240.0, help="limit of time of each model and part")
    parser.add_argument("--json", type=Path, help="write all that is found")
    parser.add_argument(
        "--earlier",
        type=Path,
        nargs="+",
        default=[],
        help="take models from earlier --json files; later ones count",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        nargs="?",
        const=RESULTS,
        help=f"write {RESULTS.name}, or that of the further models",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
