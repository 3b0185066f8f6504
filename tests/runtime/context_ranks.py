"""What one rank of the tests of two networks in one process does. All ranks run it and assert."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from prefetch_ranks import gradients, layers, made, same, weight

from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network

STEPS = 3
CASES = (("residual", "data", 1), ("biases", "hybrid", 2))  # model, plan, prefetched layers


class Training:
    """A network that trains step by step; a step is a forward and a backward part."""

    def __init__(self, case: tuple[str, str, int]) -> None:
        self.net, self.shard = made(*case)
        self.found: list[Any] = []
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def forward(self) -> None:
        """The first part of a step."""
        self.out = self.net(self.shard)

    def backward(self) -> None:
        """The second part, which updates the parameters."""
        torch.autograd.backward(self.out.square().sum())
        self.optimizer.step()
        self.found.append((self.out.detach(), gradients(self.net)))


def interleaved(_: str) -> None:
    """Parts of the steps of two networks in turn: each has the values and the words of its own single run."""
    alone = []
    for case in CASES:
        run = Training(case)
        for _ in range(STEPS):
            run.forward()
            run.backward()
        alone.append((run.found, run.net.received()))
    one, other = map(Training, CASES)
    for step in range(STEPS):
        one.forward()
        other.forward()
        first, second = (one, other) if step % 2 else (other, one)
        first.backward()
        second.backward()
    for run, (found, received) in zip((one, other), alone, strict=True):
        same(run.found, found)
        assert run.net.received() == received
    apart(one.net, other.net)


def pending(_: str) -> None:
    """A prefetch of one network stays pending while another network trains."""
    case, other_case = CASES
    alone, wanted = Training(other_case), Training(case)
    for run in (alone, wanted):
        run.forward()
        run.backward()
    one, other = Training(case), Training(other_case)
    prefetched = [layer for layer in layers(one.net) if layer.program.prefetch_ker]
    assert prefetched
    prefetched[0].prefetch(weight(one.net, prefetched[0]).detach().to_local())
    (before,) = one.net.program.context.pending
    other.forward()
    other.backward()
    assert one.net.program.context.pending == [before]
    assert not other.net.program.context.pending
    same(other.found, alone.found)
    one.forward()
    one.backward()
    assert not one.net.program.context.pending
    same(one.found, wanted.found)


def tuned(_: str) -> None:
    """Only the network that is asked to autotune times its kernels."""
    one, other = map(Training, CASES)
    one.net.program.context.tuner.enabled = True
    for run in (one, other):
        run.forward()
        run.backward()
    assert one.net.program.context.tuner.times
    assert not other.net.program.context.tuner.times
    assert all(layer.context.tuner is one.net.program.context.tuner for layer in layers(one.net))


def apart(one: Network, other: Network) -> None:
    """Two networks have no buffer and no process group in common."""
    assert memory(one)
    assert memory(one).isdisjoint(memory(other))
    assert handles(one)
    assert handles(one).isdisjoint(handles(other))


def memory(net: Network) -> set[int]:
    """Where the free buffers of a network are."""
    return {
        flat.data_ptr() for free in net.program.context.buffers.free.values() for flat in free if flat.numel()
    }


def handles(net: Network) -> set[int]:
    """The process groups of the layers of a network."""
    planned = [each for each in net.program.modules() if isinstance(each, DistributedLayer)]
    return {id(group.handle) for layer in planned for group in layer.groups.values()}


def main() -> None:
    """Run a function of this file on this rank."""
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](sys.argv[2])
    dist.barrier()
    dist.destroy_process_group()
