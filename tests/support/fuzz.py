"""The fuzzer: hostile cases, one after the other in a process with limits, judged by what the user sees.

    python tests/support/fuzz.py --examples 500            # of each kind of `fuzz_cases.KINDS`
    python tests/support/fuzz.py --seconds 900 --seed 7    # rounds with other seeds until the time is over

The process has an address-space limit, every case a limit of processor time, and a watchdog outside of
Python ends what hangs. A failure is printed as a case for `tests/corpus`, shrunk by hypothesis.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allowed import refused
from fuzz_cases import KINDS, Case
from hypothesis import HealthCheck, Phase, given, seed, settings

from synth.cli.main import main

CODES = {0, 2, 3, 4, 5}  # done, usage, wrong input, infeasible, a wrong certificate
SECONDS = 10  # of processor time that a case may take
HANGS = 600.0  # seconds after which the watchdog ends the process, however busy the machine
MEMORY = 400 << 10  # KiB that one case may add to the peak
ADDRESSES = 6 << 30  # bytes that the process may map
OUTPUTS = {"-o", "--output", "--sbatch", "--trace"}
CORPUS = Path(__file__).parents[1] / "corpus"


class Slow(BaseException):
    """A case took too much processor time."""


def limited() -> None:
    """Limit the memory of this process, so that a blow-up fails here and harms no other process."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _slow)


def _slow(*_: Any) -> None:
    raise Slow


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What is done within takes little time and memory, and ends."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    faulthandler.dump_traceback_later(HANGS, exit=True)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert added < MEMORY, f"{added >> 10} MiB more"


def judge(case: Case, folder: Path) -> int:
    """Run a case in a folder of its own and look at all that it leaves; returns the exit code."""
    box = folder / "box"
    box.mkdir()
    try:
        return _judged(case, folder, box)
    finally:
        os.chdir(folder)
        shutil.rmtree(box)


def _judged(case: Case, folder: Path, box: Path) -> int:
    for name, text in case.files.items():
        (box / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    os.chdir(box)
    out, err = io.StringIO(), io.StringIO()
    with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(case.argv)
        except SystemExit as left:  # --help
            code = int(left.code or 0)
    lines = err.getvalue().splitlines(keepends=True)
    said = "".join(line for line in lines if code or not line.startswith("synth: warning: "))
    assert code in CODES, (code, said)
    assert bool(code) == said.startswith("synth: "), (code, said)
    assert not code or said.removesuffix("\n").isprintable(), said
    assert "Traceback" not in said
    made = {path.name for path in box.iterdir()} - case.files.keys()
    pairs = zip(case.argv, case.argv[1:], strict=False)
    asked = {value for word, value in pairs if word in OUTPUTS}
    assert made <= asked, made - asked
    assert {path.name for path in folder.iterdir()} == {"box"}
    if case.argv[0] == "emit" and not code:
        for text in [out.getvalue(), *((box / name).read_text() for name in made)]:
            if not text.startswith("#!/bin/bash\n"):
                assert refused(text, "--standalone" in case.argv) == []
    return code


def fuzz(kind: str, examples: int, start: int | None, folder: Path, found: Counter[str]) -> None:
    """Try some cases of a kind; `start` seeds them, None: always the same."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=start is None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(KINDS[kind])
    def each(case: Case) -> None:
        try:
            code = judge(case, folder)
        except BaseException as error:
            print(json.dumps([kind, case.argv, case.files]), type(error).__name__, flush=True)
            raise
        found[f"{kind} {code}"] += 1

    (each if start is None else seed(start)(each))()


def corpus() -> list[Path]:
    """Past failures."""
    return sorted(CORPUS.glob("*.json"))


def read_case(path: Path) -> Case:
    """A case of the corpus."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Case(data["argv"], data["files"])


def run(argv: list[str] | None = None) -> int:
    """Fuzz as the flags say; prints how many cases ended with which code."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--kind", choices=KINDS, help="one kind of case (default: all)")
    flags.add_argument("--examples", type=int, default=100, help="of each kind, in a round")
    flags.add_argument("--seconds", type=float, default=0, help="more rounds until then")
    flags.add_argument("--seed", type=int, help="of the first round (default: always the same cases)")
    args = flags.parse_args(argv)
    limited()
    begin, round_, found = time.monotonic(), 0, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        os.chdir(folder)
        for path in corpus():
            judge(read_case(path), folder)
        while not round_ or time.monotonic() - begin < args.seconds:
            for kind in [args.kind] if args.kind else KINDS:
                start = None if args.seed is None else args.seed + round_
                before = time.monotonic()
                fuzz(kind, args.examples, start, folder, found)
                print(f"{kind}: {time.monotonic() - before:.1f} s", file=sys.stderr, flush=True)
            round_ += 1
        os.chdir("/")
    print(f"{sum(found.values())} cases in {time.monotonic() - begin:.0f} s:", dict(sorted(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(run())
