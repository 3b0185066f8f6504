"""Cuts that are no grids, of matrix products: `python benchmarks/guillotine.py` (a few seconds).

A guillotine cut divides the loops of a product in two along one axis, and each part in another way, until
every process has one part, all with equal work. For each number of processes: words of the plan, and those
of the best guillotine cut in real numbers, at most of any process. No program runs such a cut: its groups of
processes have unequal forms.
"""

from __future__ import annotations

import sys
from functools import cache

from synth.layer.layer import Layer
from synth.planning.derive import plan

SIZE = 4096
Sides = tuple[float, float, float]  # of a part of the loops, as fractions of the whole


@cache
def fewest(procs: int, sides: Sides) -> float:
    """The words that the busiest of some processes accesses in a part, of a product with sides of 1."""
    if procs == 1:
        rows, columns, inner = sides
        return rows * columns + columns * inner + inner * rows
    return min(
        max(fewest(some, first), fewest(procs - some, second))
        for axis in range(3)
        for some in range(1, procs)
        for first, second in [halves(sides, axis, some / procs)]
    )


def halves(sides: Sides, axis: int, share: float) -> tuple[Sides, Sides]:
    """Two parts of a part, of which the first has a share along an axis."""
    first, second = list(sides), list(sides)
    first[axis] *= share
    second[axis] *= 1 - share
    return (first[0], first[1], first[2]), (second[0], second[1], second[2])


def received(procs: int) -> float:
    """The words of the best guillotine cut, without the words that a process owns."""
    return (fewest(procs, (1.0, 1.0, 1.0)) - 3 / procs) * SIZE * SIZE


def main() -> None:
    """Prints a Markdown table."""
    print("| processes | plan | guillotine cut | ratio |\n|---|---|---|---|")
    for procs in map(int, sys.argv[1:] or ("3", "5", "6", "7", "8", "9", "10", "11")):
        words, least = plan(Layer.matmul(SIZE, SIZE, SIZE), procs).words["total"], received(procs)
        print(f"| {procs} | {words} | {least:.0f} | {words / least:.2f} |", flush=True)


if __name__ == "__main__":
    main()
