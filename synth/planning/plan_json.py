"""Plan files: `synth plan --json` writes one, `--plan` reads it back bit for bit.

Only the decisions are read; every number that follows from them is derived anew and compared, so a plan
file that was edited, or written by another version, is refused and never half believed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from synth.base.errors import InputError
from synth.base.yaml_positions import shown
from synth.layer.axes import AXES, ROW_MAJOR, TENSORS, Order, PerAxis, placement
from synth.layer.layer import Layer
from synth.layer.passes import GRADIENTS, PASSES, TURNED, Passes, sequences
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan

SCHEMA, NETWORK_SCHEMA = "synth.plan/1", "synth.network-plan/1"
LARGEST = 16 * 2**20  # bytes of a plan file
REMEDY = "write the plan anew with `synth plan --json -o plan.json`"


def axes_json(plan_layer: Layer, values: PerAxis) -> dict[str, int]:
    """Axis -> value with the keys that the layer has: b, c, h, w, k always, d for conv3d, g if grouped."""
    left_out = {"d"} if plan_layer.kind != "conv3d" else set()
    left_out |= {"g"} if plan_layer.groups == 1 else set()
    order = ("b", "g", "c", "d", "h", "w", "k")
    return {axis: getattr(values, axis) for axis in order if axis not in left_out}


def to_json(plan: Plan, relaxation: float | None = None) -> dict[str, Any]:
    """The plan as JSON data; `words` are integers, memory is in words and bytes."""
    layer, form = plan.layer, plan.closed_form
    timed: dict[str, Any] = {}
    if plan.timed:
        from synth.planning.time_json import time_json

        timed = {"time": time_json(plan, *plan.timed)}
    return {
        **exact_json(plan),
        "algorithm": plan.algorithm,
        "bounds": {
            "universal": plan.bound.words,
            "paper": plan.paper_bound,
            "ratio": plan.ratio,
        },
        "closed_form": {
            "case": form.case,
            "cost": form.cost,
            "T_k": form.t_k,
            "T_x": form.t_x,
            "stationary": form.stationary.lower(),
            "binding": list(form.binding),
        },
        "relaxation": None if relaxation is None else {"cost": relaxation},
        "paper_cost": plan.paper_cost,
        "alternatives": [
            {
                "name": each.name,
                "grid": None if each.grid is None else axes_json(layer, each.grid),
                "words": each.words,
                "memory_bytes": each.used_bytes,
                "feasible": each.feasible,
                "why": each.why,
                **({} if each.seconds is None else {"seconds": each.seconds}),
            }
            for each in plan.alternatives
        ],
        **timed,
    }


def exact_json(plan: Plan) -> dict[str, Any]:
    """The decisions and the whole numbers that follow from them: what `parse_plan` derives anew."""
    layer, pass_plan = plan.layer, plan.first
    return {
        "schema": SCHEMA,
        "id": plan.id,
        "name": layer.name,
        "problem": layer.to_json(),
        "procs": plan.procs,
        "used_procs": plan.used_procs,
        "pass": plan.pass_,
        "stationary": pass_plan.stationary.lower(),
        "grid": axes_json(layer, plan.grid),
        "order": list(plan.order),
        "work": axes_json(layer, plan.work),
        "tile": axes_json(layer, plan.tile),
        "panels": pass_plan.panels,
        "steps": pass_plan.steps,
        "passes": [each.to_json() for each in plan.pass_plans],
        "words": plan.words,
        "memory": {"words": plan.used_words, "bytes": plan.used_bytes, "limit_bytes": plan.limit_bytes},
        "balance": {
            "allowed": plan.balance,
            "work": plan.work.size,
            "least_work": plan.least_work,
            "exact_procs": plan.exact_procs,
        },
    }


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a file. Raises `InputError` where it is no plan, was edited, or is of another version."""
    return parse_plan(plan_text(path), shown(os.fspath(path), 4096))


def plan_text(path: str | os.PathLike[str]) -> str:
    """The text of a plan file, of a layer or a network. Raises `InputError` where it cannot be read."""
    name = shown(os.fspath(path), 4096)
    try:
        if not Path(path).is_file():
            raise InputError(f"{name}: no such file, or not a plain one; name a plan file")
        if Path(path).stat().st_size > LARGEST:
            raise InputError(f"{name}: larger than {LARGEST} bytes; a plan file is smaller")
        return Path(path).read_text(encoding="utf-8")
    except OSError as fault:
        raise InputError(
            f"{name}: cannot be read ({fault.strerror}); check the path and its rights"
        ) from fault
    except UnicodeDecodeError as fault:
        raise InputError(f"{name}: is not UTF-8 text; {REMEDY}") from fault


