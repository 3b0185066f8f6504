"""Decoders of image and video autoencoders, in plain torch.

They have the layers of diffusers' `AutoencoderKL` (Rombach et al., CVPR 2022) and of its causal
`AutoencoderKLHunyuanVideo` (Kong et al., 2024). `of_diffusers` takes the classes themselves, where diffusers
is installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (128, 256, 512, 512)  # channels, from the finest to the coarsest resolution


class CausalConv3d(nn.Module):
    """A convolution of frames that sees no later frame; the first frame and the border are repeated."""

    def __init__(self, channels: int, out: int, kernel: int = 3) -> None:
        super().__init__()
        self.around = (kernel // 2,) * 4 + (kernel - 1, 0)
        self.conv = nn.Conv3d(channels, out, kernel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, channels, d, h, w) to (b, out, d, h, w)."""
        return self.conv(functional.pad(x, self.around, mode="replicate"))


def conv(dims: int, channels: int, out: int, kernel: int = 3) -> nn.Module:
    """A convolution of an image, or a causal one of frames."""
    if dims == 3:
        return CausalConv3d(channels, out, kernel)
    return nn.Conv2d(channels, out, kernel, padding=kernel // 2)


def norm(channels: int) -> nn.GroupNorm:
    """As everywhere in these decoders."""
    return nn.GroupNorm(min(32, channels // 2), channels, eps=1e-6)


class Residual(nn.Module):
    """Two normalized convolutions and a sum."""

    def __init__(self, dims: int, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(channels), conv(dims, channels, out)
        self.norm2, self.conv2 = norm(out), conv(dims, out, out)
        self.shortcut = conv(dims, channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps positions."""
        h = self.conv1(functional.silu(self.norm1(x)))
        h = self.conv2(functional.silu(self.norm2(h)))
        return self.shortcut(x) + h


class Attention(nn.Module):
    """Attention of one head over all positions; of frames, over those of no later frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps positions."""
        positions = x.shape[2:]
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (each(y).unsqueeze(1) for each in (self.query, self.key, self.value))
        mask = None
        if len(positions) == 3:
            frame = torch.arange(positions[0]).repeat_interleave(positions[1] * positions[2])
            mask = frame[:, None] >= frame[None, :]
        y = self.out(functional.scaled_dot_product_attention(q, k, v, mask).squeeze(1))
        return x + y.transpose(1, 2).reshape(x.shape)


class Doubled(nn.Module):
    """Every position becomes four, or eight; a first frame stays one. Then a convolution."""

    def __init__(self, dims: int, channels: int, frames: int = 1) -> None:
        super().__init__()
        self.frames, self.conv = float(frames), conv(dims, channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, h, w) to (b, c, 2 h, 2 w); d frames become 1 + frames * (d - 1)."""
        if x.dim() == 4:
            return self.conv(functional.interpolate(x, scale_factor=2.0))
        first, others = x.split((1, x.shape[2] - 1), dim=2)
        first = functional.interpolate(first.squeeze(2), scale_factor=2.0).unsqueeze(2)
        others = functional.interpolate(others, scale_factor=(self.frames, 2.0, 2.0))
        return self.conv(torch.cat((first, others), dim=2))


def decoder(dims: int, widths: tuple[int, ...] = WIDTHS, blocks: int = 3, latent: int = 4) -> nn.Sequential:
    """From latents (b, latent, ...) to images or films (b, 3, ...) with eight times as many rows and columns.

    dims: 2 for images, 3 for films, of which d latent frames become 4 (d - 1) + 1. blocks: per resolution.
    """
    channels = widths[-1]
    first: type[nn.Module] = nn.Conv2d if dims == 2 else nn.Conv3d
    layers: list[nn.Module] = [first(latent, latent, 1), conv(dims, latent, channels)]  # type: ignore[call-arg]
    layers += [Residual(dims, channels, channels), Attention(channels), Residual(dims, channels, channels)]
    for place, width in enumerate(reversed(widths)):
        for _ in range(blocks):
            layers.append(Residual(dims, channels, width))
            channels = width
        if place + 1 < len(widths):
            layers.append(Doubled(dims, channels, frames=2 if place else 1))
    layers += [norm(channels), nn.SiLU(), conv(dims, channels, 3)]
    return nn.Sequential(*layers).eval()


def of_diffusers(dims: int, widths: tuple[int, ...] = WIDTHS, latent: int = 4) -> nn.Sequential:
    """The same from diffusers. Raises `ImportError` without it."""
    import diffusers

    options = {"block_out_channels": widths, "latent_channels": latent, "layers_per_block": 2}
    options["norm_num_groups"] = min(32, widths[0] // 2)
    vae: Any
    if dims == 3:
        vae = diffusers.AutoencoderKLHunyuanVideo(**options)
    else:
        kinds = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
        vae = diffusers.AutoencoderKL(**options, **kinds)
    return nn.Sequential(vae.post_quant_conv, vae.decoder).eval()


def tiled(
    model: nn.Module, latents: torch.Tensor, tile: tuple[int, ...], overlap: float = 0.25
) -> torch.Tensor:
    """Decode tiles of latents that overlap, and blend them, as diffusers' `enable_tiling` does.

    tile: rows and columns of the latents. overlap: the part of a tile that is blended with the next.
    """
    steps = [max(1, int(size * (1 - overlap))) for size in tile]
    blends = [8 * (size - step) for size, step in zip(tile, steps, strict=True)]
    made: list[list[torch.Tensor]] = []
    for row, top in enumerate(range(0, latents.shape[-2], steps[0])):
        made.append([])
        for column, left in enumerate(range(0, latents.shape[-1], steps[1])):
            part = model(latents[..., top : top + tile[0], left : left + tile[1]])
            if row:
                part = _blended(made[row - 1][column], part, blends[0], -2)
            if column:
                part = _blended(made[row][column - 1], part, blends[1], -1)
            made[row].append(part)
    kept = [torch.cat([p[..., : 8 * steps[0], : 8 * steps[1]] for p in parts], -1) for parts in made]
    return torch.cat(kept, -2)[..., : 8 * latents.shape[-2], : 8 * latents.shape[-1]]


def _blended(before: torch.Tensor, after: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """`after` with its first rows mixed with the last ones of the tile before it."""
    size = min(size, before.shape[dim], after.shape[dim])
    shape = [-1 if d == dim % after.dim() else 1 for d in range(after.dim())]
    weight = (torch.arange(size, dtype=after.dtype) / size).reshape(shape)
    last, first = before.narrow(dim, before.shape[dim] - size, size), after.narrow(dim, 0, size)
    rest = after.narrow(dim, size, after.shape[dim] - size)
    return torch.cat([last * (1 - weight) + first * weight, rest], dim)
