"""How well a model that is fitted on few ranks predicts many ranks: `make accuracy`.

There are two public data sets of one machine (ABCI, 4 V100 per node). They disagree and are never mixed:
    runs     seconds per iteration from run logs, data loading included (repository paraDL-analysis); the
             least iteration of every configuration with a clean log; no data+filter (an older program)
    figure   bars of Figure 2 of the technical report of Kahira et al., HPDC'21, read off to about 1 % of
             the axis; computing and communication apart

A series has one strategy, variant and network. `t = c + α·steps + β·volume` is fitted on the few smallest p
of a series, by non-negative least squares of relative errors. β is that of the slowest level that a ring
crosses. Every larger p is predicted:
    gradient all-reduce   steps 2·log2(nodes), volume 2(p-1)/p: NCCL's trees have the latency of a tree and
                          the bandwidth of a ring
    filter, channel       steps p-1 (Table 3); the volume, (p-1)/p of the activations, is constant beyond a
                          node and part of c; so only p beyond one node are fitted
A latency can be fitted only if two small p span different numbers of nodes; otherwise it is that of the
shipped machine abci-nccl.
Accuracy is 1 - |predicted - measured| / measured, at least 0. Only the small p are fitted.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from synth.base.text_table import table
from synth.machine.file import load_machine

DATA = Path(__file__).resolve().parent / "data"
SETS = {"runs": "abci_runs.csv", "figure": "abci_figure.csv"}
NODE = 4  # ranks per node of ABCI
ACTIVATIONS = ("filter", "channel")  # strategies that exchange activations
# p up to which a series is fitted; filter and channel are measured on up to 64 ranks only
FITTED = {"data": 8, "data+spatial": 64, "data+filter": 64, "filter": 16, "channel": 16}
FITTED_FIGURE = {**FITTED, "data": 64}


@dataclass(frozen=True)
class Point:
    """One measurement: seconds per iteration on some ranks."""

    ranks: int
    seconds: float


@dataclass(frozen=True)
class Series:
    """One strategy, variant and network of one set; points by ascending ranks."""

    source: str
    strategy: str
    variant: str
    network: str
    points: tuple[Point, ...]

    @property
    def small(self) -> tuple[Point, ...]:
        """The points that are fitted."""
        limit = (FITTED if self.source == "runs" else FITTED_FIGURE).get(self.strategy, 0)
        least = NODE + 1 if self.strategy in ACTIVATIONS else 1
        return tuple(p for p in self.points if least <= p.ranks <= limit)

    @property
    def large(self) -> tuple[Point, ...]:
        """The points that are held out and predicted."""
        most = max((p.ranks for p in self.small), default=0)
        return tuple(p for p in self.points if p.ranks > most)


@dataclass(frozen=True)
class Score:
    """A fitted series: its coefficients, and its predictions for the held-out points, all in seconds."""

    series: Series
    coefficients: tuple[float, ...]
    predicted: tuple[float, ...]

    @property
    def accuracies(self) -> list[float]:
        """Accuracy of every held-out point."""
        pairs = zip(self.predicted, self.series.large, strict=True)
        return [max(0.0, 1 - abs(p - m.seconds) / m.seconds) for p, m in pairs]

    @property
    def overall(self) -> float:
        """Mean accuracy over all points, fitted ones included; published accuracies are such means."""
        s = self.series
        made = [float(np.dot(features(s.strategy, p.ranks), np.array(self.coefficients))) for p in s.small]
        near = [max(0.0, 1 - abs(t - p.seconds) / p.seconds) for t, p in zip(made, s.small, strict=True)]
        return float(np.mean([*near, *self.accuracies]))

    @property
    def mean(self) -> float:
        """Mean accuracy over the held-out points."""
        return float(np.mean(self.accuracies))


def load(source: str) -> list[Series]:
    """All series of one set that have at least two small p and one larger p."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    with (DATA / SETS[source]).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["strategy"], row["variant"], row["network"]
            groups.setdefault(key, []).append(Point(int(row["ranks"]), float(row["seconds"])))
    every = (
        Series(source, *key, tuple(sorted(points, key=lambda p: p.ranks))) for key, points in groups.items()
    )
    return [series for series in every if len(series.small) >= 2 and series.large]


