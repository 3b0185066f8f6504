"""Steps of whole networks: ours beside DDP, FSDP2, ZeRO-1 and parallelism by hand, in the same processes.

    python -m benchmarks.suite.models [NAME ...] [--procs 4] [--hosts 4 --link 1gbit]

A step is forward pass, backward pass and SGD with momentum, on a batch that is already in the layout of its
input; of the VAE decoder it is a forward pass. Ours is `synth.parallelize` with the plan of its own choice,
for time (inference: words). Batch normalizations of "ours", and of tensor parallelism by hand, have the
statistics of the whole batch; those of "ours, local" and of all others those of a rank's own samples or rows,
which takes no exchange. DDP broadcasts no buffers; ZeRO-1 is DDP with a sharded optimizer. Spatial and tensor
parallelism are written by hand (`network_peers.py`) and run where they apply. Bytes are counted at the
sockets, as in `suite.md`; held are parameters, gradients and momenta (of decoders: parameters).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

import synth
from benchmarks.machine import describe
from benchmarks.suite import network_peers
from benchmarks.suite.contender import NotApplicableError
from benchmarks.suite.hosts import Hosts, HostsError, add_options, asked
from benchmarks.suite.launch import ROOT, MeasuringError, run_module
from benchmarks.suite.rank import Step, counted, rounds_for, seconds_of, timed
from benchmarks.suite.summary import Spread, makespans, ratios
from benchmarks.suite.table import markdown
from examples.decoders import decoder
from examples.models import CosmoFlow, ResNet
from examples.unet3d import UNet3d

HEADS = ["network", "P", "contender", "s", "quartiles", "theirs / ours", "quartiles", "MB moved", "MB held"]
CLOSE = 1e-3  # of the loss on one process
INFERENCE = {"vae decoder"}
DEPTH = {"unet3d": 4, "unet3d, one volume": 4}  # rows at the input for one row at the coarsest resolution
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (ResNet, (16, 3, 64, 64)),
    "cosmoflow": (lambda: CosmoFlow(64, norms=4), (4, 4, 64, 64, 64)),
    "cosmoflow, one volume": (lambda: CosmoFlow(64, norms=4), (1, 4, 64, 64, 64)),
    "unet3d": (lambda: UNet3d(base=16, levels=3), (4, 1, 32, 32, 32)),
    "unet3d, one volume": (lambda: UNet3d(base=16, levels=3), (1, 1, 64, 48, 48)),
    "vae decoder": (lambda: decoder(2, widths=(32, 64, 128, 128)), (1, 4, 32, 32)),
}


@dataclass
class Trained:
    """A network in training on this rank, on its own part of a batch; the loss is a mean of squares."""

    name: str
    net: nn.Module
    batch: torch.Tensor
    words: int  # of the outputs that the loss is the mean of
    sharded: bool = False  # whether a rank updates a part of the parameters only (ZeRO-1)

    def __post_init__(self) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        made: Any = {"lr": 1e-4, "momentum": 0.9}
        self.optimizer: Any = (
            ZeroRedundancyOptimizer(self.net.parameters(), torch.optim.SGD, **made)
            if self.sharded
            else torch.optim.SGD(self.net.parameters(), **made)
        )

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
        parameters = _bytes(self.net)
        return 2 * parameters + (parameters // dist.get_world_size() if self.sharded else parameters)


@dataclass
class Applied:
    """A network in inference on this rank, on its own part of a batch."""

    name: str
    net: nn.Module
    batch: torch.Tensor
    words: int

    @torch.no_grad()
    def loss(self) -> torch.Tensor:
        """The mean of squares of the output, or this rank's part of it."""
        out: torch.Tensor = self.net(self.batch)
        return out.square().sum() / self.words

    @torch.no_grad()
    def step(self) -> None:
        """The timed step."""
        self.net(self.batch)

    def held(self) -> int:
        """Bytes of parameters on this rank."""
        return _bytes(self.net)


def _bytes(net: nn.Module) -> int:
    """Bytes of a network's parameters on this rank."""
    found: list[Any] = [p.to_local() if hasattr(p, "to_local") else p for p in net.parameters()]
    return sum(p.numel() * p.element_size() for p in found)


