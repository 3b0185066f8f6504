"""The table of a campaign."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.faults.cases import FAULTS, FORMS, SLACK, Case, Outcome

Run = tuple[Case, Outcome]
BEFORE = "before `parallelize`"


def table(outcomes: dict[Case, Outcome]) -> str:
    """Per fault and program form: seconds until all had ended, and what was not right."""
    runs = [(case, outcome) for case, outcome in outcomes.items() if not outcome.refused]
    lines = [
        "Seconds from the fault until no rank was left: median / most (runs).",
        "",
        f"| fault | {' | '.join(FORMS)} | {BEFORE} |",
        f"|---|{'---|' * (len(FORMS) + 1)}",
    ]
    for fault in FAULTS:
        cells = [
            cell([run for run in runs if run[0].fault == fault and column(run) == name])
            for name in (*FORMS, BEFORE)
        ]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    lines += [
        "",
        "| starts | P | timeout | runs | late | late launchers | unnamed | processes left | files left |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    kinds = sorted({(not case.forked, case.procs, case.timeout) for case, _ in runs})
    for real, procs, timeout in kinds:
        own = [
            (case, outcome)
            for case, outcome in runs
            if (not case.forked, case.procs, case.timeout) == (real, procs, timeout)
        ]
        start = "real" if real else "forked"
        lines.append(f"| {start} | {procs} | {timeout:g} s | {len(own)} | {' | '.join(counts(own))} |")
    rank, last = (
        max((seconds(outcome) - case.timeout for case, outcome in runs), default=0.0)
        for seconds in (lambda outcome: outcome.ranks, lambda outcome: outcome.seconds)
    )
    lines += [
        "",
        f"{len(runs)} runs. The last rank ended at most {rank:.1f} s after the timeout, the last process at"
        f" most {last:.1f} s after it. Late: a rank was left {SLACK:g} s after it.",
        "",
    ]
    return "\n".join(lines)


def column(run: Run) -> str:
    """The column of a run: a training loop is watched from `parallelize` on."""
    case, outcome = run
    return BEFORE if case.form == "parallelize" and not outcome.made else case.form


def counts(runs: list[Run]) -> Iterable[str]:
    """How many were late, without and with launchers, unnamed, left processes, left files.

    Those before `parallelize` stand in parentheses.
    """
    tests = (
        [outcome.late(case) for case, outcome in runs],
        [outcome.seconds > case.timeout + SLACK for case, outcome in runs],
        [not outcome.named for _, outcome in runs],
        [bool(outcome.left) for _, outcome in runs],
        [bool(outcome.files) for _, outcome in runs],
    )
    for holds in tests:
        before = sum(one and column(run) == BEFORE for one, run in zip(holds, runs, strict=True))
        yield f"{sum(holds)}" + (f" ({before} {BEFORE})" if before else "")


def cell(runs: list[Run]) -> str:
    """The cell of some runs."""
    if not runs:
        return ""
    seconds = [outcome.ranks for _, outcome in runs]
    unnamed = sum(not outcome.named for _, outcome in runs)
    late = sum(outcome.late(case) for case, outcome in runs)
    text = f"{statistics.median(seconds):.1f} / {max(seconds):.1f} ({len(runs)})"
    return text + (f", {late} late" if late else "") + (f", {unnamed} unnamed" if unnamed else "")
