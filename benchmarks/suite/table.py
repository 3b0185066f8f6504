"""The table of the measured lines: on the terminal with rich, as Markdown, as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.suite.summary import ENOUGH, Line, Row

HEADS = (
    "layer",
    "P",
    "work",
    "contender",
    "s",
    "quartiles",
    "theirs / ours",
    "quartiles",
    "MB moved",
    "MB received",
    "planned",
)


def cells(line: Line, row: Row) -> list[str]:
    """One contender of a line."""
    first, best = row is line.rows[0], row is line.best
    name = f"ours, {line.grid}" if first else row.name
    name += "*" if row.copied else ""
    return [
        line.layer if first else "",
        str(line.procs) if first else "",
        line.work if first else "",
        f"**{name}**" if best else name,
        f"{row.seconds.median:.3f}",
        f"{row.seconds.low:.3f} - {row.seconds.high:.3f}",
        f"{row.ratio.median:.2f}",
        "" if first else f"{row.ratio.low:.2f} - {row.ratio.high:.2f}",
        f"{row.sent_received / 1e6:.2f}",
        f"{row.received / 1e6:.2f}",
        f"{line.planned / 1e6:.2f}" if first else "",
    ]


def printed(lines: Iterable[Line], console: Console) -> None:
    """The lines as a table on the terminal."""
    table = Table(*HEADS)
    for line in lines:
        for row in line.rows:
            table.add_row(
                *(cell.replace("**", "") for cell in cells(line, row)), end_section=row is line.rows[-1]
            )
    console.print(table)


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table, one line each."""
    names = list(heads)
    made = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    return made + ["| " + " | ".join(row) + " |" for row in rows]


def overview(lines: list[Line]) -> list[str]:
    """One row per line: ours against the best peer and against the limit of the machine."""
    heads = [
        "layer",
        "P",
        "work",
        "rounds",
        "best peer",
        "its time / ours",
        "/ tuned",
        "its bytes / ours",
    ]
    heads += ["our Gflop/s", "local kernels s", "wire s", "efficiency", "predicted s", "error", "measured"]
    rows = []
    for line in lines:
        best, mine = line.best, line.rows[0]
        against = ["none"] + [""] * 3
        if best:
            bytes_ = f"{best.sent_received / mine.sent_received:.2f}" if mine.sent_received else "-"
            tuned = "" if math.isnan(best.tuned) else f"{best.tuned:.2f}"
            against = [best.name, f"{best.ratio.median:.2f}", tuned, bytes_]
        error = line.error
        model = ["", ""] if error is None else [f"{line.predicted:.3f}", f"{error:+.0%}"]
        wire = line.planned / line.bandwidth
        shown = [line.layer, str(line.procs), line.work, str(line.rounds), *against]
        shown.append(f"{line.operations / mine.seconds.median / 1e9:.0f}")
        shown += [f"{line.local:.3f}", f"{wire:.3f}", f"{line.efficiency:.2f}"]
        rows.append([*shown, *model, line.measured])
    return markdown(heads, rows)


def totals(lines: list[Line]) -> list[str]:
    """Sentences over all lines of a kind of work."""
    text = []
    for work in dict.fromkeys(line.work for line in lines):
        best = [line.best for line in lines if line.work == work and line.best]
        text += summed(work, [row.ratio.median for row in best])
        text += summed(f"{work}, tuned", [row.tuned for row in best if not math.isnan(row.tuned)])
    errors = [abs(line.error) for line in lines if line.error is not None]
    if errors:
        text.append(
            f"The time model is off by {statistics.fmean(errors):.0%} of the measured time on average."
        )
    return text


def summed(what: str, ratios: list[float]) -> list[str]:
    """One sentence over the ratios of some lines."""
    if not ratios:
        return []
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    enough = sum(ratio >= ENOUGH["ratio"] for ratio in ratios)
    return [
        f"{what}: the best peer takes {mean:.2f} of our time in the geometric mean of "
        f"{len(ratios)} lines, {min(ratios):.2f} at least; on {enough} it is {ENOUGH['ratio']} or more."
    ]


def spent(row: Row) -> dict[str, float]:
    """Part of the profile -> seconds of the median step."""
    return {part: share * row.seconds.median for part, share in row.profile.items()}


def why(lines: list[Line]) -> list[str]:
    """Lines that miss a goal: the numbers, and the time of ours and of the best peer by part."""
    text = []
    for line in lines:
        short = line.short()
        if not short:
            continue
        text.append(f"* **{line.layer}, P = {line.procs}, {line.work}**: {'; '.join(short)}.")
        profiled = [row for row in (line.rows[0], line.best) if row and row.profile]
        for row in profiled:
            parts = ", ".join(f"{part} {seconds:.3f} s" for part, seconds in spent(row).items())
            text.append(f"  {row.name}: {parts}.")
        if len(profiled) == 2:
            mine, theirs = map(spent, profiled)
            part = max(mine, key=lambda name: mine[name] - theirs[name])
            text.append(f"  Ours loses most in {part}: {mine[part] - theirs[part]:+.3f} s.")
    return text


def merged(file: Path, new: list[Line]) -> list[Line]:
    """The lines of a file of results, with new ones in the place of those of the same layer, P and work."""
    old = json.loads(file.read_text())["lines"] if file.exists() else []
    lines = {line.key: line for line in map(Line.read, old)} | {line.key: line for line in new}
    return list(lines.values())


def as_json(lines: list[Line], machine: str) -> str:
    """Everything as JSON: seconds, bytes, fractions."""
    return json.dumps({"machine": machine, "lines": [asdict(line) for line in lines]}, indent=1) + "\n"
