"""Models that compute a film, or a sound, chunk by chunk: what they give last is their state."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

State = list[torch.Tensor]


class Causal(nn.Module):
    """A convolution of frames that reads those before, of which it keeps the last."""

    def __init__(self, channels: int, out: int, frames: int = 3) -> None:
        super().__init__()
        self.kept = frames - 1
        self.conv = nn.Conv3d(channels, out, (frames, 3, 3), padding=(0, 1, 1))

    def forward(self, x: torch.Tensor, cache: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if cache is None:
            cache = x.new_zeros(*x.shape[:2], self.kept, *x.shape[3:])
        joined = torch.cat([cache, x], 2)
        made: torch.Tensor = self.conv(joined)
        return made, joined[:, :, -self.kept :]


class Norm(nn.Module):
    """Each position by itself, as the decoders of films have it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(x, dim=1) * x.shape[1] ** 0.5


class Decoder(nn.Module):
    """Latents of films to frames: three causal convolutions, twice the rows and columns, twice the frames."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.first, self.norm = Causal(2, channels), Norm()
        self.second = Causal(channels, 2 * channels)  # of which each half is a frame
        self.last = Causal(channels, 3, 2)

    def forward(self, chunk: torch.Tensor, cache: State | None = None) -> tuple[torch.Tensor, State]:
        one, two, three = cache or (None, None, None)
        x, one = self.first(chunk, one)
        x = functional.interpolate(functional.silu(self.norm(x)), scale_factor=(1.0, 2.0, 2.0))
        y, two = self.second(x, two)
        y = torch.stack(y.chunk(2, 1), 3).flatten(2, 3)
        frames, three = self.last(functional.silu(y), three)
        return frames, [one, two, three]


class Recurrent(nn.Module):
    """A cell with convolutions and a running mean: a state in a dict, with a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.out = nn.Conv2d(5, 8, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)

    def forward(
        self, x: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        gate, new = self.gates(torch.cat([x, state["h"]], 1)).chunk(2, 1)
        h = state["h"] + gate.sigmoid() * (new.tanh() - state["h"])
        return self.out(h), {"h": h, "mean": 0.9 * state["mean"] + 0.1 * h.mean()}


def film(frames: int, seed: int = 0, size: tuple[int, int] = (9, 6)) -> torch.Tensor:
    """Latents, in float64."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, frames, *size, generator=drawn, dtype=torch.float64)


def caches(channels: int = 4, size: tuple[int, int] = (9, 6)) -> State:
    """The state of a `Decoder` before the first frame."""
    (h, w), zeros = size, torch.zeros
    shapes = ((1, 2, 2, h, w), (1, channels, 2, 2 * h, 2 * w), (1, channels, 1, 2 * h, 2 * w))
    return [zeros(shape, dtype=torch.float64) for shape in shapes]
