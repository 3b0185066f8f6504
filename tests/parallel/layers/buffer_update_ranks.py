"""Models that update their buffers by what they compute, on ranks beside one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from beside_one_process import refusal
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth

SHAPE = 4, 4, 8, 8
Update = Callable[[Any, torch.Tensor], object]


def replaced(self: Any, mean: torch.Tensor) -> None:
    self.mean = 0.9 * self.mean + 0.1 * mean


def set_words(self: Any, mean: torch.Tensor) -> None:
    self.mean[:] = 0.9 * self.mean + 0.1 * mean


def added(self: Any, mean: torch.Tensor) -> None:
    self.mean += 0.1 * (mean - self.mean)


def twice(self: Any, mean: torch.Tensor) -> None:
    with torch.no_grad():
        self.mean.lerp_(mean, 0.1)
        self.mean.mul_(0.5)
        self.mean.data.add_(self.mean * mean)


def half_replaced(self: Any, mean: torch.Tensor) -> None:
    self.mean.lerp_(mean, 0.1)
    replaced(self, mean)


FORMS: dict[str, Update] = {
    "copy_": lambda self, mean: self.mean.copy_(0.9 * self.mean + 0.1 * mean),
    "mul_ and add_": lambda self, mean: self.mean.mul_(0.9).add_(mean, alpha=0.1),
    "of its data": lambda self, mean: self.mean.data.mul_(0.9).add_(mean, alpha=0.1),
    "out=": lambda self, mean: torch.add(self.mean, mean, alpha=0.1, out=self.mean),
    "replaced": replaced,
    "set by an index": set_words,
    "+=": added,
    "several changes": twice,
    "changed, then replaced": half_replaced,
}


class Running(nn.Module):
    """Subtracts a running mean of its own."""

    mean: torch.Tensor

    def __init__(self, update: Update, detached: bool = True) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.update, self.detached = update, detached
        self.register_buffer("mean", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x) * (1 + self.mean[:, None, None])  # the old words, also backwards
        if self.training:
            mean = x.mean((0, 2, 3))
            self.update(self, mean.detach() if self.detached else mean)
        out: torch.Tensor = self.head(x - self.mean[:, None, None])
        return out


class Codebook(nn.Module):
    """Nearest code words, which follow their means."""

    codes: torch.Tensor
    count: torch.Tensor
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)
        self.register_buffer("codes", torch.randn(5, 6))
        self.register_buffer("count", torch.ones(5))
        self.register_buffer("total", self.codes.clone())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.conv(x)
        rows = z.permute(0, 2, 3, 1).reshape(-1, 6)
        near = functional.one_hot(torch.cdist(rows, self.codes).argmin(1), 5).to(rows.dtype)
        found = (near @ self.codes).view(len(x), 8, 8, 6).permute(0, 3, 1, 2)
        if self.training:
            with torch.no_grad():
                self.count.data.mul_(0.9).add_(near.sum(0), alpha=0.1)
                self.total.data.mul_(0.9).add_(near.t() @ rows, alpha=0.1)
                self.codes.data.copy_(self.total / self.count.clamp(min=1e-3)[:, None])
        return self.head(z + (found - z).detach()), functional.mse_loss(z, found.detach())


class Queue(nn.Module):
    """Compares with the samples of the passes before."""

    queue: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.register_buffer("queue", torch.randn(12, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = functional.normalize(self.conv(x).mean((2, 3)), dim=1)
        scores = rows @ self.queue.t()
        if self.training:
            self.queue = torch.cat([rows.detach(), self.queue[:-4]])
        return scores


class Counts(nn.Module):
    """Counts by a view of a buffer that a gathered call reads, too."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("steps", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.data.add_(1)
        rows = self.conv(x).flatten(0, 2)
        return torch.cdist(rows, self.steps) * self.steps.sum()


MODELS: dict[str, Callable[[], nn.Module]] = {"codebook": Codebook, "queue": Queue, "counts": Counts}


def passes(name: str, plan: Any = None) -> dict[str, Any]:
    """Errors of passes in training, without gradients, in evaluation, and in training again.

    draws: whether a pass of the network, and of the model, takes numbers of torch's generator.
    """
    torch.manual_seed(0)
    model = (MODELS[name]() if name in MODELS else Running(FORMS[name])).double()
    net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan, check=True)
    found: dict[str, Any] = {"error": 0.0, "words": [], "draws": set()}
    for mode, grad in ((True, True), (True, False), (False, True), (True, True)):
        net.train(mode), model.train(mode)
        before, batch = net.received(), torch.randn(SHAPE, dtype=torch.float64)
        with torch.set_grad_enabled(grad):
            losses, draws = [], []
            for each in (net, model):
                state = torch.get_rng_state()
                out = each(batch)
                draws.append(not torch.equal(state, torch.get_rng_state()))
                parts = out if isinstance(out, tuple) else (out,)
                losses.append(torch.stack([part.square().mean() for part in parts]).sum())
            found["draws"].add((*draws,))
        if grad:
            net.zero_grad(), model.zero_grad()
            for loss in losses:
                loss.backward()
        found["error"] = max(found["error"], float((losses[0] - losses[1]).abs()))
        if mode and grad:
            found["words"].append((net.received() - before, net.planned_words().step[dist.get_rank()]))
    gradients = zip(net.parameters(), model.parameters(), strict=True)
    grads = [(each.grad.full_tensor() - own.grad).abs().max() for each, own in gradients]  # type: ignore
    found["gradient"] = float(max(grads))
    state = net.full_state_dict()
    found["state"] = max(float((state[key] - own).abs().max()) for key, own in model.state_dict().items())
    return found


def refused() -> dict[str, str]:
    """What is said of updates that the ranks cannot make."""

    def shorter(self: Any, mean: torch.Tensor) -> None:
        self.mean = mean.bfloat16()

    def again(self: Any, mean: torch.Tensor) -> None:
        checkpoint(lambda: self.mean.lerp_(mean, 0.1), use_reentrant=False)

    def a_part(self: Any, mean: torch.Tensor) -> None:
        self.mean[:4].lerp_(mean[:4], 0.1)

    models = {
        "graph": Running(FORMS["copy_"], detached=False),
        "dtype": Running(shorter),
        "checkpoint": Running(again),
        "part": Running(a_part),
        "new": Running(lambda self, mean: self.register_buffer("seen", mean)),
        "constant": Running(lambda self, mean: setattr(self, "mean", torch.zeros(8))),
        "parameter": Running(lambda self, mean: self.mean.copy_(mean * nn.Parameter(torch.ones(8)))),
    }
    said = {name: refusal(partial(synth.parallelize, model, SHAPE)) for name, model in models.items()}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "synth"))
    return said | {"replicas": refusal(partial(synth.parallelize, Running(replaced), SHAPE, mesh))}
