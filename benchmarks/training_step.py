"""One training step of a layer on gloo ranks of this machine: ours, DDP and FSDP2, alternating.

    python benchmarks/training_step.py [--rounds 7] [--procs 4 8] [LAYER.yaml ...]

Without layer files: 3x3 layers of ResNet-50, the widest of WRN-50-4, and one of VGG-16, 32 samples each.

A step is forward, backward and an SGD update; every rank begins with its share of the batch (ours: of In)
and all three begin with the same weights. Bytes that a rank receives are given twice: by formula (ours: the
plan's words; DDP: an all-reduce of dKer, 2 n (p-1)/p; FSDP2: an all-gather of Ker and a reduce-scatter of
dKer, n (p-1)/p each, the weights of a root module being kept from forward to backward), and as counted at
the loopback device: all bytes that it received in a step, over the ranks, the least of all rounds because
others may use it too. What gloo sends beyond the formulas is in the second number.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import describe

RESULTS = Path(__file__).parent / "results" / "training_step.md"
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LAYERS = ("resnet50/conv3_x_3x3", "resnet50/conv5_x_3x3", "wrn50_4/conv5_x_3x3", "vgg16/conv4_2")
METHODS = ("ours", "DDP", "FSDP2")


def loopback() -> int:
    """Bytes that the loopback device received since the machine started."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def make(method: str, layer: Any, whole: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The model of a method, and how it takes its share of the batch."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import synth

    if method == "ours":
        plan = synth.plan(layer, dist.get_world_size(), pass_="training", exact_procs=True)
        model = synth.distributed_conv(plan)
        model.load_full_state_dict(whole.state_dict())
        return model, model.share
    if method == "DDP":
        return DistributedDataParallel(whole), samples
    return fully_shard(whole), samples


def samples(inputs: Any) -> Any:
    """A rank's samples."""
    import torch.distributed as dist

    return inputs.tensor_split(dist.get_world_size())[dist.get_rank()].contiguous()


def rank_main(rank: int, procs: int, port: int, rounds: int, file: str, path: str) -> None:
    """One rank: all methods, one step of each per round."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from synth.layer import load_layer

    torch.set_num_threads(1)
    layer = load_layer(file)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=procs)
    runs, losses = {}, {}
    shape = layer.input[1], layer.out_channels, layer.kernel
    for method in METHODS:
        torch.manual_seed(0)
        model, take = make(method, layer, nn.Conv2d(*shape, layer.stride, layer.padding))
        inputs = torch.randn(layer.input)
        scale = 1 if method == "ours" else procs  # the others average their gradients
        share = take(inputs).requires_grad_()  # as in the middle of a network
        runs[method] = model, share, torch.optim.SGD(model.parameters(), lr=1e-3), scale
        losses[method] = []
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    traffic: dict[str, list[int]] = {method: [] for method in METHODS}
    for turn in range(rounds + 1):  # the first one warms up
        for method in METHODS:
            before = loopback()
            dist.barrier()  # nobody sends before rank 0 has read the counter
            begin = time.perf_counter()
            loss = step(*runs[method])
            seconds = torch.tensor(time.perf_counter() - begin)
            dist.barrier()
            received = loopback() - before
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            dist.all_reduce(loss)
            losses[method].append(float(loss))
            if turn:
                times[method].append(float(seconds))
                traffic[method].append(received)
    if rank == 0:
        Path(path).write_text(json.dumps({"times": times, "traffic": traffic, "losses": losses}))
    dist.destroy_process_group()


def step(model: Any, share: Any, optimizer: Any, scale: int) -> Any:
    """Forward, backward, update; the share of the loss."""
    optimizer.zero_grad()
    share.grad = None
    loss = model(share).square().sum() / 1e6
    (loss * scale).backward()
    optimizer.step()
    return loss.detach()


def measured(procs: int, rounds: int, file: str) -> dict[str, Any]:
    """What the ranks measured."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.nn.parallel"])
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "result.json"))
        ranks = [
            context.Process(target=rank_main, args=(r, procs, port, rounds, file, path)) for r in range(procs)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        found: dict[str, Any] = json.loads(Path(path).read_text())
    for first, *others in zip(*(found["losses"][method] for method in METHODS), strict=True):
        assert all(abs(each - first) < 1e-3 * abs(first) for each in others), found["losses"]
    return found


def rows(procs: int, rounds: int, file: str) -> list[str]:
    """The rows of a layer."""
    import synth

    plan = synth.plan(file, procs, pass_="training", exact_procs=True)
    kernel = plan.nest.words["Ker"] * plan.nest.word_bytes
    data = 2 * kernel * (procs - 1) // procs
    formula = {"ours": plan.words["total"] * plan.nest.word_bytes, "DDP": data, "FSDP2": data}
    found = measured(procs, rounds, file)
    lines = []
    for method in METHODS:
        times, counted = found["times"][method], min(found["traffic"][method])
        pairs = zip(found["times"][method], found["times"]["ours"], strict=True)
        ratio = statistics.median(theirs / mine for theirs, mine in pairs)
        grid = plan.grid.shown() if method == "ours" else ""
        lines.append(
            f"| {plan.layer.name} | {procs} | {method} | {grid} | {statistics.median(times):.3f} | "
            f"{min(times):.3f} | {ratio:.2f} | {formula[method] / 1e6:.2f} | {counted / procs / 1e6:.2f} | "
            f"{counted / min(found['traffic']['ours']):.2f} |"
        )
    return lines


def head(rounds: int) -> list[str]:
    """What stands above the table."""
    import torch

    return [
        "# One training step of a layer: ours beside DDP and FSDP2",
        "",
        f"{describe()}, torch {torch.__version__.partition('+')[0]}, gloo on one machine, one thread per "
        f"rank; {rounds} rounds, methods alternating. All ranks share the cores listed, so seconds compare "
        "methods and say nothing of speed-up. Formulas and the way of counting are in the docstring of "
        "`benchmarks/training_step.py`; the losses of all methods agree in every round.",
        "",
        "| layer | P | | grid | median s | least s | median s / ours | MB per rank, formula | "
        "MB per rank at the sockets | / ours |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER.yaml")
    parser.add_argument("--procs", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lines = head(args.rounds)
    for file in args.layers or [str(EXAMPLES / f"{name}.yaml") for name in LAYERS]:
        for procs in args.procs:
            lines += rows(procs, args.rounds, file)
            print("\n".join(lines[-len(METHODS) :]), flush=True)
    if not args.no_write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
