"""A network plan at a glance: a strip of stages with what each partitions, and repetitions folded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synth.base.units import show_bytes, show_words

MOST_STAGES = 8
LONGEST = 16  # layers of a block that repeats
WIDE, HIGH, TOP, GAP = 1240, 150, 34, 36  # pixels: the strip, its boxes, the joints between them
BOLD = 9  # pixels of a letter of a name
AXIS_NAMES = {
    "b": "samples",
    "g": "groups",
    "d": "depth",
    "h": "height",
    "w": "width",
    "c": "in channels",
    "k": "out channels",
}


@dataclass(frozen=True)
class Stage:
    """Some layers in a row. `name` is what their names have in common."""

    name: str
    layers: range


def stages(data: dict[str, Any]) -> list[Stage]:
    """At most `MOST_STAGES` stages: by the first part of the names, else by what is partitioned.

    Where these are too many, neighbours with the fewest words between them are joined.
    """
    layers = data["layers"]
    found = _runs([re.split(r"[._]", layer["name"])[0] for layer in layers])
    if not 1 < len(found) <= 2 * MOST_STAGES:
        found = _runs([_partition(layer) for layer in layers])
    while len(found) > MOST_STAGES:
        moved = joints(data, found)
        least = min(range(len(moved)), key=lambda i: (moved[i], len(found[i]) + len(found[i + 1])))
        found[least : least + 2] = [range(found[least].start, found[least + 1].stop)]
    return [Stage(_named([layers[i]["name"] for i in part]), part) for part in found]


def joints(data: dict[str, Any], found: Sequence[range]) -> list[int]:
    """Words that move from anything before each boundary to anything after it."""
    place = {layer["name"]: i for i, layer in enumerate(data["layers"])}
    ends = [(place[edge["from"]], place[edge["to"]], edge["words"]) for edge in data["redistributions"]]
    return [sum(n for one, other, n in ends if one < part.start <= other) for part in found[1:]]


def _runs(keys: Sequence[Any]) -> list[range]:
    """Runs of equal keys."""
    cuts = [i for i, key in enumerate(keys) if not i or key != keys[i - 1]]
    return [range(one, other) for one, other in zip(cuts, [*cuts[1:], len(keys)], strict=True)]


def _named(names: Sequence[str]) -> str:
    """The first part of the names if they share it, else from where to where."""
    first, last = names[0], names[-1]
    parts = {re.split(r"[._]", name)[0] for name in names}
    if len(names) == 1:
        return first
    one, other = (re.split(r"[._]", name)[0] for name in (first, last))
    return parts.pop() if len(parts) == 1 else f"{one} – {other}"


def _partition(layer: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((axis, layer["grid"][axis]) for axis in layer["order"] if layer["grid"][axis] > 1)


def strip(data: dict[str, Any]) -> dict[str, Any]:
    """Boxes and joints of the strip, in pixels; a joint is as thick as the bytes that move over it."""
    found = stages(data)
    moved = joints(data, [stage.layers for stage in found])
    wide = (WIDE - GAP * (len(found) - 1)) / len(found)
    boxes = []
    for number, stage in enumerate(found):
        layers = [data["layers"][i] for i in stage.layers]
        grids = Counter(map(_partition, layers))
        ((usual, count),) = grids.most_common(1)
        lines = [f"{AXIS_NAMES[axis]} ÷ {parts}" for axis, parts in usual] or ["one process"]
        boxes.append(
            {
                "name": stage.name,
                "squeezed": round(wide - 16, 1) if len(stage.name) * BOLD > wide - 16 else None,
                "x": round(number * (wide + GAP), 1),
                "wide": round(wide, 1),
                "axes": [axis for axis, _ in usual],
                "lines": [*lines, *(["mostly"] if count < len(layers) else [])],
                "layers": f"{len(layers)} layer{'s' * (len(layers) > 1)}",
            }
        )
    most = max(moved, default=0) or 1
    flows = [
        {
            "x": round((number + 1) * wide + number * GAP, 1),
            "thick": round(2 + 34 * words / most, 1) if words else 0,
            "bytes": show_bytes(words * data["word_bytes"]) if words else "0",
        }
        for number, words in enumerate(moved)
    ]
    return {"boxes": boxes, "joints": flows, "wide": WIDE, "high": HIGH, "top": TOP, "gap": GAP}


def bars(data: dict[str, Any]) -> list[dict[str, Any]]:
    """This plan and data parallelism; where the latter is impossible, also the best single strategy.

    `to` is a length in percent of the longest.
    """
    costs = {single["name"]: single for single in data["singles"]}
    shown = [("this plan", data["cost"], "")]
    if "data" in costs:
        shown.append(("data parallelism", costs["data"]["cost"], costs["data"]["why"]))
    best = data["best_single"]
    if best and (best != "data" and costs.get("data", {"cost": None})["cost"] is None):
        shown.append((f"{best} everywhere", costs[best]["cost"], ""))
    most = max((cost for _, cost, _ in shown if cost), default=1)
    return [
        {
            "name": name,
            "to": round(100 * (cost or 0) / most, 1),
            "cost": why if cost is None else priced(data, cost),
            "times": f"{cost / data['cost']:.2f} times" if i and cost and data["cost"] else "",
        }
        for i, (name, cost, why) in enumerate(shown)
    ]


def priced(data: dict[str, Any], cost: float) -> str:
    """A cost with its unit: words with their bytes, or milliseconds."""
    if data["objective"] != "words":
        return f"{cost * 1e3:.4g} ms"
    return f"{show_words(cost)} words = {show_bytes(round(cost * data['word_bytes']))}"


def folded(rows: Sequence[Any], edges: Sequence[tuple[int, int, int]]) -> list[tuple[range, int]]:
    """Blocks of equal rows: (the rows of the first, how often they follow one another).

    rows: what makes a row equal to another. edges: (from, to, words). Rows of equal blocks receive equal
    words from the same places of their block, or from before it. The first row may receive anything.
    """
    given: list[list[tuple[int, int]]] = [[] for _ in rows]
    for one, to, words in edges:
        given[to].append((one, words))
    blocks, at = list[tuple[range, int]](), 0
    while at < len(rows):
        best = (0, 1, 1)
        for long in range(1, min(LONGEST, (len(rows) - at) // 2) + 1):
            times = 1
            while _equal(rows, given, at, at + times * long, long):
                times += 1
            saved = long * (times - 1)
            if saved > best[0]:
                best = saved, long, times
        saved, long, times = best
        if saved < 2:
            long = times = 1
        blocks.append((range(at, at + long), times))
        at += long * times
    return blocks


def _equal(
    rows: Sequence[Any], given: Sequence[Sequence[tuple[int, int]]], one: int, other: int, long: int
) -> bool:
    """Whether the blocks of `long` rows from two places are equal."""
    if other + long > len(rows):
        return False

    def into(begin: int, i: int) -> list[tuple[int, int]]:
        return sorted((max(-1, source - begin), words) for source, words in given[begin + i])

    same = all(rows[one + i] == rows[other + i] for i in range(long))
    return same and all(into(one, i) == into(other, i) for i in range(1, long))
