"""`synth calibrate --procs P`: a machine file from measurements on the machine at hand.

The model is that of `machine.collectives`, algorithm ring, because pieces travel from every rank to every
other: with p ranks and a buffer of n bytes a collective takes

    t = (p - 1)·α + (p - 1)/p·n·β        and a reduction (p - 1)/p·n·γ more

and the local kernel takes `overhead + operations / rate`. α, β and rate make the relative errors of the
measured times least in the mean square; the file's head tells what is left of them.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.errors import RunError, UsageError

MOST_RANKS = 64  # on one machine


@dataclass(frozen=True)
class Line:
    """t = fixed + slope·size: the fit, and the mean relative error that it leaves."""

    fixed: float
    slope: float
    error: float


def fitted(points: list[tuple[float, float, float]]) -> Line:
    """Seconds `t = a·fixed + b·slope` from points (a, b, t), both factors at least 0.

    Relative errors are weighed alike, so small messages count as much as large ones.
    """
    rows = [(a / t, b / t) for a, b, t in points]
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = (sum(x[i] for x in rows) for i in (0, 1))
    whole = aa * bb - ab * ab
    tries = [(a1 / aa, 0.0), (0.0, b1 / bb)]
    if whole > 1e-12 * aa * bb:
        both = (a1 * bb - b1 * ab) / whole, (b1 * aa - a1 * ab) / whole
        tries = [both] if min(both) >= 0 else tries

    def squares(line: tuple[float, float]) -> float:
        return sum((x * line[0] + y * line[1] - 1) ** 2 for x, y in rows)

    fixed, slope = min(tries, key=squares)
    error = sum(abs(x * fixed + y * slope - 1) for x, y in rows) / len(rows)
    return Line(fixed, slope, error)


def level(found: list[dict[str, Any]], gamma: float) -> Line:
    """α and β of one level, from its collectives."""
    points = []
    for each in found:
        others, share = each["members"] - 1, each["bytes"] / each["members"]
        summing = gamma * others * share if each["op"] == "reduce_scatter" else 0.0
        points.append((others, others * share, max(each["seconds"] - summing, 0.1 * each["seconds"])))
    return fitted(points)


def machine_text(found: dict[str, Any], name: str) -> str:
    """The machine file of what was measured."""
    kernel = fitted([(1.0, each["flops"], each["seconds"]) for each in found["kernels"]])
    nodes = found["ranks"] // found["local"]
    errors, lines = [f"local kernel {kernel.error:.0%}"], []
    for each, ranks in (("node", found["local"]), ("system", found["ranks"])):
        measured = [entry for entry in found["collectives"] if entry["level"] == each]
        if measured:
            line = level(measured, found["gamma"])
            errors.append(f"collectives of level {each} {line.error:.0%}")
            lines.append(
                f"  - {{name: {each}, ranks: {ranks}, alpha: {line.fixed:.4g}, beta: {line.slope:.4g}, "
                "kind: measured}"
            )
    overhead = max(found["call"], kernel.fixed)
    return "\n".join(
        [
            f"# Measured by `synth calibrate` on {found['ranks']} ranks, {nodes} node(s), "
            f"{found['backend']}, {found['device']}.",
            f"# Mean error of the fits: {', '.join(errors)}.",
            f"machine: {name}",
            f"source: measured by synth calibrate on {found['ranks']} ranks with {found['backend']}",
            "levels:",
            *lines,
            f"compute: {{rate: {1 / kernel.slope:.4g}, bandwidth: {found['bandwidth']:.4g}, "
            f"gamma: {found['gamma']:.4g}, overhead: {overhead:.4g}}}",
            f"memory: {found['memory']}",
            f"overlap: {found['overlap']:.3f}",
            "algorithms: [ring]",
            "",
        ]
    )


def calibrate_machine(procs: int | None, name: str, repeat: int, timeout: float) -> str | None:
    """The text of a machine file; None on all ranks but the first.

    With `procs` as many ranks are started here; without, this process is one rank of a run that torchrun or
    srun started. Raises `UsageError` for a single rank and `RunError` where a rank fails.
    """
    from runtime.mesh import launched

    if procs is None:
        if launched()[1] < 2:
            raise UsageError("calibrate needs a network file, or --procs P with at least 2 ranks to measure")
        from runtime.measure import measured

        found = measured(repeat, timeout)
        return None if found is None else machine_text(found, name)
    if not 2 <= procs <= MOST_RANKS:
        raise UsageError(
            f"--procs {procs}: a machine is measured with 2 to {MOST_RANKS} ranks; "
            "start more with torchrun or srun, without --procs"
        )
    print(f"synth: measuring collectives and kernels on {procs} ranks", file=sys.stderr, flush=True)
    return machine_text(_here(procs, repeat, timeout), name)


def _here(procs: int, repeat: int, timeout: float) -> dict[str, Any]:
    from runtime import measure
    from synth.driver import last_lines, started

    with tempfile.TemporaryDirectory(prefix="synth-calibrate-") as folder:
        # a path of its own, by which ranks that outlive torchrun are found
        program, out = Path(folder, "measure.py"), Path(folder, "found.json")
        program.write_text(Path(measure.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        flags = ["--out", str(out), "--repeat", str(repeat), "--timeout", str(timeout)]
        code, told = started(program, procs, flags, math.inf)
        if code != 0 or not out.exists():
            raise RunError(f"the calibration on {procs} ranks ended with code {code}: {last_lines(told)}")
        found: dict[str, Any] = json.loads(out.read_text())
    return found
