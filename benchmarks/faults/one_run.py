"""One run with one fault, in a folder and a session of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults import fork_start
from benchmarks.faults.cases import INSIDE, SIGNALS, Case, Outcome
from benchmarks.suite.hosts import HERE, Hosts, HostsError, network

ROOT = Path(__file__).resolve().parents[2]
MARK = "SYNTH_FAULT_RUN"
TORCHS_OWN = ("torchelastic_", "torchinductor_")
PATIENCE = 40.0  # seconds after the timeout until what is left is killed
LAYER = "conv2d: {input: [8, 8, 8, 8], out_channels: 8, kernel: [3, 3], padding: 1}\n"
SLOW = "SYNTH_FAULT_PACE"  # of a rank: seconds
TO_START = 120.0  # seconds in which a rank has been started, however busy the machine is
LOOK = 0.1  # seconds between two looks at the processes
NEW = 2.0  # seconds in which the environment of a process is read again
PACE = 0.05  # mean seconds that a convolution, or a part of a training step, takes longer: cores stay free
AT_START = """
import ctypes, os, threading, time
class Injected(BaseException):  # no import of a library catches it
    pass
def fault():
    time.sleep(max(0.0, float(os.environ["FAULT_AT"]) - time.time()))
    while "FAULT_AFTER" in os.environ and not os.path.exists(os.environ["FAULT_AFTER"]):
        time.sleep(0.02)
    open(os.environ["FAULT_MARK"], "w").close()
    if os.environ["FAULT"] == "exit 0":
        os._exit(0)
    main = ctypes.c_ulong(threading.main_thread().ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(Injected))
if os.environ.get("RANK") == os.environ.get("FAULT_RANK"):
    threading.Thread(target=fault, daemon=True).start()
"""
MADE, CALLED = "none.made", "none.called"  # a rank computes, has its network; it calls `parallelize`


def suffered(case: Case, programs: Path) -> Outcome:
    """Run a case. programs: the folder of `prepared`."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="synth-faults-") as folder,
            network(2, "1gbit") if case.fault == "link cut" else nullcontext(HERE) as hosts,
        ):
            return _suffered(case, Path(folder), programs, hosts)
    except HostsError as error:
        return Outcome(0.0, True, 0, [], "", True, refused=f"no network: {error}")


def _suffered(case: Case, folder: Path, programs: Path, hosts: Hosts) -> Outcome:
    temporary = folder / "tmp"
    temporary.mkdir()
    (folder / "sitecustomize.py").write_text(AT_START)
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
        "FAULT_RANK": str(case.rank) if case.fault in INSIDE else "none",
    }
    del environment[fork_start.ROOM]
    if case.forked:
        environment["SYNTH_OBJECTIVE"] = "words"  # nothing is measured
        environment |= {"FAULT_AFTER": str(folder / "after")} if case.after else {}
        environment["PACE" if case.form == "parallelize" else SLOW] = str(PACE)
    look = Look(folder)
    with open(folder / "said", "wb+") as said, swept(look):
        begin, running = time.time(), []
        for command, enter in commands_of(case, folder, programs, hosts):
            # what enters a host in another way is the command itself
            start = partial(fork_start.Popen, preexec_fn=enter) if case.forked else subprocess.Popen
            out = {"stdout": said, "stderr": said, "cwd": folder}
            running.append(start(command, env=environment, start_new_session=True, **out))
        while case.after and not all_have(MADE, case, folder) and look.found():
            look.wait()
            begin = time.time()
        while time.time() < begin + case.moment and any(each.poll() is None for each in running):
            time.sleep(0.02)
        (folder / "after").touch()
        if not inject(case, look, running, hosts):
            text = (folder / "said").read_text(errors="replace")
            return Outcome(0.0, True, 0, [], text, True, refused="there was no rank to hit")
        fault = time.time()
        made = all_have(CALLED if case.form == "parallelize" else MADE, case, folder)
        ranks = 0.0
        while (left := look.found()) and time.time() < fault + case.timeout + PATIENCE:
            for each in running:
                each.poll()
            look.wait()
            ranks = time.time() - fault if look.ranks else ranks
        seconds = time.time() - fault
    codes = [each.poll() for each in running]
    text = (folder / "said").read_text(errors="replace")
    files = [path.name for path in temporary.iterdir() if not path.name.startswith(TORCHS_OWN)]
    return Outcome(
        seconds,
        named(case, text),
        len(left),
        files,
        text,
        made,
        look.delay,
        ranks,
        codes,
    )


def all_have(mark: str, case: Case, folder: Path) -> bool:
    """Whether all ranks have touched a mark."""
    return all((folder / f"{mark}-{rank}").exists() for rank in range(case.procs))


