"""What the two ranks of the tests of pairs do: functions that run on both and return what a test looks at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from synth.runtime.comm import collectives
from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.comm.collectives import all_gather, reduce_scatter, wait_gather, wait_reduce
from synth.runtime.comm.messages import start_messages, wait_for
from synth.runtime.comm.pair_memory import PairMemory
from synth.runtime.comm.process_groups import Group
from synth.runtime.grid import hosts
from synth.runtime.grid.hosts import is_near_pair

CALLS = ("all_to_all_single", "isend", "irecv", "all_gather_single")


def pieces(sizes: list[int], rank: int, dtype: str) -> list[torch.Tensor]:
    """What a rank sends: so many pieces of different values."""
    kind = getattr(torch, dtype)
    return [(torch.arange(n) + 10 * rank + 100 * at).to(kind) for at, n in enumerate(sizes)]


def swapped(sizes: list[list[int]], dtypes: list[str]) -> tuple[list[list[float]], list[str]]:
    """(the pieces that came, the calls) if rank r sends pieces of `sizes[r]` words in `dtypes[r]`."""
    me = dist.get_rank()
    other, calls = 1 - me, list[str]()
    receives = [(other, torch.empty_like(each)) for each in pieces(sizes[other], other, dtypes[other])]
    sends = [(other, each) for each in pieces(sizes[me], me, dtypes[me])]
    with pytest.MonkeyPatch.context() as patched:
        note(patched, calls)
        wait_for(start_messages(receives, sends, None))
    return [piece.tolist() for _, piece in receives], calls


def note(patched: pytest.MonkeyPatch, calls: list[str]) -> None:
    """Keep the names of the calls by which words travel."""

    def noted(name: str, call: Any) -> Any:
        def noting(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return call(*args, **options)

        return noting

    for name in CALLS:
        if hasattr(dist, name):
            patched.setattr(dist, name, noted(name, getattr(dist, name)))
    patched.setattr(PairMemory, "start", noted("swap", PairMemory.start))


def collective(words: int, large: int) -> tuple[list[float], list[float], list[str]]:
    """(a gathered panel, the sums of this rank's half, the calls). large: bytes of a large piece."""
    me, calls = dist.get_rank(), list[str]()
    panel, parts = ((0, 2 * words),), [((0, words),), ((words, 2 * words),)]
    group = Group(None, [{"k": 0}, {"k": 1}], me, BufferPool())
    own = torch.arange(words) + 100.0 * me
    with pytest.MonkeyPatch.context() as patched:
        note(patched, calls)
        patched.setattr(collectives, "LARGE", large)
        whole = wait_gather(all_gather(panel, parts, own, group))
        sums = wait_reduce(reduce_scatter(whole * (me + 1), panel, parts, group))
    return whole.tolist(), sums.tolist(), calls


def near(numbers: list[int], cores: int = 2) -> bool:
    """Whether two ranks whose hosts have some numbers in the job, and some cores, are a near pair."""
    me = dist.get_rank()
    group = dist.new_group([0, 1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GROUP_RANK", str(numbers[me]))
        patched.setattr(hosts, "usable_cores", lambda: cores)
        store = dist.distributed_c10d._get_default_store()
        store.delete_key(f"synth/host/{me}")  # of earlier groups
        dist.barrier()
        found = is_near_pair(group)
        dist.barrier()
    return found


def alone() -> bool:
    """Whether a group of one rank is a near pair."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return is_near_pair(groups[dist.get_rank()])
