"""The page with the tables: what is equal, what is refused and why, and what DTensor's tests expect."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from benchmarks.judges.cases import BASES, DTYPES, EQUAL, REFUSED, VERDICTS, Case, Outcome, worst

TABLES = "## Cases"  # begins what is written anew


def page(text: str, done: Mapping[Case, Outcome]) -> str:
    """The page, as Markdown: its text up to the tables, and these."""
    names = by_name(done)
    head, _, _ = text.partition(TABLES)
    tables = _summary(done, names), _grids(done), _not_equal(names), _beside(names)
    return "\n".join([head.rstrip(), "", *tables])


def by_name(done: Mapping[Case, Outcome]) -> dict[tuple[str, str, str], Outcome]:
    """Base, dtype and name -> the worst outcome of its cases."""
    found: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for case, outcome in done.items():
        found[case.base, case.dtype, case.name].append(outcome)
    return {key: worst(each) for key, each in found.items()}


def _summary(done: Mapping[Case, Outcome], names: Mapping[tuple[str, str, str], Outcome]) -> str:
    lines = ["| | dtype | " + " | ".join(VERDICTS) + " | names | of them equal |"]
    lines.append("|---|---|" + "--:|" * (len(VERDICTS) + 2))
    for base in BASES:
        for dtype in DTYPES:
            count = Counter(o.verdict for c, o in done.items() if (c.base, c.dtype) == (base, dtype))
            of_names = [o.verdict for (b, d, _), o in names.items() if (b, d) == (base, dtype)]
            if of_names:
                cells = [
                    base,
                    dtype,
                    *(count[each] for each in VERDICTS),
                    len(of_names),
                    of_names.count(EQUAL),
                ]
                lines.append(f"| {' | '.join(map(str, cells))} |")
    commits = Counter(outcome.commit for outcome in done.values()).most_common()
    where = ", ".join(f"{name or 'unknown'} ({number} cases)" for name, number in commits)
    return "\n".join([TABLES, "", *lines, "", f"Measured at commit {where}.", ""])


def _grids(done: Mapping[Case, Outcome]) -> str:
    """The layers of public tests, by their grid of arguments and the number of ranks."""
    lines = ["## Layers of public tests", "", "| equal in float64 | 4 ranks | 8 ranks |", "|---|--:|--:|"]
    layers = {case: o for case, o in done.items() if (case.base, case.dtype) == ("layers", "float64")}
    for name in dict.fromkeys(case.name for case in layers):
        cells = list[str]()
        for ranks in (4, 8):
            found = [o.verdict for c, o in layers.items() if (c.name, c.ranks) == (name, ranks)]
            cells.append(f"{found.count(EQUAL)} of {len(found)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _not_equal(names: Mapping[tuple[str, str, str], Outcome]) -> str:
    lines = list[str]()
    for verdict in reversed(VERDICTS[1:]):
        grouped: dict[str, list[str]] = defaultdict(list)
        for (base, dtype, name), outcome in names.items():
            if outcome.verdict == verdict:
                said = sentence(outcome.why) if verdict == REFUSED else outcome.why
                grouped[said].append(f"{name} ({base}, {dtype})")
        if grouped:
            lines += [f"## {verdict.capitalize()}", "", "| | what |", "|---|---|"]
            for said, found in sorted(grouped.items(), key=lambda pair: -len(pair[1])):
                lines.append(f"| {', '.join(sorted(found))} | {_cell(said)} |")
            lines.append("")
    return "\n".join(lines)


def _beside(names: Mapping[tuple[str, str, str], Outcome]) -> str:
    """The operators that DTensor's tests expect to fail, and what comes of them here."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(expected_failures()):
        inside = names.get(("operators", "float64", name))
        found[inside.verdict if inside else "not run"].append(name)
    lines = [
        "## Beside DTensor",
        "",
        f"torch's tests of DTensor mark {len(expected_failures())} operators of the same database as expected"
        " failures (`test/distributed/tensor/test_dtensor_ops.py`). Inside a network in float64:",
        "",
        "| here | operators | |",
        "|---|--:|---|",
    ]
    for verdict in (*VERDICTS, "not run"):
        if found[verdict]:
            lines.append(f"| {verdict} | {len(found[verdict])} | {', '.join(found[verdict])} |")
    lines += ["", "Not run: they are no cases, see above.", ""]
    return "\n".join(lines)


@lru_cache
def expected_failures() -> frozenset[str]:
    """Operators that torch's own tests of DTensor expect to fail."""
    lines = Path(__file__).with_name("dtensor_expected_failures.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


def sentence(why: str) -> str:
    """A refusal without the names and numbers of its case, so that equal refusals stand together."""
    text = re.sub(r"^\w+: ", "", why)
    return re.sub(r"\([\d, ]*\)", "(...)", re.sub(r" \([\w.]+\.py:\d+\)", "", text))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
