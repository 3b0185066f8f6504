"""A plan in one line that can be typed back: `synth plan conv.yaml --procs 64 --as "b=8 c=2 k=4; Out; c/4"`.

    line   grid {; decision} {; pass}         b=8 c=2 k=4      processes along the axes; 1 for one process
    decision   its name and value             order k,c,b      rows h=in      classes h=2
    pass   [pass] stationary {; detail}       Out              forward Out    backward-data In
    detail c/4 h/2                            tiles along the axes, outermost loop first
           swapped                            the inner loops in the other order, where no tiles show it
           reuses In, saves In,Ker            what an earlier pass has saved, what a later one reuses

A decision that has its usual value is left out. The line names all that `Plan.id` hashes, besides layer,
processes and memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.base.errors import UsageError
from synth.layer.axes import TENSORS, PerAxis
from synth.layer.passes import PASSES
from synth.planning.decisions import DECISIONS, EXAMPLE, counts_of, names_of
from synth.schedule.pass_plan import PassPlan

if TYPE_CHECKING:
    from synth.planning.plan import Plan


def one_line(plan: Plan) -> str:
    """The decisions of a plan in one line."""
    decisions = [f"{each.name} {each.to_line(plan)}" for each in DECISIONS if each.of(plan) != each.usual]
    passes = [part for each in plan.pass_plans for part in _pass_parts(each, bool(plan.later))]
    return "; ".join([plan.grid.shown().replace(" x ", " "), *decisions, *passes])


def _pass_parts(pass_plan: PassPlan, named: bool) -> list[str]:
    tiles = " ".join(f"{axis}/{getattr(pass_plan.counts, axis)}" for axis in pass_plan.loops())
    return [
        f"{pass_plan.pass_} {pass_plan.stationary}" if named else pass_plan.stationary,
        *([tiles] if tiles else []),
        *(["swapped"] if pass_plan.swapped and not _shows_order(pass_plan) else []),
        *(f"{verb} {','.join(sorted(tensors))}" for verb, tensors in
          (("reuses", pass_plan.reuses), ("saves", pass_plan.saves)) if tensors),
    ]  # fmt: skip


def _shows_order(pass_plan: PassPlan) -> bool:
    """Whether both inner loops have tiles, so that their order is seen."""
    return all(pass_plan.trips(each) > 1 for each in pass_plan.order[1:])


def read_line(text: str, pass_: str) -> dict[str, Any]:
    """The grid, the decisions and the passes of a line, as a plan file has them.

    pass_: of the nest, for a line with one pass that is not named. Raises `UsageError`.
    """
    grid, *parts = (" ".join(part.split()) for part in text.split(";"))
    data: dict[str, Any] = {"grid": counts_of(grid if grid != "1" else ""), "passes": []}
    readers = {each.name: each for each in DECISIONS}
    for part in parts:
        first, _, rest = part.partition(" ")
        if first in readers and not data["passes"]:
            data[readers[first].key] = readers[first].from_line(rest)
        elif first in TENSORS or first in PASSES:
            stationary = rest if first in PASSES else first
            if stationary not in TENSORS or (rest and first in TENSORS):
                raise UsageError(f"{part!r} names no stationary tensor; write one of {', '.join(TENSORS)}")
            name = first if first in PASSES else pass_
            data["passes"].append({"pass": name, "stationary": stationary.lower(), **_NO_DETAIL})
        elif data["passes"]:
            data["passes"][-1] |= _detail(part, data["passes"][-1])
        else:
            raise UsageError(f"{part!r} is no decision and no stationary tensor; write one like {EXAMPLE!r}")
    if not data["passes"]:
        raise UsageError(f"a stationary tensor is missing; write a plan like {EXAMPLE!r}")
    return data


_NO_DETAIL: dict[str, Any] = {"tiles": {}, "swapped": False, "kept": [], "keeps": []}


def _detail(part: str, found: dict[str, Any]) -> dict[str, Any]:
    """What a detail says of a pass that is known so far. Raises `UsageError`."""
    verb, _, rest = part.partition(" ")
    if part == "swapped":
        return {"swapped": True}
    if verb in ("reuses", "saves"):
        names = names_of(rest)
        if not set(names) <= set(TENSORS):
            raise UsageError(f"{part!r} names no tensors; write some of {','.join(TENSORS)}")
        return {"kept" if verb == "reuses" else "keeps": [name.lower() for name in names]}
    tiles = counts_of(part, "/")
    stationary = next(tensor for tensor in TENSORS if tensor.lower() == found["stationary"])
    for swapped in (False, True):
        counts = PerAxis(**tiles)
        if PassPlan(stationary, counts, swapped).loops() == tuple(a for a in tiles if tiles[a] > 1):
            return {"tiles": tiles, "swapped": swapped}
    loops = " ".join(f"{axis}/{tiles[axis]}" for axis in PassPlan(stationary, counts).loops())
    raise UsageError(
        f"{part!r} does not begin with the loop along which {stationary} streams; write {loops!r}"
    )
