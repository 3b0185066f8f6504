"""Network plans against the best single strategy: words and time, four networks, four numbers of processes.

python benchmarks/networks.py > table.md
"""

from __future__ import annotations

import time
from pathlib import Path

from synth.machine.file import load_machine
from synth.network.file import load_network
from synth.network.options import Asked
from synth.network.planner import plan_network

NETWORKS = Path(__file__).resolve().parent.parent / "examples/networks"


def main() -> None:
    """One row per network, objective and number of processes."""
    lassen = load_machine("lassen")
    print("| network | P | objective | plan | best single | plan / single | lower bound | free edges | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for objective in ("words", "time"):
        for name in ("resnet50", "wrn50_4", "vgg16", "cosmoflow"):
            network = load_network(NETWORKS / f"{name}.yaml")
            for procs in (16, 64, 256, 1024):
                start = time.process_time()
                made = plan_network(network, Asked(procs, objective, machine=lassen))
                spent, single = time.process_time() - start, made.best_single
                assert single is not None
                unit, scale = ("", 1.0) if objective == "words" else (" ms", 1e3)
                cells = [f"{(c or 0.0) * scale:,.4g}{unit}" for c in (made.cost, single.cost, made.least)]
                print(
                    f"| {name} | {procs} | {objective} | {cells[0]} | {cells[1]} ({single.name}) "
                    f"| {made.ratio:.3f} "
                    f"| {cells[2]} | {len(made.free_edges)}/{len(made.edge_words)} | {spent:.1f} s |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
