"""From the measurements of the ranks to the numbers of a line."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.contenders.ours import TUNED
from benchmarks.suite.profiles import PARTS
from benchmarks.suite.rank import LOCAL, PROBE, WIRE
from synth.layer.axes import ROW_MAJOR, Tensor
from synth.machine.hierarchy import Machine
from synth.machine.layer_time import LayerTimer
from synth.planning.plan import Plan
from synth.schedule.memory import Footprints

ENOUGH = {"ratio": 0.95, "efficiency": 0.8}  # below these a line falls short


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of some values."""
        if len(values) < 2:
            return cls(*values * 3)
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Row:
    """One contender of a line. Seconds; bytes of the rank that moves most, as counted at the sockets."""

    name: str
    seconds: Spread
    ratio: Spread  # its seconds / ours, round by round: above 1 ours is faster
    sent_received: int
    received: int
    copied: tuple[str, ...]  # what it holds copies of at the start
    profile: dict[str, float]
    tuned: float = math.nan  # its seconds / ours with tuned kernels, the median over the rounds


@dataclass(frozen=True)
class Line:
    """(layer, P, work) with all its contenders; `rows[0]` is ours as emitted, before any tuning."""

    layer: str
    procs: int
    work: str
    grid: str
    objective: str
    operations: int  # floating-point, of all ranks
    planned: int  # bytes that our busiest rank receives, as planned
    rounds: int  # of ours; peers that are far behind after the first ones have fewer
    rows: tuple[Row, ...]
    refused: dict[str, str]
    local: float  # seconds of our local kernels alone
    bandwidth: float  # bytes per second and rank, all ranks sending at once
    efficiency: float
    predicted: float | None  # seconds, by the time model
    measured: str = ""  # date and time

    @classmethod
    def read(cls, data: dict[str, Any]) -> Line:
        """From JSON."""
        spreads = ("seconds", "ratio")
        rows = [{**row, **{key: Spread(**row[key]) for key in spreads}} for row in data["rows"]]
        made = tuple(Row(**{**row, "copied": tuple(row["copied"])}) for row in rows)
        return cls(**{**data, "rows": made})

    @property
    def key(self) -> tuple[str, int, str]:
        """What is replaced when it is measured again."""
        return self.layer, self.procs, self.work

    @property
    def rivals(self) -> list[Row]:
        """The peers that start with no more than ours: in a forward pass, without copies of the weights.

        In a training step, peers with copies must sum their gradients, so all peers count.
        """
        others = [row for row in self.rows[1:] if row.name != TUNED]
        return [row for row in others if self.work == "training" or not row.copied]

    @property
    def best(self) -> Row | None:
        """The fastest rival."""
        return min(self.rivals, key=lambda row: row.ratio.median, default=None)

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        if self.predicted is None:
            return None
        return self.predicted / self.rows[0].seconds.median - 1

    def short(self) -> list[str]:
        """The goals that the line misses, one sentence each."""
        sentences, mine = list[str](), self.rows[0]
        best = self.best
        if best and best.ratio.median < ENOUGH["ratio"]:
            tuned = "" if math.isnan(best.tuned) else f", {best.tuned:.2f} with tuned kernels"
            sentences.append(f"{best.name} takes {best.ratio.median:.2f} of our time{tuned}")
        if mine.received > self.planned * 1.02 + 10_000:  # headers, and the messages of a barrier
            sentences.append(f"{mine.received / max(self.planned, 1):.2f} of the planned bytes are received")
        for row in self.rivals:
            if row.sent_received < mine.sent_received * 0.99:
                sentences.append(
                    f"{row.name} moves {row.sent_received / mine.sent_received:.2f} of our bytes"
                )
        if self.efficiency < ENOUGH["efficiency"]:
            wire = self.planned / self.bandwidth
            bound = "the local kernels" if self.local > wire else "the wire"
            both = (self.local + wire) / mine.seconds.median
            sentences.append(
                f"{bound} alone would take {self.efficiency:.2f} of our time, one after the other {both:.2f}"
            )
        return sentences


def predicted(plan: Plan, machine: Machine | None) -> float | None:
    """Seconds of a plan by the time model on a machine."""
    if machine is None:
        return None
    if plan.timed is not None:
        return plan.timed[1].seconds
    kept = frozenset[Tensor]().union(*(pass_plan.reuses for pass_plan in plan.pass_plans))
    timer = LayerTimer(machine, Footprints(plan.distribution), ROW_MAJOR, saved=kept, sequence=plan.passes)
    return sum(timer.passed(t.pass_, t.stationary, t.panels).total for t in plan.pass_plans)


def makespans(ranks: list[dict[str, Any]], name: str) -> list[float]:
    """Seconds per round, from the first rank's start to the last one's end."""
    spans = zip(*(rank["times"][name] for rank in ranks), strict=True)
    return [max(end for _, end in span) - min(start for start, _ in span) for span in spans]


def ratios(theirs: list[float], ours: list[float]) -> list[float]:
    """Their seconds over ours, for the rounds in which both ran."""
    return [other / own for other, own in zip(theirs, ours, strict=False)]


def summarised(
    plan: Plan, operations: int, objective: str, machine: Machine | None, ranks: list[dict[str, Any]]
) -> Line:
    """The line of a plan, from the list over ranks that `rank` writes."""
    first = ranks[0]
    mine = makespans(ranks, next(iter(first["traffic"])))
    local, wire = makespans(ranks, LOCAL), makespans(ranks, WIRE)
    tuned = makespans(ranks, TUNED) if TUNED in first["traffic"] else [math.nan] * len(mine)
    rows = []
    for name in first["traffic"]:
        theirs = makespans(ranks, name)
        moved = [rank["traffic"][name] for rank in ranks]
        profile = {
            part: statistics.mean(rank["profiles"][name][part] for rank in ranks)
            for part in (PARTS if first["profiles"][name] else ())
        }
        rows.append(
            Row(
                name,
                Spread.of(theirs),
                Spread.of(ratios(theirs, mine)),
                max(sent + received for sent, received in moved),
                max(received for _, received in moved),
                tuple(first["copied"][name]),
                profile,
                statistics.median(ratios(theirs, tuned)),
            )
        )
    procs = len(ranks)
    received = PROBE * (procs - 1) / procs
    planned = plan.words["total"] * plan.nest.word_bytes
    bandwidth = received / statistics.median(wire)
    bounds = [max(kernel, planned / received * sending) for kernel, sending in zip(local, wire, strict=True)]
    return Line(
        plan.layer.name,
        procs,
        plan.pass_,
        plan.grid.shown() or "1",
        objective,
        operations,
        planned,
        len(mine),
        tuple(rows),
        first["refused"],
        statistics.median(local),
        bandwidth,
        statistics.median(bound / own for bound, own in zip(bounds, mine, strict=True)),
        predicted(plan, machine),
        time.strftime("%Y-%m-%d %H:%M"),
    )
