"""The page of results: conventions, overview, all contenders, and the reasons for slow lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.suite.contenders.contender import CLOSE
from benchmarks.suite.launch import BenchmarkRequest
from benchmarks.suite.rank import FAR, FIRST, PROBE
from benchmarks.suite.summary import Line
from benchmarks.suite.table import HEADS, cells, markdown, overview, totals, why

NETWORK = (
    "The hosts are network namespaces on one switch: what two of them send one another passes two links "
    "(token buckets of the bandwidth above in each direction), takes its time there and no core meanwhile; "
    "ranks of one host are next to each other. At most the bytes of 2 ms pass an idle link at once. "
    "Comparisons, counts of bytes and first steps run on fast links."
)
CONVENTIONS = Path(__file__).with_name("conventions.md")


def page(lines: list[Line], machine: str, request: BenchmarkRequest, failed: Sequence[str] = ()) -> str:
    """Markdown. failed: the lines that could not be measured, with the reason."""
    how = {
        "words": "the fewest words",
        "time": "the least time on the measured machine",
        "both": "the grid with the fewest words, and on it the fastest schedule on the measured machine",
    }
    objective = f"Our plans: {how[request.objective]}. Machine files: {request.machine or '-'}."
    refused = [
        f"* {line.layer}, P = {line.procs}, {line.work}: {name}: {reason}"
        for line in lines
        for name, reason in line.refused.items()
        if not (reason.startswith("it is for matrix") or reason.startswith("a matrix product"))
    ]
    conventions = CONVENTIONS.read_text().format(
        close=CLOSE,
        probe=f"{PROBE / 1e6:.1f}",
        network=NETWORK if request.hosts.link else "",
        far=FAR,
        first=FIRST,
    )
    rows = [cells(line, row) for line in lines for row in line.rows]
    parts = [
        ["# Ours beside the alternatives", "", machine + ".", objective],
        ["", "## Overview", "", *overview(lines), "", *totals(lines)],
        ["", "## Where a line falls short", "", *(why(lines) or ["Nowhere."])],
        ["", *conventions.splitlines()],
        ["", "## All contenders", "", "The best peer of a line is in bold.", "", *markdown(HEADS, rows)],
        ["", "## Left out", "", *(refused or ["Nothing."]), *(f"* failed: {each}" for each in failed)],
    ]
    return "\n".join(text for part in parts for text in part) + "\n"
