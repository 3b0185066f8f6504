"""Lean programs on gloo ranks that start once: each `main` runs as it is, in a world of its own."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from ranks import free_port, run_forked


def run_lean(texts: list[str], procs: int, folder: Path, seconds: float = 600) -> list[list[Any]]:
    """For each program, of each of `procs` ranks: the exit code, the words it counted, what it printed."""
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.py").write_text(text, encoding="utf-8")
    port = free_port()
    run_forked(_rank, [(str(folder), len(texts), rank, procs, port) for rank in range(procs)], seconds)
    made = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(procs)]
    return [list(ranks) for ranks in zip(*made, strict=True)]


def _rank(folder: str, count: int, rank: int, size: int, port: int) -> None:
    """Be one rank for all programs; only the way to the other ranks is replaced."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    begin, found = dist.init_process_group, []

    for number in range(count):
        own = dist.PrefixStore(f"{number}", store)
        dist.init_process_group = lambda backend, own=own: begin(  # type: ignore[misc]
            backend, store=own, rank=rank, world_size=size
        )
        sys.argv = ["program.py", "--check"]
        path = Path(folder, f"{number}-{rank}.txt")
        try:
            with path.open("w") as out, contextlib.redirect_stdout(out):
                program = runpy.run_path(str(Path(folder, f"{number}.py")))
                code = program["main"]()
        except Exception:
            traceback.print_exc()
            os._exit(6)
        found.append([code, program["RECEIVED"], path.read_text()])
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    store.set(f"rank {rank} is done", "")
    if rank == 0:  # the store lives in this process
        store.wait([f"rank {peer} is done" for peer in range(size)])
