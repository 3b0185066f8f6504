"""The ranks of one layer: their processes measure all lines of it."""

from __future__ import annotations

import json
import os
import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import synth
from benchmarks.suite.contenders.kernels import operations
from benchmarks.suite.contenders.ours import OURS, TUNED
from benchmarks.suite.hosts import HERE, PORT, Hosts, address
from benchmarks.suite.rank import Job
from benchmarks.suite.summary import Line, summarised
from synth.base.errors import RunError
from synth.launch.launcher import environment, run_commands
from synth.launch.run import KEEP_FREED
from synth.layer.layer import Layer
from synth.machine.file import load_machine
from synth.planning.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 1800  # seconds that the ranks of one layer may take


class MeasuringError(Exception):
    """The ranks of a line failed; the message contains the end of their output."""


@dataclass(frozen=True)
class BenchmarkRequest:
    """What to measure. machine: a machine file; "{procs}" in its name stands for the number of ranks.

    objective: of our plans; "both" takes the grid with the fewest words, and on it the schedule (stationary
    tensor, number of panels) that is the fastest on the machine.
    """

    works: tuple[str, ...]
    peers: tuple[str, ...]
    seconds: float
    rounds: tuple[int, int]
    profiled: int = 3
    machine: str | None = None
    objective: str = "both"
    hosts: Hosts = HERE

    def machine_for(self, procs: int) -> str | None:
        """The machine file for a number of ranks."""
        return None if self.machine is None else self.machine.replace("{procs}", str(procs))


def planned(layer: Layer, procs: int, work: str, request: BenchmarkRequest) -> Plan:
    """Our plan of a line. No rank is idle, since the peers use all ranks."""
    machine, grid = request.machine_for(procs), None
    if request.objective != "time":
        found = synth.plan(layer, procs, pass_=work, exact_procs=True)
        if request.objective == "words":
            return found
        grid = found.grid._asdict()
    return synth.plan(
        layer, procs, pass_=work, exact_procs=True, objective="time", machine=machine, grid=grid
    )


def lines(layer: Layer, whole: Path, procs: int, request: BenchmarkRequest, folder: Path) -> list[Line]:
    """The measured lines of a layer on some ranks. Raises `MeasuringError`."""
    plans = {work: planned(layer, procs, work, request) for work in request.works}
    sent = {work: dict.fromkeys((OURS, TUNED), replace(plan, timed=None)) for work, plan in plans.items()}
    job = Job(layer, str(whole), sent, list(request.peers), request.seconds, request.rounds, request.profiled)
    measured = measure(job, procs, folder, request.hosts)
    where = request.machine_for(procs)
    machine = None if where is None else load_machine(where)
    found = []
    for work, plan in plans.items():
        flops = operations(layer) * (3 if work == "training" else 1)
        found.append(summarised(plan, flops, request.objective, machine, measured[work]))
    return found


def measure(job: Job, procs: int, folder: Path, hosts: Hosts) -> dict[str, list[dict[str, Any]]]:
    """Work -> what each rank measured. Raises `MeasuringError`."""
    (folder / "job").write_bytes(pickle.dumps(job))
    run_module(hosts, procs, "benchmarks.suite.rank", str(folder / "job"), str(folder))
    return {work: json.loads((folder / f"{work}.json").read_text()) for work in job.plans}


def run_module(hosts: Hosts, procs: int, module: str, *argv: str) -> None:
    """Run a module on ranks that are spread over hosts, one thread each. Raises `MeasuringError`.

    The ranks end with this process, however that ends.
    """
    count = len(hosts.enter)
    if procs % count:
        raise MeasuringError(f"{procs} ranks on {count} hosts: as many belong on each")
    local = procs // count
    command = [sys.executable, "-m", module, *argv]
    commands = [
        (
            [*hosts.enter[rank // local], *command],
            {"RANK": str(rank), "LOCAL_RANK": str(rank % local), "GROUP_RANK": str(rank // local)},
        )
        for rank in range(procs)
    ]
    shared = environment(KEEP_FREED) | dict(hosts.environment)
    shared |= {"WORLD_SIZE": str(procs), "LOCAL_WORLD_SIZE": str(local), "MASTER_ADDR": "127.0.0.1"}
    shared["PYTHONPATH"] = os.pathsep.join([str(ROOT), shared["PYTHONPATH"]])
    if count > 1:
        shared |= {"MASTER_ADDR": address(0), "MASTER_PORT": str(PORT)}
    try:
        ended = run_commands(commands, shared, PATIENCE)
    except RunError as error:
        raise MeasuringError(f"{module} on {procs} ranks: {error}") from error
    if ended.code:
        raise MeasuringError(
            f"{module} on {procs} ranks failed: {ended.last_words()}\n{ended.output[-3000:]}"
        )
