"""Starts of Python processes by fork instead of exec: they have torch already, and are the same otherwise.

A process with torch takes 1.7 s of processor time to load it, and a run at P = 8 has nine of them. Here,
`Popen` forks this process where it would execute Python. Parent, process group, session, signals, working
folder, open files and environment, in /proc too, are those that an exec would give; Linux only. What differs:
loading takes no time, /proc has another command line, and the exit runs no destructors of C++.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

LOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
    "torch.distributed.run",
    "torch.distributed.tensor",
    "torch.fx",
)
PACKAGES = ("synth.cli", "synth.launch", "synth.parallel", "synth.runtime")
ROOM = "SYNTH_FAULT_ROOM"  # a long variable: its place is taken by environments of other processes
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
at_start: list[Callable[[], None]] = []  # what a new process does before its program


def with_room() -> None:
    """Start this process anew, with space for the environments of those that it forks, if it has none."""
    if ROOM not in os.environ:
        os.execve(sys.executable, sys.orig_argv, os.environ | {ROOM: "-" * 16384})


def load() -> None:
    """Load what the processes use. This process must have one thread before and afterwards."""
    for name in LOADED:
        importlib.import_module(name)
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    # torchrun's log names the caller; `inspect` reads every module for that, which takes long with so many
    place = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
    importlib.import_module(place).get_method_name = _caller  # type: ignore[attr-defined]
    importlib.import_module("torch").set_num_threads(1)
    gc.collect()
    gc.freeze()


def _caller(depth: int = 2) -> str:
    """The name of a function that waits for this one."""
    return sys._getframe(depth).f_code.co_name


def as_host(network: str, name: str) -> Callable[[], None]:
    """What puts a new process on a host of a network, with a host name of its own."""

    def enter() -> None:
        with open(f"/run/netns/{network}", encoding="utf-8") as place:
            _demand(LIBC.setns(place.fileno(), CLONE_NEWNET))
        _demand(LIBC.unshare(CLONE_NEWUTS))
        _demand(LIBC.sethostname(name.encode(), len(name)))

    return enter


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen` that forks where a command runs this Python."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, before, close_fds, keep, cwd, env, _, _, _, to, p2cwrite, c2pread, out) = rest[:13]
        errread, err, _, _, _, _, _, session = rest[13:21]
        words = [os.fsdecode(each) for each in args] if not isinstance(args, str) else []
        if words[:1] != [sys.executable]:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        with suppress(AttributeError):
            sys.stdout.flush()
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(tell)
            os.read(ready, 1)  # as after an exec, its session and environment are there
            os.close(ready)
            self._child_created = True
            self._close_pipe_fds(to, p2cwrite, c2pread, out, errread, err)  # type: ignore[attr-defined]
            return
        try:
            _redirect((to, out, err), {*keep, tell} if close_fds else None)
            if session:
                os.setsid()
            if cwd is not None:
                os.chdir(cwd)
            _like_new(os.environ.copy() if env is None else env)
            if before is not None:
                before()
            os.close(tell)
            for each in at_start:
                each()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        _run(words[1:])


def everywhere() -> None:
    """This process and those that it forks start processes in this way."""
    subprocess.Popen = Popen  # type: ignore[misc]
    place = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
    importlib.import_module(place).Popen = Popen  # type: ignore[attr-defined]


def _redirect(given: tuple[int, int, int], keep: set[int] | None) -> None:
    """Files 0, 1 and 2 as the starter wants them, and none of its others."""
    high = [os.dup(each) if each != -1 else -1 for each in given]
    for number, each in enumerate(high):
        if each != -1:
            os.dup2(each, number)
    for name in [int(each) for each in os.listdir("/proc/self/fd")] if keep is not None else []:
        if name > 2 and name not in (keep or ()):
            with suppress(OSError):
                os.close(name)


def _like_new(environment: Mapping[str, str]) -> None:
    """What a new interpreter has: signals, environment, output, no hooks and nothing to do at its exit."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    names = {os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()}
    os.environ.clear()
    os.environ.update(names)
    _show(b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in names.items()))
    tempfile.tempdir = None
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _show(block: bytes) -> None:
    """Let /proc/self/environ show an environment, which the C library keeps elsewhere by now."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        facts = file.read().rpartition(")")[2].split()
    start, end = int(facts[47]), int(facts[48])
    if len(block) > end - start:
        raise OSError(f"an environment of {len(block)} bytes; /proc shows {end - start}: call `with_room`")
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


def _run(words: Sequence[str]) -> NoReturn:
    """Run what follows `python` on the command line, and end as an interpreter does."""
    rest = list(words)
    while rest and rest[0] in ("-I", "-u"):
        rest.pop(0)
    code: Any = 0
    try:
        sys.argv = rest[1:] if rest[0] == "-m" else rest
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [each for each in paths if each and each not in sys.path]
        if rest[0] == "-m":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # it is loaded already
                runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(rest[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _demand(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
