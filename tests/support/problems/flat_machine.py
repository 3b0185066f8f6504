"""A machine of one level with round numbers, on which seconds are worked out by hand."""

from __future__ import annotations

from synth.machine.hierarchy import Compute, Level, Machine

ALPHA, BETA, RATE, BANDWIDTH = 1e-5, 1e-10, 1e12, 1e11


def flat(beta: float = BETA, overlap: float = 1.0) -> Machine:
    """Collectives are rings. beta: seconds per byte."""
    level = Level("all", None, ALPHA, beta)
    return Machine("flat", (level,), Compute(RATE, BANDWIDTH), algorithms=("ring",), overlap=overlap)


FLAT = flat()
