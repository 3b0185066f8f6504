"""Networks of many distinct layers: processor seconds and peak memory of the network planner.

python benchmarks/many_layers.py [--layers 1000] [--procs 4096] [--training]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support" / "problems"))

from random_networks import distinct_layers

from synth.network.file import parse_network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest


def main() -> None:
    """Plan one network and print a row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--procs", type=int, default=4096)
    parser.add_argument("--training", action="store_true")
    args = parser.parse_args()
    network = parse_network(distinct_layers(args.layers), "distinct.yaml")
    began = time.process_time()
    plan = plan_network(network, NetworkRequest(args.procs, training=args.training))
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    what = "a training step" if args.training else "a forward pass"
    print(
        f"{args.layers} distinct layers, P = {args.procs}, {what}: {spent:.1f} s, {peak} MiB,"
        f" {plan.cost:.0f} words, at least {plan.lower_bound:.0f}"
    )


if __name__ == "__main__":
    main()
