"""What ranks with two networks in one process do: functions that return what a test looks at."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from prefetch_ranks import Values, array, gradients, layers, made, weight

from synth.runtime.grid.process_grid import coordinates
from synth.runtime.kernels.context import Context
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network

STEPS = 3
CASES = (("residual", "data", 1), ("biases", "hybrid", 2))  # model, plan, prefetched layers


class Training:
    """A network that trains step by step; a step is a forward and a backward part."""

    def __init__(self, case: tuple[str, str, int]) -> None:
        self.net, self.shard = made(*case)
        self.steps: list[Values] = []
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def forward(self) -> None:
        """The first part of a step."""
        self.out = self.net(self.shard)

    def backward(self) -> None:
        """The second part, which updates the parameters."""
        torch.autograd.backward(self.out.square().sum())
        self.optimizer.step()
        self.steps.append({"output": array(self.out), **gradients(self.net)})

    def step(self) -> None:
        """Both parts."""
        self.forward()
        self.backward()

    def result(self) -> dict[str, Any]:
        """values: of each step. words: that this rank has received."""
        return {"values": self.steps, "words": self.net.received()}


def trained_alone(steps: int) -> list[dict[str, Any]]:
    """Each network trains without another: its values and words."""
    found = []
    for case in CASES:
        run = Training(case)
        for _ in range(steps):
            run.step()
        found.append(run.result())
    return found


def trained_in_turn() -> tuple[list[dict[str, Any]], int]:
    """Parts of the steps of both networks in turn: their results; buffers and groups that they share."""
    one, other = map(Training, CASES)
    for step in range(STEPS):
        one.forward()
        other.forward()
        first, second = (one, other) if step % 2 else (other, one)
        first.backward()
        second.backward()
    assert memory(one.net)
    assert handles(one.net)
    shared = (memory(one.net) & memory(other.net)) | (handles(one.net) & handles(other.net))
    return [one.result(), other.result()], len(shared)


def trained_while_a_prefetch_is_pending() -> list[dict[str, Any]]:
    """Ker of the first network is prefetched; the second makes a step; then the first does."""
    one, other = map(Training, CASES)
    prefetched = [layer for layer in layers(one.net) if layer.program.prefetch_ker]
    assert prefetched
    prefetched[0].prefetch(weight(one.net, prefetched[0]).detach().to_local())
    (before,) = one.net.program.context.pending
    other.step()
    assert one.net.program.context.pending == [before]
    assert not other.net.program.context.pending
    one.step()
    assert not one.net.program.context.pending
    return [one.result(), other.result()]


def tuned_kernels() -> tuple[int, int, bool]:
    """Kernels that the first, tuned network has timed, and the second; whether all layers share its tuner."""
    one, other = map(Training, CASES)
    one.net.program.context.tuner.enabled = True
    for run in (one, other):
        run.step()
    tuner = one.net.program.context.tuner
    of_layers = all(layer.context.tuner is tuner for layer in layers(one.net))
    return len(tuner.times), len(other.net.program.context.tuner.times), of_layers


def groups_of_all_ranks() -> tuple[bool, bool, bool]:
    """Whether these are the group of the job: all ranks, all with another timeout, half of them."""
    context, found = Context(), []
    at = coordinates(dist.get_rank(), {"b": 2, "k": 2})
    for axes, timeout in ((("b", "k"), None), (("b", "k"), 77.0), (("k",), None)):
        (group,) = context.make_groups(at, {"b": 2, "k": 2}, {"x": axes}, timeout).values()
        found.append(group.handle is dist.group.WORLD)
    return found[0], found[1], found[2]


def memory(net: Network) -> set[tuple[str, int]]:
    """Where the free buffers of a network are."""
    free = net.program.context.buffers.free.values()
    return {("buffer", flat.data_ptr()) for each in free for flat in each if flat.numel()}


def handles(net: Network) -> set[tuple[str, int]]:
    """The process groups of the layers of a network."""
    planned = [each for each in net.program.modules() if isinstance(each, DistributedLayer)]
    return {("group", id(group.handle)) for layer in planned for group in layer.groups.values()}