def parse_plan(text: str, name: str) -> Plan:
    """A plan from the text of a file; `name` is for messages."""
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as fault:
        place = f":{fault.lineno}:{fault.colno}" if isinstance(fault, json.JSONDecodeError) else ""
        raise InputError(f"{name}{place}: is not JSON; {REMEDY}") from fault
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema == NETWORK_SCHEMA:
            raise InputError(
                f"{name}: is the plan of a network, and this takes the plan of a layer; "
                "run it with `synth.parallelize(model, shape, plan=...)`, or plan one of its layers"
            )
        raise InputError(f"{name}: schema is {str(schema)[:60]!r}, not {SCHEMA!r}; {REMEDY}")
    layer_name = data.get("name")
    if not isinstance(layer_name, str):
        raise InputError(f"{name}: name is not text; {REMEDY}")
    layer = Layer.from_json(data.get("problem"), name, layer_name)
    data.setdefault("order", list(ROW_MAJOR))  # files from before there were others
    plan = _decisions(data, layer, name)
    for key, derived in exact_json(plan).items():
        if _canonical(data.get(key)) != _canonical(derived):
            said = f"{str(data.get(key))[:80]}, but the plan makes it {str(derived)[:80]}"
            raise InputError(f"{name}: {key} is {said}; {REMEDY}")
    return plan


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)  # 4, 4.0 and true are three values


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _decisions(data: dict[str, Any], layer: Layer, name: str) -> Plan:
    procs = _whole(data.get("procs"), 1, 2**30, "procs", name)
    extents = layer.nest.extents
    grid = _axes(data.get("grid"), extents, "grid", name)
    if grid.size > procs:
        raise InputError(f"{name}: the grid has {grid.size} processes, more than procs {procs}; {REMEDY}")
    work = PerAxis(*(-(-n // p) for n, p in zip(extents, grid, strict=True)))
    pass_plans = _passes(data, work.with_("g", 1), layer.transposed, name)
    memory, balance = data.get("memory"), data.get("balance")
    if not isinstance(memory, dict) or not isinstance(balance, dict):
        raise InputError(f"{name}: memory or balance is not an object; {REMEDY}")
    limit = memory.get("limit_bytes")
    allowed, least = balance.get("allowed"), balance.get("least_work")
    if isinstance(allowed, bool) or not isinstance(allowed, int | float) or not 0 <= allowed <= 10:
        raise InputError(f"{name}: balance.allowed is not a number from 0 to 10; {REMEDY}")
    return Plan(
        layer,
        procs,
        grid,
        pass_plans[0],
        None if limit is None else _whole(limit, 1, 2**70, "memory.limit_bytes", name),
        float(allowed),
        balance.get("exact_procs") is True,
        None if least is None else _whole(least, 1, 2**300, "balance.least_work", name),
        pass_plans[1:],
        _order(data["order"], grid, name),
    )


def _order(value: object, grid: PerAxis, name: str) -> Order:
    if not isinstance(value, list) or sorted(map(str, value)) != sorted(AXES):
        raise InputError(f"{name}: order does not name each of the axes {', '.join(AXES)} once; {REMEDY}")
    return placement(grid, map(str, value))


def _passes(data: dict[str, Any], most: PerAxis, transposed: bool, name: str) -> tuple[PassPlan, ...]:
    """The plans of the passes, which must be those of what the plan computes."""
    written = data.get("passes")
    if not isinstance(written, list) or not all(isinstance(each, dict) for each in written):
        raise InputError(f"{name}: passes is not a list of objects; {REMEDY}")
    pass_plans = tuple(_pass_plan(each, most, f"passes[{i}]", name) for i, each in enumerate(written))
    asked: Any = data.get("pass")
    wanted: tuple[Passes, ...] = ((TURNED[asked] if transposed and asked in PASSES else asked,),)
    if asked == "training":
        made = (GRADIENTS, *((tensor,) for tensor in GRADIENTS))
        wanted = tuple(each for gradients in made for each in sequences(transposed, gradients))
    if tuple(pass_plan.pass_ for pass_plan in pass_plans) not in wanted:
        raise InputError(f"{name}: passes are not those of pass {str(data.get('pass'))[:40]!r}; {REMEDY}")
    return pass_plans


def _pass_plan(data: dict[str, Any], most: PerAxis, key: str, name: str) -> PassPlan:
    names = {tensor.lower(): tensor for tensor in TENSORS}
    stationary, pass_ = names.get(str(data.get("stationary"))), data.get("pass")
    if stationary is None or pass_ not in PASSES:
        raise InputError(f"{name}: {key} has no known pass and stationary tensor; {REMEDY}")
    counts = _axes(data.get("tiles"), most, f"{key}.tiles", name)
    sets = []
    for field in ("kept", "keeps"):
        listed = data.get(field)
        if not isinstance(listed, list) or not all(str(each) in names for each in listed):
            raise InputError(f"{name}: {key}.{field} is not a list of in, ker and out; {REMEDY}")
        sets.append(frozenset(names[str(each)] for each in listed))
    return PassPlan(stationary, counts, data.get("swapped") is True, pass_, sets[0], sets[1])


def _axes(value: object, most: PerAxis, key: str, name: str) -> PerAxis:
    if not isinstance(value, dict) or not set(value) <= set(AXES):
        raise InputError(f"{name}: {key} is not an object over the axes {', '.join(AXES)}; {REMEDY}")
    parts = {axis: _whole(value.get(axis, 1), 1, getattr(most, axis), f"{key}.{axis}", name) for axis in AXES}
    return PerAxis(**parts)


def _whole(value: object, least: int, most: int, key: str, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(
            f"{name}: {key} is {str(value)[:60]}, not a whole number from {least} to {most}; {REMEDY}"
        )
    return value
