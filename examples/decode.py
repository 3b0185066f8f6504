"""Decode an image or a film on several ranks, and compare memory, words and values with one process.

    python examples/decode.py image --latent 61,51
    python examples/decode.py video --latent 3,25,21 --width 8

What a user writes is in `decoded`. The rest measures: bytes are those of torch's allocator (weights, and what
a pass allocates at most); words are counted on the ranks. Beside them stand two other ways to use several
ranks: each layer gathers its whole input, and tiles that overlap (diffusers' `enable_tiling`), one per rank.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import decoders  # type: ignore[import-not-found,unused-ignore]

import synth
from synth.runtime.grid.allocation_counter import allocated, live_bytes


def decoded(model: nn.Module, latents: torch.Tensor, memory: str | None = None) -> torch.Tensor:
    """The image, or film, of some latents, computed by all ranks of the job; the same on all of them."""
    net = synth.parallelize(model.eval(), latents.shape, mode="inference", memory=memory)
    with torch.inference_mode():
        return net(latents).full_tensor()


def measured(
    kind: str,
    latent: tuple[int, ...],
    widths: tuple[int, ...] = decoders.WIDTHS,
    blocks: int = 3,
    memory: str | None = None,
    diffusers: bool = False,
) -> dict[str, Any]:
    """Errors, bytes and words of a decoder on all ranks; the same facts on every rank.

    latent: (rows, columns) or (frames, rows, columns). The first rank also computes alone and with tiles.
    """
    dims, ranks = len(latent), dist.get_world_size()
    assert dims == {"image": 2, "video": 3}[kind]
    torch.manual_seed(0)
    latents, before = torch.randn(1, 4, *latent), live_bytes()
    model = decoders.of_diffusers(dims, widths) if diffusers else decoders.decoder(dims, widths, blocks)
    model.requires_grad_(False)
    alone: dict[str, Any] = {}
    plans: list[Any] = [None]
    if dist.get_rank() == 0:
        alone = _alone(model, latents, before)
        plans = [synth.plan_model(model, latents.shape, ranks, memory=memory, mode="inference")]
        alone["planned words"] = max(plans[0].words.forward)
    dist.broadcast_object_list(plans)
    (plan,) = plans
    net = synth.parallelize(model, latents.shape, plan=plan, mode="inference")
    del model
    with torch.inference_mode():
        shard = net.scatter(latents)
        right = alone.pop("right", None)
        error = 0.0 if right is None else float((net(shard).full_tensor() - right).abs().max())
        if right is None:
            net(shard).full_tensor()
        del right
        words = net.received()
        net(shard)
        words = net.received() - words
        own = before + shard.to_local().untyped_storage().nbytes()
        held = live_bytes() - own + allocated(lambda: net(shard)).peak
    of_ranks: list[Any] = [None] * ranks
    dist.all_gather_object(of_ranks, {"held": held, "words": words, "error": error, "alone": alone})
    layers = [node for node in plan.network.planned if node.weighted]
    return {
        **of_ranks[0]["alone"],
        "error": of_ranks[0]["error"],
        "held": max(each["held"] for each in of_ranks),
        "words": max(each["words"] for each in of_ranks),
        "planned bytes": plan.held_bytes,
        "gathered words": sum(node.in_words for node in layers) * (ranks - 1) // ranks,
    }


def _alone(model: nn.Module, latents: torch.Tensor, before: int) -> dict[str, Any]:
    """One process: its bytes, its output, and how far the output of four overlapping tiles is from it.

    The tiles are those of which a quarter is blended with the next, and of which two cover rows and columns.
    """
    size = latents.shape[-2:]
    tile = tuple(-(-4 * -(-each // 2) // 3) for each in size)
    with torch.inference_mode():
        right = model(latents)
        held = live_bytes() - before - right.untyped_storage().nbytes()
        held += allocated(lambda: model(latents)).peak
        apart = (decoders.tiled(model, latents, tile) - right).abs()
    frames = right.shape[2] if right.dim() == 5 else 1
    rows, columns = 8 * tile[0], 8 * tile[1]
    return {
        "right": right,
        "alone": held,
        "largest": float(right.abs().max()),
        "tile error": float(apart.max()),
        "tile work": 4 * tile[0] * tile[1] / (size[0] * size[1]),  # of the largest tile, in even shares
        # what is blended with the last tile, from the tiles above and before it
        "tile words": 3 * frames * (rows // 4 * columns // 2 + columns // 4 * rows // 2),
    }


def _rank(me: int, port: int, options: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=me, world_size=options.ranks)
    latent = tuple(int(each) for each in options.latent.split(","))
    widths = tuple(width // options.width for width in decoders.WIDTHS)
    found = measured(options.kind, latent, widths, memory=options.memory, diffusers=options.diffusers)
    if me == 0:
        for name, value in found.items():
            print(f"{name:16}{value:,.6g}" if isinstance(value, float) else f"{name:16}{value:,}")
        print(f"{'of one process':16}{found['held'] / found['alone']:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("image", "video"))
    parser.add_argument("--latent", default="61,51", help="rows and columns, of films frames first")
    parser.add_argument("--width", type=int, default=4, help="channels are so many times fewer")
    parser.add_argument("--memory", help="limit of the plan, per rank")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--diffusers", action="store_true", help="take the model from diffusers")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_rank, (port, options), nprocs=options.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
