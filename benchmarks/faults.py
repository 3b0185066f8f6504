"""Faults at random moments: how long until all processes have ended, and whether the culprit is named.

    python benchmarks/faults.py --moments 30 --procs 4 8 -o benchmarks/results/faults.md

Program forms: emitted and standalone programs and a training loop under torchrun, and `synth run`. Faults hit
one rank from outside, in it (exit 0, an exception), its launcher, or the link between two hosts. The moment
is any from the start of the processes until the program has computed for some seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suite.hosts import HERE, Hosts, HostsError, network

ROOT = Path(__file__).resolve().parents[1]
FORMS = ("emitted", "standalone", "synth run", "parallelize")
SIGNALS = ("KILL", "STOP", "TERM", "HUP")
FAULTS = (*SIGNALS, "exit 0", "exception", "link cut", "parent killed")
MARK = "SYNTH_FAULT_RUN"
SLACK = 5.0
TORCHS_OWN = ("torchelastic_", "torchinductor_")
PATIENCE = 40.0  # seconds after the timeout until what is left is killed
LAYER = "conv2d: {input: [8, 8, 8, 8], out_channels: 8, kernel: [3, 3], padding: 1}\n"
INSIDE = """
import ctypes, os, threading, time
class Injected(BaseException):  # no import of a library catches it
    pass
def fault():
    time.sleep(max(0.0, float(os.environ["FAULT_AT"]) - time.time()))
    open(os.environ["FAULT_MARK"], "w").close()
    if os.environ["FAULT"] == "exit 0":
        os._exit(0)
    main = ctypes.c_ulong(threading.main_thread().ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(Injected))
if os.environ.get("RANK") == os.environ.get("FAULT_RANK"):
    threading.Thread(target=fault, daemon=True).start()
"""


MADE = "none.made"  # a rank of the training loop has its network


@dataclass(frozen=True)
class Case:
    """One run."""

    form: str
    fault: str
    procs: int
    rank: int
    moment: float  # seconds after the start


@dataclass(frozen=True)
class Outcome:
    """What came of it. seconds: from the fault until no process was left."""

    seconds: float
    named: bool
    left: int  # processes that had to be killed
    files: list[str]  # under TMPDIR that are not torchrun's own
    said: str
    watched: bool = True  # a training loop: whether all ranks had called `parallelize` before the fault


def main() -> int:
    """Run all cases in random order, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--moments", type=int, default=30, metavar="N")
    parser.add_argument("--procs", type=int, nargs="+", default=[4, 8], metavar="P")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    parser.add_argument("--timeout", type=float, default=15.0, metavar="S")
    parser.add_argument("--latest", type=float, default=15.0, metavar="S", help="the latest moment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", metavar="FILE")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    cases = [
        Case(form, fault, procs, rank, chance.uniform(0.2, args.latest))
        for _ in range(args.moments)
        for procs in args.procs
        for form in args.forms
        for fault in args.faults
        for rank in ((0, chance.randrange(1, procs)) if fault not in ("link cut", "parent killed") else (0,))
        if (form, fault) != ("synth run", "link cut")
    ]
    outcomes: dict[Case, Outcome] = {}
    for case in cases:
        outcome = suffered(case, args.timeout)
        outcomes[case] = outcome
        late = "" if outcome.seconds <= args.timeout + SLACK else " LATE"
        print(
            f"{case}: {outcome.seconds:.1f} s, named {outcome.named}, left {outcome.left}{late}", flush=True
        )
        if late or outcome.left or outcome.files or not outcome.named:
            print(f"watched {outcome.watched}", outcome.files, outcome.said[-1500:], flush=True)
        if args.output:
            Path(args.output).write_text(table(outcomes, args.timeout), encoding="utf-8")
    return 0


def suffered(case: Case, timeout: float) -> Outcome:
    """Run a case in a folder and a session of its own."""
    two_hosts = case.fault == "link cut"
    try:
        with (
            tempfile.TemporaryDirectory(prefix="synth-faults-") as folder,
            network(2, "1gbit") if two_hosts else nullcontext(HERE) as hosts,
        ):
            return _suffered(case, timeout, Path(folder), hosts)
    except HostsError as error:
        return Outcome(0.0, True, 0, [], f"no network: {error}")


def _suffered(case: Case, timeout: float, folder: Path, hosts: Hosts) -> Outcome:
    temporary = folder / "tmp"
    temporary.mkdir()
    (folder / "sitecustomize.py").write_text(INSIDE)
    environment = {
        **os.environ,
        **dict(hosts.environment),
        MARK: str(folder),
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "FAULT_MARK": str(folder / "mark"),
        "FAULT": case.fault,
        "FAULT_AT": str(time.time() + case.moment),
        "FAULT_RANK": str(case.rank) if case.fault in ("exit 0", "exception") else "none",
    }
    commands = commands_of(case, timeout, folder, hosts)
    with open(folder / "said", "wb+") as said, swept(folder):
        running = [
            subprocess.Popen(
                each, env=environment, stdout=said, stderr=said, start_new_session=True, cwd=folder
            )
            for each in commands
        ]
        begin = time.time()
        while time.time() < begin + case.moment and any(each.poll() is None for each in running):
            time.sleep(0.02)
        inject(case, folder, running, hosts)
        fault = time.time()
        while (left := processes(folder)) and time.time() < fault + timeout + PATIENCE:
            for each in running:
                each.poll()
            time.sleep(0.05)
        seconds = time.time() - fault
    text = (folder / "said").read_text(errors="replace")
    files = [path.name for path in temporary.iterdir() if not path.name.startswith(TORCHS_OWN)]
    watched = case.form != "parallelize" or all(
        (path := Path(f"{folder / MADE}-{rank}")).exists() and path.stat().st_mtime < fault
        for rank in range(case.procs)
    )
    return Outcome(seconds, named(case, text), len(left), files, text, watched)