def features(strategy: str, ranks: int) -> list[float]:
    """The factors of c, α, β within a node, and β beyond a node."""
    if strategy in ACTIVATIONS:
        return [1.0, float(ranks - 1), 0.0, 0.0]
    volume, inside = 2 * (ranks - 1) / ranks, nodes(ranks) == 1
    return [1.0, 2 * math.log2(nodes(ranks)), volume if inside else 0.0, 0.0 if inside else volume]


def nodes(ranks: int) -> int:
    """Nodes that hold some ranks."""
    return max(1, -(-ranks // NODE))


def score(series: Series) -> Score:
    """Fit the small p, predict the large ones."""
    rows = np.array([features(series.strategy, p.ranks) for p in series.small])
    seconds = np.array([p.seconds for p in series.small])
    free = [0, 1, 2, 3]
    known = np.zeros(4)
    if len({nodes(p.ranks) for p in series.small} - {1}) < 2:
        free, known[1] = [0, 2, 3], load_machine("abci-nccl").levels[-1].alpha
    rest = (seconds - rows @ known) / seconds
    known[free] = nonnegative((rows / seconds[:, None])[:, free], rest)
    fitted = [float(value) for value in known]
    predicted = [float(np.dot(features(series.strategy, p.ranks), np.array(fitted))) for p in series.large]
    return Score(series, tuple(fitted), tuple(predicted))


def nonnegative(rows: NDArray[np.float64], target: NDArray[np.float64]) -> list[float]:
    """Non-negative least squares over a few columns: the best subset of columns, the smallest on ties."""
    best: tuple[float, int, list[float]] | None = None
    columns = rows.shape[1]
    for count in range(1, min(columns, len(target)) + 1):
        for chosen in itertools.combinations(range(columns), count):
            part, *_ = np.linalg.lstsq(rows[:, chosen], target, rcond=None)
            if (part < 0).any():
                continue
            error = float(np.sum((rows[:, chosen] @ part - target) ** 2))
            whole = [0.0] * columns
            for column, value in zip(chosen, part, strict=True):
                whole[column] = float(value)
            if best is None or error < best[0] * (1 - 1e-6) - 1e-12:
                best = error, count, whole
    return best[2] if best else [0.0] * columns


def scores() -> list[Score]:
    """The scores of every series of both sets, one set after the other."""
    return [score(series) for source in SETS for series in load(source)]


def published() -> dict[tuple[str, str], float]:
    """(strategy, network) -> mean accuracy of the published predictions against the measured bars."""
    found: dict[tuple[str, str], list[float]] = {}
    with (DATA / SETS["figure"]).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["published_model"]:
                measured = float(row["seconds"])
                accuracy = 1 - abs(float(row["published_model"]) - measured) / measured
                found.setdefault((row["strategy"], row["network"]), []).append(max(0.0, accuracy))
    return {key: float(np.mean(values)) for key, values in found.items()}


def report(made: Sequence[Score]) -> str:
    """The table of `make accuracy`."""
    published_accuracies = published()
    rows = [
        [
            "set",
            "strategy",
            "variant",
            "network",
            "fitted p",
            "held out p",
            "mean",
            "worst",
            "all p",
            "published",
        ]
    ]
    for each in made:
        s = each.series
        known = published_accuracies.get((s.strategy, s.network)) if s.source == "figure" else None
        rows.append(
            [
                s.source,
                s.strategy,
                s.variant,
                s.network,
                f"{s.small[0].ranks}-{s.small[-1].ranks}",
                f"{s.large[0].ranks}-{s.large[-1].ranks}",
                f"{each.mean:.3f}",
                f"{min(each.accuracies):.3f}",
                f"{each.overall:.3f}",
                "-" if known is None else f"{known:.3f}",
            ]
        )
    return "\n".join(table(rows, right=[6, 7, 8, 9]))


if __name__ == "__main__":
    print(report(scores()))
