"""Plan files: `--plan` and `synth.read_plan` read what `synth plan --json` wrote, bit for bit.

Only the decisions are read; every number that follows from them is derived anew and compared, so a plan
file that was edited, or written by another version, is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from synth.base.errors import InputError, UsageError, said_of
from synth.base.file_kinds import refuse_other_file
from synth.base.user_files import MOST_JSON, json_of, read_text
from synth.base.work_balance import MOST_BALANCE
from synth.base.yaml_positions import shown
from synth.layer.axes import AXES, ROW_MAJOR
from synth.layer.layer import Layer
from synth.planning.decisions import Reading
from synth.planning.plan import Plan
from synth.planning.plan_consistency import decision_faults, number_faults
from synth.planning.plan_entry import PlanEntry, converted, schedule_of, with_decisions
from synth.planning.plan_json import SCHEMA, exact_json

MOST_BYTES, MOST_WORK = 2**70, 2**300  # larger numbers are nonsense
REMEDY = "write the plan anew with `synth plan --json -o plan.json`"
EDITED = f"{REMEDY}, or plan from what you edited with `synth plan --from`"
CHOSEN_ANEW = {"passes", "memory", "balance", "algorithm"}  # fields that `synth plan --from` can do without


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
    data = json_of(text, name, SCHEMA, REMEDY)
    layer_name = data.get("name")
    if not isinstance(layer_name, str):
        raise InputError(f"{name}: name is not text; {REMEDY}")
    layer = Layer.from_json(data.get("problem"), name, layer_name)
    data.setdefault("order", list(ROW_MAJOR))  # missing in files of earlier versions
    remedy = REMEDY if data.keys() >= CHOSEN_ANEW else EDITED
    with said_of(name, InputError, f"; {remedy}"):
        plan = _decisions(data, layer)
    _require_none(decision_faults(plan), name)
    for key, derived in exact_json(plan).items():
        if _canonical(data.get(key)) != _canonical(derived):
            difference = f"{str(data.get(key))[:80]}, but the plan makes it {str(derived)[:80]}"
            raise InputError(f"{name}: {key} is {difference}; {EDITED}")
    _require_none(number_faults(plan, data), name)
    return plan


def _require_none(faults: Iterator[str], name: str) -> None:
    for fault in faults:
        raise InputError(f"{name}: {shown(fault, 300)}; {REMEDY}")


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)  # 4, 4.0 and true are three values


def _decisions(data: dict[str, Any], layer: Layer) -> Plan:
    entry = converted(data, with_decisions(PlanEntry))
    reading = Reading(layer, entry.grid)
    schedule = schedule_of(entry, reading)
    limit_bytes, least_work = entry.memory.limit_bytes, entry.balance.least_work
    if limit_bytes is not None:
        reading.whole(limit_bytes, 1, MOST_BYTES, "memory.limit_bytes")
    if least_work is not None:
        reading.whole(least_work, 1, MOST_WORK, "balance.least_work")
    if not 0 <= entry.balance.allowed <= MOST_BALANCE:
        raise UsageError(f"balance.allowed is not a number from 0 to {MOST_BALANCE:g}")
    return Plan(
        layer,
        **schedule,
        limit_bytes=limit_bytes,
        balance=entry.balance.allowed,
        exact_procs=entry.balance.exact_procs,
        least_work=least_work,
        pinned=tuple(axis for axis in AXES if axis in entry.balance.pinned),
        proven_words=entry.proven_words,
        algorithm=entry.algorithm,
    )
