"""What the ranks of the checkpoint tests do: models that checkpoint parts of themselves."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from beside_one_process import three_steps
from shared_plan import shared_plan
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import synth
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.grid.allocation_counter import least_peak

SHAPE = (4, 4, 16, 16)


class Block(nn.Module):
    """Two convolutions with what stands between them, and a sum. `tracks`: whether statistics run."""

    def __init__(self, channels: int, drop: float = 0.0, tracks: bool = True) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm, self.group = (
            nn.BatchNorm2d(channels, track_running_stats=tracks),
            nn.GroupNorm(2 - channels % 2, channels),
        )
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(torch.relu(self.norm(self.one(x))))
        return x + self.two(nn.functional.silu(self.group(h)))


class Checkpointed(nn.Module):
    """Blocks, checkpointed as `how` says: "none", "each", "nested", "sequential", "outputs"."""

    def __init__(self, how: str, channels: int = 8, drop: float = 0.0) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(channels, drop, how != "nested") for _ in range(3)))
        self.last = nn.Conv2d(channels, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        match self.how:
            case "each":
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=False)
            case "nested":
                x = checkpoint(self._nested, x, use_reentrant=False)
            case "sequential":
                x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
            case "outputs":  # and a layer that every rank computes from the whole
                x, y, z = checkpoint(self._outputs, x, use_reentrant=False)
                x = x * y + torch.cumsum(z, 1)
            case _:
                x = self.blocks(x)
        return self.last(x)

    def _nested(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.blocks[0], x, use_reentrant=False)
        x = checkpoint(lambda x: checkpoint(self.blocks[1], x, use_reentrant=False), x, use_reentrant=False)
        return self.blocks[2](x)

    def _outputs(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.blocks[0](x)
        y = self.blocks[1](x)
        return x, y, self.blocks[2](torch.cumsum(y, 1))


def trains(how: str, plan: Any) -> dict[str, Any]:
    """Three SGD steps compared with those of one process, which checkpoints alike."""
    torch.manual_seed(0)
    return three_steps(Checkpointed(how), SHAPE, plan)


def idle() -> dict[str, Any]:
    """The same with a plan that leaves a rank idle in the layers of every region."""
    torch.manual_seed(0)
    model, shape = Checkpointed("each", 5), (3, 4, 3, 3)
    network = trace_model(model, shape).network
    plan = plan_network(network, NetworkRequest(4, training=True, balance=0.02))
    assert max(placed.grid.size for placed in plan.placed_grids[1:-1]) == 3
    return three_steps(model, shape, plan)


def step(net: Any, batch: torch.Tensor) -> None:
    """The gradients of one loss."""
    net.zero_grad()
    net(net.scatter(batch, "input")).square().sum().backward()


def compared(how: str, plan: Any, drop: float) -> dict[str, Any]:
    """A step with checkpoints and one without: gradients, words, bytes at most."""
    torch.manual_seed(0)
    model = Checkpointed(how, 32, drop)
    batch, found = torch.randn(4, 4, 32, 32), list[dict[str, Any]]()
    for each in (how, "none"):
        model.how = each
        torch.manual_seed(1)  # of the seeds of dropout
        net = synth.parallelize(copy.deepcopy(model), batch.shape, plan=plan)
        step(net, batch)
        gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        before = net.received()
        net(net.scatter(batch, "input"))
        forward = net.received() - before
        step(net, batch)
        both = net.received() - before - forward
        peak = least_peak(lambda net=net: step(net, batch))
        found.append({"gradients": gradients, "forward": forward, "both": both, "peak": peak})
    one, other = found
    pairs = zip(one.pop("gradients"), other.pop("gradients"), strict=True)
    return {"apart": max(float((a - b).abs().max()) for a, b in pairs), "checkpoints": one, "none": other}


def words(how: str, axes: str) -> tuple[int, int, int, int]:
    """Words that move again on this rank because of checkpoints, as counted, and as planned for the most.

    Then all words of the step on this rank, counted and planned.
    """
    torch.manual_seed(0)
    model, batch, counted = Checkpointed(how, 32), torch.randn(4, 4, 32, 32), list[int]()
    for block in model.blocks:
        block.group = nn.Identity()  # whose sums `recomputed_words` does not count
    for each in ("none", how):
        model.how = each
        plan = shared_plan(model, batch.shape, axes=axes)
        net = synth.parallelize(copy.deepcopy(model), batch.shape, plan=plan)
        step(net, batch)
        before = net.received()
        step(net, batch)
        counted.append(net.received() - before)
    return counted[1] - counted[0], plan.recomputed_words, counted[1], plan.words.step[net.ranks.me]


def evaluated() -> float:
    """A model that checkpoints in training alone is put into training after it was made in evaluation."""
    torch.manual_seed(0)

    class Trains(Checkpointed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.how = "each" if self.training else "none"
            return super().forward(x)

    model = Trains("none", 32).eval()
    net = synth.parallelize(model, (4, 4, 32, 32))
    batch = torch.randn(4, 4, 32, 32)
    peaks = []
    for mode in (False, True):
        net.train(mode)
        step(net, batch)
        peaks.append(least_peak(lambda: step(net, batch)))
    dist.barrier()
    return peaks[1] / peaks[0]
