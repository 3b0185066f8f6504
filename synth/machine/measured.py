"""A machine file from measured times of collectives and kernels.

The model of collectives is that of `machine.collectives`, algorithm ring, because pieces travel from every
rank to every other: with p ranks and a buffer of n bytes a collective takes

    t = base + (p - 1)·α + (p - 1)/p·n·β        and a reduction (p - 1)/p·n·γ more

with another β for pieces that the runtime sends in one all-to-all. The base is known where groups of several
sizes were measured: ranks that outnumber the cores wait for one, in pairs as long as all together. A level
with groups of one size has the base of the other level.

The local kernel takes `overhead + operations / rate + bytes of In and Out / stream + bytes of Ker / weights`,
at other rates where channels are few. A kernel that writes dKer takes `bytes of dKer / gradients` instead.
Fits make the relative errors of the measured times small (`machine.fit`). The file has the relative error of
each number, and of times that a fit has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from synth.machine.fit import Fitted, Points, fitted, fitted_by_ratio, unseen

NARROW = (8, 32)  # channels, below which kernels have rates of their own
MOST_ERROR = 9.99  # that a file says, and the error of what is unknown


@dataclass(frozen=True)
class LevelTimes:
    """Measured collectives of one level.

    gamma: seconds per byte added up. below: bytes of short pieces, 0 for none. base: of another level, which
    holds here where all groups have one size, so that it cannot be told from α.
    """

    found: Sequence[dict[str, Any]]
    gamma: float
    below: int = 0
    base: float = 0.0

    @cached_property
    def line(self) -> Fitted:
        """α, base and β, and where it is larger, the β of short pieces.

        It must predict sizes that the fit has not seen better than one β does.
        """
        points = self._points(True)
        if self.below and all(map(any, list(zip(*points, strict=True))[2:])):
            parted = self._fitted(points)
            larger = parted.factors[3] > parted.factors[2] > 0 < parted.factors[0]
            if larger and not self._unseen(True) > self._unseen(False):
                return parted
        return self._fitted(self._points(False))

    @property
    def unseen(self) -> float:
        """The mean relative error of collectives whose size the fit has not seen."""
        return self._unseen(len(self.line.factors) > 3)

    def _unseen(self, parted: bool) -> float:
        sizes = [f"{each['members']} {each['bytes']}" for each in self.found]
        return unseen(self._points(parted), sizes, self._fitted)

    @property
    def _has_one_size(self) -> bool:
        return len({each["members"] for each in self.found}) == 1

    def _fitted(self, points: Points) -> Fitted:
        """A fit, where a known base is a collective without messages and bytes."""
        if not (self._has_one_size and self.base):
            return fitted(points)
        return fitted([*points, (0.0, 1.0, *[0.0] * (len(points[0]) - 3), self.base)])

    def _points(self, parted: bool) -> list[tuple[float, ...]]:
        """(messages, 1 for the base, bytes, those of short pieces if parted; seconds) of every collective."""
        points, once = list[tuple[float, ...]](), float(bool(self.base) or not self._has_one_size)
        for each in self.found:
            others, share = each["members"] - 1, each["bytes"] / each["members"]
            summing = self.gamma * others * share if each["op"] == "reduce_scatter" else 0.0
            moved = others * share
            sizes = (moved,) if not parted else (0.0, moved) if share < self.below else (moved, 0.0)
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


def _levels(found: dict[str, Any]) -> dict[str, LevelTimes]:
    """The collectives of every measured level, without those that noise hides.

    What each collective takes once, of Python and to wait for a core, depends little on the links. So a level
    whose groups have one size has the base of the other.
    """
    told = dict[str, LevelTimes]()
    for level in ("node", "system"):
        every = [entry for entry in found["collectives"] if entry["level"] == level]
        heard = [entry for entry in every if not entry.get("lost")] or every
        if heard:
            told[level] = LevelTimes(heard, found["gamma"], found["pieces"])
    base = max(times.line.factors[1] for times in told.values())
    return {level: replace(times, base=base) for level, times in told.items()}


def machine_text(found: dict[str, Any], name: str) -> str:
    """The machine file of what was measured."""
    compute, errors, said = _compute(found)
    nodes, lines, told = found["ranks"] // found["local"], [], _levels(found)
    for each, times in told.items():
        line = times.line
        alpha, base, beta, *short = line.factors
        names = ("alpha", "base", "beta", "pieces")
        known = zip(names, line.errors, line.factors, strict=False)
        errors |= {f"{what} of {each}": error for what, error, factor in known if factor}
        short = (short or [beta]) if found["pieces"] else []
        errors[f"collectives of {each}"] = times.unseen
        said.append(f"collectives of level {each} {line.error:.0%}")
        numbers = f"alpha: {alpha:.4g}, beta: {beta:.4g}"
        numbers += f", base: {base:.4g}" if base else ""
        numbers += "".join(f", pieces: [[{found['pieces']}, {more:.4g}]]" for more in short)
        ranks = found["local" if each == "node" else "ranks"]
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
            *([f"processor: {_listed(found['processors'])}"] if found.get("processors") else []),
            f"overlap: {found['overlap']:.3f}",
            "algorithms: [ring]",
            f"errors: {{{', '.join(shown)}}}  # relative",
            "",
        ]
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"