def commands_of(case: Case, timeout: float, folder: Path, hosts: Hosts) -> list[list[str]]:
    """What starts the program, one command per host."""
    synth, layer = [sys.executable, "-m", "synth"], folder / "layer.yaml"
    layer.write_text(LAYER)
    if case.form == "synth run":
        flags = ["--procs", str(case.procs), "--timeout", str(timeout), "--bench", "1000000"]
        return [[*synth, "run", str(layer), *flags]]
    program = [str(folder / "program.py"), "--check", "--bench", "1000000", "--timeout", str(timeout)]
    if case.form == "parallelize":
        script = ROOT / "tests/support/training_faults.py"
        program = [str(script), str(timeout), str(folder / "none"), "-1", "pass"]  # touches MADE
    else:
        flags = ["--standalone"] if case.form == "standalone" else []
        command = [*synth, "emit", str(layer), "--procs", str(case.procs), *flags, "-o", program[0]]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    names = [["unshare", "--uts", "sh", "-c", f'hostname host{i}; exec "$@"', "sh"] for i in range(2)]
    starts = hosts.torchrun(sys.executable, case.procs)
    named_hosts = zip(names, hosts.enter, starts, strict=False)
    return [
        [*enter, *(name if enter else []), *start[len(enter) :], *program]
        for name, enter, start in named_hosts
    ]


def inject(case: Case, folder: Path, running: list[subprocess.Popen[bytes]], hosts: Hosts) -> None:
    """Let the fault happen now."""
    if case.fault == "parent killed":
        running[0].kill()
    elif case.fault == "link cut":
        host, end = hosts.enter[1][-1], time.time() + 40
        marks = [f"RANK={rank}".encode() for rank in range(case.procs)]
        while time.time() < end and not all(processes(folder, mark) for mark in marks):
            time.sleep(0.1)  # before, torchrun waits for its own timeouts
        subprocess.run(["ip", "-n", host, "link", "set", "eth0", "down"], check=False)
    elif case.fault in SIGNALS:
        for _ in range(200):  # until the rank has been started
            found = processes(folder, f"RANK={case.rank}".encode())
            if found or not processes(folder):
                break
            time.sleep(0.05)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, f"SIG{case.fault}"))
    else:
        end = time.time() + 20
        while not (folder / "mark").exists() and time.time() < end and processes(folder):
            time.sleep(0.02)


def named(case: Case, said: str) -> bool:
    """Whether the output names the culprit."""
    if case.fault == "parent killed":
        return True  # whoever looks at the output is gone, too
    if case.fault == "link cut":
        return bool(re.search(r"is cut|who keeps the store|is lost|never came|did not", said))
    if f"the first to fail was rank {case.rank} " in said:
        return True
    rank = rf"rank {case.rank}\b[^;|]*"
    what = r"(is lost|is late|has |failed, last started|was |ended |stopped by)"
    # torchrun's own report names the rank that ended by a signal, too
    torchrun = rf"rank +: {case.rank} |local_rank: {case.rank} \("
    return bool(re.search(f"{rank}{what}|{torchrun}", said))


def processes(folder: Path, mark: bytes = b"") -> list[int]:
    """The processes of a run, of one rank with `mark`; those that have ended are not counted."""
    wanted, found = {f"{MARK}={folder}".encode(), *filter(None, [mark])}, []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


@contextmanager
def swept(folder: Path) -> Iterator[None]:
    """Kills what is left of a run."""
    try:
        yield
    finally:
        for pid in processes(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def table(outcomes: dict[Case, Outcome], timeout: float) -> str:
    """Program form x fault: the seconds until all had ended, median and most, and what was not right."""
    lines = [
        f"Timeout {timeout:g} s; seconds from the fault until no process is left: median / most (runs).",
        "",
        f"| fault | {' | '.join(FORMS)} | before `parallelize` |",
        f"|---|{'---|' * (len(FORMS) + 1)}",
    ]
    columns = [(form, True) for form in FORMS] + [("parallelize", False)]
    for fault in FAULTS:
        cells = []
        for column in columns:
            known = [(c.form, o.watched, o) for c, o in outcomes.items() if c.fault == fault]
            cells.append(cell([each[2] for each in known if each[:2] == column], timeout))
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    every = list(outcomes.values())
    late = [each for each in every if each.seconds > timeout + SLACK]
    unnamed = [each for each in every if not each.named]
    lines += [
        "",
        f"{len(every)} runs; later than the timeout and 5 s: {len(late)}, of these"
        f" {sum(not o.watched for o in late)} before `parallelize`; with processes left:"
        f" {sum(bool(o.left) for o in every)}; with files left: {sum(bool(o.files) for o in every)};"
        f" without the culprit's name: {len(unnamed)}, of these {sum(not o.watched for o in unnamed)} before"
        " `parallelize`.",
        "",
    ]
    return "\n".join(lines)


def cell(found: list[Outcome], timeout: float) -> str:
    """The cell of some runs."""
    if not found:
        return ""
    seconds: list[Any] = [each.seconds for each in found]
    unnamed = sum(not each.named for each in found)
    text = f"{statistics.median(seconds):.1f} / {max(seconds):.1f} ({len(found)})"
    return text + (f", {unnamed} unnamed" if unnamed else "")


if __name__ == "__main__":
    sys.exit(main())
