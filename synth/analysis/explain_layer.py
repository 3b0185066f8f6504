"""Why the plan of a layer has its grid: what its words consist of, what no plan beats, and what is next best.

Words are those of the busiest process, which receives most.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from synth.base.text_table import table, wrapped
from synth.base.units import show_bytes, show_words
from synth.bounds.regimes import regime_of
from synth.layer.axes import AXES, LACKED_INDEX, TENSORS, PerAxis, Tensor
from synth.layer.intervals import volume
from synth.layer.passes import role_name
from synth.planning.comparison import unpinned_request
from synth.planning.summary import not_proven, ratio_of
from synth.schedule.pass_program import Gather, PassProgram, Reduce, Rows
from synth.schedule.volume import received
from synth.search.branch_and_bound import search_or_floor, search_several
from synth.search.grids import work_cap
from synth.search.request import Request

if TYPE_CHECKING:
    from synth.planning.plan import Plan

SCHEMA = "synth.explanation/1"
OTHERS = 5  # grids beside that of the plan


@dataclass(frozen=True)
class Term:
    """What the busiest process receives of a tensor in a pass.

    sharers: processes that need the same slice, along the axes `along`. slice, owns: words of that slice, and
    of the part that the process owns. times: how often each panel moves. halo: words from neighbours, which
    `received` contains.
    """

    task: str  # the pass
    tensor: str  # dIn, dKer or dOut where it is a gradient
    sharers: int
    along: tuple[str, ...]
    slice: int
    owns: int
    times: int
    halo: int
    received: int
    why: str


@dataclass(frozen=True)
class OtherGrid:
    """A grid beside that of the plan, with the fewest words; `turned`: axes cut by input rows."""

    grid: dict[str, int]
    turned: tuple[str, ...]
    words: int
    memory_bytes: int

    @property
    def shown(self) -> str:
        """`b=8 x k=4`."""
        rows = "".join(f", {axis} by input rows" for axis in self.turned)
        return PerAxis(**self.grid).shown() + rows


@dataclass(frozen=True)
class LayerExplanation:
    """Why the plan of a layer has its grid, as `synth.explain` makes it; `print` shows it.

    words: that the busiest process receives. bound: words that every schedule receives at this load; regime:
    how many of the three tensors must move, by the bound. others: the next-best grids, fewest words first.
    limits: what keeps the words from being fewer, a sentence each.
    """

    name: str
    plan: str
    procs: int
    grid: dict[str, int]
    words: int
    terms: tuple[Term, ...]
    bound: float
    ratio: str
    caution: str
    regime: str
    others: tuple[OtherGrid, ...]
    limits: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON data, as `synth schema explanation` describes it."""
        data = asdict(self)
        data["terms"] = [
            {"pass" if k == "pass_" else k: v for k, v in each.items()} for each in data["terms"]
        ]
        return {"schema": SCHEMA, "kind": "layer", **data}

    def __str__(self) -> str:
        """The terms of the words, the bound, the next-best grids, and what limits."""
        grid = PerAxis(**self.grid).shown()
        lines = [f"{self.name} on {self.procs} processes, plan {self.plan}: {grid}", ""]
        lines += ["what the busiest process receives, in words", *self._terms(), ""]
        times = f"; the plan receives {self.ratio} times as many" if self.bound > 0 else ""
        lines += [
            "what no schedule goes below",
            f"  {show_words(self.bound)} words at this load; {MUST_MOVE[self.regime]}{times}",
            *([f"  {self.caution}"] if self.caution else []),
            "",
            *self._others(),
            "",
            "what limits",
            *(f"  {line}" for line in wrapped(self.limits)),
        ]
        return "\n".join(lines) + "\n"

    def _terms(self) -> list[str]:
        rows = [["tensor", "shared by", "slice", "owned", "times", "halo", "received", "share", ""]]
        for each in self.terms:
            shared = f"{each.sharers} along {', '.join(each.along)}" if each.sharers > 1 else "no one else"
            share = f"{each.received / self.words:.0%}" if self.words else "-"
            halo = show_words(each.halo) if each.halo else "-"
            numbers = [show_words(each.slice), show_words(each.owns), str(each.times), halo]
            rows.append([each.tensor, shared, *numbers, show_words(each.received), share, each.why])
        rows.append(["together", "", "", "", "", "", show_words(self.words), "", ""])
        return [f"  {line}" for line in table(rows, right=[2, 3, 4, 5, 6, 7])]

    def _others(self) -> list[str]:
        if not self.others:
            return ["no other grid keeps the balance of work and the limit of memory"]
        rows = [["grid", "words", "/ plan", "memory"]]
        for each in self.others:
            ratio = f"{each.words / self.words:.3f}" if self.words else "-"
            rows.append([each.shown, show_words(each.words), ratio, show_bytes(each.memory_bytes)])
        return ["the next-best grids", *(f"  {line}" for line in table(rows, right=[1, 2, 3]))]


