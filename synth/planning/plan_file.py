"""Plan files: `--plan` and `synth.read_plan` read what `synth plan --json` wrote, bit for bit.

Only the decisions are read; every number that follows from them is derived anew and compared, so a plan
file that was edited, or written by another version, is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from synth.base.errors import InputError
from synth.base.file_kinds import refuse_other_file
from synth.base.user_files import MOST_JSON, read_text
from synth.base.work_balance import MOST_BALANCE
from synth.base.yaml_positions import shown
from synth.layer.axes import AXES, ROW_MAJOR, SPATIAL, TENSORS, Axis, Order, PerAxis, Tensor, placement
from synth.layer.layer import Layer
from synth.layer.passes import GRADIENTS, TURNED, Pass, Passes, Task, sequences
from synth.layer.residue_classes import Classes, possible_counts
from synth.planning.plan import Algorithm, Plan
from synth.planning.plan_consistency import decision_faults, number_faults
from synth.planning.plan_json import SCHEMA, exact_json
from synth.planning.request import MOST_PROCS
from synth.schedule.pass_plan import PassPlan

MOST_BYTES, MOST_WORK = 2**70, 2**300  # larger numbers are nonsense
REMEDY = "write the plan anew with `synth plan --json -o plan.json`"
TENSOR_OF: dict[str, Tensor] = {tensor.lower(): tensor for tensor in TENSORS}

TensorName = Literal["in", "ker", "out"]


class Parts(msgspec.Struct, forbid_unknown_fields=True):
    """A number per axis; an axis that the layer does not have is 1."""

    b: int = 1
    g: int = 1
    d: int = 1
    h: int = 1
    w: int = 1
    c: int = 1
    k: int = 1


class PassEntry(msgspec.Struct, rename={"pass_": "pass"}):
    """The plan of one pass."""

    pass_: Pass
    stationary: TensorName
    tiles: Parts
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


class PlanEntry(msgspec.Struct, rename={"pass_": "pass"}):
    """The fields of a plan file that are read; all others are derived from them and compared."""

    procs: int
    grid: Parts
    pass_: Task
    passes: list[PassEntry]
    memory: MemoryEntry
    balance: BalanceEntry
    order: list[Axis]
    algorithm: Algorithm
    turned: list[Axis] = msgspec.field(default_factory=list)
    classes: dict[Axis, int] = msgspec.field(default_factory=dict)
    proven_words: int | None = None


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a file. Raises `InputError` where it is no plan, was edited, or is of another version."""
    return parse_plan(plan_text(path), shown(os.fspath(path), 4096))


def plan_text(path: str | os.PathLike[str]) -> str:
    """The text of a plan file, of a layer or a network, or of standard input for `-`.

    Raises `InputError` where it cannot be read.
    """
    return read_text(path, MOST_JSON, "plan file")


def parse_plan(text: str, name: str) -> Plan:
    """A plan from the text of a file; `name` is for messages."""
    refuse_other_file(text, name, "plan")
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as fault:
        place = f":{fault.lineno}:{fault.colno}" if isinstance(fault, json.JSONDecodeError) else ""
        raise InputError(f"{name}{place}: is not JSON; {REMEDY}") from fault
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        raise InputError(f"{name}: schema is {str(schema)[:60]!r}, not {SCHEMA!r}; {REMEDY}")
    layer_name = data.get("name")
    if not isinstance(layer_name, str):
        raise InputError(f"{name}: name is not text; {REMEDY}")
    layer = Layer.from_json(data.get("problem"), name, layer_name)
    data.setdefault("order", list(ROW_MAJOR))  # missing in files of earlier versions
    plan = _decisions(data, layer, name)
    _require_none(decision_faults(plan), name)
    for key, derived in exact_json(plan).items():
        if _canonical(data.get(key)) != _canonical(derived):
            difference = f"{str(data.get(key))[:80]}, but the plan makes it {str(derived)[:80]}"
            raise InputError(f"{name}: {key} is {difference}; {REMEDY}")
    _require_none(number_faults(plan, data), name)
    return plan


