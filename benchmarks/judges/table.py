"""The page with the tables: what is equal, what is refused and why, and what DTensor's tests expect."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from benchmarks.judges.cases import BASES, DTYPES, EQUAL, REFUSED, VERDICTS, Case, Outcome, worst

HEAD = """# Judges

What nobody here wrote, run between planned layers on 4 ranks (some layers on 8) and compared with one
process: all modules and operators of torch's own databases (`torch.testing._internal.common_modules` and
`common_methods_invocations`), and the argument grids of public tests of spatial convolutions and poolings.
Each is divided in six ways: by batch, space, channels, filters, two of these, and as a free plan says.
`make judges` runs all; `tests/benchmarks/test_judges.py` runs a selection.

A case is *equal* if outputs, gradients of inputs and of parameters, the state after a step, and evaluation
equal those of one process, and the planned words are those that are counted. In float64 they may differ by
1e-8 of the largest word, in bfloat16 by torch's own tolerance beside float64. Of calls that draw numbers,
shapes, words and evaluation are compared. A case is *refused* if all ranks raise the same sentence. What
torch itself refuses in one process does not count. *Outputs* are the operators called on what a network
gives. A name is equal if all its cases are.
"""


def page(done: Mapping[Case, Outcome]) -> str:
    """The page, as Markdown."""
    names = by_name(done)
    parts = [HEAD, _summary(done, names), _not_equal(names), _beside(names)]
    return "\n".join(parts)


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
    return "\n".join(["## Cases", "", *lines, ""])


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
    lines += ["", "Not run: they take no tensor, or give none of a fixed shape that torch computes here.", ""]
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
