"""An autoencoder with the methods of diffusers, on real ranks beside one process."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import synth

SAMPLE, LATENTS = (1, 3, 16, 12), (1, 4, 8, 6)


class Gaussian:
    """A distribution by its parameters, as diffusers gives it."""

    def __init__(self, parameters: torch.Tensor) -> None:
        self.parameters = parameters
        self.mean, self.logvar = torch.chunk(parameters, 2, dim=1)
        self.std, self.deterministic = torch.exp(0.5 * self.logvar), False

    def mode(self) -> torch.Tensor:
        return self.mean

    def sample(self) -> torch.Tensor:
        drawn = torch.randn(
            self.mean.shape, generator=torch.Generator().manual_seed(3), dtype=self.mean.dtype
        )
        return self.mean + self.std * drawn


@dataclass
class Encoded:
    latent_dist: Gaussian


@dataclass
class Decoded:
    sample: torch.Tensor


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = functional.interpolate(x.float(), scale_factor=1.0, mode="nearest").type_as(x)
        made: torch.Tensor = x + self.conv(functional.silu(self.norm(up)))
        return made


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), Block(8), nn.Conv2d(8, 8, 3, padding=1)
        )
        self.decoder = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), Block(8), nn.Upsample(scale_factor=2))
        self.last = nn.Conv2d(8, 3, 3, padding=1)
        self.use_tiling, self._config = True, SimpleNamespace(scaling_factor=0.5)

    @property
    def config(self) -> Any:
        return self._config

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def enable_tiling(self, side: int = 8) -> None:
        self.use_tiling = True

    def disable_tiling(self) -> None:
        self.use_tiling = False

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
        made = Gaussian(self.encoder(x))
        return Encoded(made) if return_dict else (made,)

    def decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        if self.use_tiling:
            raise RuntimeError("tiles")
        made = self.last(self.decoder(z))
        return Decoded(made) if return_dict else (made,)

    def forward(self, x: torch.Tensor) -> Any:
        return self.decode(self.encode(x).latent_dist.mode())


def model() -> Autoencoder:
    torch.manual_seed(0)
    return Autoencoder().double().requires_grad_(False)


def values(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def pipeline(outputs: str) -> dict[str, float]:
    """What a pipeline reads of an autoencoder: distances from one process."""
    right, given = model().eval(), model()
    right.use_tiling = False
    vae: Any = synth.parallelize_vae(given, SAMPLE, outputs=outputs)  # type: ignore[arg-type]
    vae.enable_tiling(side=4)
    x, z = values(SAMPLE), values(LATENTS)
    kind = torch.Tensor if outputs == "whole" else type(vae.decode(z).sample)
    pairs = {
        "decode": (vae.decode(z).sample, right.decode(z).sample),
        "decode, tuple": (vae.decode(z, return_dict=False)[0], right.decode(z, return_dict=False)[0]),
        "decode, copy": (copy.deepcopy(vae).decode(z).sample, right.decode(z).sample),
        "decode, two": (vae.decode(z.repeat(2, 1, 1, 1)).sample, right.decode(z.repeat(2, 1, 1, 1)).sample),
        "decode, other": (vae.decode(z[..., :5]).sample, right.decode(z[..., :5]).sample),
        "mode": (vae.encode(x).latent_dist.mode(), right.encode(x).latent_dist.mode()),
        "sample": (vae.encode(x).latent_dist.sample(), right.encode(x).latent_dist.sample()),
        "forward": (vae(x).sample, right(x).sample),
    }
    assert all(type(found) is kind for name, (found, _) in pairs.items() if name != "sample")
    assert (vae.config.scaling_factor, vae.dtype) == (0.5, torch.float64)
    return {name: float((whole(found) - wanted).abs().max()) for name, (found, wanted) in pairs.items()}


def whole(given: Any) -> torch.Tensor:
    made: torch.Tensor = given.full_tensor() if hasattr(given, "full_tensor") else given
    return made


def refused() -> str:
    try:
        synth.parallelize_vae(nn.Conv2d(3, 3, 3), SAMPLE)
    except synth.UsageError as error:
        return str(error)
    return f"accepted on rank {dist.get_rank()}"


def gradients() -> float:
    """Whole outputs in training: each rank computes one loss of them."""
    right, net = nn.Conv2d(3, 4, 3).double(), None
    torch.manual_seed(2)
    right.reset_parameters()
    net = synth.parallelize(copy.deepcopy(right), SAMPLE, outputs="whole", objective="words")
    x = values(SAMPLE)
    for each in (right, net):
        each(x).square().mean().backward()
    grad: Any = net.weight.grad
    assert right.weight.grad is not None
    return float((whole(grad) - right.weight.grad).abs().max())
