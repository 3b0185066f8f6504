"""Runs random networks on ranks and compares them with one process.

    python -m benchmarks.network_fuzz --seconds 900 --results networks.jsonl
    python -m benchmarks.network_fuzz --seeds 17 18 --shrink

Network number n is always the same. Outcomes are those of benchmarks.judges, appended to the results at once;
a run that was stopped goes on with the same --results. Faults are printed as a class, inputs and options.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
import warnings
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.judges.cases import CRASH, EQUAL, REFUSED, VERDICTS, Outcome, commit
from benchmarks.judges.pool import Pool
from benchmarks.network_fuzz.draw import Drawn, drawn
from benchmarks.network_fuzz.shrink import USUAL, shrunk
from benchmarks.network_fuzz.trial import ALLOWED, judged


def main() -> int:
    """Run networks, print those that are not equal; 1 if one is wrong, miscounted or crashes."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    warnings.simplefilter("ignore")
    results = Path(args.results) if args.results else None
    done = _stored(results)
    seeds = args.seeds or (seed for seed in itertools.count(args.start) if seed not in done)
    count: Counter[str] = Counter()
    end = time.monotonic() + args.seconds
    with ExitStack() as stack:
        pools = {n: stack.enter_context(Pool(n, args.limit, judged)) for n in (2, 3, 4)}

        def outcome(case: Drawn) -> Outcome | None:
            return pools[case.options["procs"]].outcome(case)

        for seed in seeds:
            if time.monotonic() > end or sum(count.values()) >= args.count:
                break
            case = drawn(seed)
            asked = {"procs": args.ranks, "dtype": args.dtype}
            case = replace(case, options={**case.options, **{k: v for k, v in asked.items() if v}})
            found = outcome(case)
            verdict = "void" if found is None else found.verdict
            count[verdict] += 1
            if results:
                told = {
                    "verdict": verdict,
                    "why": found.why if found else "",
                    "place": found.place if found else "",
                }
                with open(results, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"seed": seed, **told, "commit": commit()}) + "\n")
            if found is None or verdict == EQUAL:
                continue
            if args.shrink:
                shown = found

                def fails(smaller: Drawn, like: Outcome = shown) -> bool:
                    again = outcome(smaller)
                    return again is not None and _alike(again, like)

                case = shrunk(case, fails)
                found = outcome(case) or found
            print(_told(case, found), flush=True)
    print(", ".join(f"{count[each]} {each}" for each in (*VERDICTS, "void") if count[each]) or "nothing")
    return int(any(count[each] for each in VERDICTS if each not in (EQUAL, REFUSED)))


def _alike(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are of one fault."""
    if one.verdict != other.verdict:
        return False
    return one.verdict not in (CRASH, REFUSED) or one.why[:25] == other.why[:25]


def _told(case: Drawn, outcome: Outcome) -> str:
    options = {key: value for key, value in case.options.items() if USUAL.get(key) != value}
    return f"== {case}: {outcome}\n{case.source}inputs {case.given}\noptions {options}\n"


def _stored(results: Path | None) -> set[int]:
    if results is None or not results.exists():
        return set()
    return {json.loads(line)["seed"] for line in results.read_text(encoding="utf-8").splitlines()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", nargs="+", type=int, metavar="N", help="these networks")
    add("--start", type=int, default=0, metavar="N", help="the first network (0)")
    add("--count", type=float, default=float("inf"), metavar="N", help="at most so many")
    add("--seconds", type=float, default=float("inf"), metavar="S", help="start none afterwards")
    add("--ranks", type=int, choices=(2, 3, 4), help="of all networks; else as drawn")
    add("--dtype", choices=ALLOWED, help="of all networks; else as drawn")
    add("--limit", type=float, default=60.0, metavar="S", help="of the time of a network (60)")
    add("--shrink", action="store_true", help="look for smaller networks with the same fault")
    add("--results", metavar="FILE", help="outcomes, appended as they come")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
