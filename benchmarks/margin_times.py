"""Seconds with margins beside seconds without, of networks on ranks of one host and of emulated hosts.

    python -m benchmarks.margin_times [NAME ...] [--procs 2 4] [--links one-host 60mbit 240mbit] [-o FILE]

Both are `synth.parallelize` in the same processes, which measures the machine once, with the links of the
run. One plans as it does by itself, with margins where these save time; the other one has `recompute=0`.
Passes alternate, in an order that changes every time. A ratio is the seconds without margins by those with,
of one pair of passes; the interval is that of the median, with 95 % confidence. Where both plans move as many
bytes, there are no margins, and nothing is measured. Hosts need root and iproute2.
"""

from __future__ import annotations

import copy
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import synth
from benchmarks.margins import UNet
from benchmarks.pairs import cells, page, pairs, parser, step_of
from benchmarks.suite.hosts import HERE, Hosts, network, while_fast
from benchmarks.suite.launch import MeasuringError, run_module
from benchmarks.suite.models.networks import MODELS, Case
from benchmarks.suite.rank import leave

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
    found = {"received": most.tolist(), "pairs": pairs(steps, seconds) if differ else []}
    if dist.get_rank() == 0:
        Path(into).write_text(json.dumps(found))
    leave()


def line(name: str, procs: int, hosts: Hosts, found: dict[str, Any]) -> tuple[list[str], float | None]:
    """A line of the table, and the ratio of seconds."""
    where = str(len(hosts.enter)) + (f", {hosts.link}" if hosts.link else "")
    seconds, ratio = cells(found["pairs"], "no margins")
    return [name, str(procs), where, *(f"{each:.2f}" for each in found["received"]), *seconds], ratio


def main() -> None:
    """Measure all lines, print them, and write the table."""
    asked = parser(__doc__, NETWORKS, [2, 4])
    asked.add_argument("--links", nargs="+", default=[HERE_NAME, "60mbit", "240mbit"], metavar="LINK")
    args = asked.parse_args()
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
                    args.output.write_text(results(rows, every))
    print(results(rows, every).split("\n\n")[-1])


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


def results(rows: list[list[str]], ratios: list[float]) -> str:
    """The page of results."""
    mean = statistics.geometric_mean(ratios) if ratios else 1.0
    text = f"Geometric mean of {len(ratios)} lines with margins: {mean:.3f}."
    return page("Margins, in seconds", __doc__, HEADS, rows, text)


if __name__ == "__main__":
    main()
