"""Memory of whole networks on 2 and 4 ranks: what the plan says beside what torch's allocator counts.

python -m benchmarks.network_memory > benchmarks/results/network-memory.md

Bytes of the rank that holds most: weights and what else is live before, and what a forward pass or a training
step (without the optimizer) allocates at most. Plans move the fewest words, and memory is not limited. The
ranks run on one host, one thread each, in float32 over gloo. What the allocator's pages or Python take is not
counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import synth
from benchmarks.ranks import on_ranks
from benchmarks.suite.models.networks import Case
from examples.decoders import decoder
from examples.models import CosmoFlow, ResNet
from examples.unet3d import UNet3d
from synth.network.memory.step_memory import step_memory
from synth.network.plan.plan import NetworkPlan
from synth.runtime.grid.allocation_counter import least_peak, live_bytes

MIB = 2**20
PASSES = "forward", "step"


CASES = {
    "resnet50": Case(ResNet, (8, 3, 224, 224)),
    "wrn50_2": Case(lambda: ResNet(wide=2), (8, 3, 224, 224)),
    "cosmoflow": Case(lambda: CosmoFlow(128, norms=4), (4, 4, 128, 128, 128)),
    "cosmoflow, one volume": Case(lambda: CosmoFlow(128, norms=4), (1, 4, 128, 128, 128)),
    "unet3d": Case(lambda: UNet3d(base=16, levels=3), (4, 1, 64, 64, 64)),
    "unet3d, one volume": Case(lambda: UNet3d(base=16, levels=3), (1, 1, 96, 96, 96)),
    "vae decoder": Case(lambda: decoder(2)[1:], (1, 4, 64, 64), inference=True),
}


def rank(name: str) -> None:
    """One rank; rank 0 prints the rows of the network."""
    rows: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rows, of_case(CASES[name]))
    if dist.get_rank() > 0:
        return
    for pass_ in rows[0]:
        bytes_, planned = (max(row[pass_][place] for row in rows) for place in (0, 1))
        apart = [row[pass_][1] / row[pass_][0] for row in rows]
        size = "x".join(map(str, CASES[name].shape))
        print(
            f"| {name}, {size} | {len(rows)} | {pass_} | {planned / MIB:.1f} | {bytes_ / MIB:.1f} "
            f"| {planned / bytes_:.3f} | {min(apart):.3f} - {max(apart):.3f} |",
            flush=True,
        )


def of_case(case: Case) -> dict[str, tuple[float, float]]:
    """Pass -> (bytes at most, as measured; as planned) on this rank."""
    torch.manual_seed(0)
    before = live_bytes()
    model = case.make().requires_grad_(not case.inference)
    plan = synth.plan_model(model, case.shape, dist.get_world_size())
    net = synth.parallelize(model, case.shape, plan=plan)
    del model
    return beside_plan(net, plan, before, ("forward",) if case.inference else PASSES)


def beside_plan(
    net: Any, plan: NetworkPlan, before: int, passes: Sequence[str] = PASSES, times: int = 1
) -> dict[str, tuple[float, float]]:
    """Pass -> (bytes at most, as measured; as planned) of a network on this rank.

    before: `live_bytes` before the model was made. times: runs of which the least counts, after one that
    makes buffers and groups.
    """
    shape = plan.network.input
    shard = net.scatter(torch.randn(shape), "input")
    shard.requires_grad_(plan.request.input_gradient)
    besides = before + shard.to_local().untyped_storage().nbytes()

    def forward() -> None:
        with torch.no_grad():
            net(shard)

    def step() -> None:
        out = net(shard)
        out.backward(torch.zeros_like(out))
        net.zero_grad()
        shard.grad = None

    runs = {"forward": forward, "step": step}
    found = {}
    for pass_ in passes:
        runs[pass_]()
        planned = step_memory(plan, training=pass_ == "step").peak[net.ranks.me]
        resident = live_bytes() - besides
        measured = resident + least_peak(runs[pass_], times)
        found[pass_] = float(measured), float(plan.word_bytes * planned)
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
            on_ranks(ranks, rank, name)


if __name__ == "__main__":
    main()
