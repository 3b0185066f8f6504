"""Memory of whole networks on 2 and 4 ranks: what the plan says beside what torch's allocator counts.

python -m benchmarks.network_memory > benchmarks/results/network-memory.md

Bytes of the rank that holds most: weights and what else is live before, and what a forward pass or a training
step (without the optimizer) allocates at most. Plans move the fewest words, and memory is not limited. The
ranks run on one host, one thread each, in float32 over gloo. What the allocator's pages or Python take is not
counted.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import synth
from examples.decoders import decoder
from examples.models import CosmoFlow, ResNet
from examples.unet3d import UNet3d
from synth.network.memory.step_memory import step_memory
from synth.runtime.grid.allocation_counter import allocated, live_bytes

MIB = 2**20


class Case(NamedTuple):
    """A network with its batch. training: whether a training step is measured, too."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    training: bool = True


CASES = {
    "resnet50": Case(ResNet, (8, 3, 224, 224)),
    "wrn50_2": Case(lambda: ResNet(wide=2), (8, 3, 224, 224)),
    "cosmoflow": Case(lambda: CosmoFlow(128, norms=4), (4, 4, 128, 128, 128)),
    "cosmoflow, one volume": Case(lambda: CosmoFlow(128, norms=4), (1, 4, 128, 128, 128)),
    "unet3d": Case(lambda: UNet3d(base=16, levels=3), (4, 1, 64, 64, 64), True),
    "unet3d, one volume": Case(lambda: UNet3d(base=16, levels=3), (1, 1, 96, 96, 96), True),
    "vae decoder": Case(lambda: decoder(2)[1:], (1, 4, 64, 64), False),
}


def rank(me: int, ranks: int, port: int, name: str) -> None:
    """One rank; rank 0 prints the rows of the network."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=me, world_size=ranks)
    rows = [None] * ranks
    dist.all_gather_object(rows, measured(CASES[name]))
    if me == 0:
        for pass_ in rows[0] or {}:
            bytes_, planned = (max(row[pass_][place] for row in rows if row) for place in (0, 1))
            apart = [row[pass_][1] / row[pass_][0] for row in rows if row]
            size = "x".join(map(str, CASES[name].shape))
            print(
                f"| {name}, {size} | {ranks} | {pass_} | {planned / MIB:.1f} | {bytes_ / MIB:.1f} "
                f"| {planned / bytes_:.3f} | {min(apart):.3f} - {max(apart):.3f} |",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def measured(case: Case) -> dict[str, tuple[float, float]]:
    """Pass -> (bytes at most, as measured; as planned) on this rank."""
    torch.manual_seed(0)
    before = live_bytes()
    model = case.make().requires_grad_(case.training)
    plan = synth.plan_model(model, case.shape, dist.get_world_size())
    net = synth.parallelize(model, case.shape, plan=plan)
    del model
    shard = net.scatter(torch.randn(case.shape), "input")
    besides = before + shard.to_local().untyped_storage().nbytes()

    def forward() -> None:
        with torch.no_grad():
            net(shard)

    def step() -> None:
        out = net(shard)
        out.backward(torch.zeros_like(out))
        net.zero_grad()

    found: dict[str, tuple[float, float]] = {}
    runs: dict[str, Callable[[], Any]] = {"forward": forward} | ({"step": step} if case.training else {})
    for pass_, run in runs.items():
        run()  # buffers and groups that later runs use again
        planned = step_memory(plan, training=pass_ == "step")
        resident = live_bytes() - besides
        found[pass_] = resident + allocated(run).peak, plan.word_bytes * planned.peak[net.ranks.me]
    return found


def main() -> None:
    """Starts the ranks of every network, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", help=f"some of {', '.join(CASES)}; all by default")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    print(f"# Memory of networks\n\n{(__doc__ or '').strip().split(chr(10) * 2)[-1]}\n")
    print(
        "| network | ranks | pass | planned MiB | measured MiB | planned / measured | by rank |\n"
        "|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in options.networks or CASES:
        for ranks in options.ranks:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            mp.spawn(rank, (ranks, port, name), nprocs=ranks)


if __name__ == "__main__":
    main()
