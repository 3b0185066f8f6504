"""A network on some ranks as a line of results: kept as JSON, merged, and shown as tables."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suite.models.contenders import COMPILED, LIMITS, LOCAL, LOCAL_WORDS, MINE, ONE, OURS, WORDS
from benchmarks.suite.summary import Spread, makespans, ratios
from benchmarks.suite.table import markdown

HEADS = [
    *("network", "P", "contender", "rounds", "s", "quartiles", "theirs / ours", "quartiles"),
    *("processor s", "MB moved", "MB held", "measured"),
]


@dataclass(frozen=True)
class Row:
    """One contender. Seconds; bytes of the rank that moves, or holds, most.

    ratio: its seconds over those of ours with the same statistics, round by round. processor: seconds of
    processor time of a step, summed over the ranks.
    """

    name: str
    statistics: str
    rounds: int
    seconds: Spread
    ratio: Spread
    processor: float
    moved: int
    held: int


@dataclass(frozen=True)
class Line:
    """A network on some ranks, with all contenders.

    measured: date and time. refused: contender -> why it cannot run. predicted: ours -> seconds by the time
    model, on the machine that was measured before.
    """

    network: str
    procs: int
    measured: str
    rows: list[Row]
    refused: dict[str, str] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """What is replaced when it is measured again."""
        return self.network, self.procs

    @property
    def peers(self) -> list[Row]:
        """Those that are not ours, and move words."""
        return [row for row in self.rows if row.name not in (*MINE, *LIMITS)]

    @property
    def errors(self) -> dict[str, float]:
        """Ours -> (predicted - measured) / measured."""
        measured = {row.name: row.seconds.median for row in self.rows}
        return {name: each / measured[name] - 1 for name, each in self.predicted.items() if name in measured}

    @property
    def fastest(self) -> Row | None:
        """The peer that takes the smallest part of our time, with the same statistics."""
        return min(self.peers, key=lambda row: row.ratio.median, default=None)

    @property
    def fewest_bytes(self) -> float | None:
        """The least bytes of a peer over those of our plan for words with the same statistics.

        None where none was measured, or where it moves nothing.
        """
        ours = {row.statistics: row.moved for row in self.rows if row.name in (WORDS, LOCAL_WORDS)}
        found = [row.moved / ours[row.statistics] for row in self.peers if ours.get(row.statistics)]
        return min(found, default=None)

    @classmethod
    def of(cls, network: str, measured: str, ranks: list[dict[str, Any]]) -> Line:
        """From the list over ranks that `rank` writes."""
        first, rows = ranks[0], []
        kinds = first["statistics"]
        for name in first["times"]:
            alike = LOCAL if LOCAL in first["times"] and kinds[name] == "local" else OURS
            theirs = makespans(ranks, name)
            rows.append(
                Row(
                    name,
                    kinds[name],
                    len(theirs),
                    Spread.of(theirs),
                    Spread.of(ratios(theirs, makespans(ranks, alike))),
                    sum(rank["processor"][name] for rank in ranks),
                    max(sum(rank["traffic"][name]) for rank in ranks),
                    max(rank["held"][name] for rank in ranks),
                )
            )
        return cls(network, len(ranks), measured, rows, first["refused"])

    @classmethod
    def read(cls, data: dict[str, Any]) -> Line:
        """From JSON."""
        rows = [
            Row(**{**row, "seconds": Spread(**row["seconds"]), "ratio": Spread(**row["ratio"])})
            for row in data["rows"]
        ]
        return cls(**{**data, "rows": rows})

    def cells(self) -> list[list[str]]:
        """One row of the table per contender."""
        found = []
        for row in self.rows:
            first, ours = row is self.rows[0], row.name in MINE
            name = f"**{row.name}**" if row is self.fastest else row.name
            found.append(
                [
                    self.network if first else "",
                    str(self.procs) if first else "",
                    name,
                    str(row.rounds),
                    f"{row.seconds.median:.3f}",
                    f"{row.seconds.low:.3f} - {row.seconds.high:.3f}" if row.rounds > 1 else "",
                    "1.00" if row.name in (OURS, LOCAL) else f"{row.ratio.median:.2f}",
                    "" if ours or row.rounds == 1 else f"{row.ratio.low:.2f} - {row.ratio.high:.2f}",
                    f"{row.processor:.2f}",
                    f"{row.moved / 1e6:.2f}",
                    f"{row.held / 1e6:.1f}",
                    self.measured if first else "",
                ]
            )
        return found


def merged(file: Path, new: list[Line]) -> list[Line]:
    """The lines of a file of results, with new ones in the place of those of the same network and ranks."""
    lines = {line.key: line for line in read(file)} | {line.key: line for line in new}
    return list(lines.values())


def read(file: Path) -> list[Line]:
    """The lines of a file of results; none where there is no file."""
    if not file.exists():
        return []
    return [Line.read(each) for each in json.loads(file.read_text())["lines"]]


def write(file: Path, machine: str, lines: list[Line]) -> None:
    """All lines as JSON."""
    data = {"machine": machine, "lines": [asdict(line) for line in lines]}
    file.write_text(json.dumps(data, indent=1) + "\n")


def overview(lines: list[Line]) -> list[str]:
    """One row per line: the fastest peer, DDP, FSDP2 and the time model; then geometric means."""
    heads = ["network", "P", "ours s", "fastest peer", "its time / ours", "DDP / ours", "FSDP2 / ours"]
    heads += ["its MB / ours", "least MB of a peer / ours for words", "predicted s", "error"]
    limited = any(row.name in LIMITS for line in lines for row in line.rows)
    heads += [f"{ONE} / ours", "compiled / ours"] if limited else []
    rows, kinds = [], dict[str, list[float]]()
    for line in lines:
        by_name = {row.name: row for row in line.rows}
        best = line.fastest
        shown = [line.network, str(line.procs), f"{line.rows[0].seconds.median:.3f}"]
        for what, row in (
            ("fastest peer", best),
            ("DDP", by_name.get("DDP")),
            ("FSDP2", by_name.get("FSDP2")),
        ):
            ratio = row.ratio.median if row else math.nan
            if row:
                kinds.setdefault(what, []).append(ratio)
            shown += [row.name if row else "none"] if what == "fastest peer" else []
            shown.append(f"{ratio:.2f}" if row else "")
        alike = by_name.get(LOCAL) if best and best.statistics == "local" else line.rows[0]
        shown.append(f"{best.moved / alike.moved:.2f}" if best and alike and alike.moved else "")
        shown.append("" if line.fewest_bytes is None else f"{line.fewest_bytes:.2f}")
        limits = [by_name.get(what) for what in (ONE, COMPILED)] if limited else []
        ratios_of = [f"{row.ratio.median:.2f}" if row else "" for row in limits]
        rows.append([*shown, *_predicted(line), *ratios_of])
    for what in LIMITS:
        kinds |= {what: [row.ratio.median for line in lines for row in line.rows if row.name == what]}
    kinds = {what: each for what, each in kinds.items() if each}
    errors = [abs(each) for line in lines for each in line.errors.values()]
    sentences = [
        f"{what} / ours: {math.exp(statistics.fmean(map(math.log, each))):.2f} in the geometric mean of "
        f"{len(each)} lines, {min(each):.2f} at least."
        for what, each in kinds.items()
    ]
    if errors:
        mean, most = statistics.fmean(errors), max(errors)
        sentences.append(
            f"The time model is off by {mean:.0%} of the measured time on average, {most:.0%} at most."
        )
    return [*markdown(heads, rows), "", *sentences]


def _predicted(line: Line) -> list[str]:
    """Seconds by the time model, and their errors, for ours and ours with local statistics."""
    names = [name for name in line.predicted if name in line.errors]
    seconds = " / ".join(f"{line.predicted[name]:.3f}" for name in names)
    return [seconds, " / ".join(f"{line.errors[name]:+.0%}" for name in names)]


def page(machine: str, about: str, lines: list[Line]) -> str:
    """Markdown."""
    text = ["# Whole networks beside the alternatives", "", machine, about, "", "## Overview", ""]
    text += [*overview(lines), "", "## All contenders", "", "The fastest peer of a line is in bold.", ""]
    text += markdown(HEADS, [row for line in lines for row in line.cells()])
    refused = [
        f"* {line.network}, P = {line.procs}: {name}: {reason}"
        for line in lines
        for name, reason in line.refused.items()
    ]
    text += ["", "## Left out", "", *(refused or ["Nothing."])]
    return "\n".join(text) + "\n"
