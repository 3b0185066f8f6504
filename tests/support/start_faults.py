"""A training job in which one rank has a fault, or is slow, when the ranks join.

    python start_faults.py TIMEOUT MARK RANK STATEMENT [at once]

The rank touches the mark and runs the statement. Ranks are told as torchrun tells them. "at once": they leave
as soon as they have joined, and exchange nothing.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time  # noqa: F401 - for statements

import torch.distributed as dist

import synth


def main() -> None:
    """What one rank does: join twice, and say what it sees."""
    timeout, mark, rank, statement, *at_once = sys.argv[1:]
    if os.environ["RANK"] == rank:
        with open(mark, "w", encoding="utf-8"):
            pass
        exec(statement, globals())
    for _ in range(2):
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
        synth.init_process_group("gloo", datetime.timedelta(seconds=float(timeout)))
        assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM))
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        if not at_once:
            found = [None] * dist.get_world_size()
            dist.all_gather_object(found, dist.get_rank())
            assert found == list(range(dist.get_world_size()))
        print("joined", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
