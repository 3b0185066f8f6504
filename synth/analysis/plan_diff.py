"""Two plans side by side: decisions that differ, words, memory, seconds, machine.

Both are read from the JSON data of their files, so a plan file of a network, which has no network in it, can
be compared too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth.base.errors import UsageError
from synth.base.tabular import Tabular
from synth.base.text_table import table
from synth.base.units import show_bytes, show_words
from synth.base.yaml_positions import shown
from synth.layer.axes import AXES, TENSORS
from synth.planning.decisions import CLASSES, ROWS
from synth.planning.plan import Plan
from synth.planning.plan_file import parse_plan, plan_text
from synth.planning.plan_json import exact_json, float_json, time_json

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan
    from synth.network.plan.plan_file import NetworkPlanFile

SCHEMA = "synth.diff/1"
NAMES = {tensor.lower(): tensor for tensor in TENSORS}
VERBS = (("reuses", "kept"), ("saves", "keeps"))
SHOWN = 12  # layers of a network in a text
IN_TEXT = {"multiply-adds": "multiply-adds, padding left out"}  # names of numbers that a text explains


@dataclass(frozen=True)
class Decision:
    """What two plans decide otherwise; None where a plan decides nothing of the kind."""

    what: str
    one: str | None
    other: str | None


@dataclass(frozen=True)
class Number:
    """A number of two plans, and its unit; None where a plan has none."""

    what: str
    unit: str  # "words", "bytes", "seconds", "multiply-adds", "processes" or ""
    one: float | None
    other: float | None

    @property
    def ratio(self) -> float | None:
        """The other number over the first one; None where there is none."""
        return self.other / self.one if self.one and self.other is not None else None


@dataclass(frozen=True)
class PlanDiff(Tabular):
    """Two plans side by side, as `synth.diff` makes it.

    decisions: those that differ; of a network those of the whole, and `layers` has those of layers. numbers:
    words received by the busiest process, bytes that a process holds, seconds on the machine of the plan.
    layers: layer -> its decisions that differ; empty for the plan of a layer. costs: layer -> what it costs
    in each plan, in the unit of `objective`; None where the plans count different things.
    """

    kind: str  # "layer" or "network"
    names: tuple[str, str]
    about: tuple[str, str]
    decisions: tuple[Decision, ...]
    numbers: tuple[Number, ...]
    layers: dict[str, tuple[Decision, ...]]
    costs: dict[str, Number]

    @property
    def same(self) -> bool:
        """Whether both plans decide the same."""
        return not (self.decisions or self.layers)

    def records(self) -> list[dict[str, Any]]:
        """A row per decision that differs and per number: layer, what, unit, one, other."""
        found = {"": self.decisions, **self.layers}
        rows = [{"layer": layer, "unit": "", **vars(each)} for layer in found for each in found[layer]]
        return [*rows, *({"layer": "", **vars(each)} for each in self.numbers)]

    def to_json(self) -> dict[str, Any]:
        """JSON data, as `synth schema diff` describes it."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "names": list(self.names),
            "about": list(self.about),
            "same": self.same,
            "decisions": [vars(each) for each in self.decisions],
            "numbers": [{**vars(each), "ratio": each.ratio} for each in self.numbers],
            "layers": [
                {
                    "name": name,
                    "decisions": [vars(each) for each in self.layers.get(name, ())],
                    "unit": cost.unit,
                    "one": cost.one,
                    "other": cost.other,
                }
                for name, cost in self.costs.items()
            ],
        }

    def __str__(self) -> str:
        """Tables of decisions and numbers."""
        one, other = self.names
        lines = [*table(list(map(list, zip(self.names, self.about, strict=True)))), ""]
        lines += self._decisions() if self.decisions else ["both plans decide the same"] * self.same
        lines += self._layers()
        rows = [["at most, per process", one, other, f"{other} / {one}"]]
        rows += [
            [
                IN_TEXT.get(each.what, each.what),
                _shown(each.one, each.unit),
                _shown(each.other, each.unit),
                _ratio(each.ratio),
            ]
            for each in self.numbers
        ]
        return "\n".join([*lines, "", *table(rows, right=[1, 2, 3])]) + "\n"

    def _decisions(self) -> list[str]:
        rows = [["decision", *self.names], *([d.what, d.one or "-", d.other or "-"] for d in self.decisions)]
        return table(rows)

    def _layers(self) -> list[str]:
        if not self.layers:
            return []
        rows = [["layer", "decision", *self.names, "cost", "cost"]]
        most = sorted(self.layers, key=lambda name: -_change(self.costs[name]))
        for name in most[:SHOWN]:
            cost = self.costs[name]
            ends = [_shown(cost.one, cost.unit), _shown(cost.other, cost.unit)]
            for place, each in enumerate(self.layers[name]):
                head, tail = (name, ends) if place == 0 else ("", ["", ""])
                rows.append([head, each.what, each.one or "-", each.other or "-", *tail])
        count = f"{len(self.layers)} of {len(self.costs)} layers differ"
        rest = "" if len(most) <= SHOWN else f"; the {SHOWN} whose cost changes most"
        return ["", f"{count}{rest}", *table(rows, right=[4, 5])]


