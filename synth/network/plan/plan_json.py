"""Network plan files: what `synth plan NETWORK --json` writes, and how such a file is read.

A file does not contain the network, so its words cannot be counted again. All numbers that follow from other
numbers of the file are derived again; a file in which they differ is refused. A digest reveals
all other edits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synth.base.arithmetic import same_number
from synth.base.errors import InputError
from synth.base.file_kinds import refuse_other_file
from synth.layer.axes import AXES, SPATIAL, TENSORS

if TYPE_CHECKING:  # reading a file must not import numpy
    from synth.network.plan.plan import NetworkPlan

SCHEMA = "synth.network-plan/1"
REMEDY = "write the plan anew with `synth plan NETWORK.yaml --json -o plan.json`"
KEYS = [
    "schema", "name", "procs", "objective", "pass", "kept", "machine", "cost", "lower_bound", "gap", "method",
    "memory_limit", "word_bytes", "memory_words", "resident_words",
    "layers", "redistributions", "singles", "best_single", "ratio", "digest",
]  # fmt: skip
LAYER_KEYS = [
    "name", "grid", "order", "turned", "stationary", "panels", "cost", "words", "memory_words", "gradients",
    "whole",
]  # fmt: skip
MAX_NUMBER = 2**62
MAX_ROWS = 100_000


def to_json(plan: NetworkPlan) -> dict[str, Any]:
    """`synth.network-plan/1`: decisions and costs. Costs are words or seconds as `objective` says.

    `kept`: tensors that a training step saves for a later pass; ker in a forward pass with resident weights.
    `memory_limit` is in bytes; all other memory is in words of `word_bytes` bytes. `whole`: a layer of which
    every rank holds the slice of Ker that it uses; its gradient travels in buckets, not in the layer's words.
    """
    request = plan.request
    best = plan.best_single
    data = {
        "schema": SCHEMA,
        "name": plan.network.name,
        "procs": request.procs,
        "objective": request.objective,
        "pass": "training" if request.training else "forward",
        "kept": [
            t.lower() for t in TENSORS if t in (request.saves if request.training else request.resident)
        ],
        "machine": request.machine.name if request.machine else None,
        "cost": plan.cost,
        "lower_bound": plan.lower_bound,
        "gap": plan.solution.gap,
        "method": plan.solution.method,
        "memory_limit": request.limit_bytes,
        "word_bytes": plan.word_bytes,
        "memory_words": plan.used_words,
        "resident_words": plan.resident_words,
        "layers": _layers(plan),
        "redistributions": _redistributions(plan),
        "singles": [{"name": s.name, "cost": s.cost, "why": s.why} for s in plan.single_strategies],
        "best_single": best.name if best else None,
        "ratio": plan.ratio,
    }
    return {**data, "digest": digest_of(data)}


def digest_of(data: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of a plan's data, so that an edit is noticed that no check can see."""
    kept = {key: value for key, value in data.items() if key != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _layers(plan: NetworkPlan) -> list[dict[str, Any]]:
    from synth.network.plan.step_words import words_by_tensor

    rows = zip(
        plan.network.planned,
        plan.layer_classes,
        plan.placed_grids,
        plan.layer_costs,
        plan.tilings,
        plan.whole,
        strict=True,
    )
    return [
        {
            "name": node.name,
            "grid": placed.grid._asdict(),
            "order": list(placed.order),
            "turned": list(placed.turned),
            "stationary": tiling.first.stationary.lower(),
            "panels": tiling.first.panels,
            "cost": cost,
            "words": words_by_tensor(layer_class, placed, tiling, plan, whole),
            "memory_words": tiling.used_words,
            "gradients": [t.lower() for t in layer_class.gradients if plan.request.training],
            "whole": whole,
        }
        for node, layer_class, placed, cost, tiling, whole in rows
    ]


def _redistributions(plan: NetworkPlan) -> list[dict[str, Any]]:
    """A row for the edges of two layers; from a layer to itself: rows of padding, slices and shifts."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for edge, words in plan.edge_words.items():
        ends = edge.source, edge.target, edge.role
        row = rows.setdefault(ends, dict(zip(("from", "to", "onto"), ends, strict=True)))
        row["words"] = row.get("words", 0) + words
        row["cost"] = row.get("cost", 0) + plan.edge_costs[edge]
    return list(rows.values())


def is_network_plan(text: str) -> bool:
    """Whether a text declares the schema of a network plan, of any version."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and str(data.get("schema")).startswith("synth.network-plan/")


def parse_network_plan(text: str, name: str) -> dict[str, Any]:
    """The data of a network plan. Raises `InputError` if the text is not one, or was edited."""
    refuse_other_file(text, name, "network-plan")
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as fault:
        raise InputError(f"{name}: is not JSON; {REMEDY}") from fault
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        raise InputError(f"{name}: schema is {str(schema)[:60]!r}, not {SCHEMA!r}; {REMEDY}")
    digest = digest_of(data)
    # the first files did not contain these two
    data.setdefault("kept", ["out"] if data.get("pass") == "training" else [])
    data.setdefault("memory_limit", MAX_NUMBER)
    check = _Check(name)
    check.plan(data)
    if data["digest"] != digest:
        raise check.fail("digest is not that of the file, which was edited")
    return data


def _refuse(constant: str) -> float:
    raise ValueError(constant)


class _Check:
    """Checks the types, ranges and derived numbers of a plan file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def fail(self, what: str) -> InputError:
        return InputError(f"{self.file}: {what}; {REMEDY}")

    def plan(self, data: dict[str, Any]) -> None:
        self.keys(data, KEYS, "the plan")
        self.heading(data)
        for key in ("layers", "redistributions", "singles"):
            if not isinstance(data[key], list) or len(data[key]) > MAX_ROWS:
                raise self.fail(f"{key} is not a list")
        in_words = data["objective"] == "words"
        self.layers(data, in_words)
        self.redistributions(data, in_words)
        self.singles(data["singles"])
        self.totals(data)

    def heading(self, data: dict[str, Any]) -> None:
        for key in ("name", "method"):
            self.text(data[key], key)
        self.one_of(data["objective"], ("words", "time"), "objective")
        self.one_of(data["pass"], ("forward", "training"), "pass")
        tensors = ("in", "ker", "out") if data["pass"] == "training" else ("ker",)
        if not isinstance(data["kept"], list) or not all(each in tensors for each in data["kept"]):
            raise self.fail(
                "kept is not a list of tensors that a training step gathers, or a forward pass has"
            )
        if data["machine"] is not None:
            self.text(data["machine"], "machine")
        self.whole(data["procs"], 1, 2**20, "procs")
        self.whole(data["word_bytes"], 1, 64, "word_bytes")
        if data["memory_limit"] is not None:
            self.whole(data["memory_limit"], 1, MAX_NUMBER, "memory_limit")
        self.whole(data["resident_words"], 0, MAX_NUMBER, "resident_words")
        for key in ("cost", "lower_bound", "gap"):
            self.number(data[key], key)

    def layers(self, data: dict[str, Any], in_words: bool) -> None:
        gradients = ["in", "ker"] if data["pass"] == "training" else []
        for i, layer in enumerate(data["layers"]):
            if isinstance(layer, dict):
                layer.setdefault("gradients", gradients)  # the first files did not contain them
                layer.setdefault("turned", [])
                layer.setdefault("whole", False)
            self.layer(layer, f"layers[{i}]", data["procs"], in_words)
            self.whole_weights(layer, f"layers[{i}]", data["pass"] == "training" and not in_words)
            if not isinstance(layer["gradients"], list) or not all(
                g in gradients for g in layer["gradients"]
            ):
                raise self.fail(f"layers[{i}].gradients is not a list of those that a training step makes")
        names = [layer["name"] for layer in data["layers"]]
        if not names or len(set(names)) < len(names):
            raise self.fail("layers is empty, or two layers have one name")

    def redistributions(self, data: dict[str, Any], in_words: bool) -> None:
        names = {layer["name"] for layer in data["layers"]}
        for i, edge in enumerate(data["redistributions"]):
            self.edge(edge, f"redistributions[{i}]", names, in_words)
        ends = [(edge["from"], edge["to"], edge["onto"]) for edge in data["redistributions"]]
        if len(set(ends)) < len(ends):
            raise self.fail("redistributions names one edge twice")

    def totals(self, data: dict[str, Any]) -> None:
        """The numbers that follow from the rows."""
        largest = max(layer["memory_words"] for layer in data["layers"])
        self.same(data["memory_words"], data["resident_words"] + largest, "memory_words")
        total = sum(layer["cost"] for layer in data["layers"])
        total += sum(edge["cost"] for edge in data["redistributions"])
        self.same(data["cost"], total, "cost")
        if data["lower_bound"] > data["cost"] * (1 + 1e-9):
            raise self.fail("lower_bound is above cost")
        best = min((s for s in data["singles"] if s["cost"] is not None), key=_cost, default=None)
        if data["best_single"] != (best["name"] if best else None):
            raise self.fail(f"best_single is {str(data['best_single'])[:60]!r}, which singles do not say")
        self.same(data["ratio"], data["cost"] / best["cost"] if best and best["cost"] else None, "ratio")

    def layer(self, layer: Any, key: str, procs: int, in_words: bool) -> None:
        self.keys(layer, LAYER_KEYS, key)
        self.text(layer["name"], f"{key}.name")
        self.keys(layer["grid"], list(AXES), f"{key}.grid")
        size = math.prod(self.whole(layer["grid"][a], 1, procs, f"{key}.grid.{a}") for a in AXES)
        if size > procs:
            raise self.fail(f"{key}.grid has {size} processes, more than procs {procs}")
        order = layer["order"]
        if not isinstance(order, list) or sorted(map(str, order)) != sorted(AXES):
            raise self.fail(f"{key}.order does not name every axis once")
        turned = layer["turned"]
        if not isinstance(turned, list) or turned != [axis for axis in SPATIAL if axis in turned]:
            raise self.fail(f"{key}.turned is not a list of d, h and w")
        self.one_of(layer["stationary"], ("in", "ker", "out"), f"{key}.stationary")
        self.whole(layer["panels"], 1, MAX_NUMBER, f"{key}.panels")
        self.whole(layer["memory_words"], 0, MAX_NUMBER, f"{key}.memory_words")
        cost = self.number(layer["cost"], f"{key}.cost")
        self.keys(layer["words"], ["in", "ker", "out"], f"{key}.words")
        words = layer["words"]
        parts = [self.whole(words[t], 0, MAX_NUMBER, f"{key}.words.{t}") for t in ("in", "ker", "out")]
        if in_words and not max(parts) <= cost <= sum(parts):
            raise self.fail(f"{key}.cost is {cost:g}, which its words per tensor do not allow")

    def whole_weights(self, layer: dict[str, Any], key: str, allowed: bool) -> None:
        if not isinstance(layer["whole"], bool):
            raise self.fail(f"{key}.whole is {str(layer['whole'])[:60]}, not true or false")
        if layer["whole"] and not allowed:
            raise self.fail(f"{key}.whole is true, but the plan is not of training for time")
        if layer["whole"] and layer["words"]["ker"]:
            raise self.fail(f"{key}.words.ker is {layer['words']['ker']}, but whole weights do not move")

    def edge(self, edge: Any, key: str, names: set[str], in_words: bool) -> None:
        self.keys(edge, ["from", "to", "onto", "words", "cost"], key)
        self.text(edge["from"], f"{key}.from")
        self.text(edge["to"], f"{key}.to")
        itself = edge["from"] == edge["to"] and edge["onto"] != "out"
        if not {edge["from"], edge["to"]} <= names or itself:
            raise self.fail(f"{key} does not join two layers of the plan")
        self.one_of(edge["onto"], ("in", "out"), f"{key}.onto")
        moved = self.whole(edge["words"], 0, MAX_NUMBER, f"{key}.words")
        cost = self.number(edge["cost"], f"{key}.cost")
        if (in_words and cost != moved) or (moved == 0 and cost != 0):
            raise self.fail(f"{key}.cost is {cost:g}, which its {moved} words do not cost")

    def singles(self, rows: list[Any]) -> None:
        for i, row in enumerate(rows):
            self.keys(row, ["name", "cost", "why"], f"singles[{i}]")
            self.text(row["name"], f"singles[{i}].name")
            if row["why"] != "":
                self.text(row["why"], f"singles[{i}].why")
            if row["cost"] is not None:
                self.number(row["cost"], f"singles[{i}].cost")

    def keys(self, value: Any, keys: list[str], key: str) -> None:
        if not isinstance(value, dict) or set(value) != set(keys):
            raise self.fail(f"{key} is not an object of {', '.join(keys)}")

    def text(self, value: Any, key: str) -> None:
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.fail(f"{key} is not printable text")

    def one_of(self, value: Any, allowed: tuple[str, ...], key: str) -> None:
        if value not in allowed:
            raise self.fail(f"{key} is {str(value)[:60]!r}, not one of {', '.join(allowed)}")

    def whole(self, value: Any, least: int, most: int, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(f"{key} is {str(value)[:60]}, not a whole number from {least} to {most}")
        return value

    def number(self, value: Any, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
            raise self.fail(f"{key} is {str(value)[:60]}, not a number from 0")
        return float(value)

    def same(self, stated: Any, derived: float | None, key: str) -> None:
        if stated is None if derived is None else same_number(stated, derived):
            return
        raise self.fail(f"{key} is {str(stated)[:60]}, but the rest of the plan makes it {derived}")


def _cost(row: dict[str, Any]) -> float:
    return float(row["cost"])
