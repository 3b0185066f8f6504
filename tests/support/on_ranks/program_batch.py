"""Many emitted programs on one set of gloo ranks, started once: their `main` runs as it is, again and again.

Only the function that joins the world is replaced: the ranks have met and run program after program.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import on_device
from ranks import free_port, run_forked

from synth.codegen.render import render
from synth.planning.plan import Plan
from synth.simulation.interpreter import simulate


def run_programs(
    plans: list[Plan], procs: int, folder: Path, seconds: float = 900, texts: list[str] | None = None
) -> list[str]:
    """The fault of each plan's program on `procs` ranks; "" if there is none.

    texts: the programs, where they are not what `render` makes of the plans.

    Values are compared with torch by the program's own `--check`, words by step with the simulator's here.
    """
    folder.mkdir(parents=True)
    for number, text in enumerate(texts or map(render, plans)):
        (folder / f"{number}.py").write_text(text, encoding="utf-8")
    port = free_port()
    run_forked(_rank, [(str(folder), len(plans), rank, procs, port) for rank in range(procs)], seconds)
    told = "".join(path.read_text() for path in sorted(folder.glob("log-*")))
    return [_fault(made, procs, folder / f"reports-{number}", told) for number, made in enumerate(plans)]


def _rank(folder: str, count: int, rank: int, size: int, port: int) -> None:
    """Be one rank for all programs; the first that fails is the last."""
    log = open(Path(folder, f"log-{rank}"), "w", encoding="utf-8")  # noqa: SIM115 - it stays open
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    import torch
    import torch.distributed as dist

    from synth.runtime.grid.process_grid import coordinates, grid_size
    from synth.runtime.program.world import World

    torch.set_num_threads(1)
    on_device.enter(rank)
    device = torch.device(on_device.asked_device() or "cpu")
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)

    def start(plan: str, grid: dict[str, int], procs: int, *rest: object) -> World:
        """Join the other ranks in a new world, so that the names of groups start at 0 again."""
        dist.init_process_group(
            on_device.backend(), store=dist.PrefixStore(f"{number}", store), rank=rank, world_size=size
        )
        at = coordinates(rank, grid) if rank < grid_size(grid) else None
        made: World = program["main"].__globals__.get("World", World)(rank, size, device, at, None)
        return made

    for number in range(count):
        sys.argv = ["program.py", "--check", "--report", str(Path(folder, f"reports-{number}"))]
        try:
            program = runpy.run_path(str(Path(folder, f"{number}.py")))
            program["main"].__globals__["start"] = start
            code = program["main"]()
        except Exception:
            traceback.print_exc()
            code = 6
        if code == 6:
            os._exit(6)
    store.set(f"rank {rank} is done", "")
    if rank == 0:  # the store lives in this process
        store.wait([f"rank {peer} is done" for peer in range(size)])


def _fault(made: Plan, procs: int, reports: Path, told: str) -> str:
    found: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in sorted(reports.glob("rank-*.json"))
    ]
    if len(found) != procs:
        return f"{len(found)} of {procs} ranks left a report: {told[-300:]}"
    passes = [(f"{s.pass_plan.pass_} " * bool(made.later), simulate(s)) for s in made.schedules]
    steps = {(part + phase, *key): n for part, s in passes for (phase, *key), n in s.steps.items()}
    for rank, report in enumerate(found[: made.used_procs]):
        counted = {(phase, step, tensor): words for phase, step, tensor, words in report["steps"]}
        if counted != {key: words[rank] for key, words in steps.items() if words[rank]}:
            return f"rank {rank} counts other words than the simulator"
        planned = made.received.at(made.distribution.at(rank))
        if {name.lower(): words for name, words in report["words"].items()} != planned:
            return f"rank {rank} receives {report['words']}, planned are {planned}"
        if report["check"] is not True:
            return f"rank {rank} says: {report['faults']}"
    return ""
