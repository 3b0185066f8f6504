"""What the ranks of the tests of shared memory do."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

import synth
from synth.runtime.comm import gradient_buckets, shared_memory
from synth.runtime.comm.host_memory import SharedBytes
from synth.runtime.comm.shared_memory import SharedMemory
from synth.runtime.grid.boxes import cut

WORDS = 11


def sums(taken: list[int], dtype: str, hosts: bool = False) -> tuple[list[list[float]], int] | None:
    """(the sums of two rounds, the files that are left); None where no memory is shared.

    taken: the ranks whose memory still has gradients. hosts: whether each rank is on a host of its own.
    """
    me, kind = dist.get_rank(), getattr(torch, dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_memory, "usable_cores", lambda: 4)
        if hosts:
            patched.setattr(shared_memory, "host_here", lambda: ("host", str(me)))
        memory = SharedMemory.of(None, WORDS, kind)
    if memory is None:
        return None
    found = []
    for round_ in range(2):
        parts = [torch.arange(6).reshape(2, 3) + me + round_, torch.arange(5) * 10**me]
        request = memory.start([part.to(kind) for part in parts], me not in taken)
        request.wait()
        found.append(request.flat.tolist())
        request.flat.mul_(-1)  # gradients may change as soon as they are there
    left = [each for each in os.listdir(shared_memory.WHERE) if each.startswith("synth-")]
    return found, len(
        [each for each in left if os.stat(f"{shared_memory.WHERE}/{each}").st_uid == os.getuid()]
    )


def moved(words: int) -> tuple[int, int, int]:
    """(bytes sent, bytes received, bytes of this rank's share) of a sum of words of float32."""
    me, size = dist.get_rank(), dist.get_world_size()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_memory, "usable_cores", lambda: 4)
        memory = SharedMemory.of(None, words, torch.float32)
    assert memory is not None
    before = SharedBytes.sent, SharedBytes.received
    memory.start([torch.ones(words)], True).wait()
    low, high = cut((0, words), size, me)
    return SharedBytes.sent - before[0], SharedBytes.received - before[1], 4 * (high - low)


def no_room() -> bool:
    """Whether all ranks do without where one has no room."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_memory, "usable_cores", lambda: 4)
        if dist.get_rank() == 1:
            patched.setattr(shared_memory, "WHERE", "/nowhere")
        return SharedMemory.of(None, WORDS, torch.float32) is None


def trained(shared: bool) -> tuple[float, int]:
    """(the largest error of parameters after three steps, the buckets that shared memory)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
    batch = torch.randn(4, 2, 6, 6)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_memory, "usable_cores", lambda: 4)
        patched.setattr(gradient_buckets, "LEAST", 0 if shared else 2**40)
        net = synth.parallelize(copy.deepcopy(model), batch.shape, plan="data", bucket_bytes=200, check=False)
        pairs = [(each, torch.optim.SGD(each.parameters(), 0.1, momentum=0.9)) for each in (model, net)]
        for step in range(3):
            for each, optimizer in pairs:
                each(batch).square().mean().backward()
                nn.utils.clip_grad_norm_(each.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=step != 1)
    buckets = net.program.buckets.buckets
    wholes = net.full_state_dict()
    errors = [float((wholes[key] - values).abs().max()) for key, values in model.state_dict().items()]
    return max(errors), sum(bucket.memory is not None for bucket in buckets)
