"""Why the plan of a network costs what it costs: its most expensive layers and redistributions, what limits.

It is read from the data of a plan file, which has no network in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from synth.base.text_table import table, wrapped
from synth.base.units import show_bytes, show_words
from synth.layer.axes import AXES, TENSORS

SCHEMA = "synth.explanation/1"
MOST = 10  # layers, and redistributions, in a text
NAMES = {tensor.lower(): tensor for tensor in TENSORS}


@dataclass(frozen=True)
class Part:
    """A layer, or a redistribution, and what it costs in words or seconds; share: of the whole plan."""

    name: str
    how: str  # the grid of a layer, or which side of the target a redistribution is for
    words: dict[str, int]  # by tensor; "moved" of a redistribution
    cost: float
    share: float


@dataclass(frozen=True)
class NetworkExplanation:
    """Why the plan of a network costs what it costs, as `synth.explain` makes it; `print` shows it.

    unit: "words", which one process receives at most, or "seconds". layers, redistributions: the most
    expensive first. causes: what the cost consists of. limits: what keeps it from being less.
    """

    name: str
    procs: int
    unit: str
    cost: float
    causes: dict[str, float]
    layers: tuple[Part, ...]
    redistributions: tuple[Part, ...]
    limits: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON data, as `synth schema explanation` describes it."""
        return {"schema": SCHEMA, "kind": "network", **asdict(self)}

    def __str__(self) -> str:
        """The causes, the most expensive layers and redistributions, and what limits."""
        head = f"{self.name} on {self.procs} processes: {self._shown(self.cost)}"
        causes = ", ".join(f"{cause} {self._shown(each)}" for cause, each in self.causes.items())
        lines = [head, *wrapped([f"  {causes}"]), "", *self._layers(), "", *self._edges(), "", "what limits"]
        return "\n".join([*lines, *(f"  {line}" for line in wrapped(self.limits))]) + "\n"

    def _shown(self, cost: float) -> str:
        return _cost(self.unit, cost)

    def _layers(self) -> list[str]:
        rows = [["layer", "grid", *NAMES.values(), "cost", "share"]]
        for each in self.layers[:MOST]:
            words = [show_words(each.words[key]) for key in NAMES]
            rows.append([each.name, each.how, *words, self._shown(each.cost), f"{each.share:.1%}"])
        rest = f", {MOST} of {len(self.layers)}" if len(self.layers) > MOST else ""
        return [
            f"the most expensive layers{rest}; words by tensor",
            *(f"  {line}" for line in table(rows, right=[2, 3, 4, 5, 6])),
        ]

    def _edges(self) -> list[str]:
        moved = [each for each in self.redistributions if each.cost]
        if not moved:
            return ["no redistribution between layers moves words"]
        rows = [["from -> to", "for", "words", "cost", "share"]]
        for each in moved[:MOST]:
            words = show_words(each.words["moved"])
            rows.append([each.name, each.how, words, self._shown(each.cost), f"{each.share:.1%}"])
        count = f"{len(moved)} of {len(self.redistributions)} redistributions move words"
        rest = f", the {MOST} most expensive" if len(moved) > MOST else ""
        return [f"{count}{rest}", *(f"  {line}" for line in table(rows, right=[2, 3, 4]))]


def explain_network(data: Mapping[str, Any]) -> NetworkExplanation:
    """Why a network's plan costs what it costs. data: `synth.network-plan/1`, checked."""
    unit = "words" if data["objective"] == "words" else "seconds"
    beside: Mapping[str, int] = data.get("beside") or {}
    margins = sum(each["words"] for each in (data.get("margins") or {}).get("tensors", ()))
    causes = {
        "layers": sum(layer["cost"] for layer in data["layers"]),
        "between layers": sum(edge["cost"] for edge in data["redistributions"]),
        **({"rows of others": margins} if margins else {}),
        **(dict(beside) if unit == "words" else {}),
    }
    cost = sum(causes.values())
    layers = [
        Part(each["name"], _how(each), each["words"], each["cost"], each["cost"] / cost if cost else 0.0)
        for each in data["layers"]
    ]
    edges = [
        Part(
            f"{each['from']} -> {each['to']}",
            "its input" if each["onto"] == "in" else "its output",
            {"moved": each["words"]},
            each["cost"],
            each["cost"] / cost if cost else 0.0,
        )
        for each in data["redistributions"]
    ]
    layers.sort(key=lambda each: -each.cost)
    edges.sort(key=lambda each: -each.cost)
    return NetworkExplanation(
        data["name"], data["procs"], unit, cost, causes, tuple(layers), tuple(edges), tuple(_limits(data))
    )


def _how(layer: dict[str, Any]) -> str:
    split = [axis for axis in AXES if layer["grid"][axis] > 1]
    grid = " x ".join(f"{axis}={layer['grid'][axis]}" for axis in split) or "1 process"
    rows = "".join(f", {axis} by input rows" for axis in layer["turned"])
    weights = ", whole weights" if layer["whole"] else ""
    return f"{grid}{rows}, {NAMES[layer['stationary']]} stationary{weights}"


def _cost(objective: str, cost: float) -> str:
    return f"{show_words(cost)} words" if objective == "words" else f"{cost * 1e3:.4g} ms"


def _limits(data: Mapping[str, Any]) -> list[str]:
    """What keeps the cost from being less."""
    found, cost, least = [], data["cost"], data["lower_bound"]
    if least:
        above = cost / least - 1
        said = "which it costs" if above < 1e-9 else f"it costs {above:.1%} more"
        found.append(f"no plan of the family costs less than {_cost(data['objective'], least)}: {said}")
    if data["gap"] > 1e-9:
        found.append(f"the choice among the options is proven up to a gap of {data['gap']:.2%}")
    if data["ratio"] is not None:
        times = f"{1 / data['ratio']:.3f} times as much"
        found.append(f"the best single strategy for all layers, {data['best_single']}, costs {times}")
    size = data["word_bytes"]
    held = data["memory_words"] * size
    resident = show_bytes(data["resident_words"] * size)
    limit = data["memory_limit"]
    of = f" of {show_bytes(limit)}" if limit else ""
    found.append(f"a process holds {show_bytes(held)}{of} for its layers, of which {resident} all the time")
    idle = [each["name"] for each in data["layers"] if math.prod(each["grid"].values()) < data["procs"]]
    if idle:
        found.append(f"{len(idle)} of {len(data['layers'])} layers leave processes idle, first {idle[0]}")
    return found
