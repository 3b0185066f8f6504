"""What the ranks of the checkpoint tests do: models that checkpoint parts of themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from beside_one_process import sgd_steps, three_steps
from shared_plan import shared_plan
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

import synth
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.grid.allocation_counter import least_peak

SHAPE = (4, 4, 16, 16)


class Block(nn.Module):
    """Two convolutions with what stands between them, and a sum."""

    def __init__(self, channels: int, drop: float = 0.0) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm, self.group = nn.BatchNorm2d(channels), nn.GroupNorm(2 - channels % 2, channels)
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
        self.blocks = nn.Sequential(*(Block(channels, drop) for _ in range(3)))
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


class Nested(nn.Module):
    """Normalizations in checkpoints inside of others. `early`: whether torch stops there early."""

    def __init__(self, form: str, early: bool = True) -> None:
        super().__init__()
        self.form, self.early = form, early
        self.first, self.last = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 5, 1)
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))
        norm = nn.InstanceNorm2d if form == "instances" else nn.BatchNorm2d
        self.norms = nn.ModuleList(norm(6, track_running_stats=True) for _ in range(2))
        if form == "spectral":
            spectral_norm(self.convs[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(partial(FORMS[self.form], self), self.first(x)))

    def again(self, function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        """What a function gives, in a checkpoint."""
        with nullcontext() if self.early else set_checkpoint_early_stop(False):
            made: torch.Tensor = checkpoint(function, *given, use_reentrant=False)
        return made

    def part(self, place: int, x: torch.Tensor) -> torch.Tensor:
        """A convolution and its normalization."""
        made: torch.Tensor = self.norms[place](self.convs[place](x))
        return made

    def inner(self, place: int, x: torch.Tensor) -> torch.Tensor:
        """The same in a checkpoint."""
        return self.again(partial(self.part, place), x)

    def without_gradients(self, x: torch.Tensor) -> torch.Tensor:
        """Of a normalization."""
        with torch.no_grad():
            made: torch.Tensor = self.norms[0](x)
        return made


FORMS: dict[str, Callable[[Nested, torch.Tensor], torch.Tensor]] = {
    "one": lambda net, x: net.inner(0, x) + x,
    "instances": lambda net, x: net.inner(0, x) + x,
    "spectral": lambda net, x: net.inner(0, x) + x,
    "two": lambda net, x: net.inner(1, net.inner(0, x)) + x,
    "beside": lambda net, x: net.inner(0, x).square() + net.inner(1, x),
    "before": lambda net, x: net.norms[1](net.inner(0, x)),
    "behind": lambda net, x: net.inner(0, net.norms[1](x)) * 2,
    "three": lambda net, x: net.again(partial(net.inner, 0), x) + net.norms[1](x).relu(),
    "deep": lambda net, x: net.again(lambda x: net.again(partial(net.inner, 0), x), x) + x,
    "closure": lambda net, x: net.again(lambda: net.part(0, x)) + x,
    "detached": lambda net, x: net.part(1, x).relu() + net.without_gradients(x),
}


def counters(model: nn.Module) -> list[int]:
    """How often normalizations have changed their statistics, on this rank."""
    return [int(each) for name, each in model.named_buffers() if name.endswith("num_batches_tracked")]


def nested(form: str, early: bool, plan: Any, around: bool | None) -> tuple[float, list[int], list[int]]:
    """The largest difference from one process after two steps, and counters of this rank and of that.

    around: whether torch stops early, as the user sets it around the steps; None for neither.
    """
    torch.manual_seed(0)
    model = Nested(form, early).double()
    net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan)
    with nullcontext() if around is None else set_checkpoint_early_stop(around):
        difference = sgd_steps(net, model, SHAPE, 2)
    return difference, counters(net), counters(model)


class Ends(nn.Module):
    """Ends in a checkpoint, and may then add what it has read."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.first, self.norm, self.adds = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(lambda h: self.norm(h).relu(), self.first(x), use_reentrant=False)
        return made + x if self.adds else made


def inside_of_users(adds: bool, behind: bool) -> tuple[list[int], list[int]]:
    """Counters of this rank and of one process, with a checkpoint of the user around a pass.

    behind: whether that saves a tensor behind the pass.
    """
    torch.manual_seed(0)
    model = Ends(adds)
    net = synth.parallelize(copy.deepcopy(model), SHAPE)
    for each in (net, model, net, model):

        def run(x: torch.Tensor, each: Any = each) -> Any:
            made = each(x)
            return made.square() if behind else made

        made: Any = checkpoint(run, torch.randn(SHAPE), use_reentrant=False)
        made.square().sum().backward()
    return counters(net), counters(model)


def nested_trained_later(form: str) -> tuple[list[int], list[int]]:
    """Counters of this rank and of one process. All but the last layer are frozen at first."""
    torch.manual_seed(0)
    model = Nested(form).requires_grad_(False)
    model.last.requires_grad_()
    net = synth.parallelize(copy.deepcopy(model), SHAPE)
    for _ in range(2):
        for each in (net, model):
            each(torch.randn(SHAPE)).square().sum().backward()
            each.requires_grad_()
    return counters(net), counters(model)


def trains(how: str, plan: Any) -> dict[str, Any]:
    """Three SGD steps compared with those of one process, which checkpoints alike."""
    torch.manual_seed(0)
    return three_steps(Checkpointed(how), SHAPE, plan)


def idle(how: str) -> dict[str, Any]:
    """The same with a plan that leaves a rank idle in the layers of every region."""
    torch.manual_seed(0)
    model, shape = Checkpointed(how, 5), (3, 4, 3, 3)
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
