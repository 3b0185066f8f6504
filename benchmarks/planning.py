"""Planning time from a cold start: medians of seconds and peak memory of whole processes.

python benchmarks/planning.py [--runs 5] [-o benchmarks/results/planning.md]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import describe

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {
    "ResNet-50 conv4 3x3": "examples/conv.yaml",
    "ResNet-50 conv1 7x7": "examples/resnet50/conv1_7x7.yaml",
    "VGG-16 conv4_2": "examples/vgg16/conv4_2.yaml",
    "CosmoFlow conv2": "examples/cosmoflow/conv2.yaml",
    "matmul 4096": "examples/matmul.yaml",
}
PROCS = (64, 1000, 1024, 2**20, 720720)


def timed(arguments: list[str]) -> tuple[float, float]:
    """Wall seconds and peak MiB of one whole process."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "synth", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"synth {' '.join(arguments)} failed")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def median_of(runs: int, arguments: list[str]) -> tuple[float, float, float]:
    """Median seconds, worst seconds, worst MiB."""
    measured = [timed(arguments) for _ in range(runs + 1)][1:]  # the first run fills the file cache
    seconds = [each[0] for each in measured]
    return statistics.median(seconds), max(seconds), max(each[1] for each in measured)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    head = ["| command | median s | worst s | peak MiB |", "|---|---|---|---|"]
    lines = ["# Planning time", "", describe(), "", *head]
    jobs = [("synth --help", ["--help"])]
    for name, path in LAYERS.items():
        for procs in PROCS:
            jobs.append((f"synth plan, {name}, P = {procs}", ["plan", path, "--procs", str(procs)]))
    tight = ["plan", "examples/conv.yaml", "--procs", "1024", "--memory", "24KiB"]
    jobs.append(("synth plan, ResNet-50 conv4 3x3, P = 1024, 24 KiB each", tight))
    training = ["plan", "examples/conv.yaml", "--procs", "1024", "--pass", "training"]
    jobs.append(("synth plan, ResNet-50 conv4 3x3, P = 1024, training", training))
    for name, arguments in jobs:
        median, worst, memory = median_of(args.runs, arguments)
        lines.append(f"| {name} | {median:.3f} | {worst:.3f} | {memory:.0f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if args.output:
        Path(args.output).write_text(text)


if __name__ == "__main__":
    main()