def diff(
    one: Plan | NetworkPlan | NetworkPlanFile | str | os.PathLike[str],
    other: Plan | NetworkPlan | NetworkPlanFile | str | os.PathLike[str],
) -> PlanDiff:
    """Two plans of layers, or of networks, side by side: plans, or the names of plan files.

    Words are those that the busiest process receives, memory is in bytes per process, and seconds are those
    of the model of a plan's machine. Raises `InputError` for a file that is no plan, and `UsageError` for a
    layer beside a network.
    """
    (name, data), (second, others) = _named(one, "one"), _named(other, "other")
    if name == second:
        name, second = f"{name} (1)", f"{second} (2)"
    kind, kind_of_other = ("network" if "layers" in each else "layer" for each in (data, others))
    if kind != kind_of_other:
        raise UsageError(
            f"{name} is the plan of a {kind}, and {second} that of a {kind_of_other}; compare two of a kind"
        )
    compare = _of_networks if kind == "network" else _of_layers
    return compare((name, second), data, others)


def _named(given: Any, fallback: str) -> tuple[str, dict[str, Any]]:
    """The name of a plan, and the data of its file; of a layer without what other searches found."""
    if isinstance(given, str | os.PathLike):
        return shown(os.fspath(given), 200), _read(given)
    if isinstance(given, Plan):
        return fallback, _of_plan(given)
    if hasattr(given, "to_json") and "layers" in (data := given.to_json()):
        return fallback, data
    raise UsageError(f"{given!r} is no plan; give a plan, or the name of a plan file")


def _of_plan(plan: Plan) -> dict[str, Any]:
    timed = {"time": time_json(plan, *plan.timed)} if plan.timed else {}
    return {**exact_json(plan), **float_json(plan), "algorithm": plan.algorithm, **timed}


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    from synth.network.plan.plan_json import is_network_plan, parse_network_plan

    text, name = plan_text(path), shown(os.fspath(path), 4096)
    if is_network_plan(text):
        return parse_network_plan(text, name)
    found, timed = _of_plan(parse_plan(text, name)), json.loads(text).get("time") or {}
    # a file may leave out what follows from its decisions; seconds follow from a machine that it names
    return found | ({"time": timed} if {"machine", "seconds"} <= timed.keys() else {})


# -- layers -----------------------------------------------------------------------------------------------


def _of_layers(names: tuple[str, str], one: dict[str, Any], other: dict[str, Any]) -> PlanDiff:
    about = f"{_layer_text(one)}, plan {one['id']}", f"{_layer_text(other)}, plan {other['id']}"
    return PlanDiff(
        "layer", names, about, _differing(_layer_decisions(one), _layer_decisions(other)),
        tuple(_paired(_layer_numbers(one), _layer_numbers(other))), {}, {},
    )  # fmt: skip


def _layer_text(data: Mapping[str, Any]) -> str:
    return f"{data['name']}: {data['pass']} on {data['used_procs']} of {data['procs']} processes"


def _layer_decisions(data: Mapping[str, Any]) -> dict[str, str]:
    """What the plan of a layer decides, as texts."""
    problem = {key: value for key, value in data["problem"].items() if key != "extents"}
    found = {
        "layer": ", ".join(f"{key} {value}" for key, value in problem.items() if value is not None),
        "computes": data["pass"],
        "processes": str(data["procs"]),
        "grid": _grid(data["grid"]),
        "ranks by": _order(data),
        "algorithm": data["algorithm"],
    }
    found |= {each.name: _plain(data[each.key]) for each in (CLASSES, ROWS) if data.get(each.key)}
    for each in data["passes"]:
        tiles = " ".join(f"{axis}/{count}" for axis, count in each["tiles"].items() if count > 1)
        parts = [NAMES[each["stationary"]], tiles, "swapped" if each["swapped"] and tiles else ""]
        parts += [f"{verb} {','.join(each[key])}" for verb, key in VERBS if each[key]]
        found[each["pass"]] = "; ".join(filter(None, parts))
    limit = data["memory"]["limit_bytes"]
    found["limit of memory"] = show_bytes(limit) if limit else "none"
    found["balance"] = f"{data['balance']['allowed']:.0%} more work"
    if "time" in data:
        found["machine"] = data["time"]["machine"]
    return found


