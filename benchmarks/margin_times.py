"""Seconds with margins beside seconds without, of networks on ranks of one host and of emulated hosts.

    python -m benchmarks.margin_times [NAME ...] [--procs 2 4] [--links one-host 60mbit 240mbit] [-o FILE]

Both are `synth.parallelize` in the same processes, which measures the machine once, with the links of the
run. One plans as it does by itself, with margins where these save time; the other one has `recompute=0`.
Passes alternate, in an order that changes every time. A ratio is the seconds without margins by those with,
of one pair of passes; the interval is that of the median, with 95 % confidence. Where both plans move as many
bytes, there are no margins, and nothing is measured. Hosts need root and iproute2.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import synth
from benchmarks.machine import describe
from benchmarks.margins import UNet
from benchmarks.suite.hosts import HERE, Hosts, network, while_fast
from benchmarks.suite.launch import MeasuringError, run_module
from benchmarks.suite.models.networks import MODELS, Case
from benchmarks.suite.rank import leave
from benchmarks.suite.table import markdown

NETWORKS = {
    "vae decoder": MODELS["vae decoder"],
    "unet": Case(lambda: UNet(base=32, levels=3), (1, 3, 256, 256), inference=True),
    "cosmoflow": MODELS["cosmoflow"],
    "unet3d, one volume": MODELS["unet3d, one volume"],
}
HEADS = ["network", "P", "hosts", "MB received, without", "with", "s, without", "with", "ratio", "interval"]
HERE_NAME = "one-host"


def run(name: str, seconds: float, into: str) -> None:
    """The program of a rank; the first one writes what was measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    case = NETWORKS[name]
    torch.manual_seed(0)
    model, batch = case.make().train(not case.inference), torch.randn(case.shape)
    synth.parallelize(copy.deepcopy(model), case.shape, check=False)  # measures the machine
    with while_fast(dist.barrier):
        nets = [
            synth.parallelize(copy.deepcopy(model), case.shape, check=False, **given)
            for given in ({"recompute": 0}, {})
        ]
        steps = [step_of(net, batch, case.inference) for net in nets]
        moved = []
        for net, step in zip(nets, steps, strict=True):
            for _ in range(2):
                before = net.received()
                step()
            moved.append(4e-6 * (net.received() - before))
    most = torch.tensor(moved)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    differ = bool(most[0] != most[1])
    found = {"received": most.tolist(), "margins": differ, "pairs": _pairs(steps, seconds) if differ else []}
    if dist.get_rank() == 0:
        Path(into).write_text(json.dumps(found))
    leave()


def step_of(net: nn.Module, batch: torch.Tensor, inference: bool) -> Callable[[], None]:
    """A forward pass, or a training step."""
    if inference:

        def forward() -> None:
            with torch.no_grad():
                net(batch)

        return forward
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(net(batch).square().mean())
        optimizer.step()

    return train


def _pairs(steps: list[Callable[[], None]], seconds: float) -> list[list[float]]:
    """Seconds of both, pair by pair: of the rank that takes longest."""
    found, begin, number = list[list[float]](), time.perf_counter(), 0
    while number < 5 or (number < 60 and _later(begin, seconds)):
        pair = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            steps[which]()
            spent = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            pair[which] = float(spent)
        found.append(pair)
        number += 1
    return found


def _later(begin: float, seconds: float) -> bool:
    """Whether there is time left, by the clock of the first rank."""
    left = torch.tensor(seconds - (time.perf_counter() - begin))
    dist.broadcast(left, 0)
    return float(left) > 0


def interval(ratios: list[float]) -> tuple[float, float]:
    """Where the median is with 95 % confidence: order statistics of a binomial distribution."""
    ordered, size = sorted(ratios), len(ratios)
    outside, place = 0.0, 0
    while place < size // 2:
        outside += 2 * math.comb(size, place) / 2**size
        if outside > 0.05:
            break
        place += 1
    return ordered[max(0, place - 1)], ordered[size - max(1, place)]


def line(name: str, procs: int, hosts: Hosts, found: dict[str, Any]) -> tuple[list[str], float | None]:
    """A line of the table, and the ratio of seconds."""
    where = str(len(hosts.enter)) + (f", {hosts.link}" if hosts.link else "")
    cells = [name, str(procs), where, *(f"{each:.2f}" for each in found["received"])]
    if not found["margins"]:
        return [*cells, "", "", "no margins", ""], None
    ratios = [without / own for without, own in found["pairs"]]
    seconds = [statistics.median(each) for each in zip(*found["pairs"], strict=True)]
    low, high = interval(ratios)
    middle = statistics.median(ratios)
    return [*cells, *(f"{each:.3f}" for each in seconds), f"{middle:.3f}", f"{low:.3f} to {high:.3f}"], middle


def main() -> None:
    """Measure all lines, print them, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--procs", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--links", nargs="+", default=[HERE_NAME, "60mbit", "240mbit"], metavar="LINK")
    parser.add_argument("--seconds", type=float, default=20.0, help="of pairs, at least five and at most 60")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--into", help=argparse.SUPPRESS)  # what a rank is started with
    args = parser.parse_args()
    if args.into:
        run(args.names[0], args.seconds, args.into)
        return
    rows, every = [], list[float]()
    for link in args.links:
        for procs in args.procs:
            for name in args.names or NETWORKS:
                try:
                    row, ratio = measured(name, procs, link, args.seconds)
                except MeasuringError as error:
                    print(f"{name}, P = {procs}, {link}: {error}", flush=True)
                    continue
                rows.append(row)
                every += [] if ratio is None else [ratio]
                print(" | ".join(row), flush=True)
                if args.output:
                    args.output.write_text(page(rows, every))
    print(page(rows, every).split("\n\n")[-1])


def measured(name: str, procs: int, link: str, seconds: float) -> tuple[list[str], float | None]:
    """One line. Raises `MeasuringError`."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "found")
        argv = [name, "--seconds", str(seconds), "--into", str(into)]
        if link == HERE_NAME:
            hosts = replace(HERE, environment=(("XDG_CACHE_HOME", folder),))
            run_module(hosts, procs, "benchmarks.margin_times", *argv)
        else:
            with network(procs, link) as made:
                hosts = replace(made, environment=(*made.environment, ("XDG_CACHE_HOME", folder)))
                run_module(hosts, procs, "benchmarks.margin_times", *argv)
        return line(name, procs, hosts, json.loads(into.read_text()))


def page(rows: list[list[str]], ratios: list[float]) -> str:
    """The page of results."""
    about = " ".join(__doc__.split("\n\n", 2)[2].split())
    mean = statistics.geometric_mean(ratios) if ratios else 1.0
    text = f"Geometric mean of {len(ratios)} lines with margins: {mean:.3f}."
    head = f"{describe()}, torch {torch.__version__.partition('+')[0]}, gloo, one thread per rank."
    parts = ["# Margins, in seconds", head, about, "\n".join(markdown(HEADS, rows)), text]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