MUST_MOVE = {
    "local": "no tensor must move",
    "1D": "one of the three tensors must move",
    "2D": "two of the three tensors must move",
    "2.5D": "all three tensors must move, and memory binds",
    "3D": "all three tensors must move",
}


def explain_layer(plan: Plan) -> LayerExplanation:
    """Why a plan has its grid. The search for other grids takes as long as that for the plan."""
    ratio, caution = ratio_of(plan.words["total"], plan.bound)
    others = _others(plan)
    return LayerExplanation(
        name=plan.layer.name,
        plan=plan.id,
        procs=plan.procs,
        grid={axis: n for axis, n in plan.grid._asdict().items() if n > 1},
        words=plan.words["total"],
        terms=_terms(plan),
        bound=plan.bound.words,
        ratio=ratio,
        caution=caution,
        regime=regime_of(plan.bound),
        others=others,
        limits=tuple(_limits(plan, others)),
    )


# -- words ------------------------------------------------------------------------------------------------


def _terms(plan: Plan) -> tuple[Term, ...]:
    """A term per tensor and pass, of the process that receives most in all passes."""
    d = plan.distribution
    busiest = max(d.ranks, key=lambda rank: plan.received.at(d.at(rank))["total"])
    at = d.at(busiest)
    terms = []
    for schedule in plan.schedules:
        program = schedule.program
        words = received(d, program.pass_plan).at(at)
        for tensor in TENSORS:
            terms.append(_term(plan, program, tensor, at, words))
    return tuple(terms)


def _term(plan: Plan, program: PassProgram, tensor: Tensor, at: PerAxis, words: dict[str, int]) -> Term:
    d, pass_ = plan.distribution, program.pass_plan.pass_
    move = next((each for each in program.collectives() if each.tensor == tensor), None)
    rows = [n for n in program.nodes() if isinstance(n, Rows) and n.tensor == tensor]
    slice_, owns = volume(d.needed(tensor, at)), volume(d.owned(tensor, at))
    halo = words["halo"] if rows else 0
    parts = (d.group_size(tensor) - 1) * owns if isinstance(move, Reduce) else max(0, slice_ - owns)
    more = words[tensor.lower()] - halo > (program.loads(move) if move else 0) * parts
    overlap = more and (isinstance(move, Reduce) or (isinstance(move, Gather) and move.scope == "panel"))
    return Term(
        task=pass_,
        tensor=role_name(pass_, tensor),
        sharers=d.group_size(tensor),
        along=tuple(axis for axis in d.lacked(tensor) if getattr(d.grid, axis) > 1),
        slice=slice_,
        owns=owns,
        times=program.loads(move) if move else 0,
        halo=halo,
        received=words[tensor.lower()],
        why=_why(program, tensor, move, bool(rows), overlap),
    )


