"""A rank that meets the others, is slow once, and says where it listens: run as a program."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from synth.runtime.program.world import start, stop


def listening() -> set[str]:
    """The local addresses on which this process listens, as the kernel writes them."""
    own = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()
    ]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


def _is_open(name: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{name}")


def main(folder: Path) -> None:
    """Meet, tell the port, wait for the stranger while rank 1 is late, and leave."""
    world = start("plan", {"b": 2}, 2, 8.0, "cpu")
    dist.barrier()
    Path(folder, f"listens-{world.rank}").write_text("\n".join(sorted(listening())))
    if world.rank == 0:
        Path(folder, "port.new").write_text(os.environ["MASTER_PORT"])
        os.replace(folder / "port.new", folder / "port")
    end = time.monotonic() + 300
    while world.rank == 1 and not (folder / "done").exists() and time.monotonic() < end:
        time.sleep(0.1)  # rank 0 waits in the barrier, and looks for signs of life
    dist.barrier()
    time.sleep(1)
    stop(world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
