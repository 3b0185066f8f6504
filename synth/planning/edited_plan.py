"""A plan file that a user has edited: its decisions are read, checked, and planned from again.

The fields are those that one line of `--as` has: processes, grid, order, rows, classes, and the passes with
stationary tensors and tiles. Without `passes`, the search chooses them for the grid. All other numbers of the
file follow from the decisions, so they are derived anew. An edit of such a number alone would be lost without
a word: it is refused with the name of the decision that it follows from.
"""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

import msgspec

from synth.base.errors import InputError, UsageError, said_of
from synth.base.file_kinds import refuse_other_file
from synth.base.similar_names import nearest
from synth.base.user_files import json_of
from synth.base.yaml_positions import shown
from synth.layer.axes import ROW_MAJOR, Axis
from synth.layer.layer import Layer
from synth.layer.passes import Task
from synth.planning.decisions import DECISIONS, Reading
from synth.planning.derive import derive
from synth.planning.plan import Plan
from synth.planning.plan_consistency import decision_faults, known_keys
from synth.planning.plan_entry import ScheduleEntry, converted, schedule_of, with_decisions
from synth.planning.plan_file import REMEDY, parse_plan, plan_text
from synth.planning.plan_json import SCHEMA, exact_json
from synth.planning.request import PlanRequest

PASS_KEYS = ("pass", "stationary", "tiles", "swapped", "kept", "keeps")
# numbers of a file that follow from decisions -> the decisions to edit in their place
FOLLOWS = {
    "used_procs": "grid",
    "work": "grid",
    "stationary": "passes[0].stationary",
    "tile": "passes[0].tiles",
    "panels": "passes[0].tiles",
    "steps": "passes[0].tiles",
    "words": "grid and passes",
}


class LimitEntry(msgspec.Struct):
    """The limit of memory, in bytes."""

    limit_bytes: int | None = None


class BalanceEntry(msgspec.Struct):
    """How uneven the work may be."""

    allowed: float = PlanRequest.balance
    exact_procs: bool = PlanRequest.exact_procs


class GridEntry(msgspec.Struct, kw_only=True, rename={"pass_": "pass"}):
    """The decisions of an edited plan file without passes, which are searched."""

    procs: int
    grid: dict[Axis, int]
    pass_: Task
    memory: LimitEntry = msgspec.field(default_factory=LimitEntry)
    balance: BalanceEntry = msgspec.field(default_factory=BalanceEntry)


class EditedEntry(ScheduleEntry, kw_only=True):
    """All decisions of an edited plan file."""

    memory: LimitEntry = msgspec.field(default_factory=LimitEntry)
    balance: BalanceEntry = msgspec.field(default_factory=BalanceEntry)


def read_edited_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan that the decisions of an edited plan file make. Raises `InputError`, which names the field.

    A file that nobody edited gives its plan, with what its search proved.
    """
    return parse_edited_plan(plan_text(path), shown(os.fspath(path), 4096))


def parse_edited_plan(text: str, name: str) -> Plan:
    """A plan from the text of a file that was edited; `name` is for messages."""
    refuse_other_file(text, name, "plan")
    try:
        return parse_plan(text, name)  # nothing was edited
    except InputError:
        data = json_of(text, name, SCHEMA, REMEDY)
    layer_name = data.get("name")
    if not isinstance(layer_name, str):
        raise InputError(f"{name}: name is not text; write the name of the layer")
    layer = Layer.from_json(data.get("problem"), name, layer_name)
    data.setdefault("order", list(ROW_MAJOR))
    with said_of(name, InputError):
        if "passes" not in data:
            return _searched(data, layer)
        plan = _decided(data, layer)
        _refuse_lost_edits(data, plan)
    return plan


def _decided(data: dict[str, Any], layer: Layer) -> Plan:
    """The plan of all decisions of a file; no search is made, so it knows no least work."""
    entry = converted(data, with_decisions(EditedEntry))
    for i, each in enumerate(data["passes"]):
        _refuse_unknown(each, PASS_KEYS, f"passes[{i}].")
    plan = Plan(
        layer,
        **schedule_of(entry, Reading(layer, entry.grid)),
        limit_bytes=entry.memory.limit_bytes,
        balance=entry.balance.allowed,
        exact_procs=entry.balance.exact_procs,
    )
    for fault in decision_faults(plan):
        raise UsageError(fault)
    return plan


def _searched(data: dict[str, Any], layer: Layer) -> Plan:
    """The best plan on the grid of a file that has no passes."""
    entry: Any = converted(data, with_decisions(GridEntry))
    reading = Reading(layer, entry.grid)
    for each in DECISIONS:
        reading.chosen[each.field] = each.from_json(getattr(entry, each.key), reading)
    classes, turned = dict(reading.chosen["classes"]), reading.chosen["turned"]
    nest = layer.nest.by_classes(reading.chosen["classes"])
    request = PlanRequest(
        layer,
        entry.procs,
        entry.memory.limit_bytes,
        grid=reading.grid._asdict(),
        order=reading.chosen["order"],
        rows={axis: "in" if axis in turned else "out" for axis in nest.turnable},
        classes={axis: classes.get(axis, 1) for axis in layer.spatial_axes},
        pass_=entry.pass_,
        balance=entry.balance.allowed,
        exact_procs=entry.balance.exact_procs,
    )
    plan = derive(request)
    _refuse_unknown(data, known_keys(plan))
    return plan


def _refuse_lost_edits(data: dict[str, Any], plan: Plan) -> None:
    """Raise `UsageError` for a key that no plan has, and for an edited number that decisions do not give."""
    _refuse_unknown(data, known_keys(plan))
    derived = exact_json(plan)
    if data.get("stationary", derived["stationary"]) != derived["stationary"]:
        _refuse_derived("stationary", data, derived)
    if data.get("id") != plan.id:
        return  # decisions were edited: what follows from them is of the plan before
    for key in FOLLOWS:
        if key in data and json.dumps(data[key], sort_keys=True) != json.dumps(derived[key], sort_keys=True):
            _refuse_derived(key, data, derived)


def _refuse_derived(key: str, data: dict[str, Any], derived: dict[str, Any]) -> NoReturn:
    raise UsageError(
        f"{key} is {shown(str(data[key]), 80)}, but it follows from {FOLLOWS[key]}, which make it "
        f"{derived[key]}; edit {FOLLOWS[key]}, and leave {key} out"
    )


def _refuse_unknown(data: dict[str, Any], known: Any, place: str = "") -> None:
    for key in data:
        if key not in known:
            raise UsageError(f"{place}{shown(key, 60)} is no field of a plan{nearest(key, list(known))}")