def _require_none(faults: Iterator[str], name: str) -> None:
    for fault in faults:
        raise InputError(f"{name}: {shown(fault, 300)}; {REMEDY}")


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)  # 4, 4.0 and true are three values


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _decisions(data: dict[str, Any], layer: Layer, name: str) -> Plan:
    entry = _entry(data, name)
    classes = _classes(entry, layer, name)
    nest = layer.nest.by_classes(classes)
    extents = nest.extents
    procs = _within(entry.procs, 1, MOST_PROCS, "procs", name)
    grid = _axes(entry.grid, extents, "grid", name)
    if grid.size > procs:
        raise InputError(f"{name}: the grid has {grid.size} processes, more than procs {procs}; {REMEDY}")
    turned = tuple(axis for axis in nest.turnable if axis in entry.turned)
    if len(turned) < len(entry.turned):
        raise InputError(f"{name}: turned is {entry.turned}, but only {nest.turnable} can be; {REMEDY}")
    extents = nest.turn(turned).extents
    grid = _axes(entry.grid, extents, "grid", name)  # blocks of input rows, too, are not empty
    work = PerAxis(*(-(-n // p) for n, p in zip(extents, grid, strict=True)))
    first, *later = _passes(entry, work.with_("g", 1), layer.transposed, name)
    limit_bytes, least_work = entry.memory.limit_bytes, entry.balance.least_work
    if limit_bytes is not None:
        _within(limit_bytes, 1, MOST_BYTES, "memory.limit_bytes", name)
    if least_work is not None:
        _within(least_work, 1, MOST_WORK, "balance.least_work", name)
    if not 0 <= entry.balance.allowed <= MOST_BALANCE:
        raise InputError(f"{name}: balance.allowed is not a number from 0 to {MOST_BALANCE:g}; {REMEDY}")
    return Plan(
        layer,
        procs,
        grid,
        first,
        limit_bytes=limit_bytes,
        balance=entry.balance.allowed,
        exact_procs=entry.balance.exact_procs,
        least_work=least_work,
        pinned=tuple(axis for axis in AXES if axis in entry.balance.pinned),
        later=tuple(later),
        order=_order(entry.order, grid, name),
        turned=turned,
        classes=classes,
        proven_words=entry.proven_words,
        algorithm=entry.algorithm,
    )


def _classes(entry: PlanEntry, layer: Layer, name: str) -> Classes:
    """The residue classes, which must be those of a dilation."""
    for axis, count in entry.classes.items():
        possible = [n for n in possible_counts(layer.nest.windows[axis]) if n > 1] if axis in SPATIAL else []
        if count not in possible:
            raise InputError(f"{name}: classes.{axis} is {count}, but the layer has {possible}; {REMEDY}")
    return tuple((axis, entry.classes[axis]) for axis in SPATIAL if axis in entry.classes)


def _entry(data: dict[str, Any], name: str) -> PlanEntry:
    """The fields that are read, with their types checked."""
    try:
        return msgspec.convert(data, PlanEntry)
    except msgspec.ValidationError as fault:
        what, _, where = str(fault).partition(" - at ")
        path = re.sub(r"`\$\.?|`", "", where)
        sentence = shown(what[0].lower() + what[1:], 200)
        raise InputError(f"{name}: {path}{': ' * bool(path)}{sentence}; {REMEDY}") from fault


def _order(axes: list[Axis], grid: PerAxis, name: str) -> Order:
    if sorted(axes) != sorted(AXES):
        raise InputError(f"{name}: order does not name each of the axes {', '.join(AXES)} once; {REMEDY}")
    return placement(grid, axes)


def _passes(entry: PlanEntry, most: PerAxis, transposed: bool, name: str) -> list[PassPlan]:
    """The plans of the passes, which must be those of what the plan computes."""
    pass_plans = [_pass_plan(each, most, f"passes[{i}].tiles", name) for i, each in enumerate(entry.passes)]
    allowed: set[Passes]
    if entry.pass_ == "training":
        subsets = (GRADIENTS, *((tensor,) for tensor in GRADIENTS))
        allowed = {each for gradients in subsets for each in sequences(transposed, gradients)}
    else:
        allowed = {(TURNED[entry.pass_] if transposed else entry.pass_,)}
    if tuple(pass_plan.pass_ for pass_plan in pass_plans) not in allowed:
        raise InputError(f"{name}: passes are not those of pass {entry.pass_!r}; {REMEDY}")
    return pass_plans


def _pass_plan(entry: PassEntry, most: PerAxis, key: str, name: str) -> PassPlan:
    reused, saved = (frozenset(TENSOR_OF[each] for each in names) for names in (entry.kept, entry.keeps))
    counts = _axes(entry.tiles, most, key, name)
    return PassPlan(TENSOR_OF[entry.stationary], counts, entry.swapped, entry.pass_, reused, saved)


def _axes(parts: Parts, most: PerAxis, key: str, name: str) -> PerAxis:
    return PerAxis(
        *(_within(getattr(parts, axis), 1, getattr(most, axis), f"{key}.{axis}", name) for axis in AXES)
    )


def _within(value: int, least: int, most: int, key: str, name: str) -> int:
    if not least <= value <= most:
        raise InputError(
            f"{name}: {key} is {str(value)[:60]}, not a whole number from {least} to {most}; {REMEDY}"
        )
    return value
