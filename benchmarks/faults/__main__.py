"""A campaign of faults at random moments.

    python -m benchmarks.faults --moments 30 --results faults.jsonl -o benchmarks/results/faults.md

Program forms: emitted and standalone programs and a training loop under torchrun, and `synth run`. Faults hit
one rank from outside, in it (exit 0, an exception), its launcher, or the link between two hosts. The moment
is any from the start of the processes until the program has computed for some seconds.

Most runs wait, so several run at once, as many as --load allows. Most processes start as forks of one that
has torch (fork_start.py), and compute at a slow pace. One of --real-every moments has real starts, that of
Python included, and the full pace. A campaign that was stopped goes on with the same --results.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

from benchmarks.faults import fork_start
from benchmarks.faults.cases import FAULTS, FORMS, Campaign, Case, store, stored
from benchmarks.faults.one_run import as_rank, prepared, suffered
from benchmarks.faults.table import table


def main() -> int:
    """Run what is missing of a campaign, and write the table."""
    args = arguments()
    fork_start.with_room()
    campaign = Campaign(
        args.moments,
        args.procs,
        args.forms,
        args.faults,
        args.real_every,
        (args.timeout, args.real_timeout),
        (args.latest, args.real_latest),
        args.seed,
    )
    results = Path(args.results)
    done = stored(results)
    waiting = [case for case in campaign.cases() if case not in done]
    print(f"{len(done)} runs are done, {len(waiting)} are to do", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    fork_start.load()
    fork_start.at_start.append(as_rank)
    with tempfile.TemporaryDirectory(prefix="synth-faults-programs-") as programs:
        prepared(args.forms, args.procs, Path(programs))
        run_all(waiting, args.load, time.monotonic() + args.seconds, results, Path(programs))
    text = table(stored(results))
    print(text)
    if args.output:
        Path(args.output).write_text(text, encoding="utf-8")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--moments", type=int, default=30, metavar="N", help="of every cell and rank (30)")
    add("--procs", type=int, nargs="+", default=[4, 8], metavar="P")
    add("--forms", nargs="+", default=FORMS, choices=FORMS)
    add("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    add("--timeout", type=float, default=5.0, metavar="S", help="of forked starts (5)")
    add("--latest", type=float, default=4.0, metavar="S", help="the latest moment of forked starts (4)")
    add("--real-every", type=int, default=5, metavar="N", help="real starts at one of N moments; 0: none (5)")
    add("--real-timeout", type=float, default=10.0, metavar="S", help="(10)")
    add("--real-latest", type=float, default=12.0, metavar="S", help="(12)")
    add("--load", type=int, default=16, metavar="N", help="ranks at once; one with a real start is two (16)")
    add("--seconds", type=float, default=float("inf"), metavar="S", help="start no run afterwards")
    add("--seed", type=int, default=0)
    add("--results", default="faults.jsonl", metavar="FILE", help="outcomes, appended as they come")
    add("-o", "--output", metavar="FILE", help="the table")
    return parser.parse_args()


def run_all(waiting: list[Case], most: int, end: float, results: Path, programs: Path) -> None:
    """Run cases side by side, each in a process of its own, until all are done or the time is over."""
    running: dict[int, Case] = {}
    try:
        while waiting or running:
            while waiting and time.monotonic() < end:
                if running and sum(each.load for each in running.values()) + waiting[0].load > most:
                    break
                case = waiting.pop(0)
                sys.stdout.flush()
                pid = os.fork()
                if not pid:
                    run_one(case, results, programs)
                running[pid] = case
            if not running:
                return
            pid, status = os.waitpid(-1, 0)
            case = running.pop(pid)
            if status:
                print(f"{case}: the run itself failed, status {status}", flush=True)
    finally:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)  # it ends its processes
        for pid in running:
            os.waitpid(pid, 0)


def run_one(case: Case, results: Path, programs: Path) -> None:
    """Run a case in this process, which ends with it."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, around the campaign, ignores it
        if case.forked:
            fork_start.everywhere()
        outcome = suffered(case, programs)
        store(results, case, outcome)
        what = " ".join(
            word
            for word, holds in (
                ("LATE", outcome.late(case)),
                ("UNNAMED", not outcome.named),
                (f"LEFT {outcome.left}", outcome.left),
                (f"FILES {outcome.files}", outcome.files),
                (f"REFUSED {outcome.refused}", outcome.refused),
            )
            if holds
        )
        print(
            f"{case}: {outcome.ranks:.1f}, {outcome.seconds:.1f} s, codes {outcome.codes},"
            f" delay {outcome.delay:.2f} s {what}",
            flush=True,
        )
        code = 0
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
