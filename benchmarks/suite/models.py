"""Training steps of whole networks: ours beside DDP and FSDP2, in the same processes.

    python -m benchmarks.suite.models [NAME ...] [--procs 4] [--hosts 4 --link 1gbit]

A step is forward pass, backward pass and SGD with momentum, on a batch that is already in the layout of its
input. Ours is `synth.parallelize` with the plan of its own choice. Batch normalizations of DDP and FSDP2
have the statistics of a rank's own samples, which takes no exchange; ours have those of the whole batch.
DDP broadcasts no buffers. Bytes are counted at the sockets, as in `suite.md`; held are parameters,
gradients and momenta.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

import synth
from benchmarks.machine import describe
from benchmarks.suite.hosts import Hosts, HostsError, add_options, asked
from benchmarks.suite.launch import ROOT, MeasuringError, run_module
from benchmarks.suite.rank import Step, counted, rounds_for, seconds_of, timed
from benchmarks.suite.summary import Spread, makespans, ratios
from benchmarks.suite.table import markdown
from examples.models import CosmoFlow, ResNet

HEADS = ["network", "P", "contender", "s", "quartiles", "theirs / ours", "quartiles", "MB moved", "MB held"]
CLOSE = 1e-3  # of the loss on one process
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (ResNet, (16, 3, 64, 64)),
    "cosmoflow": (lambda: CosmoFlow(64, norms=4), (4, 4, 64, 64, 64)),
    "cosmoflow, one volume": (lambda: CosmoFlow(64, norms=4), (1, 4, 64, 64, 64)),
}


@dataclass
class Trained:
    """A network in training on this rank, on its own part of a batch; the loss is a mean of squares."""

    name: str
    net: nn.Module
    batch: torch.Tensor
    words: int  # of the outputs that the loss is the mean of

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-4, momentum=0.9)

    def loss(self) -> torch.Tensor:
        """The loss: of the whole batch for ours, else this rank's part of it."""
        out: torch.Tensor = self.net(self.batch)
        return out.square().sum() / self.words

    def step(self) -> None:
        """The timed step."""
        self.optimizer.zero_grad()
        torch.autograd.backward(self.loss())
        self.optimizer.step()

    def held(self) -> int:
        """Bytes of parameters, gradients and momenta on this rank."""
        sizes = (p.to_local() if hasattr(p, "to_local") else p for p in self.net.parameters())
        return 3 * sum(p.numel() * p.element_size() for p in sizes)


def contenders(name: str) -> tuple[list[Trained], float]:
    """All contenders that can train the network, ours first, and the loss on one process."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, batch = make(), torch.randn(shape)
    with torch.no_grad():
        out = copy.deepcopy(model)(batch)
    net = synth.parallelize(copy.deepcopy(model), shape)
    made = [Trained("ours", net, net.scatter(batch), out.numel())]
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if shape[0] % ranks == 0:
        mine = batch.chunk(ranks)[rank]
        each = out.numel() // ranks  # gradients are averaged over the ranks
        lean: Any = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
        ddp = DistributedDataParallel(copy.deepcopy(model), **lean)
        made.append(Trained("DDP", ddp, mine, each))
        sharded: Any = copy.deepcopy(model)
        for part in blocks(sharded):
            fully_shard(part, reshard_after_forward=False)
        made.append(Trained("FSDP2", fully_shard(sharded, reshard_after_forward=False), mine, each))
    return made, float(out.square().mean())


def blocks(model: nn.Module) -> list[nn.Module]:
    """The units that FSDP2 gathers and prefetches: the children of the model's sequences."""
    chains = [child for child in model.children() if isinstance(child, nn.Sequential)]
    links = [link for chain in chains for link in chain]
    nested = [each for link in links for each in (link if isinstance(link, nn.Sequential) else [link])]
    return [each for each in nested if any(True for _ in each.parameters())]


