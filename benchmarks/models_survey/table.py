"""The survey's table: one line per model, and the causes of refusals."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from benchmarks.models_survey.entry import WRITTEN_OUT
from synth.parallel.self_check.automatic import SECONDS

LITTLE = 0.02  # of the multiply-adds: what may be gathered
FORWARD, STEPS = 1e-8, 1e-6  # relative errors that count as equal, in float64
SINGLE = 1e-5  # the same for models that compute in float32 whatever their parameters are
ROUNDING = 4.0  # times what the last bit of the inputs changes in one process counts as equal, too
LARGEST = 1e-3  # error that may count as equal for that reason

FURTHER = ("transformers", *WRITTEN_OUT[1:])
CHOSEN = (
    "These models were chosen before their first run, for what the models of other libraries have "
    "seldom: masks, complex weights, learned queries, several inputs, detection, recurrence. Those of "
    "transformers are of that library; the others are written out after their papers, small. Words are "
    "those that a rank receives in a forward and a backward pass, planned and counted, of the rank "
    "where these differ most. The seconds of the self-check that `parallelize` makes by itself are "
    "those of one core; it may take as long as a step of the model in one process, or 2 s, and is "
    "skipped where it would take longer. It looks at the clock between calls, so 5 % more count as "
    "kept."
)
Found = dict[str, Any]
LATE = 1.05  # times its limit that a self-check may take: it looks at the clock between calls
HEADS = (
    *("library", "model", "parameters", "gathered", "forward", "two steps"),
    *("words", "self-check s", "plan s", "remark"),
)


def cells(found: Found) -> list[str]:
    """One line of the table."""
    ranks = found.get("ranks", {})
    remark = refusal(found) or found.get("refused in training", "")
    if not remark and ranks.get("float32"):
        remark = "computes in float32"
    if not remark and "rounding" in ranks:
        remark = f"one process differs by {ranks['rounding']:.0e} if the last bit of its inputs changes"
    if not remark and most_gathered(found) > LITTLE:
        remark = ", ".join(f"{name} {share:.0%}" for name, share in list(gathered(found).items())[:3])
    return [
        found["library"],
        found["name"],
        f"{found['parameters']:,}" if "parameters" in found else "",
        f"{sum(gathered(found).values()):.1%}" if "operations" in found else "",
        _error(ranks.get("forward"), _bound(found, FORWARD)),
        _error(ranks.get("steps"), _bound(found, STEPS)),
        words(found),
        self_check(found),
        f"{found['plan s']:.1f}" if "plan s" in found else "",
        remark,
    ]


def words(found: Found) -> str:
    """Words that a rank receives in a step, as planned and counted; both where they differ."""
    ranks = found.get("ranks", {})
    if "planned" not in ranks:
        return ""
    planned, received = ranks["planned"], ranks["received"]
    return f"{planned:,}" if planned == received else f"{planned:,} planned, {received:,} received"


def self_check(found: Found) -> str:
    """Seconds of the self-check, and its limit where that is not the usual one."""
    own = found.get("self-check", {})
    if "check s" not in own:
        return ""
    limit = "" if own["check limit s"] == SECONDS else f" of {own['check limit s']:.1f}"
    return f"{own['check s']:.1f}{limit}{'' if own['compared'] else ', skipped'}"


def keeps_limit(found: Found) -> bool:
    """Whether the self-check took no longer than it may."""
    own = found["self-check"]
    return bool(own["check s"] <= LATE * own["check limit s"])


def gathered(found: Found) -> dict[str, float]:
    """Name -> share of the operations: as the ranks compute, else as the operator table says."""
    shares: dict[str, float] = found.get("ranks", {}).get("gathered", found.get("gathered", {}))
    return shares


def most_gathered(found: Found) -> float:
    """The share of the single call that is gathered with the most operations."""
    return max(gathered(found).values(), default=0.0)


def refusal(found: Found) -> str:
    """Why the model does not run; "" where it does."""
    ranks = found.get("ranks", {})
    for each in (found, ranks):
        for key in ("refused", "failed"):
            if key in each:
                return str(each[key])
    return ""


def equal(found: Found) -> bool:
    """Whether ranks ran the model and equal one process, in what was compared."""
    return equal_in(found, "forward", FORWARD) and equal_in(found, "steps", STEPS)


def equal_in(found: Found, what: str, bound: float) -> bool:
    """Whether ranks equal one process in the "forward" pass, or in two "steps" of training.

    A model without trained parameters has no steps.
    """
    ranks = found.get("ranks", {})
    error = ranks.get(what)
    if error is None:
        return what == "steps" and not refusal(found) and "refused in training" not in ranks
    return bool(error <= _bound(found, bound))


def _bound(found: Found, bound: float) -> float:
    ranks = found.get("ranks", {})
    own = ROUNDING * ranks.get("rounding", 0.0) if bound == STEPS else 0.0
    return max(SINGLE if ranks.get("float32") else bound, min(own, LARGEST))


def _error(value: float | None, bound: float) -> str:
    if value is None:
        return ""
    return f"{value:.0e}" if value <= bound else f"{value:.0e}, not equal"


def row(found: Found) -> str:
    """A line on the screen."""
    return "  ".join(each.ljust(width) for each, width in zip(cells(found), WIDTHS, strict=True)).rstrip()


WIDTHS = (11, 40, 12, 8, 8, 8, 9, 12, 6, 0)


def verdict(found: list[Found]) -> str:
    """The headline."""
    runs = [each for each in found if accepted(each)]
    looked = [each for each in found if "operations" in each or not accepted(each)]
    little = [each for each in runs if "operations" in each and most_gathered(each) <= LITTLE]
    compared = [each for each in found if "ranks" in each and not out_of_time(each)]
    text = f"{_share(runs, found)} models are accepted"
    if compared:
        forward = [each for each in compared if equal_in(each, "forward", FORWARD)]
        both = [each for each in compared if equal(each)]
        text += f"; of those that were run, {_share(forward, compared)} equal one process in the forward pass"
        text += f", and {_share(both, compared)} in two steps of training, too"
    text += f"; on {_share(little, looked)}, nothing that costs more than {LITTLE:.0%} is gathered."
    counted = [each for each in found if "planned" in each.get("ranks", {})]
    if counted:
        same = [each for each in counted if each["ranks"]["planned"] == each["ranks"]["received"]]
        text += f" Ranks receive as many words as planned on {_share(same, counted)}."
    checks = [each for each in found if "check s" in each.get("self-check", {})]
    if checks:
        kept = [each for each in checks if keeps_limit(each)]
        done = [each for each in checks if each["self-check"]["compared"]]
        text += (
            f" The self-check keeps its limit on {_share(kept, checks)}, and is done on"
            f" {_share(done, checks)}."
        )
    return text


def out_of_time(found: Found) -> bool:
    """Whether the ranks did not end in time, which says nothing of the model."""
    return str(found.get("ranks", {}).get("failed", "")).startswith("no answer after")


def accepted(found: Found) -> bool:
    """Whether the model is traced; ranks may not have run it."""
    return not {"refused", "failed"} & set(found)


def _share(some: list[Found], of: list[Found]) -> str:
    return f"{len(some)} of {len(of)} ({len(some) / max(len(of), 1):.1%})"


def causes(found: list[Found]) -> list[str]:
    """Cause -> number of models -> names, the most frequent first."""
    groups = dict[str, list[Found]]()
    for each in found:
        reason = refusal(each)
        if reason and not out_of_time(each):
            groups.setdefault(_kind(reason), []).append(each)
    lines = list[str]()
    for members in sorted(groups.values(), key=len, reverse=True):
        names = ", ".join(f"{each['library']} {each['name']}" for each in members)
        lines.append(f"{len(members)} x {refusal(members[0])}\n    {names}")
    return lines


def costly(found: list[Found]) -> list[str]:
    """What is gathered and costs more than 2 % of the operations: kind -> models, the most frequent first."""
    groups = dict[str, list[str]]()
    for each in found:
        for name, share in gathered(each).items():
            if share > LITTLE:
                kind = name.split()[0]
                groups.setdefault(kind, []).append(f"{each['library']} {each['name']} ({share:.0%} {name})")
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    return [f"{len(names)} x {kind}\n    {'; '.join(names[:12])}" for kind, names in ordered]


def _kind(reason: str) -> str:
    """A reason without names, shapes and numbers."""
    reason = re.sub(r"\([\d, ]*\)", "()", reason)
    reason = re.sub(r"[\w.]*\.[\w.]+", "NAME", reason)
    return re.sub(r"\d+", "N", reason)[:90]


def page(found: list[Found], missing: list[str], ranks: int) -> str:
    """The page of results."""
    further = all(each["library"] in FURTHER for each in found)
    title = f"{len(found)} further models" if further else "Convolutional models of four libraries"
    lines = [f"# {title}", "", verdict(found), ""]
    if further:
        lines += [*textwrap.wrap(CHOSEN, 120), ""]
    if missing:
        lines += [f"Not installed: {', '.join(missing)}.", ""]
    if ranks:
        lines += [
            f"On {ranks} gloo ranks in float64. Errors are relative to the largest word: of the outputs in"
            f" evaluation (equal up to {FORWARD:.0e}), and of the state after two steps of SGD (up to"
            f" {STEPS:.0e}); {SINGLE:.0e} where a model computes in float32 by itself. Some steps are not"
            " continuous: one process, too, gives other values if the last bit of its inputs changes;"
            f" up to {ROUNDING:.0f} times that difference counts as equal. Gathered is the share of the"
            " multiply-adds that every rank computes. A model without errors was only traced or compared by"
            " the self-check, or its ranks had no answer in time.",
            "",
        ]
    lines += [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    lines += [f"| {' | '.join(each.replace('|', '/') for each in cells(one))} |" for one in found]
    lines += ["", "## Causes of refusals", "", *[f"* {text}" for text in causes(found)]]
    lines += ["", "## What is gathered", "", *[f"* {text}" for text in costly(found)]]
    return "\n".join(lines) + "\n"
