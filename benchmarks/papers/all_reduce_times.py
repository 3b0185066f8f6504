"""The topology-aware all-reduce against torch's own, on gloo ranks of this machine.

    python -m benchmarks.papers.all_reduce_times [ranks]

One machine has no slow links. So this shows the overhead of messages from Python, not the gain between units.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.papers.all_reduce import all_reduce

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)


def rank_main(rank: int, procs: int) -> None:
    """Time both on every size; rank 0 prints the least of five, in milliseconds."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    dist.init_process_group("gloo", rank=rank, world_size=procs)
    for size in SIZES:
        buffer = torch.ones(size)
        spent = {}
        for name, run in (
            ("torch", lambda b=buffer: dist.all_reduce(b)),
            ("here", lambda b=buffer: all_reduce(b, 2)),
        ):
            times = []
            for _ in range(5):
                dist.barrier()
                start = time.perf_counter()
                run()
                times.append(time.perf_counter() - start)
            spent[name] = min(times) * 1e3
        if rank == 0:
            print(f"{size * 4:>10} bytes  torch {spent['torch']:8.3f} ms  here {spent['here']:8.3f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    mp.spawn(rank_main, (count,), count)
