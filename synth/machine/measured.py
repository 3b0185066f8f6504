"""A machine file from measured times of collectives and kernels.

The model is that of `machine.collectives`, algorithm ring, because pieces travel from every rank to every
other: with p ranks and a buffer of n bytes a collective takes

    t = (p - 1)·α + (p - 1)/p·n·β        and a reduction (p - 1)/p·n·γ more

and the local kernel takes `overhead + operations / rate`, at another rate where channels are few. All
factors make the relative errors of the measured times least in the mean square; the file's head tells what
is left of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NARROW = 32  # channels, below which kernels have a rate of their own


@dataclass(frozen=True)
class Fitted:
    """What each amount takes (seconds per unit of it), and the mean relative error that is left."""

    factors: tuple[float, ...]
    error: float


def fitted(points: Sequence[tuple[float, ...]]) -> Fitted:
    """The factors, none negative, of `seconds = amounts · factors` from points (*amounts, seconds).

    Relative errors are weighed alike, so small messages count as much as large ones.
    """
    from scipy.optimize import nnls  # slow to import

    table = np.array(points)
    shares = table[:, :-1] / table[:, -1:]
    scale = np.linalg.norm(shares, axis=0)
    factors = nnls(shares / scale, np.ones(len(table)))[0] / scale
    return Fitted(tuple(map(float, factors)), float(np.abs(shares @ factors - 1).mean()))


def level(found: list[dict[str, Any]], gamma: float) -> Fitted:
    """α and β of one level, from its collectives."""
    points = []
    for each in found:
        others, share = each["members"] - 1, each["bytes"] / each["members"]
        summing = gamma * others * share if each["op"] == "reduce_scatter" else 0.0
        points.append((others, others * share, _beside(each["seconds"], summing)))
    return fitted(points)


def _rate(kernels: list[dict[str, Any]], overhead: float) -> Fitted:
    """Seconds per operation beside the overhead of a call."""
    return fitted([(k["flops"], _beside(k["seconds"], overhead)) for k in kernels])


def _beside(seconds: float, known: float) -> float:
    """What a measured time leaves beside a known part: a tenth at least, as `fitted` divides by it."""
    return max(seconds - known, 0.1 * seconds)


def machine_text(found: dict[str, Any], name: str) -> str:
    """The machine file of what was measured."""
    kernels = found["kernels"]
    wide = [each for each in kernels if each["channels"] >= NARROW]
    few = [each for each in kernels if each["channels"] < NARROW]
    fixed, _ = fitted([(1.0, each["flops"], each["seconds"]) for each in wide]).factors
    overhead = max(found["call"], fixed)
    rates = [_rate(some, overhead) for some in (wide, few)]
    slowest = max(each.factors[0] for each in rates)  # few channels are never faster than many
    nodes = found["ranks"] // found["local"]
    errors = [f"local kernel {rates[0].error:.0%}, with few channels {rates[1].error:.0%}"]
    lines = []
    for each, ranks in (("node", found["local"]), ("system", found["ranks"])):
        measured = [entry for entry in found["collectives"] if entry["level"] == each]
        if measured:
            line = level(measured, found["gamma"])
            errors.append(f"collectives of level {each} {line.error:.0%}")
            alpha, beta = line.factors
            lines.append(
                f"  - {{name: {each}, ranks: {ranks}, alpha: {alpha:.4g}, beta: {beta:.4g}, kind: measured}}"
            )
    compute = {
        "rate": f"{1 / rates[0].factors[0]:.4g}",
        "bandwidth": f"{found['bandwidth']:.4g}",
        "gamma": f"{found['gamma']:.4g}",
        "overhead": f"{overhead:.4g}",
        "narrow": f"[[{NARROW}, {1 / slowest:.4g}]]",
    }
    return "\n".join(
        [
            f"# Measured by `synth calibrate` on {found['ranks']} ranks, {nodes} node(s), "
            f"{found['backend']}, {found['device']}.",
            f"# Mean error of the fits: {', '.join(errors)}.",
            f"machine: {name}",
            f"source: measured by synth calibrate on {found['ranks']} ranks with {found['backend']}",
            "levels:",
            *lines,
            f"compute: {{{', '.join(f'{key}: {value}' for key, value in compute.items())}}}",
            f"memory: {found['memory']}",
            f"overlap: {found['overlap']:.3f}",
            "algorithms: [ring]",
            "",
        ]
    )
