"""What the script of the HTML report knows: the decisions of a plan, from which it cuts blocks by itself.

Blocks, groups and words of a rank follow from grid, shares and windows by the rules of `distribution`, so
4096 ranks cost no more bytes than one; only the received words are listed, as runs of equal ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from synth.layer.axes import AXES, DIMS, LACKED_INDEX, LACKS, SPATIAL, TENSORS, Tensor
from synth.layer.passes import role_name
from synth.planning.plan import Plan
from synth.schedule.panel_rotation import skewed, told
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule

MOST_STEPS = 240  # steps of the timeline that are listed


def report_data(plan: Plan) -> dict[str, Any]:
    """JSON data for the script; words and intervals in elements."""
    nest, d = plan.nest, plan.distribution
    windows = {axis: nest.windows[axis] for axis in SPATIAL}
    steps = list(itertools.islice(timeline(plan), MOST_STEPS))
    return {
        "axes": AXES,
        "grid": list(plan.grid),
        "extents": list(nest.extents),
        "dims": DIMS,
        "shapes": nest.shapes,
        "lacks": LACKS,
        "shares": d.shares,
        "windows": {a: [w.stride, w.kernel, w.dilation, w.padding, w.size] for a, w in windows.items()},
        "counts": [list(pass_plan.counts) for pass_plan in plan.pass_plans],
        "skewed": [skewed(d, pass_plan) for pass_plan in plan.pass_plans],
        "steps": steps,
        "received": received_runs(plan),
        "columns": columns(plan),
        "names": [{t: role_name(pass_plan.pass_, t) for t in TENSORS} for pass_plan in plan.pass_plans],
    }


def received_runs(plan: Plan) -> list[list[int]]:
    """Runs of ranks that receive alike: [ranks, In, Ker, Out, halo]."""
    received = plan.received
    arrays = [received.by_tensor[t].reshape(-1).tolist() for t in TENSORS]
    rows = zip(*arrays, received.halo.reshape(-1).tolist(), strict=True)
    return [[len(list(run)), *words] for words, run in itertools.groupby(rows)]


def columns(plan: Plan) -> int:
    """Columns of the picture of the grid: whole axes where that looks well, somewhat wider than high."""
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
    """Steps of all passes: what moves (tensor, kind), which tile it concerns, and a sentence."""
    for index, schedule in enumerate(plan.schedules):
        for step in _steps(plan, schedule):
            yield {"pass": index, **step}


def _steps(plan: Plan, schedule: Schedule) -> Iterator[dict[str, Any]]:
    pass_plan = schedule.pass_plan
    d, written, stays = plan.distribution, pass_plan.written, pass_plan.stationary
    label = "" if len(plan.pass_plans) == 1 else f"{pass_plan.pass_}: "
    grouped = {t: d.group_size(t) > 1 for t in TENSORS}
    name = {t: role_name(pass_plan.pass_, t) for t in TENSORS}

    def step(phase: str, text: str, moves: list[list[str]], tile: dict[str, int]) -> dict[str, Any]:
        return {"phase": phase, "text": label + text, "moves": moves, "tile": tile}

    if plan.words["halo"] and written != "In" and "In" not in pass_plan.kept:
        yield step(
            "halo", "halo: every rank gets the In rows at its edges from neighbours", [["In", "halo"]], {}
        )
    for tensor in pass_plan.expanded:
        if grouped[tensor]:
            text = f"expand: {name[tensor]} is gathered along {LACKED_INDEX[tensor]} and stays"
            yield step("expand", text, [[tensor, "broadcast"]], {})
    apart = told(d, pass_plan)
    apart = f", those that share {apart} with different panels" if apart else ""
    for number in range(min(pass_plan.steps, MOST_STEPS)):
        moves = [
            [t, "broadcast"] for t in pass_plan.brought if grouped[t] and _changes(pass_plan, t, number - 1)
        ]
        if written != stays and grouped[written] and _changes(pass_plan, written, number):
            moves.append([written, "reduce"])
        verbs = [
            f"{name[t]} {'is broadcast' if k == 'broadcast' else 'is reduced'} along {LACKED_INDEX[t]}"  # type: ignore[index]
            for t, k in moves
        ]
        what = "; ".join(verbs) or "nothing travels"
        tile = dict(pass_plan.indices(number))
        text = f"step {number + 1} of {pass_plan.steps}: {what}; all ranks compute{apart}"
        yield step("loop", text, moves, tile)
    if stays == written and grouped[written]:
        text = f"reduce: partial sums of {name[written]} are added along {LACKED_INDEX[written]}"
        yield step("reduce", text, [[written, "reduce"]], {})
    if plan.words["halo"] and written == "In":
        yield step("return", "return: rows of dIn go back to their owners", [["In", "return"]], {})


def _changes(pass_plan: PassPlan, tensor: Tensor, step: int) -> bool:
    """Whether the tile of a tensor is another one after this step; as `Schedule` decides it."""
    if step < 0 or step + 1 == pass_plan.steps:
        return True
    now, then = pass_plan.indices(step), pass_plan.indices(step + 1)
    return any(now[axis] != then[axis] for axis in now if axis in DIMS[tensor])
