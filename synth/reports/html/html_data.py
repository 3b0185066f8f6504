"""The data of the HTML report's script: the decisions of a plan, from which the script derives blocks.

Blocks, groups and words of a rank follow from grid, shards and windows by the rules of `distribution`, so
4096 ranks take no more bytes than one. Only the received words are listed, as runs of equal ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from synth.layer.axes import AXES, DIMS, LACKS, SPATIAL, TENSORS
from synth.layer.passes import role_name
from synth.planning.plan import Plan
from synth.schedule.pass_program import Gather, Loop, Reduce, Rows
from synth.schedule.schedule import Schedule

MOST_STEPS = 240  # the timeline lists this many steps


def report_data(plan: Plan) -> dict[str, Any]:
    """The JSON data; intervals and words in elements."""
    d = plan.distribution
    nest = d.nest
    windows = {axis: nest.windows[axis] for axis in SPATIAL}
    steps = list(itertools.islice(timeline(plan), MOST_STEPS))
    return {
        "axes": AXES,
        "grid": list(plan.grid),
        "extents": list(nest.extents),
        "dims": DIMS,
        "shapes": nest.shapes,
        "lacks": LACKS,
        "shard_cuts": d.shard_cuts,
        "framed": {tensor: nest.framed(tensor) for tensor in TENSORS},
        "windows": {
            a: [w.stride, w.kernel, w.dilation, w.padding, w.size, w.divisor] for a, w in windows.items()
        },
        "counts": [list(pass_plan.counts) for pass_plan in plan.pass_plans],
        "rotation": [schedule.program.loop.rotation for schedule in plan.schedules],
        "steps": steps,
        "received": received_runs(plan),
        "columns": columns(plan),
        "names": [{t: role_name(pass_plan.pass_, t) for t in TENSORS} for pass_plan in plan.pass_plans],
    }


def received_runs(plan: Plan) -> list[list[int]]:
    """Runs of ranks that receive equal volumes, in words: [ranks, In, Ker, Out, halo]."""
    received = plan.received
    arrays = [received.by_tensor[t].reshape(-1).tolist() for t in TENSORS]
    rows = zip(*arrays, received.halo.reshape(-1).tolist(), strict=True)
    return [[len(list(run)), *words] for words, run in itertools.groupby(rows)]


def columns(plan: Plan) -> int:
    """Columns of the picture of the grid: a product of whole axes if possible, a little wider than high."""
    procs = plan.used_procs
    best, score = 1, float("inf")
    boundaries = set(itertools.accumulate(reversed(plan.grid), lambda a, b: a * b))
    for count in range(1, procs + 1):
        if procs % count and procs > 3:
            continue
        shape = count / (procs / count) / 1.3
        off = max(shape, 1 / shape) * (1.0 if count in boundaries else 1.35)
        if off < score:
            best, score = count, off
    return best if score < 16 else min(procs, 48)


# --- the timeline ----------------------------------------------------------------------------------------


def timeline(plan: Plan) -> Iterator[dict[str, Any]]:
    """The steps of all passes: the moves (tensor, kind), the tile, and a sentence."""
    for index, schedule in enumerate(plan.schedules):
        for step in _steps(plan, schedule):
            yield {"pass": index, **step}


def _steps(plan: Plan, schedule: Schedule) -> Iterator[dict[str, Any]]:
    """The steps of one pass: a walk over its schedule tree."""
    pass_plan, program = schedule.pass_plan, schedule.program
    label = "" if len(plan.pass_plans) == 1 else f"{pass_plan.pass_}: "

    def step(phase: str, text: str, moves: list[list[str]], tile: dict[str, int]) -> dict[str, Any]:
        return {"phase": phase, "text": label + text, "moves": moves, "tile": tile}

    for node in program.top():
        match node:
            case Rows(direction="fetch"):
                text = f"halo: every rank gets the {node.role} rows at its edges from neighbours"
                yield step("halo", text, [[node.tensor, "halo"]], {})
            case Gather():
                text = f"gather: {node.role} is gathered along {node.over} and stays in memory"
                yield step("expand", text, [[node.tensor, "broadcast"]], {})
            case Loop():
                for number in range(min(pass_plan.steps, MOST_STEPS)):
                    text, moves = _loop_step(schedule, node, number)
                    yield step("loop", text, moves, dict(pass_plan.indices(number)))
            case Reduce():
                text = f"reduce: partial sums of {node.role} are added along {node.over}"
                yield step("reduce", text, [[node.tensor, "reduce"]], {})
            case Rows():
                text = f"return: rows of {role_name(pass_plan.pass_, node.tensor)} go back to their owners"
                yield step("return", text, [[node.tensor, "return"]], {})


def _loop_step(schedule: Schedule, loop: Loop, number: int) -> tuple[str, list[list[str]]]:
    """The sentence and the moves of one step of the loop."""
    program, steps = schedule.program, schedule.pass_plan.steps
    gathers = [node for node in loop.gathers if program.changes(node, number - 1)]
    reduces = [node for node in loop.reduces if program.changes(node, number)]
    verbs = [f"{node.role} is broadcast along {node.over}" for node in gathers]
    verbs += [f"{node.role} is reduced along {node.over}" for node in reduces]
    apart = f", {schedule.rotation_text} rotated: each rank at a panel of its own" if loop.rotation else ""
    text = f"step {number + 1} of {steps}: {'; '.join(verbs) or 'nothing moves'}; all ranks compute{apart}"
    moves = [[node.tensor, "broadcast"] for node in gathers] + [[node.tensor, "reduce"] for node in reduces]
    return text, moves