def _layer_numbers(data: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Number -> its unit and value."""
    words = data["words"]
    found: dict[str, tuple[str, float]] = {
        f"{name} received": ("words", words[key]) for key, name in NAMES.items()
    }
    found |= {"halo, of these": ("words", words["halo"])} if words["halo"] else {}
    found["received together"] = "words", words["total"]
    found["lower bound"] = "words", data["bounds"]["universal"]
    found["memory"] = "bytes", data["memory"]["bytes"]
    found["multiply-adds"] = "multiply-adds", data["assumptions"]["most_work"]
    found["processes that work"] = "processes", data["used_procs"]
    if "time" in data:
        found["time"] = "seconds", data["time"]["seconds"]
    return found


# -- networks ---------------------------------------------------------------------------------------------


def _of_networks(names: tuple[str, str], one: dict[str, Any], other: dict[str, Any]) -> PlanDiff:
    rows = [{layer["name"]: layer for layer in each["layers"]} for each in (one, other)]
    both = list(dict.fromkeys(name for layers in rows for name in layers))
    alike = one["objective"] == other["objective"]
    unit = ("words" if one["objective"] == "words" else "seconds") if alike else ""
    layers, costs = {}, {}
    for name in both:
        ends = [each.get(name) for each in rows]
        found = _differing(*(_row_decisions(end) for end in ends))
        if found:
            layers[name] = found
        cost, cost_of_other = (end["cost"] if end and alike else None for end in ends)
        costs[name] = Number(name, unit, cost, cost_of_other)
    about = _network_text(one), _network_text(other)
    decisions = _differing(_network_decisions(one), _network_decisions(other))
    numbers = tuple(_paired(_network_numbers(one), _network_numbers(other)))
    return PlanDiff("network", names, about, decisions, numbers, layers, costs)


def _network_text(data: Mapping[str, Any]) -> str:
    passes = "training step" if data["pass"] == "training" else "forward pass"
    return f"{data['name']}: {passes} on {data['procs']} processes, {len(data['layers'])} layers"


def _network_decisions(data: Mapping[str, Any]) -> dict[str, str]:
    """What the plan of a network decides for the whole."""
    limit = data["memory_limit"]
    return {
        "network": data["name"],
        "computes": data["pass"],
        "processes": str(data["procs"]),
        "planned for": data["objective"],
        "machine": data["machine"] or "none",
        "slices that stay": ",".join(NAMES[key] for key in data["kept"]) or "none",
        "limit of memory": show_bytes(limit) if limit else "none",
        "rows of others": "computed too" if data.get("margins") else "none",
    }


def _row_decisions(row: Mapping[str, Any] | None) -> dict[str, str]:
    """What the plan of a network decides for a layer; nothing for a layer that it has not."""
    if row is None:
        return {}
    found = {
        "grid": _grid(row["grid"]),
        "ranks by": _order(row),
        "stationary": NAMES[row["stationary"]],
        "panels": str(row["panels"]),
        "weights": "whole" if row["whole"] else "in parts",
    }
    return found | ({"rows": _plain(row["turned"])} if row["turned"] else {})


def _network_numbers(data: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Number -> its unit and value."""
    unit = "words" if data["objective"] == "words" else "seconds"
    found: dict[str, tuple[str, float]] = {
        f"{name} in layers": ("words", sum(layer["words"][key] for layer in data["layers"]))
        for key, name in NAMES.items()
    }
    found["between layers"] = "words", sum(edge["words"] for edge in data["redistributions"])
    beside: Mapping[str, int] = data.get("beside") or {}
    found |= {f"in {cause}": ("words", words) for cause, words in beside.items() if words}
    found["words of the plan" if unit == "words" else "time"] = unit, data["cost"]
    found[f"least of the family, {unit}"] = unit, data["lower_bound"]
    found["memory"] = "bytes", data["memory_words"] * data["word_bytes"]
    found["of it always resident"] = "bytes", data["resident_words"] * data["word_bytes"]
    return found


# -- both -------------------------------------------------------------------------------------------------


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Decision, ...]:
    both = dict.fromkeys((*one, *other))
    return tuple(
        Decision(what, one.get(what), other.get(what)) for what in both if one.get(what) != other.get(what)
    )


def _paired(one: Mapping[str, tuple[str, float]], other: Mapping[str, tuple[str, float]]) -> Iterator[Number]:
    for what in dict.fromkeys((*one, *other)):
        (unit, value), (second, value_of_other) = one.get(what, ("", None)), other.get(what, ("", None))
        yield Number(what, unit or second, value, value_of_other)


def _change(cost: Number) -> float:
    return abs((cost.other or 0.0) - (cost.one or 0.0))


def _grid(grid: Mapping[str, int]) -> str:
    return " x ".join(f"{axis}={grid[axis]}" for axis in AXES if grid.get(axis, 1) > 1) or "1 process"


def _order(data: Mapping[str, Any]) -> str:
    split = [axis for axis in data["order"] if data["grid"].get(axis, 1) > 1]
    return ", ".join(split) or "-"


def _plain(value: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ", ".join(value)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "seconds":
        return f"{value * 1e3:.4g} ms"
    return show_bytes(int(value)) if unit == "bytes" else show_words(value)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"
