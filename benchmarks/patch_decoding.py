"""Decoding by autoencoders of diffusers, of images and films: ours beside patch-parallel by hand.

    torchrun --nproc-per-node=4 -m benchmarks.patch_decoding [NAME ...] [--side 64] [--recompute 0.1]

The models are those of `vae_families`, with random weights in float32, on larger latents. By hand, as
serving projects have it: the image is cut into blocks with the smallest halos, every convolution of more
than one tap exchanges its halo, group normalizations sum two words of a group over all ranks, attention is
computed from the gathered map, and the blocks of the image are gathered. Films are cut in the same way, in
all frames; frames that causal convolutions keep for the next ones are kept with their halo. Ours gives the
whole image or film to every rank, too. Rounds alternate; seconds are medians, processor seconds are those of
all ranks. Bytes are what the busiest rank receives, as the kernel counts them on its sockets. "error" is the
largest distance from one process by its largest word. That of tiles is of `enable_tiling` of images, with
tiles of half the side and a quarter of overlap, for which ranks exchange nothing. Ours may compute a tenth
more for margins (`recompute=0.1`). "least" are the bytes that both gather: of the image, and of the maps
of attention. No halo is among them.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import torch
import torch.distributed as dist
from torch.nn import functional

import synth
from benchmarks.suite.contenders.collectives import gathering
from benchmarks.suite.contenders.spatial import Halo, Parts
from benchmarks.suite.models.by_hand import CONVS, OnWhole, SpatialGroupNorm, best_parts, block, joined
from benchmarks.suite.sockets import traffic
from benchmarks.vae_families import FAMILIES

IMAGES = ("SD", "SDXL", "SD3", "Flux", "Flux.2")
FILMS = ("Qwen-Image", "Wan 2.1", "Wan 2.2", "CogVideoX", "LTX")  # a film of one frame first
FRAMES = {"Qwen-Image": 1}  # of latents
ATTENTION = "Attention", "WanAttentionBlock", "QwenImageAttentionBlock"
HEAD = "| family | output | bytes | by hand | ours / theirs | least / theirs | s | by hand | ours / theirs |"
HEAD += " processor s | by hand | error | by hand | tiles |"
Decode = Callable[[], torch.Tensor]


class Cost(NamedTuple):
    """Of a decode: bytes of the busiest rank, wall seconds, processor seconds of all ranks."""

    received: int
    seconds: float
    processor: float


def main() -> None:
    """Measure the families on the ranks of this job; the first rank writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument(
        "--side", type=int, default=64, help="of the latents of images; films have half of it"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--recompute", type=float, default=0.1, help="share of work for margins of ours")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    synth.init_process_group("gloo")
    torch.set_grad_enabled(False)
    lines, ratios = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"], list[tuple[float, float]]()
    for name in args.names or (*IMAGES, *FILMS):
        line, ratio = measured(name, args.side // (1 + (name in FILMS)), args.rounds, args.recompute)
        lines.append(line)
        ratios.append(ratio)
        if dist.get_rank() == 0:
            print(line, flush=True)
    received, seconds = (statistics.geometric_mean(each) for each in zip(*ratios, strict=True))
    text = f"Ours by theirs in the geometric mean: bytes {received:.2f}, seconds {seconds:.2f}."
    if dist.get_rank() == 0:
        print(text)
    if args.output and dist.get_rank() == 0:
        about = " ".join((__doc__ or "").split("\n\n", 2)[2].split())
        versions = f"diffusers {diffusers.__version__}, torch {torch.__version__}, gloo, one thread per rank."
        head = "\n".join(textwrap.wrap(f"{versions} {about}", 110))
        title = f"# Decoding beside patch-parallel, {dist.get_world_size()} ranks"
        args.output.write_text("\n\n".join((title, head, text, "\n".join(lines))) + "\n")


def measured(name: str, side: int, rounds: int, recompute: float) -> tuple[str, tuple[float, float]]:
    """A line of the table, and ours by theirs: bytes, seconds."""
    kind, options, _ = FAMILIES[name]
    torch.manual_seed(0)
    model = getattr(diffusers, kind)(**options).eval().requires_grad_(False)
    channels, frames = options.get("latent_channels", 4), [FRAMES.get(name, 3)] * (name in FILMS)
    latents = torch.randn((1, channels, *frames, side, side), generator=torch.Generator().manual_seed(1))
    whole, least = gathered_bytes(model, latents)
    shape = tuple(whole.shape)
    vae: Any = synth.parallelize_vae(copy.deepcopy(model), shape, check=False, recompute=recompute)
    parts = (*[1] * len(frames), *best_parts((side, side), 1))
    hand = copy.deepcopy(model)
    in_blocks(hand.decoder, parts)

    def by_hand() -> torch.Tensor:
        own = hand.decode(block(latents, parts)).sample
        return joined(gathering(own, 0)().chunk(dist.get_world_size()), parts)

    def ours() -> torch.Tensor:
        made: torch.Tensor = vae.decode(latents, return_dict=False)[0]
        return made

    mine, theirs = costs([ours, by_hand], rounds)
    ways = [ours, by_hand] + [lambda: tiled(model, latents)] * (name in IMAGES)
    errors = [f"{far(each(), whole):.0e}" for each in ways] + [""] * (name in FILMS)
    shown = ["x".join(map(str, shape))]
    shown += [f"{mine.received:,}", f"{theirs.received:,}", f"{mine.received / theirs.received:.2f}"]
    shown += [f"{least / theirs.received:.2f}"]
    shown += [f"{mine.seconds:.3f}", f"{theirs.seconds:.3f}", f"{mine.seconds / theirs.seconds:.2f}"]
    shown += [f"{mine.processor:.3f}", f"{theirs.processor:.3f}", *errors]
    ratio = mine.received / theirs.received, mine.seconds / theirs.seconds
    return f"| {name} | {' | '.join(shown)} |", ratio


def in_blocks(model: torch.nn.Module, parts: Parts) -> None:
    """Let a decoder compute one of `parts` blocks, in place. parts: of an image's or a film's dimensions."""
    for name, child in model.named_children():
        if type(child).__name__ in ATTENTION:
            setattr(model, name, OnWhole(child, parts))
        elif isinstance(child, CONVS):
            child.forward = BlockConv(child, parts)
        elif isinstance(child, torch.nn.GroupNorm):
            setattr(model, name, SpatialGroupNorm(child))
        else:
            in_blocks(child, parts)


class BlockConv:
    """The forward of a convolution of stride 1 on a block, of an image, a film, or the frames of one."""

    def __init__(self, conv: Any, parts: Parts) -> None:
        self.conv, frames = conv, len(conv.kernel_size) - 2
        parts = (*[1] * frames, *parts[-2:])
        # causal convolutions of Wan pad by themselves: twice the padding in front of the frames
        pads = getattr(conv, "_padding", ())
        self.front = pads[4] if pads else 0
        rows = (*conv.padding[:frames], *((pads[2], pads[0]) if pads else conv.padding[-2:]))
        cut = [n > 1 and pad > 0 for n, pad in zip(parts, rows, strict=True)]
        self.halo = Halo(parts, rows) if any(cut) else None
        self.padding = tuple(0 if own else pad for own, pad in zip(cut, rows, strict=True))
        self.kept: torch.Tensor | None = None  # frames with their halo

    def __call__(self, share: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
        """The block of the output. cache_x: frames before these, of the block."""
        conv = self.conv
        run = functional.conv2d if len(self.padding) == 2 else functional.conv3d
        wide = share if self.halo is None else self.halo.widen(share.contiguous())
        if self.front:
            before = cache_x if self.halo is None else self.kept
            if cache_x is not None and before is not None:
                wide = torch.cat((before[:, :, -cache_x.shape[2] :], wide), 2)
            self.kept = wide[:, :, -self.front :]
            known = 0 if cache_x is None else cache_x.shape[2]
            wide = functional.pad(wide, (0, 0, 0, 0, self.front - known, 0))
        return run(wide, conv.weight, conv.bias, padding=self.padding, groups=conv.groups)


def gathered_bytes(model: Any, latents: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The image, and the bytes of it and of the maps of attention that a rank has to receive."""
    maps, hooks = list[int](), []
    for module in model.decoder.modules():
        if type(module).__name__ in ATTENTION:
            hooks.append(module.register_forward_pre_hook(lambda _, given: maps.append(given[0].nbytes)))
    whole: torch.Tensor = model.decode(latents).sample
    for each in hooks:
        each.remove()
    ranks = dist.get_world_size()
    return whole, (whole.nbytes + sum(maps)) * (ranks - 1) // ranks


def costs(ways: list[Decode], rounds: int) -> list[Cost]:
    """Of each way, in turn; the first two rounds are not counted."""
    found: list[list[tuple[float, float, float]]] = [[] for _ in ways]
    for _ in range(rounds + 2):
        for way, each in zip(ways, found, strict=True):
            dist.barrier()
            at, start, worked = traffic(), time.perf_counter(), time.process_time()
            way()
            numbers = [
                time.perf_counter() - start,
                time.process_time() - worked,
                traffic().since(at).received,
            ]
            most, total = torch.tensor(numbers), torch.tensor(numbers)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            dist.all_reduce(total)
            each.append((float(most[2]), float(most[0]), float(total[1])))
    medians = ([statistics.median(n) for n in zip(*each[2:], strict=True)] for each in found)
    return [Cost(int(received), seconds, processor) for received, seconds, processor in medians]


def tiled(model: Any, latents: torch.Tensor) -> torch.Tensor:
    """In one process, from tiles of half the side."""
    other, side = copy.deepcopy(model), latents.shape[-1]
    scale = 2 ** (len(other.config.block_out_channels) - 1)
    other.enable_tiling()
    other.tile_latent_min_size, other.tile_sample_min_size = side // 2, side // 2 * scale
    made: torch.Tensor = other.decode(latents).sample
    return made


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest distance, by the largest word; NaN where shapes differ."""
    if found.shape != wanted.shape:
        return math.nan
    return float((found - wanted).abs().max() / wanted.abs().max())


if __name__ == "__main__":
    main()