def contenders(name: str) -> tuple[list[Any], float]:
    """All contenders that can run the network, ours first, and the loss on one process."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, batch = make(), torch.randn(shape)
    with torch.no_grad():
        out = copy.deepcopy(model)(batch)
    loss = float(out.square().mean())
    if name in INFERENCE:
        net = synth.parallelize(copy.deepcopy(model), shape, mode="inference")
        ours = Applied("ours", net, net.scatter(batch), out.numel())
        return [ours, *_by_hand(name, model, batch, out.numel())], loss
    made = []
    for who, norms in (("ours", "global"), ("ours, local", "local")):
        has_norms = any(isinstance(each, nn.BatchNorm2d | nn.BatchNorm3d) for each in model.modules())
        if norms == "global" or has_norms:
            net = synth.parallelize(copy.deepcopy(model), shape, batch_norm=norms)  # type: ignore[arg-type]
            made.append(Trained(who, net, net.scatter(batch), out.numel()))
    return [*made, *_of_samples(model, batch, out.numel()), *_by_hand(name, model, batch, out.numel())], loss


def _ddp(model: nn.Module) -> nn.Module:
    """DDP in its leanest setting, with a process group of its own."""
    from torch.nn.parallel import DistributedDataParallel

    lean: Any = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
    return DistributedDataParallel(copy.deepcopy(model), process_group=dist.new_group(), **lean)


def _of_samples(model: nn.Module, batch: torch.Tensor, words: int) -> list[Trained]:
    """Contenders that cut the batch into samples."""
    from torch.distributed.fsdp import fully_shard

    ranks, rank = dist.get_world_size(), dist.get_rank()
    if batch.shape[0] % ranks:
        return []
    mine, each = batch.chunk(ranks)[rank], words // ranks  # gradients are averaged over the ranks
    sharded: Any = copy.deepcopy(model)
    for part in blocks(sharded):
        fully_shard(part, reshard_after_forward=False)
    return [
        Trained("DDP", _ddp(model), mine, each),
        Trained("ZeRO-1", _ddp(model), mine, each, sharded=True),
        Trained("FSDP2", fully_shard(sharded, reshard_after_forward=False), mine, each),
    ]


def _by_hand(name: str, model: nn.Module, batch: torch.Tensor, words: int) -> list[Any]:
    """Spatial and tensor parallelism, where they apply."""
    made: list[Any] = []
    ranks, inference = dist.get_world_size(), name in INFERENCE
    with suppress(NotApplicableError):
        mine = network_peers.rows_of(batch, DEPTH.get(name, 1))
        cut = network_peers.spatial(copy.deepcopy(model), ("Attention",) if inference else (), inference)
        if inference:
            made.append(Applied("spatial", cut, mine, words))
        else:
            made.append(Trained("spatial", _ddp(cut), mine, words // ranks))
    with suppress(NotApplicableError):
        if not inference:
            cut = network_peers.tensor(copy.deepcopy(model), batch.shape[1])
            made.append(Trained("tensor", cut, batch, words))
    return made


def blocks(model: nn.Module) -> list[nn.Module]:
    """The units that FSDP2 gathers and prefetches: the children of the model's sequences."""
    chains = [child for child in model.children() if isinstance(child, nn.Sequential)]
    links = [link for chain in chains for link in chain]
    nested = [each for link in links for each in (link if isinstance(link, nn.Sequential) else [link])]
    return [each for each in nested if any(True for _ in each.parameters())]


def measure(name: str, seconds: float, rounds: tuple[int, int]) -> dict[str, Any]:
    """Everything that this rank measures of a network. Raises `SystemExit` if our loss is wrong."""
    made, loss = contenders(name)
    for each in made:
        if each.name not in ("ours", "tensor") and name not in INFERENCE:
            continue  # batch normalizations have other statistics
        total = each.loss().detach()
        if each.name != "ours":  # ours has all words, on every rank
            dist.all_reduce(total)
        if abs(float(total) - loss) > CLOSE * abs(loss):
            raise SystemExit(f"{name}, {each.name}: the loss is {float(total)}, on one process {loss}")
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
