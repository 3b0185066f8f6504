"""Processes that are forked with torch have what an exec would give them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FACTS = """
import json, os, signal, sys
def handler(number):
    found = signal.getsignal(number)
    return found.name if isinstance(found, signal.Handlers) else getattr(found, "__name__", str(found))
shown = {each for each in open("/proc/self/environ", "rb").read().decode().split(chr(0)) if each}
files = os.listdir("/proc/self/fd")
print(json.dumps({
    "argv": sys.argv,
    "name": __name__,
    "folder": os.getcwd(),
    "parent": os.getppid() == int(os.environ["STARTER"]),
    "session": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpid(),
    "signals": {str(each): handler(each) for each in sorted(signal.valid_signals())},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "environment": sorted(os.environ.items()),
    "shown": sorted(shown),
    "files": sorted(each for each in files if os.path.exists(f"/proc/self/fd/{each}")),
}))
sys.exit(int(os.environ["CODE"]))
"""
STARTS = """
import json, os, signal, subprocess, sys
from benchmarks.faults import fork_start
fork_start.with_room()
signal.signal(signal.SIGTERM, lambda *_: None)  # a handler is not inherited
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # that a signal is ignored is
open("/dev/null")  # no other process has it
kept = os.open("/dev/null", os.O_RDONLY)
environment = {"STARTER": str(os.getpid()), "CODE": "7", "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
found = []
for popen in (subprocess.Popen, fork_start.Popen):
    process = popen(
        [sys.executable, "-u", sys.argv[1], "--flag", "1"],
        env=environment, cwd="/", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        start_new_session=True, pass_fds=[kept],
    )
    said, _ = process.communicate()
    found.append([process.returncode, json.loads(said)])
print(json.dumps(found))
"""


def test_a_forked_process_is_like_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    command = [sys.executable, "-c", STARTS, str(tmp_path / "facts.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    new, forked = json.loads(done.stdout.splitlines()[-1])
    assert new[0] == 7
    assert new[1]["session"]
    assert new[1]["signals"]["1"] == "SIG_IGN"
    assert new[1]["signals"]["15"] == "SIG_DFL"
    assert forked == new
