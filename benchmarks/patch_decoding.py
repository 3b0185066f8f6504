"""Decoding of images by autoencoders of diffusers: ours beside patch-parallel by hand, and beside tiles.

    torchrun --nproc-per-node=4 -m benchmarks.patch_decoding [NAME ...] [--side 32] [--recompute 0.1]

The models are those of `vae_families`, with random weights in float32, on larger latents. By hand, as
serving projects have it: the image is cut into blocks with the smallest halos, every convolution of more
than one tap exchanges its halo, group normalizations sum two words of a group over all ranks, attention is
computed from the gathered map, and the blocks of the image are gathered. Ours gives the whole image to
every rank, too. Rounds alternate; seconds are medians, processor seconds are those of all ranks. Bytes are
what the busiest rank receives, as the kernel counts them on its sockets. "error" is the largest distance
from one process by its largest word. That of tiles is of `enable_tiling` with tiles of half the side and a
quarter of overlap, for which ranks exchange nothing. Ours may compute a tenth more for margins
(`recompute=0.1`). "least" are the bytes that both gather: of the image, and of the maps of attention. No
halo is among them.
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

import synth
from benchmarks.suite.contenders.collectives import gathering
from benchmarks.suite.models.by_hand import best_parts, block, joined, spatial
from benchmarks.suite.sockets import traffic
from benchmarks.vae_families import FAMILIES

IMAGES = ("SD", "SDXL", "SD3", "Flux", "Flux.2")
HEAD = "| family | image | bytes | by hand | ours / theirs | least / theirs | s | by hand | ours / theirs |"
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
    parser.add_argument("--side", type=int, default=32, help="of the latents")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--recompute", type=float, default=0.1, help="share of work for margins of ours")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    synth.init_process_group("gloo")
    torch.set_grad_enabled(False)
    lines, ratios = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"], list[tuple[float, float]]()
    for name in args.names or IMAGES:
        line, ratio = measured(name, args.side, args.rounds, args.recompute)
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
    channels = options.get("latent_channels", 4)
    latents = torch.randn((1, channels, side, side), generator=torch.Generator().manual_seed(1))
    whole, least = gathered_bytes(model, latents)
    image = tuple(whole.shape)
    vae: Any = synth.parallelize_vae(copy.deepcopy(model), image, check=False, recompute=recompute)
    parts = best_parts((side, side), 1)
    hand = spatial(copy.deepcopy(model.decoder), parts, ("Attention",), norms=True)
    before = model.post_quant_conv or torch.nn.Identity()

    def by_hand() -> torch.Tensor:
        own = hand(block(before(latents), parts))
        return joined(gathering(own, 0)().chunk(dist.get_world_size()), parts)

    def ours() -> torch.Tensor:
        made: torch.Tensor = vae.decode(latents, return_dict=False)[0]
        return made

    mine, theirs = costs([ours, by_hand], rounds)
    errors = [far(each(), whole) for each in (ours, by_hand, lambda: tiled(model, latents))]
    shown = ["x".join(map(str, image))]
    shown += [f"{mine.received:,}", f"{theirs.received:,}", f"{mine.received / theirs.received:.2f}"]
    shown += [f"{least / theirs.received:.2f}"]
    shown += [f"{mine.seconds:.3f}", f"{theirs.seconds:.3f}", f"{mine.seconds / theirs.seconds:.2f}"]
    shown += [f"{mine.processor:.3f}", f"{theirs.processor:.3f}", *(f"{each:.0e}" for each in errors)]
    ratio = mine.received / theirs.received, mine.seconds / theirs.seconds
    return f"| {name} | {' | '.join(shown)} |", ratio


def gathered_bytes(model: Any, latents: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The image, and the bytes of it and of the maps of attention that a rank has to receive."""
    maps, hooks = list[int](), []
    for module in model.decoder.modules():
        if type(module).__name__ == "Attention":
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
