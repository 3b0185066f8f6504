"""Operations per word of GPU nodes, and the links that give a rank of this machine the same balance.

    python -m benchmarks.balance [--rate FLOPS] [--ranks 4]

A rank computes `rate` operations per second while words pass its link. The ratio of the two, not their
sizes, decides how much of a step communication takes, and so which plan is fastest. The link here is

    rate here x bytes of a word here / (rate there / (bandwidth there / bytes of a word there))

Without --rate the rate of a rank is measured: a convolution in float32 on one thread, times the cores that a
rank has. Rates and bandwidths there are those of the shipped machine files.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

from synth.layer.nest import WORD_BYTES
from synth.machine.file import load_machine
from synth.machine.hierarchy import Level, Machine

MACHINES = ("lassen", "a100", "h100", "h200", "b200")
DTYPES = ("float32", "bfloat16")
HERE = "float32"  # of the benchmarks


def bandwidth(machine: Machine, level: Level) -> float:
    """Bytes per second that a rank sends on a level while all ranks of the unit below send."""
    position = machine.levels.index(level)
    inside = machine.levels[position - 1].ranks if position else 1
    flows = (inside or 1) if level.links is not None else 1
    return 1 / (level.beta * level.shared(flows))


def operations_per_word(machine: Machine, level: Level, dtype: str) -> float:
    """Operations of a rank while one word of a dtype passes its link."""
    return machine.compute.rate_of(2**20, dtype) * WORD_BYTES[dtype] / bandwidth(machine, level)


def link_here(rate: float, operations: float) -> float:
    """Bits per second of the link that gives a rank of some rate the same operations per word."""
    return 8 * WORD_BYTES[HERE] * rate / operations


def measured_rate(ranks: int) -> float:
    """Operations per second of one of some ranks on this machine, in a convolution of float32."""
    torch.set_num_threads(1)
    batch, ker = torch.randn(8, 128, 28, 28), torch.randn(128, 128, 3, 3)
    seconds = []
    for _ in range(6):
        begin = time.thread_time()
        torch.nn.functional.conv2d(batch, ker, padding=1)
        seconds.append(time.thread_time() - begin)
    operations = 2 * batch.numel() * ker[:, 0].numel()
    return operations / min(seconds) * min(1.0, len(os.sched_getaffinity(0)) / ranks)


def table(rate: float) -> list[str]:
    """Rows of machine, dtype, level, operations per word and link."""
    rows = ["| machine | dtype | level | operations per word | link here |", "|---|---|---|---|---|"]
    for name in MACHINES:
        machine = load_machine(name)
        for dtype in DTYPES:
            if dtype != "float32" and not machine.compute.rates:
                continue
            for level in machine.levels:
                operations = operations_per_word(machine, level, dtype)
                link = link_here(rate, operations) / 1e6
                rows.append(f"| {name} | {dtype} | {level.name} | {operations:,.0f} | {link:,.0f} Mbit/s |")
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, help="operations per second of a rank here")
    parser.add_argument("--ranks", type=int, default=4, help="ranks on this machine (4)")
    args = parser.parse_args()
    rate = args.rate or measured_rate(args.ranks)
    print(f"a rank here: {rate / 1e9:.1f} Gflop/s")
    print("\n".join(table(rate)))


if __name__ == "__main__":
    main()
