"""Peak memory per rank of the decoder of a diffusion autoencoder: four ranks beside one process, inference.

python -m benchmarks.decoder_memory --latent 64 > benchmarks/results/decoder-memory.md

The decoder is that of AutoencoderKL (Rombach et al. 2022), with its 49,490,179 parameters. `--diffusers`
takes the class of that library, if it is installed. Bytes are those of torch's allocator: weights and what
else is live before, and what a forward pass allocates at most. One process holds the model itself; a rank
holds its shard of the weights, buffers for messages, and the values between and in layers.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import synth
from benchmarks.ranks import on_ranks
from examples import decoders
from synth.network.memory.step_memory import step_memory
from synth.runtime.grid.allocation_counter import allocated, live_bytes

PARAMETERS = 49_490_179
MIB = 2**20


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


def rank(options: argparse.Namespace) -> None:
    """One rank. Rank 0 first runs the model alone, and prints the table at the end."""
    torch.manual_seed(0)
    batch = torch.randn(1, 4, options.latent, options.latent)
    alone, right, net, before, planned = parallelized(batch, options, dist.get_rank() == 0)
    with torch.inference_mode():
        shard = net.scatter(batch)
        found = net.gather(net(shard))
        apart = 0.0 if right is None else float((found - right).abs().max())
        del right, found
        received = net.received()
        net(shard)
        received = net.received() - received
        local = shard.to_local()
        own = before + (4 * local.numel() if local.data_ptr() != batch.data_ptr() else 0)
        of_ranks: list[Any] = [None] * options.ranks
        dist.all_gather_object(of_ranks, (held(lambda: net(shard), own), received))
    if alone is not None:
        print_table(options, alone, of_ranks, apart, planned)


def parallelized(
    batch: torch.Tensor, options: argparse.Namespace, first: bool
) -> tuple[Held | None, torch.Tensor | None, Any, int, int]:
    """What the model holds and computes in one process, on the first rank; its network on the ranks.

    Then the bytes before both, and those that the plan says for the rank that holds most.
    """
    before = live_bytes()
    widths = tuple(width // options.narrow for width in decoders.WIDTHS)
    build = decoders.of_diffusers if options.diffusers else decoders.decoder
    model = build(2, widths)[1:].requires_grad_(False)  # without the 1x1 convolution before the decoder
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
    options: argparse.Namespace, alone: Held, of_ranks: list[Any], apart: float, planned: int
) -> None:
    """One row per process. of_ranks: by rank, what it holds and the words that it receives."""
    size = 8 * options.latent
    print(f"# Memory of a decoder on {len(of_ranks)} ranks, image {size} x {size}\n")
    print(__doc__.strip().split("\n\n")[-1] + "\n")
    print(f"`python -m benchmarks.decoder_memory {' '.join(sys.argv[1:])}`, float32, gloo.")
    print(f"Largest difference of a word from one process: {apart:.1e}.\n")
    print("| process | resident MiB | allocated MiB | together MiB | s | of one process | words received |")
    print("|---|---|---|---|---|---|---|")
    print(f"| one process | {alone.cells} | 1 | |")
    for number, (each, received) in enumerate(of_ranks):
        share = each.total / alone.total
        print(f"| rank {number} of {len(of_ranks)} | {each.cells} | {share:.3f} | {received:,} |")
    allocations = max(each.allocated for each, _ in of_ranks) / alone.allocated
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
    on_ranks(options.ranks, rank, options)


if __name__ == "__main__":
    main()