class Look:
    """Finds the processes of a run by their environment; those that have ended are not counted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, f"{MARK}={folder}".encode()
        self.known: dict[int, Seen] = {}  # by process
        self.ranks = 0  # how many were ranks
        self.delay = 0.0  # the longest that `wait` took beyond what it should

    def found(self, mark: bytes = b"") -> list[int]:
        """The processes of the run, of one rank with `mark`."""
        wanted, found, now = {self.mark, *filter(None, [mark])}, [], time.monotonic()
        self.ranks = 0
        present = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        self.known = {pid: self.known[pid] for pid in present if pid in self.known}
        for pid in present:
            with suppress(OSError):
                given = self._environment(pid, now)
                if wanted <= given:
                    found.append(pid)
                    self.ranks += any(each.startswith(b"RANK=") for each in given)
        return found

    def _environment(self, pid: int, now: float) -> frozenset[bytes]:
        """The environment of a process that runs; of another run's, or of a process that has ended, nothing.

        It is read again as long as the process is new: it may still show the environment of its parent.
        """
        seen = self.known.get(pid)
        if seen and now - seen.since > NEW:
            return seen.given if seen.given and _runs(pid) else frozenset()
        with open(f"/proc/{pid}/environ", "rb") as file:
            given = frozenset(file.read().split(b"\0"))
        given = given if self.mark in given else frozenset()
        self.known[pid] = Seen(given, seen.since if seen else now)
        return given

    def wait(self) -> None:
        """Wait until the next look."""
        begin = time.monotonic()
        time.sleep(LOOK)
        self.delay = max(self.delay, time.monotonic() - begin - LOOK)


class Seen(NamedTuple):
    """given: the environment of a process, if it is of the run. since: when the process was seen first."""

    given: frozenset[bytes]
    since: float


def _runs(pid: int) -> bool:
    """Whether a process has not ended."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(") ")[2][:1] not in ("Z", "X")


def prepared(forms: list[str], procs: list[int], folder: Path) -> None:
    """Emit the programs of the forms for every number of processes."""
    (folder / "layer.yaml").write_text(LAYER)
    for form in forms:
        for count in procs if form in ("emitted", "standalone") else ():
            flags = ["--standalone"] if form == "standalone" else []
            layer, program = str(folder / "layer.yaml"), str(folder / f"{form}-{count}.py")
            command = [sys.executable, "-m", "synth", "emit", layer, "--procs", str(count), "-o", program]
            subprocess.run([*command, *flags], check=True, cwd=ROOT, capture_output=True)


def commands_of(
    case: Case, folder: Path, programs: Path, hosts: Hosts
) -> list[tuple[list[str], Callable[[], None] | None]]:
    """What starts the program: one command per host, and what puts a forked process on the host."""
    timeout = str(case.timeout)
    if case.form == "synth run":
        flags = ["--procs", str(case.procs), "--timeout", timeout, "--bench", "1000000"]
        return [([sys.executable, "-m", "synth", "run", str(programs / "layer.yaml"), *flags], None)]
    program = [str(programs / f"{case.form}-{case.procs}.py"), "--check", "--bench", "1000000"]
    program += ["--timeout", timeout]
    if case.form == "parallelize":
        script = ROOT / "tests/support/training_faults.py"
        program = [str(script), timeout, str(folder / "none"), "-1", "pass"]  # touches MADE
    commands: list[tuple[list[str], Callable[[], None] | None]] = []
    pairs = zip(hosts.enter, hosts.torchrun(sys.executable, case.procs), strict=False)
    for i, (enter, start) in enumerate(pairs):
        bare, host = [*start[len(enter) :], *program], f"host{i}"
        if not enter:
            commands.append((bare, None))
        elif case.forked:
            commands.append((bare, fork_start.as_host(enter[-1], host)))
        else:
            name = ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
            commands.append(([*enter, *name, *bare], None))
    return commands


def as_rank() -> None:
    """What a forked process does first: what `sitecustomize` does, and a rank computes at a slower pace."""
    exec(AT_START, {})
    if not {"RANK", SLOW} <= os.environ.keys():
        return
    import random

    import torch.nn.functional as F  # noqa: N812 - its usual name

    pace, made = float(os.environ[SLOW]), Path(os.environ["FAULT_MARK"]).with_name(MADE)
    torchs = F.conv2d

    def conv2d(*args: object, **kwargs: object) -> object:
        time.sleep(random.uniform(0, 2 * pace))
        Path(f"{made}-{os.environ['RANK']}").touch()
        return torchs(*args, **kwargs)  # type: ignore[call-overload]

    F.conv2d = conv2d


def inject(case: Case, look: Look, running: list[subprocess.Popen[bytes]], hosts: Hosts) -> bool:
    """Let the fault happen now, or as soon as the rank has been started; whether it has happened."""
    end = time.time() + TO_START

    def waits() -> bool:
        look.wait()
        return time.time() < end and bool(look.found())

    if case.fault == "parent killed":
        begun = running[0].poll() is None
        running[0].kill()
        return begun
    if case.fault == "link cut":
        host, marks = hosts.enter[1][-1], [f"RANK={rank}".encode() for rank in range(case.procs)]
        while not (begun := all(look.found(mark) for mark in marks)) and waits():
            pass  # before, torchrun waits for its own timeouts
        subprocess.run(["ip", "-n", host, "link", "set", "eth0", "down"], check=False)
        return begun
    if case.fault in SIGNALS:
        while not (found := look.found(f"RANK={case.rank}".encode())) and waits():
            pass
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, f"SIG{case.fault}"))
        return bool(found)
    while not (look.folder / "mark").exists() and waits():
        pass
    return (look.folder / "mark").exists()


def named(case: Case, said: str) -> bool:
    """Whether the output names the culprit."""
    if case.fault == "parent killed":
        return True  # whoever looks at the output is gone, too
    if case.fault == "link cut":
        return bool(re.search(r"is cut|who keeps the store|is lost|never came|did not", said))
    if f"the first to fail was rank {case.rank} " in said:
        return True
    rank = rf"rank {case.rank}\b[^;|]*"
    what = r"(is lost|is late|has |failed, last started|was |ended |stopped by|did not come)"
    # torchrun's own report names the rank that ended by a signal, too
    torchrun = rf"rank +: {case.rank} |local_rank: {case.rank} \("
    return bool(re.search(f"{rank}{what}|{torchrun}", said))


@contextmanager
def swept(look: Look) -> Iterator[None]:
    """Kills what is left of a run."""
    try:
        yield
    finally:
        for pid in look.found():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
