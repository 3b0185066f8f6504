"""The real all-reduce: equal to torch's on any number of ranks, and what it sends across units."""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import sys
from typing import Any

import pytest

from benchmarks.papers.all_reduce import crossing_elements, places

torch = pytest.importorskip("torch")

SIZES = (1, 3, 17, 1000)


def _rank(rank: int, procs: int, unit: int, port: int, answers: Any) -> None:
    import torch.distributed as dist

    from benchmarks.papers.all_reduce import all_reduce

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=procs)
    try:
        wrong = []
        for size in SIZES:
            mine = torch.randint(-50, 50, (size,), generator=torch.Generator().manual_seed(rank)).double()
            theirs = mine.clone()
            received = all_reduce(mine, unit)
            dist.all_reduce(theirs)
            if not torch.equal(mine, theirs) or (procs > 1) != (received > 0):
                wrong.append(size)
        square = torch.full((4, 6), float(rank)).t()  # not contiguous
        all_reduce(square, unit)
        if not torch.equal(square, torch.full((6, 4), procs * (procs - 1) / 2)):
            wrong.append(24)
        answers.put((rank, wrong))
    finally:
        dist.destroy_process_group()


@pytest.mark.ranks
@pytest.mark.parametrize(("procs", "unit"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3), (8, 4)])
@pytest.mark.one_in(2)
def test_equals_torch(procs: int, unit: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("fork" if sys.platform == "linux" else "spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(r, procs, unit, port, answers)) for r in range(procs)]
    for each in ranks:
        each.start()
    try:
        assert sorted(answers.get(timeout=300) for _ in ranks) == [(r, []) for r in range(procs)]
    finally:
        for each in ranks:
            each.join(20)
            if each.is_alive():
                each.kill()


def test_ranks_are_dealt_in_turn() -> None:
    assert places(8, 4) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert sorted(places(7, 3)) == list(range(7))
    with pytest.raises(ValueError, match="at least 1"):
        places(0, 1)


@pytest.mark.parametrize(("procs", "unit"), [(8, 4), (16, 4), (64, 8)])
def test_only_small_messages_cross(procs: int, unit: int) -> None:
    """Per phase (p/q - 1)·n/p elements cross instead of (p - q)·n/p: Eq. 4 and 6 of swCaffe."""
    n = 1 << 12
    assert crossing_elements(procs, unit, n) == 2 * (procs // unit - 1) * n // procs
    assert crossing_elements(procs, unit, n, dealt=False) == 2 * (procs - unit) * n // procs
