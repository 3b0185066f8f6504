"""Models of the precision tests: every kind of step, without kinks where gradients are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from zoo import Few, Mixed, Partly, Skips, Transposed, tiny


class Volumes(nn.Module):
    """Poolings of volumes, which autocast on a CPU computes in float32, joined to lower precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8)
        self.most, self.mean = nn.MaxPool3d(2), nn.AvgPool3d(3, 2, 1, count_include_pad=False)
        self.second, self.group = nn.Conv3d(16, 8, 3, padding=1, groups=2), nn.GroupNorm(4, 8)
        self.up = nn.Upsample(scale_factor=2, mode="trilinear", align_corners=True)
        self.each, self.last = nn.AdaptiveAvgPool3d(2), nn.AdaptiveAvgPool3d(1)
        self.head = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.second(torch.cat([self.most(x), self.mean(x)], 1))
        # no value is near the bound: there the gradient jumps, and rounding decides to which side
        y = self.up(torch.sigmoid(self.group(x)) * x.clamp(max=8).exp())
        return self.head(self.last(self.each(y) + 1).flatten(1))


class Lines(nn.Module):
    """One dimension, a linear layer between, a gathered softmax, dropout that drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pool, self.norm = nn.Conv1d(4, 12, 5, padding=2), nn.AvgPool1d(2), nn.BatchNorm1d(12)
        self.words, self.layer = nn.Linear(12, 16), nn.LayerNorm(16)
        self.drop, self.last = nn.Dropout(0.0), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.pool(self.one(x))).transpose(1, 2)
        x = self.layer(nn.functional.gelu(self.words(x))).softmax(-1) * 4
        return self.last(self.drop(x).mean(1).square().log1p())


class Smooth(Skips):
    """The small U-Net without kinks: an error of rounding stays one in the gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.silu(self.norm(self.down(x)))
        y = self.up(nn.functional.silu(self.deep(nn.functional.avg_pool2d(x, 2))))
        return self.head(torch.tanh(self.back(torch.cat([y, x], 1))))


class Checkpointed(nn.Module):
    """A part that is computed again in the backward pass, by then outside of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda x: torch.tanh(self.norm(self.two(x))), self.one(x), use_reentrant=False)
        return self.three(y).exp()


class Regions(nn.Module):
    """A part in float32 inside of autocast, and a part in bfloat16 outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        with torch.autocast(x.device.type, enabled=False):
            y = self.two(x.float()) * 3
        with torch.autocast("cpu", torch.bfloat16):
            z = torch.sigmoid(self.three(y))
        return torch.cat([z + x, (x + x).float(), y], 1)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mixed": (Mixed, (4, 3, 12, 10)),
    "skips": (Skips, (4, 3, 8, 8)),
    "smooth": (Smooth, (4, 3, 8, 8)),
    "transposed": (Transposed, (4, 4, 5, 6)),
    "few": (Few, (3, 3, 3, 3)),
    "partly": (Partly, (4, 4, 8, 8)),
    "volumes": (Volumes, (4, 2, 8, 8, 8)),
    "checkpointed": (Checkpointed, (4, 4, 8, 8)),
    "lines": (Lines, (4, 4, 16)),
}


class Logits(nn.Module):
    """A model of a library; of what it gives, the tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: Any = self.model(x)
        result: torch.Tensor = getattr(out, "logits", out)
        return result


def built(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A model by its name, here or among those of libraries, and the shape of its input."""
    if name in MODELS:
        make, shape = MODELS[name]
        return make(), shape
    model, shape = tiny()[name]
    return Logits(model), shape


class Read(nn.Module):
    """What a model computes from the dtypes of its values, in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = self.one(x)
        rows = y.flatten(2).transpose(1, 2)
        hidden = (rows @ rows.mT).masked_fill(x[:, :1].flatten(2) > 0, torch.finfo(rows.dtype).min)
        halves = y.clamp(-0.1, 0.1) if y.dtype == torch.bfloat16 else y
        held = y.clone()
        held[:, 1:] = 0.5
        moved = torch.zeros(y.shape, dtype=y.dtype, device=y.device)
        moved[..., 1:] = y[..., :-1]
        with torch.autocast(x.device.type, enabled=False):
            plain = self.two(y.float())
        more = [self.two(halves), torch.zeros_like(y) + held, moved, plain.to(y.dtype), y.to(x.dtype)]
        return [hidden.softmax(-1) @ rows, *more]