def measure(name: str, seconds: float, rounds: tuple[int, int]) -> dict[str, Any]:
    """Everything that this rank measures of a network. Raises `SystemExit` if our loss is wrong."""
    made, loss = contenders(name)
    total = made[0].loss().detach()  # of all words, on every rank
    if abs(float(total) - loss) > CLOSE * abs(loss):
        raise SystemExit(f"{name}: the loss is {float(total)}, on one process {loss}")
    moved, steps = {}, dict[str, Step]()
    for each in made:
        each.step()  # makes momenta
        moved[each.name] = counted(each.step)
        steps[each.name] = each.step
    spent = sum(seconds_of(timed(steps, {}, 1)).values())
    times = timed(steps, {}, rounds_for(*rounds, seconds, spent))
    held = {each.name: each.held() for each in made}
    return {"times": times, "traffic": moved, "held": held}


def rows(name: str, ranks: list[dict[str, Any]]) -> list[list[str]]:
    """One row per contender."""
    table_rows, mine = [], makespans(ranks, "ours")
    for who in ranks[0]["times"]:
        theirs = makespans(ranks, who)
        spans, against = Spread.of(theirs), Spread.of(ratios(theirs, mine))
        first = who == "ours"
        table_rows.append(
            [
                name if first else "",
                str(len(ranks)) if first else "",
                who,
                f"{spans.median:.3f}",
                f"{spans.low:.3f} - {spans.high:.3f}",
                f"{against.median:.2f}",
                "" if first else f"{against.low:.2f} - {against.high:.2f}",
                f"{max(sum(rank['traffic'][who]) for rank in ranks) / 1e6:.2f}",
                f"{max(rank['held'][who] for rank in ranks) / 1e6:.1f}",
            ]
        )
    return table_rows


def on_ranks(args: argparse.Namespace) -> None:
    """The program of a rank; rank 0 writes a list over the ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, measure(args.networks[0], args.seconds, tuple(args.rounds)))
    if dist.get_rank() == 0:
        Path(args.into).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measured(args: argparse.Namespace, hosts: Hosts) -> None:
    """All networks on all numbers of ranks. Raises `MeasuringError`."""
    console, table_rows = Console(width=150), list[list[str]]()
    for name in args.networks or MODELS:
        for procs in args.procs:
            with tempfile.TemporaryDirectory() as folder:
                into = Path(folder, "found")
                how = ["--seconds", str(args.seconds), "--rounds", *map(str, args.rounds)]
                run_module(hosts, procs, "benchmarks.suite.models", name, *how, "--into", str(into))
                found = rows(name, json.loads(into.read_text()))
            console.print("\n".join(markdown(HEADS, found)), markup=False)
            table_rows += found
    if args.no_write:
        return
    library = torch.__version__.partition("+")[0]
    machine = f"{describe()}, torch {library}, gloo, one thread per rank; {hosts}."
    about = str(__doc__).partition("\n\n    ")[0], str(__doc__).rpartition("1gbit]\n\n")[2].strip()
    text = ["# Whole networks beside the alternatives", "", machine, *about, "", *markdown(HEADS, table_rows)]
    args.output.write_text("\n".join(text) + "\n")


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--procs", type=int, nargs="+", default=(4,))
    parser.add_argument("--seconds", type=float, default=30.0, help="of timed rounds per network")
    parser.add_argument("--rounds", type=int, nargs=2, default=(5, 20), metavar=("LEAST", "MOST"))
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument(
        "-o", "--output", type=Path, help="benchmarks/results/models.md, or with --hosts -LINK"
    )
    parser.add_argument("--into", help=argparse.SUPPRESS)  # what a rank is started with
    add_options(parser)
    args = parser.parse_args()
    unknown = sorted({*args.networks} - MODELS.keys())
    if unknown:
        parser.error(f"there is no network {unknown[0]!r}; there are {', '.join(MODELS)}")
    if args.into:
        return on_ranks(args)
    name = f"models-{args.link}.md" if args.hosts > 1 else "models.md"
    args.output = args.output or ROOT / "benchmarks/results" / name
    try:
        with asked(args) as hosts:
            measured(args, hosts)
    except (HostsError, MeasuringError) as error:
        sys.exit(f"benchmarks.suite.models: {error}")


if __name__ == "__main__":
    main()
