"""Decode a film of any length chunk by chunk on several ranks, with the same words as all of it at once.

    python examples/film_stream.py --latent 24,20 --chunks 4
    python examples/film_stream.py --diffusers --latent 12,10

What a user writes is in `decoded`. The decoder has the layers of diffusers' `AutoencoderKLWan`: causal
convolutions, each of which keeps the last two frames that it read. With `--diffusers` it is that class. The
rest measures: words are counted on the ranks, bytes are those of torch's allocator.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional

import synth
from synth.runtime.grid.allocation_counter import allocated

Caches = Iterator[Any]


def decoded(model: nn.Module, chunks: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The frames of each chunk of latents, the same on all ranks; only a chunk and the caches are held."""
    net, cache = None, None
    with torch.inference_mode():
        for latents in chunks:
            if net is None:
                net = synth.parallelize(model.eval(), (latents.shape, None), mode="inference", state="cache")
            frames, cache = net(latents, cache)
            yield frames.full_tensor()


class Causal(nn.Module):
    """A convolution of frames that sees no later frame. `kept` gets the frames that the next chunk needs."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, out, 3, padding=(0, 1, 1))

    def forward(self, x: torch.Tensor, before: Caches, kept: list[torch.Tensor]) -> torch.Tensor:
        """(b, channels, d, h, w) to (b, out, d, h, w)."""
        cache = next(before, None)
        cache = x.new_zeros(*x.shape[:2], 2, *x.shape[3:]) if cache is None else cache
        joined = torch.cat([cache, x], 2)
        kept.append(joined[:, :, -2:])
        return self.conv(joined)


class Norm(nn.Module):
    """Each position by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels, 1, 1, 1), channels**0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps positions."""
        return functional.silu(functional.normalize(x, dim=1) * self.gain)


class Residual(nn.Module):
    """Two normalized convolutions and a sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = Norm(channels), Causal(channels, channels)
        self.norm2, self.conv2 = Norm(channels), Causal(channels, channels)

    def forward(self, x: torch.Tensor, before: Caches, kept: list[torch.Tensor]) -> torch.Tensor:
        """Keeps positions."""
        h = self.conv1(self.norm1(x), before, kept)
        return x + self.conv2(self.norm2(h), before, kept)


class FilmDecoder(nn.Module):
    """Latents to frames: 4 times the rows and columns, twice the frames. The caches are its state."""

    def __init__(self, widths: tuple[int, int, int] = (64, 32, 16), latent: int = 4) -> None:
        super().__init__()
        deep, middle, fine = widths
        self.first, self.deep = Causal(latent, deep), Residual(deep)
        self.frames, self.up1 = Causal(deep, 2 * deep), nn.Conv3d(deep, middle, (1, 3, 3), padding=(0, 1, 1))
        self.middle, self.up2 = Residual(middle), nn.Conv3d(middle, fine, (1, 3, 3), padding=(0, 1, 1))
        self.fine, self.norm, self.last = Residual(fine), Norm(fine), Causal(fine, 3)

    def forward(
        self, latents: torch.Tensor, cache: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Latents (b, 4, d, h, w) and the caches of a chunk; frames (b, 3, 2 d, 4 h, 4 w) and caches."""
        before, kept = iter(cache or ()), list[torch.Tensor]()
        x = self.deep(self.first(latents, before, kept), before, kept)
        x = torch.stack(self.frames(x, before, kept).chunk(2, 1), 3).flatten(2, 3)
        x = self.up1(functional.interpolate(x, scale_factor=(1.0, 2.0, 2.0)))
        x = self.up2(functional.interpolate(self.middle(x, before, kept), scale_factor=(1.0, 2.0, 2.0)))
        return self.last(self.norm(self.fine(x, before, kept)), before, kept), kept


class WanDecoder(nn.Module):
    """The decoder of diffusers' `AutoencoderKLWan`, whose caches are handed in and out."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.conv, self.decoder = vae.post_quant_conv, vae.decoder
        self.caches = vae._cached_conv_counts["decoder"]

    def forward(
        self, latents: torch.Tensor, cache: list[Any] | None = None
    ) -> tuple[torch.Tensor, list[Any]]:
        """One frame of latents at a time, as the autoencoder itself decodes them."""
        kept = [None] * self.caches if cache is None else list(cache)
        frames = self.decoder(self.conv(latents), feat_cache=kept, feat_idx=[0], first_chunk=cache is None)
        return frames, kept


def wan(width: int = 8) -> WanDecoder:
    """A small one with random weights."""
    from diffusers import AutoencoderKLWan

    sizes = {"dim_mult": [1, 2, 2], "num_res_blocks": 1, "temperal_downsample": [False, True]}
    statistics = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    return WanDecoder(AutoencoderKLWan(base_dim=width, z_dim=4, **sizes, **statistics))


def alone(model: nn.Module, chunks: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The same chunks in one process."""
    cache = None
    with torch.inference_mode():
        for latents in chunks:
            frames, cache = model(latents, cache)
            yield frames


def measured(
    latent: tuple[int, int],
    chunks: int = 4,
    frames: int = 2,
    widths: tuple[int, int, int] = (64, 32, 16),
    diffusers: bool = False,
) -> dict[str, Any]:
    """Errors, words and bytes on all ranks, in order of chunks; the same facts on every rank."""
    torch.manual_seed(0)
    model = wan() if diffusers else FilmDecoder(widths)
    model.eval().requires_grad_(False)
    film = [torch.randn(1, 4, 1 if diffusers else frames, *latent) for _ in range(chunks)]
    facts: dict[str, Any] = {}
    right = list(alone(model, film)) if dist.get_rank() == 0 else []
    if right and not diffusers:
        with torch.inference_mode():
            whole = model(torch.cat(film, 2))[0]
        facts["chunks, one process"] = float((torch.cat(right, 2) - whole).abs().max())
        facts["bytes, film at once"] = allocated(lambda: model(torch.cat(film, 2))).peak
    made = list(decoded(model, film))
    if right:
        facts["error"] = max(float((a - b).abs().max()) for a, b in zip(made, right, strict=True))
        facts["largest"] = float(max(each.abs().max() for each in right))
    net = synth.parallelize(model, (film[0].shape, None), mode="inference", state="cache", check=False)
    words, peaks, cache = list[int](), list[int](), None
    with torch.inference_mode():
        for latents in film:
            seen, given, found = net.received(), cache, list[Any]()
            peak = allocated(lambda g=given, x=latents, f=found: f.append(net(x, g))).peak  # type: ignore[misc]
            cache = found[0][1]
            words.append(net.received() - seen)
            peaks.append(peak)
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, (facts, words, peaks))
    most = ([max(of) for of in zip(*each, strict=True)] for each in list(zip(*of_ranks, strict=True))[1:])
    return {**of_ranks[0][0], **dict(zip(("words", "bytes"), most, strict=True))}


def _rank(me: int, port: int, options: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=me, world_size=options.ranks)
    rows, columns = (int(each) for each in options.latent.split(","))
    found = measured((rows, columns), options.chunks, diffusers=options.diffusers)
    if me == 0:
        for name, value in found.items():
            print(f"{name:24}{value}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latent", default="24,20", help="rows and columns")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--diffusers", action="store_true", help="take the decoder from diffusers")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_rank, (port, options), nprocs=options.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
