"""Runs torch's own databases of modules and operators on ranks, and compares them with one process.

    python -m benchmarks.judges --results judges.jsonl -o docs/judges.md
    python -m benchmarks.judges --results judges.jsonl --again wrong crash miscounted refused
    python -m benchmarks.judges --cases operators/addcdiv/8/float64/filters/input/method/after
    python -m benchmarks.judges modules operators --names Conv pool --cuts batch spatial --dtypes bfloat16

Every outcome is appended to the results at once. A run that was stopped goes on with the same --results.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.faults import fork_start
from benchmarks.judges.cases import BASES, CUTS, DTYPES, VERDICTS, VOID, Case, Outcome, store, stored
from benchmarks.judges.databases import infos
from benchmarks.judges.selection import Selection, exists


def main() -> int:
    """Run what is missing, or some verdicts again, and say what came of it."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    warnings.simplefilter("ignore")
    fork_start.load()
    for base in ("modules", "operators"):
        infos(base)  # before ranks are forked
    from benchmarks.judges.pool import Pool

    results = Path(args.results)
    done = stored(results)
    selection = Selection(args.bases or BASES, args.names, args.cuts, args.dtypes, args.each, args.every)
    asked: Iterable[Case] = [Case.read(each) for each in args.cases]
    if not args.cases:
        asked = repeated(selection, done, args.again) if args.again else missing(selection, done)
    count: Counter[str] = Counter()
    end = time.monotonic() + args.seconds
    with Pool(4, args.limit) as four, Pool(8, args.limit) as eight:
        for case in asked:
            if time.monotonic() > end:
                break
            outcome = (eight if case.ranks == 8 else four).outcome(case)
            if outcome is None:
                if case in done:
                    store(results, case, Outcome(VOID))
                continue
            store(results, case, outcome)
            count[outcome.verdict] += 1
            if outcome.verdict != "equal" or args.verbose:
                print(f"{case}: {outcome}", flush=True)
    print(f"now: {_shown(count)}; all: {_shown(Counter(each.verdict for each in stored(results).values()))}")
    if args.output:
        from benchmarks.judges.table import page

        text = Path(args.output).read_text(encoding="utf-8")
        kept = {case: outcome for case, outcome in stored(results).items() if exists(case)}
        Path(args.output).write_text(page(text, kept), encoding="utf-8")
    return 0


def missing(selection: Selection, done: Mapping[Case, Outcome]) -> Iterator[Case]:
    """The cases asked for that have no outcome yet."""
    for group in selection.groups():
        yield from (case for case in selection.cases(*group) if case not in done)


def repeated(selection: Selection, done: Mapping[Case, Outcome], verdicts: Sequence[str]) -> list[Case]:
    """The cases asked for that have one of some verdicts."""
    return [case for case, each in done.items() if each.verdict in verdicts and selection.takes(case)]


def _shown(count: Counter[str]) -> str:
    return ", ".join(f"{count[each]} {each}" for each in VERDICTS if count[each]) or "nothing"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("bases", nargs="*", choices=[*BASES, []], metavar="BASE", help=f"of {', '.join(BASES)}")
    add("--names", nargs="+", default=(), metavar="NAME", help="parts of names of modules and operators")
    add("--cuts", nargs="+", default=CUTS, choices=CUTS, help="of the layer before the call")
    add("--dtypes", nargs="+", default=DTYPES[:1], choices=DTYPES)
    add("--each", type=int, default=1, metavar="N", help="samples of a name and cut (1)")
    add("--every", type=int, default=1, metavar="N", help="one case of so many (1)")
    add("--again", nargs="+", default=(), choices=VERDICTS, help="repeat stored cases with these verdicts")
    add("--cases", nargs="+", default=(), metavar="CASE", help="these, as their lines begin")
    add("--limit", type=float, default=60.0, metavar="S", help="of the time of a case (60)")
    add("--seconds", type=float, default=float("inf"), metavar="S", help="start no case afterwards")
    add("--results", default="judges.jsonl", metavar="FILE", help="outcomes, appended as they come")
    add("--verbose", action="store_true", help="print equal cases, too")
    add("-o", "--output", metavar="FILE", help="the page of which the tables are written anew")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
