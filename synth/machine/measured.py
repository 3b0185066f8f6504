"""A machine file from measured times of collectives and kernels.

The model of collectives is that of `machine.collectives`, algorithm ring, because pieces travel from every
rank to every other: with p ranks and a buffer of n bytes a collective takes

    t = base + (p - 1)·α + (p - 1)/p·n·β        and a reduction (p - 1)/p·n·γ more

with another β for pieces that the runtime sends in one all-to-all. The base is known where groups of several
sizes were measured: ranks that outnumber the cores wait for one, in pairs as long as all together.

The local kernel takes `overhead + operations / rate + bytes of In and Out / stream + bytes of Ker / weights`,
at other rates where channels are few. A kernel that writes dKer takes `bytes of dKer / gradients` instead.
Fits make the relative errors of the measured times small (`machine.fit`). The file has the relative error of
each number, and of times that a fit has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synth.machine.fit import Fitted, fitted, fitted_by_ratio, unseen

NARROW = (8, 32)  # channels, below which kernels have rates of their own
MOST_ERROR = 9.99  # that a file says, and the error of what is unknown


def level(found: Sequence[dict[str, Any]], gamma: float, below: int = 0) -> Fitted:
    """α, base and β of one level, from its collectives, and the β of short `pieces`.

    The base is 0 where all groups have one size. Short pieces have a β of their own where it is larger, and
    where the fit then predicts sizes that it has not seen better than with one β.
    """
    points, plain = _level_points(found, gamma, below), _level_points(found, gamma)
    if below and all(map(any, list(zip(*points, strict=True))[2:])):
        line, sizes = fitted(points), _sizes(found)
        larger = line.factors[3] > line.factors[2] > 0 < line.factors[0]
        if larger and not unseen(points, sizes) > unseen(plain, sizes):
            return line
    return fitted(plain)


def _sizes(found: Sequence[dict[str, Any]]) -> list[str]:
    """What a fit must not have seen to predict a collective: groups and buffers of one size."""
    return [f"{each['members']} {each['bytes']}" for each in found]


def _level_points(found: Sequence[dict[str, Any]], gamma: float, below: int = 0) -> list[tuple[float, ...]]:
    """(messages, 1 for the base, bytes, with `below` those of short pieces; seconds) of every collective."""
    points = list[tuple[float, ...]]()
    once = float(len({each["members"] for each in found}) > 1)
    for each in found:
        others, share = each["members"] - 1, each["bytes"] / each["members"]
        summing = gamma * others * share if each["op"] == "reduce_scatter" else 0.0
        moved = others * share
        sizes = (moved,) if not below else (0.0, moved) if share < below else (moved, 0.0)
        points.append((others, once, *sizes, _beside(each["seconds"], summing)))
    return points


def _beside(seconds: float, known: float) -> float:
    """What a measured time leaves beside a known part: a tenth at least, as `fitted` divides by it."""
    return max(seconds - known, 0.1 * seconds)


def _kernel_points(
    kernels: Sequence[dict[str, Any]], narrow: Sequence[int], call: float
) -> list[tuple[float, ...]]:
    """Points of all kernels.

    (operations by range of channels, many first, bytes of In and Out, of Ker, of dKer; seconds)
    """
    points = list[tuple[float, ...]]()
    for each in kernels:
        column = next((at for at, below in enumerate(narrow, 1) if each["channels"] < below), 0)
        flops = [0.0] * (len(narrow) + 1)
        flops[column] = each["flops"]
        writes = each.get("pass") == "backward-filter"
        ker, dker = (0.0, each["weights"]) if writes else (each["weights"], 0.0)
        points.append((*flops, each["bytes"], ker, dker, _beside(each["seconds"], call)))
    return points


def _compute(found: dict[str, Any]) -> tuple[dict[str, str], dict[str, float], list[str]]:
    """(entries of `compute`, errors by entry, what the head of the file says of the fit)."""
    kernels, errors = found["kernels"], {name: float(each) for name, each in found["errors"].items()}
    narrow = [n for low, n in zip((0, *NARROW), NARROW, strict=False) if _any(kernels, low, n)]
    points = _kernel_points(kernels, narrow, found["call"])
    fit = fitted_by_ratio(points)
    wide, *few, byte, weight, gradient = fit.factors
    of_wide, *_, of_byte, of_weight, of_gradient = fit.errors
    wide = wide or min(each["seconds"] / each["flops"] for each in kernels)
    numbers = {"rate": 1 / wide, "bandwidth": found["bandwidth"], "gamma": found["gamma"]}
    numbers |= {"overhead": found["call"], "fresh": found["fresh"]}
    numbers |= {"tap": found["tap"], "crowd": min(max(1.0, found["crowd"]), found["ranks"])}
    numbers |= {name: found[name] for name in ("dispatch", "shared", "exchange") if name in found}
    moved = {"stream": (byte, of_byte), "weights": (weight, of_weight), "gradients": (gradient, of_gradient)}
    numbers |= {name: 1 / each for name, (each, _) in moved.items() if each}
    errors |= {"rate": of_wide, "overhead": errors.pop("call")}
    errors |= {name: error for name, (each, error) in moved.items() if each}
    many = [at for at, each in enumerate(kernels) if each["channels"] >= max(NARROW)]
    layers = [str(kernels[at]["layer"]) for at in many]
    errors["kernels"] = unseen([points[at] for at in many], layers, fitted_by_ratio, True)
    entries = {name: f"{each:.4g}" for name, each in numbers.items()}
    if narrow:  # few channels are never faster than many
        rates = [1 / max([wide, *few[at:]]) for at in range(len(few))]
        steps = list(zip(narrow, rates, strict=True))
        if narrow[0] == NARROW[0]:
            fewest = min(each["channels"] for each in kernels)
            steps[:1] = _by_channels(fewest, rates[0], (rates[1:] or [1 / wide])[0])
        entries["narrow"] = f"[{', '.join(f'[{below}, {rate:.4g}]' for below, rate in steps)}]"
    said = [f"local kernel {fit.error:.0%}, of layers that the fit has not seen {errors['kernels']:.0%}"]
    return entries, errors, said


def _by_channels(measured: int, rate: float, most: float) -> list[tuple[int, float]]:
    """(channels, rate below that many), of fewer channels than a vector of the processor has lanes.

    Libraries fill vectors up with zeros, so a kernel takes as long for one channel as for all that fit.
    `rate` was measured with `measured` channels; kernels with more channels have `most`.
    """
    return [(few + 1, min(most, rate * few / measured)) for few in range(1, NARROW[0])]


def _any(kernels: Sequence[dict[str, Any]], low: int, below: int) -> bool:
    return any(low <= each["channels"] < below for each in kernels)


def machine_text(found: dict[str, Any], name: str) -> str:
    """The machine file of what was measured."""
    compute, errors, said = _compute(found)
    nodes, lines = found["ranks"] // found["local"], []
    for each, ranks in (("node", found["local"]), ("system", found["ranks"])):
        every = [entry for entry in found["collectives"] if entry["level"] == each]
        measured = [entry for entry in every if not entry.get("lost")] or every
        if measured:
            line = level(measured, found["gamma"], found["pieces"])
            alpha, base, beta, *short = line.factors
            names = ("alpha", "base", "beta", "pieces")
            known = zip(names, line.errors, line.factors, strict=False)
            errors |= {f"{what} of {each}": error for what, error, factor in known if factor}
            points = _level_points(measured, found["gamma"], found["pieces"] if short else 0)
            short = (short or [beta]) if found["pieces"] else []
            errors[f"collectives of {each}"] = unseen(points, _sizes(measured))
            said.append(f"collectives of level {each} {line.error:.0%}")
            numbers = f"alpha: {alpha:.4g}, beta: {beta:.4g}"
            numbers += f", base: {base:.4g}" if base else ""
            numbers += "".join(f", pieces: [[{found['pieces']}, {more:.4g}]]" for more in short)
            lines.append(f"  - {{name: {each}, ranks: {ranks}, {numbers}, kind: measured}}")
    shown = (f"{key}: {value if value < MOST_ERROR else MOST_ERROR:.3f}" for key, value in errors.items())
    return "\n".join(
        [
            f"# Measured by `synth calibrate` on {found['ranks']} ranks, {nodes} node(s), "
            f"{found['backend']}, {found['device']}.",
            f"# Mean error of the fits: {', '.join(said)}.",
            f"machine: {name}",
            f"source: measured by synth calibrate on {found['ranks']} ranks with {found['backend']}",
            "levels:",
            *lines,
            f"compute: {{{', '.join(f'{key}: {value}' for key, value in compute.items())}}}",
            f"memory: {found['memory']}",
            f"overlap: {found['overlap']:.3f}",
            "algorithms: [ring]",
            f"errors: {{{', '.join(shown)}}}  # relative",
            "",
        ]
    )
