"""What a step of a network costs with the methods in use today, beside its plan; see `today` for one layer.

DDP and FSDP2 are laid out as plans are: every layer cuts samples alone. So the memory of their ranks is
counted as that of the plan is, node by node. Their words follow from their descriptions. With W words of
parameters and p ranks that have samples, a rank of DDP receives 2 (W - W/p) words in a training step. A
rank of FSDP2 receives 3 (W - W/p), since it gathers weights in both passes. Normalizations have the
statistics of a rank's own samples, as with both. Tensor parallelism (filters or channels) and spatial
parallelism are the best plans of these strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from synth.analysis.today import TENSOR, Today, idle_ranks
from synth.base.text_table import table
from synth.base.units import show_bytes, show_words
from synth.layer.axes import PerAxis
from synth.network.edges.edge_prices import EdgePrices
from synth.network.grids.owned_boxes import MAX_EXACT_RANKS, PlacedGrid
from synth.network.plan.plan import NetworkPlan, SingleStrategy
from synth.network.plan.plan_json import to_json
from synth.network.plan.step_words import moved_words
from synth.network.planner.plan_memory import PlanMemory
from synth.network.request import NetworkRequest
from synth.network.step_time.choice import TimedStep
from synth.planning.comparison import THIS

AXES_OF = {"filter": "k", "channel": "c", "spatial": "dhw"}
HEAD = ["beside what is in use today", "words", "/ plan", "memory", "cut"]


def today(plan: NetworkPlan) -> list[Today]:
    """The plan beside the methods in use today, for the same passes on as many processes.

    Memory is what the rank that holds most has in a step, without optimizer state: `NetworkPlan.held_bytes`.
    """
    found = {each.name: each for each in plan.single_strategies}
    how, ranks = _used(plan, "by layer", plan.placed_grids)
    rows = [Today(THIS, how, plan.received.words, plan.held_bytes, ranks), *_data_parallel(plan)]
    if not found:
        return rows
    tensor = [_of_single(plan, found[name]) for name in TENSOR]
    best = min(tensor, key=lambda each: (each.words is None, each.words or 0))
    return [*rows, replace(best, name="tensor"), replace(_of_single(plan, found["spatial"]), name="spatial")]


def with_today(plan: NetworkPlan) -> dict[str, Any]:
    """The data of a plan file with the rows of `today`, up to `MAX_EXACT_RANKS` processes."""
    few = plan.request.procs <= MAX_EXACT_RANKS
    return to_json(plan, [asdict(each) for each in today(plan)] if few else [])


def today_text(plan: NetworkPlan) -> str:
    """The rows of `today` as a table."""
    if plan.request.procs > MAX_EXACT_RANKS:
        return ""
    rows, mine = [HEAD], plan.received.words
    for each in today(plan):
        known = each.words is not None and each.memory_bytes is not None
        words = show_words(each.words or 0) if known else "-"
        times = each.times(mine) if known else "-"
        held = show_bytes(each.memory_bytes or 0) if known else "-"
        rows.append([each.name, words, times, held, each.how])
    said = (
        "words that a process receives in a step, and memory that it holds without optimizer state, at most"
    )
    return "\n".join([*table(rows, right=[1, 2, 3]), said]) + "\n"


def _used(plan: NetworkPlan, how: str, grids: Sequence[PlacedGrid]) -> tuple[str, int]:
    """How layers are cut, with the ranks that are idle, and how many ranks work in some layer."""
    used = {placed.grid.size for placed in grids}
    idle = idle_ranks(plan.request.procs, used)
    how = "one rank alone" if idle and max(used) == 1 else how
    return ", ".join(filter(None, [how, idle])), max(used)


# -- data parallelism -------------------------------------------------------------------------------------


def _data_parallel(plan: NetworkPlan) -> list[Today]:
    request, samples = plan.request, plan.network.input[0]
    ranks = min(request.procs, samples)
    weights = plan.network.parameters
    moved = weights - -(-weights // ranks)
    idle = idle_ranks(request.procs, [ranks])
    idle = f", {idle}" if idle else ""
    asked = replace(
        request,
        procs=ranks,
        objective="words",
        machine=None,
        limit_bytes=None,
        whole_weights=False,
        ahead=None,
        batch_norm="local",
        recompute=None,
    )
    grids = [PlacedGrid(PerAxis(b=min(ranks, kind.nest.extents.b))) for kind in plan.layer_classes]
    whole = laid_out(
        plan, replace(asked, resident_weights=not request.training), grids, whole=request.training
    )
    shards = laid_out(
        plan, replace(asked, resident_weights=False, saves=request.saves - {"Ker"}), grids, whole=False
    )
    return [
        Today(
            "DDP",
            f"b={ranks}, whole weights{idle}",
            2 * moved * request.training,
            whole.held_bytes,
            ranks,
        ),
        Today(
            "FSDP2",
            f"b={ranks}, weights in shards{idle}",
            (3 if request.training else 1) * moved,
            shards.held_bytes,
            ranks,
        ),
    ]


def _of_single(plan: NetworkPlan, single: SingleStrategy) -> Today:
    """The best plan of a strategy; layers that cannot use all processes within it are named."""
    if single.cost is None:
        return Today(single.name, single.why, None, None)
    axes, count = AXES_OF[single.name], len(single.placed_grids)
    other = sum(
        any(parts > 1 for axis, parts in placed.grid._asdict().items() if axis not in axes)
        for placed in single.placed_grids
    )
    if 2 * other > count:
        why = f"{other} of {count} layers cannot use {plan.request.procs} processes so"
        return Today(single.name, why, None, None)
    made = laid_out(plan, replace(plan.request, limit_bytes=None), single.placed_grids, timed=single.timed)
    if made.counted:
        words = made.received.words
    else:
        own = round(single.cost) if plan.request.objective == "words" else moved_words(made)
        words = own + sum(made.words_beside.values())
    how = f"{single.name}s" if single.name in TENSOR else "rows"
    how += f"; {other} of {count} layers cut otherwise" if other else ""
    how, ranks = _used(plan, how, single.placed_grids)
    return Today(single.name, how, words, made.held_bytes, ranks)


def laid_out(
    plan: NetworkPlan,
    request: NetworkRequest,
    grids: Sequence[PlacedGrid],
    whole: bool = False,
    timed: TimedStep | None = None,
) -> NetworkPlan:
    """A plan of the same network with given grids. whole: ranks hold whole slices of all weights."""
    kinds, nodes = plan.layer_classes, plan.network.planned
    memory = PlanMemory(nodes, kinds, request)
    memory.place(grids)
    timed = TimedStep((), tuple(node.weighted for node in nodes)) if whole else timed
    places = timed.whole if timed else (False,) * len(nodes)
    tilings = tuple(map(memory.tiling, kinds, grids, places))
    classes = list(dict.fromkeys(kinds))
    class_of = list(map(classes.index, kinds))
    options = [list[PlacedGrid]() for _ in classes]
    for k, placed in zip(class_of, grids, strict=True):
        options[k] += [placed] * (placed not in options[k])
    at = {node.name: options[k].index(placed) for node, k, placed in zip(nodes, class_of, grids, strict=True)}
    priced = EdgePrices(plan.network, request, classes, class_of).of(options)

    def chosen(of: Callable[[Any], Any]) -> dict[Any, Any]:
        return {edge: of(pair)[at[edge.source], at[edge.target]] for edge, pair in priced.items()}

    return replace(
        plan,
        request=request,
        placed_grids=tuple(grids),
        layer_costs=(),
        edge_words={edge: int(each) for edge, each in chosen(lambda pair: pair[0]).items()},
        edge_costs={edge: float(each) for edge, each in chosen(lambda pair: pair[1]).items()},
        single_strategies=(),
        resident_words=memory.resident_words,
        tilings=tuple(each for each in tilings if each is not None),
        timed=timed,
        busy=None,
        margins=None,
    )
