"""Peak memory per rank of the decoder of a diffusion autoencoder: four ranks beside one process, inference.

python benchmarks/decoder_memory.py --latent 64 > benchmarks/results/decoder-memory.md

The decoder is that of AutoencoderKL (Rombach et al. 2022), with its 49,490,179 parameters. `--diffusers`
takes the class of that library, if it is installed. Bytes are those of torch's allocator: weights and what
else is live before, and what a forward pass allocates at most. One process holds the model itself; a rank
holds its shard of the weights, buffers for messages, and the values between and in layers.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional

import synth
from synth.network.memory.step_memory import step_memory
from synth.runtime.grid.allocation_counter import allocated, live_bytes

WIDTHS, PARAMETERS = (128, 256, 512, 512), 49_490_179
MIB = 2**20


class Residual(nn.Module):
    """Two normalized convolutions and a sum."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(channels), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = norm(out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        h = functional.silu(h)
        h = self.conv1(h)
        h = self.norm2(h)
        h = functional.silu(h)
        h = self.conv2(h)
        return self.shortcut(x) + h


class Attention(nn.Module):
    """Attention of one head over all positions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        y = self.norm(x).view(b, c, h * w).transpose(1, 2)
        q, k, v = (each(y).view(b, -1, 1, c).transpose(1, 2) for each in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v)
        y = self.out(y.transpose(1, 2).reshape(b, -1, c))
        return x + y.transpose(1, 2).reshape(b, c, h, w)


class Doubled(nn.Module):
    """Every position becomes four, and a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


def norm(channels: int) -> nn.GroupNorm:
    """As everywhere in the decoder."""
    return nn.GroupNorm(min(32, channels), channels, eps=1e-6)


def decoder(widths: tuple[int, ...] = WIDTHS) -> nn.Sequential:
    """From latents (b, 4, h, w) to images (b, 3, 8 h, 8 w)."""
    channels = widths[-1]
    layers: list[nn.Module] = [nn.Conv2d(4, channels, 3, padding=1)]
    layers += [Residual(channels, channels), Attention(channels), Residual(channels, channels)]
    for place, width in enumerate(reversed(widths)):
        layers += [Residual(channels, width), Residual(width, width), Residual(width, width)]
        channels = width
        if place + 1 < len(widths):
            layers.append(Doubled(channels))
    return nn.Sequential(*layers, norm(channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))


def of_diffusers(widths: tuple[int, ...]) -> nn.Module:
    """The same from diffusers."""
    from diffusers import AutoencoderKL

    kinds = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    whole = AutoencoderKL(block_out_channels=widths, layers_per_block=2, latent_channels=4, **kinds)
    found: nn.Module = whole.decoder
    return found


class Held(NamedTuple):
    """Bytes of a process: before the forward pass, and what that allocates at most; its seconds."""

    resident: int
    allocated: int
    seconds: float

    @property
    def total(self) -> int:
        """Bytes at most."""
        return self.resident + self.allocated

    @property
    def cells(self) -> str:
        """As cells of a table."""
        sizes = (self.resident, self.allocated, self.total)
        return " | ".join([*(f"{each / MIB:.1f}" for each in sizes), f"{self.seconds:.1f}"])


def held(run: Any, besides: int) -> Held:
    """What a process holds for a run, without so many bytes of the benchmark's own."""
    run()  # buffers and groups that later runs use again
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    resident = live_bytes() - besides
    return Held(resident, allocated(run).peak, seconds)


def rank(me: int, ranks: int, port: int, options: argparse.Namespace) -> None:
    """One rank. Rank 0 first runs the model alone, and prints the table at the end."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=me, world_size=ranks)
    torch.manual_seed(0)
    batch = torch.randn(1, 4, options.latent, options.latent)
    alone, right, net, before, planned = parallelized(batch, options, me == 0)
    with torch.inference_mode():
        shard = net.scatter(batch)
        found = net.gather(net(shard))
        apart = 0.0 if right is None else float((found - right).abs().max())
        del right, found
        received = net.received()
        net(shard)
        received = net.received() - received
        own = before + (4 * shard.numel() if shard.data_ptr() != batch.data_ptr() else 0)
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, (held(lambda: net(shard), own), received))
    if alone is not None:
        print_table(options, alone, told, apart, planned)
    dist.barrier()
    dist.destroy_process_group()


def parallelized(
    batch: torch.Tensor, options: argparse.Namespace, first: bool
) -> tuple[Held | None, torch.Tensor | None, Any, int, int]:
    """What the model holds and computes in one process, on the first rank; its network on the ranks.

    Then the bytes before both, and those that the plan says for the rank that holds most.
    """
    before = live_bytes()
    widths = tuple(width // options.narrow for width in WIDTHS)
    model = of_diffusers(widths) if options.diffusers else decoder(widths)
    model = model.eval().requires_grad_(False)
    parameters = sum(each.numel() for each in model.parameters())
    assert options.narrow > 1 or parameters == PARAMETERS, parameters
    alone, right = None, None
    if first:
        with torch.inference_mode():
            alone, right = held(lambda: model(batch), before), model(batch)
    plan = synth.plan_model(model, batch.shape, options.ranks)
    net = synth.parallelize(model, batch.shape, plan=plan)
    return alone, right, net, before, step_memory(plan, training=False).most * plan.word_bytes


def print_table(
    options: argparse.Namespace, alone: Held, told: list[Any], apart: float, planned: int
) -> None:
    """One row per process."""
    size = 8 * options.latent
    print(f"# Memory of a decoder on {len(told)} ranks, image {size} x {size}\n")
    print(__doc__.strip().split("\n\n")[-1] + "\n")
    print(f"`python benchmarks/decoder_memory.py {' '.join(sys.argv[1:])}`, float32, gloo.")
    print(f"Largest difference of a word from one process: {apart:.1e}.\n")
    print("| process | resident MiB | allocated MiB | together MiB | s | of one process | words received |")
    print("|---|---|---|---|---|---|---|")
    print(f"| one process | {alone.cells} | 1 | |")
    for number, (each, received) in enumerate(told):
        print(
            f"| rank {number} of {len(told)} | {each.cells} | {each.total / alone.total:.3f} | {received:,} |"
        )
    allocations = max(each.allocated for each, _ in told) / alone.allocated
    print(f"\nWithout what is resident, a rank allocates at most {allocations:.3f} of one process.")
    print(f"The plan says {planned / MIB:.1f} MiB together.", flush=True)


def main() -> None:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latent", type=int, default=64, help="rows and columns of the latents")
    parser.add_argument("--narrow", type=int, default=1, help="channels are so many times fewer")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--diffusers", action="store_true", help="take the model from diffusers")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank, (options.ranks, port, options), nprocs=options.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
