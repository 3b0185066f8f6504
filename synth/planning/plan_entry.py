"""The decisions of a plan as plan files have them, and as a line is read: types, checks, values, schema."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from synth.base.errors import UsageError
from synth.base.ranges import MOST_PROCS
from synth.base.yaml_positions import shown
from synth.layer.axes import TENSORS, Axis, PerAxis, Tensor
from synth.layer.passes import GRADIENTS, TURNED, Pass, Passes, Task, sequences
from synth.planning.decisions import DECISIONS, Reading
from synth.planning.plan import Algorithm
from synth.planning.plan_json import SCHEMA
from synth.schedule.pass_plan import PassPlan

TENSOR_OF: dict[str, Tensor] = {tensor.lower(): tensor for tensor in TENSORS}
TensorName = Literal["in", "ker", "out"]
T = TypeVar("T")
_STRUCTS: dict[type, Any] = {}


class PassEntry(msgspec.Struct, rename={"pass_": "pass"}):
    """The plan of one pass."""

    pass_: Pass
    stationary: TensorName
    tiles: dict[Axis, int]
    swapped: bool
    kept: list[TensorName]  # reused from an earlier pass
    keeps: list[TensorName]  # saved for a later one


class MemoryEntry(msgspec.Struct):
    """The part of `memory` that is a decision of the user."""

    limit_bytes: int | None


class BalanceEntry(msgspec.Struct):
    """The part of `balance` that is not derived."""

    allowed: float
    least_work: int | None
    exact_procs: bool
    pinned: list[Axis] = msgspec.field(default_factory=list)


class ScheduleEntry(msgspec.Struct, kw_only=True, rename={"pass_": "pass"}):
    """The decisions of every plan; `with_decisions` adds those that may go without saying."""

    procs: int
    grid: dict[Axis, int]
    pass_: Task
    passes: list[PassEntry]


class PlanEntry(ScheduleEntry, kw_only=True):
    """The fields of a plan file that are read; all others are derived from them and compared."""

    memory: MemoryEntry
    balance: BalanceEntry
    algorithm: Algorithm
    proven_words: int | None = None


def with_decisions(entry: type[T]) -> type[T]:
    """The struct with a field for each of `DECISIONS`, which may be absent."""
    if entry in _STRUCTS:
        return _STRUCTS[entry]  # type: ignore[no-any-return]
    usual = [msgspec.field(default_factory=partial(each.to_json, each.usual)) for each in DECISIONS]
    fields = [(each.key, each.kind, default) for each, default in zip(DECISIONS, usual, strict=True)]
    return _STRUCTS.setdefault(entry, msgspec.defstruct(entry.__name__, fields, bases=(entry,), kw_only=True))  # type: ignore[no-any-return]


def converted(data: dict[str, Any], entry: type[T]) -> T:
    """The fields of a struct, their types and ranges checked. Raises `UsageError`."""
    try:
        return msgspec.convert(data, entry)
    except msgspec.ValidationError as fault:
        what, _, where = str(fault).partition(" - at ")
        path = re.sub(r"`\$\.?|`", "", where)
        raise UsageError(f"{path}{': ' * bool(path)}{shown(what[0].lower() + what[1:], 200)}") from None


def schedule_of(entry: ScheduleEntry, reading: Reading) -> dict[str, Any]:
    """Field of `Plan` -> value: processes, grid, decisions and passes, which must be possible."""
    procs = reading.whole(entry.procs, 1, MOST_PROCS, "procs")
    for each in DECISIONS:
        reading.chosen[each.field] = each.from_json(getattr(entry, each.key), reading)
    grid = reading.grid
    if grid.size > procs:
        raise UsageError(f"the grid has {grid.size} processes, more than procs {procs}")
    work = reading.nest.extents.blocks(grid)
    first, *later = _passes(entry, work.with_("g", 1), reading)
    return {"procs": procs, "grid": grid, "first": first, "later": tuple(later), **reading.chosen}


def _passes(entry: ScheduleEntry, most: PerAxis, reading: Reading) -> list[PassPlan]:
    """The plans of the passes, which must be those of what the plan computes."""
    transposed = reading.layer.transposed
    pass_plans = [
        _pass_plan(each, most, f"passes[{i}].tiles", reading) for i, each in enumerate(entry.passes)
    ]
    allowed: set[Passes]
    if entry.pass_ == "training":
        subsets = (GRADIENTS, *((tensor,) for tensor in GRADIENTS))
        allowed = {each for gradients in subsets for each in sequences(transposed, gradients)}
    else:
        allowed = {(TURNED[entry.pass_] if transposed else entry.pass_,)}
    if tuple(pass_plan.pass_ for pass_plan in pass_plans) not in allowed:
        raise UsageError(f"passes are not those of pass {entry.pass_!r}")
    return pass_plans


def _pass_plan(entry: PassEntry, most: PerAxis, key: str, reading: Reading) -> PassPlan:
    reused, saved = (frozenset(TENSOR_OF[each] for each in names) for names in (entry.kept, entry.keeps))
    counts = reading.within(entry.tiles, most, key)
    return PassPlan(TENSOR_OF[entry.stationary], counts, entry.swapped, entry.pass_, reused, saved)


def plan_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the plan file of a layer: of what is read, and of some derived numbers.

    It cannot check relations between numbers.
    """
    made = msgspec.json.schema(with_decisions(PlanEntry))
    entry = made["$defs"].pop("PlanEntry")
    axes = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}
    words = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
    made["$defs"]["BalanceEntry"]["properties"] |= {
        name: {"type": types, "minimum": 1, "description": f"loop points, without taps, {of}"}
        for name, types, of in (
            ("work", "integer", "of the busiest process; padding counted"),
            ("least_work", ["integer", "null"], "that the busiest process has at least"),
        )
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "synth plan file of a layer",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "id": {"type": "string", "description": "twelve hexadecimal digits that name the decisions"},
            "name": {"type": "string", "description": "of the layer"},
            "problem": {"type": "object", "description": "loop extents, stride, padding, dilation, dtype"},
            **entry["properties"],
            "used_procs": {"type": "integer", "minimum": 1},
            "work": {**axes, "description": "largest block of work, per axis"},
            "tile": {**axes, "description": "largest tile, per axis"},
            "words": {**words, "description": "the most words that any process receives, by tensor"},
            "assumptions": {
                "type": "object",
                "description": "of the bounds; most_work: multiply-adds of the busiest process, "
                "padding left out",
            },
            "bounds": {"type": "object", "description": "lower bounds in words, and words / bound"},
        },
        "required": ["schema", "name", "problem", *entry["required"]],
        "$defs": made["$defs"],
    }