def _why(
    program: PassProgram, tensor: Tensor, move: Gather | Reduce | None, rows: bool, overlap: bool
) -> str:
    """Why words of a tensor move, or do not. overlap: panels or tiles share rows, which move with each."""
    kept = program.pass_plan.reuses
    if move is None and not rows:
        return "an earlier pass has gathered it" if tensor in kept else "stays where it is"
    halo = "rows of neighbours" if rows else ""
    if move is None:
        return halo
    done = "gathered" if isinstance(move, Gather) else "partial sums are added"
    again = f", {program.loads(move)} times" if program.loads(move) > 1 else ""
    shared = [f"{'panels' if isinstance(move, Gather) else 'tiles'} share rows"] if overlap else []
    return "; ".join([f"{done} along {LACKED_INDEX[tensor]}{again}", *shared, *([halo] if halo else [])])


# -- other grids ------------------------------------------------------------------------------------------


def _request(plan: Plan) -> Request:
    """The search for any grid in the balance and memory of a plan, with the residue classes that it has."""
    request = replace(
        unpinned_request(plan),
        nest=plan.nest,
        exact=plan.exact_procs,
        turnable=plan.nest.turnable,
        ghosts=plan.ghosts,
    )
    if plan.least_work is None or plan.classes or plan.pinned:
        return request
    return replace(request, most_work=max(work_cap(plan.least_work, plan.balance), plan.load))


def _others(plan: Plan) -> tuple[OtherGrid, ...]:
    """The grids with the fewest words beside that of the plan."""
    found = search_several(_request(plan), OTHERS + 1)
    size, seen = plan.nest.word_bytes, {plan.grid}
    others = []
    for each in found:
        if each.grid in seen:
            continue
        seen.add(each.grid)
        grid = {axis: n for axis, n in each.grid._asdict().items() if n > 1}
        others.append(OtherGrid(grid, each.turned, each.tiling.words, each.tiling.used_words * size))
    return tuple(others[:OTHERS])


# -- what limits ------------------------------------------------------------------------------------------


def _limits(plan: Plan, others: tuple[OtherGrid, ...]) -> list[str]:
    found = [*not_proven(plan)]
    better = [each for each in others if each.words < plan.words["total"]]
    if better:
        fewer = 1 - better[0].words / plan.words["total"]
        why = "the plan was made for time, by hand or under other limits"
        found.append(f"{better[0].shown} receives {fewer:.1%} fewer words: {why}")
    found += _memory(plan)
    whole = [axis for axis in AXES if 1 < getattr(plan.grid, axis) == getattr(plan.nest.extents, axis)]
    if whole:
        found.append(f"no more processes fit along {', '.join(whole)}: each has one index there")
    if plan.procs > plan.used_procs:
        found.append(f"{plan.procs - plan.used_procs} of {plan.procs} processes are idle")
    if plan.least_work and plan.load > plan.least_work:
        more = plan.load / plan.least_work - 1
        found.append(f"the busiest process does {more:.1%} more work than in the most even grid")
    moved = {tensor: plan.words[tensor.lower()] for tensor in TENSORS}
    most = max(moved, key=lambda tensor: moved[tensor])
    if moved[most]:
        cuts = [axis for axis in plan.distribution.lacked(most) if getattr(plan.grid, axis) > 1]
        along = (
            f", because the grid cuts {', '.join(cuts)}" if cuts else ", because blocks need rows of others"
        )
        found.append(f"most of the words are of {most}{along}")
    return found or ["nothing moves"]


def _memory(plan: Plan) -> list[str]:
    """What the limit of memory costs."""
    if plan.limit_bytes is None:
        return []
    request = replace(_request(plan), limit_words=None)
    free, _ = search_or_floor(request)
    used = f"{show_bytes(plan.used_bytes)} of {show_bytes(plan.limit_bytes)} are used"
    if free is None or free.tiling.words >= plan.words["total"]:
        return [f"the limit of memory costs no words: {used}"]
    words, needed = free.tiling.words, show_bytes(free.tiling.used_words * plan.nest.word_bytes)
    return [
        f"the limit of memory costs words: {used}; without it the best plan receives {show_words(words)} "
        f"words, and needs {needed}"
    ]
