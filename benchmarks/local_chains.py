"""Processor seconds of networks with `compile=True` beside the same without, on ranks of one host.

    python -m benchmarks.local_chains [NAME ...] [--procs 2] [--modes training inference] [-o FILE]

Both are `synth.parallelize` in the same processes, with one plan for words. Passes alternate, in an order
that changes every time. A ratio is the processor seconds of all ranks without by those with, of one pair of
passes; the interval is that of the median, with 95 % confidence. Chains are steps between two exchanges of
which ranks measure both forms; the column has those that were compiled, of all. Where none is, nothing is
measured: the steps are the same. Inference is a forward pass of a network for inference, with frozen norms.
"""

from __future__ import annotations

import copy
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import synth
from benchmarks.pairs import cells, page, pairs, parser, step_of
from benchmarks.suite.hosts import HERE, while_fast
from benchmarks.suite.launch import MeasuringError, run_module
from benchmarks.suite.models.networks import MODELS, Case
from benchmarks.suite.rank import leave


class Gated(nn.Module):
    """Gated convolutions, as PixelCNN and WaveNet have them (van den Oord et al. 2016)."""

    def __init__(self, width: int = 32, layers: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.both = nn.ModuleList(nn.Conv2d(width, 2 * width, 3, padding=1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w)"""
        x = self.first(x)
        for each in self.both:
            one, gate = each(x).chunk(2, 1)
            x = x + torch.tanh(one) * torch.sigmoid(gate)
        return x


class ConvNext(nn.Module):
    """Depthwise convolutions, and pointwise ones with a gelu and a gate between, after Liu et al. (2022)."""

    def __init__(self, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Conv2d(width, 4 * width, 1) for _ in range(layers))
        self.back = nn.ModuleList(nn.Conv2d(4 * width, width, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w)"""
        x = self.first(x)
        for place, each in enumerate(self.deep):
            y = functional.gelu(self.wide[place](each(x)))
            x = x + self.back[place](functional.silu(y) * y)
        return x


NETWORKS = {
    **MODELS,
    "gated": Case(Gated, (4, 3, 64, 64)),
    "convnext": Case(ConvNext, (4, 3, 64, 64)),
}
MODES = ["training", "inference"]
HEADS = ["network", "P", "mode", "chains", "processor s, without", "with", "ratio", "interval"]


def run(name: str, mode: str, seconds: float, into: str) -> None:
    """The program of a rank; the first one writes what was measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    case, inference = NETWORKS[name], mode == "inference"
    torch.manual_seed(0)
    model, batch = case.make().train(not inference), torch.randn(case.shape)
    options: dict[str, Any] = {"objective": "words", "mode": mode, "check": False}
    with while_fast(dist.barrier):
        nets = [
            synth.parallelize(copy.deepcopy(model), case.shape, compile=each, **options)
            for each in (False, True)
        ]
        steps = [step_of(net, batch, inference) for net in nets]
        for step in steps:
            for _ in range(4):
                step()
    (chains,) = nets[1].program.chains.known.values()  # type: ignore[union-attr]
    every = [chain.is_compiled for chain in chains.of.values()]
    found = {"chains": [sum(every), len(every)], "pairs": []}
    if any(every):
        found["pairs"] = pairs(steps, seconds, time.process_time, dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        Path(into).write_text(json.dumps(found))
    leave()


def line(name: str, procs: int, mode: str, found: dict[str, Any]) -> list[str]:
    """A line of the table."""
    seconds, _ = cells(found["pairs"], "none compiled")
    return [name, str(procs), mode, "{} of {}".format(*found["chains"]), *seconds]


def measured(name: str, procs: int, mode: str, seconds: float) -> list[str]:
    """One line. Raises `MeasuringError`."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "found")
        argv = [name, "--modes", mode, "--seconds", str(seconds), "--into", str(into)]
        hosts = replace(HERE, environment=(("XDG_CACHE_HOME", folder),))
        run_module(hosts, procs, "benchmarks.local_chains", *argv)
        return line(name, procs, mode, json.loads(into.read_text()))


def main() -> None:
    """Measure all lines, print them, and write the table."""
    asked = parser(__doc__, NETWORKS, [2])
    asked.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    args = asked.parse_args()
    if args.into:
        run(args.names[0], args.modes[0], args.seconds, args.into)
        return
    rows = []
    for procs in args.procs:
        for name in args.names or NETWORKS:
            for mode in args.modes:
                if mode == "training" and NETWORKS[name].inference:
                    continue
                try:
                    rows.append(measured(name, procs, mode, args.seconds))
                except MeasuringError as error:
                    print(f"{name}, P = {procs}, {mode}: {error}", flush=True)
                    continue
                print(" | ".join(rows[-1]), flush=True)
                if args.output:
                    args.output.write_text(page("Compiled chains of local steps", __doc__, HEADS, rows))


if __name__ == "__main__":
    main()
