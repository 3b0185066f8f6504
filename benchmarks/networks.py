"""Network plans against single strategies: words and milliseconds, four networks, four numbers of processes.

A narrow strategy keeps some axis whole. Stationary-w and 3D may use any grid in every layer. So the last
ratio compares the planner with itself, with fewer options per layer.

python benchmarks/networks.py > table.md
"""

from __future__ import annotations

import time
from pathlib import Path

from synth.machine.file import load_machine
from synth.network.file import load_network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest

ANY = ("stationary-w", "3D")
NETWORKS = Path(__file__).resolve().parent.parent / "examples/networks"


def main() -> None:
    """One row per network, objective and number of processes."""
    lassen = load_machine("lassen")
    heads = "network", "P", "objective", "plan", "best narrow strategy", "ratio", "ratio to any grid"
    print("| " + " | ".join((*heads, "lower bound", "free edges", "s")) + " |")
    print("|---" * 10 + "|")
    for objective in ("words", "time"):
        for name in ("resnet50", "wrn50_4", "vgg16", "cosmoflow"):
            network = load_network(NETWORKS / f"{name}.yaml")
            for procs in (16, 64, 256, 1024):
                start = time.process_time()
                made = plan_network(network, NetworkRequest(procs, objective, machine=lassen))
                spent, scale = time.process_time() - start, 1.0 if objective == "words" else 1e3
                usable = [(s.cost, s.name) for s in made.single_strategies if s.cost is not None]
                narrow = min(each for each in usable if each[1] not in ANY)
                cells = [
                    *(name, str(procs), objective, f"{made.cost * scale:,.4g}"),
                    *(f"{narrow[0] * scale:,.4g} ({narrow[1]})", f"{made.cost / narrow[0]:.3f}"),
                    *(f"{made.ratio:.3f}", f"{made.lower_bound * scale:,.4g}"),
                    *(f"{len(made.free_edges)}/{len(made.edge_words)}", f"{spent:.1f}"),
                ]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
