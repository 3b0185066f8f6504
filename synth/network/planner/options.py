"""The options of every layer: the placed grids among which the network planner chooses.

A layer's options are the grids with the lowest cost of their own, and grids that split x as neighbouring
layers would like to. The planner adds the choices of the best single strategies, so a plan is never worse
than these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.base.doors import either
from synth.base.errors import InfeasibleError
from synth.layer.axes import AXES, PerAxis
from synth.network.graph import Node
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.planner.candidates import GridCandidates, x_grid
from synth.network.planner.counted_grids import count_words
from synth.network.planner.uniform import nearest, uniform_grids
from synth.network.request import NetworkRequest
from synth.search.strategies import STRATEGIES

OPTIONS_OF_STRATEGY = 4  # grids per layer within one strategy
NEAR = 1.25  # a cost up to this many times the least cost counts as near it
STRATEGY_AXES: dict[str, str] = {each.name: each.axes for each in STRATEGIES if each.name != "2.5D"}


@dataclass(frozen=True)
class LayerOption:
    """One option of a layer, with its cost in words or seconds."""

    placed: PlacedGrid
    cost: float


def options(
    candidates: Sequence[GridCandidates],
    neighbours: Sequence[Sequence[int]],
    request: NetworkRequest,
) -> list[list[LayerOption]]:
    """The options of every layer class.

    candidates: one entry per class. neighbours: class -> the classes whose layers are near its layers.
    """
    own = [[placed.grid for _, placed in _own_best(each, request.options_per_layer)] for each in candidates]
    found = []
    for position, each in enumerate(candidates):
        grids = dict.fromkeys(own[position])
        ranked = _ranked_x_grids([own[other] for other in neighbours[position]])
        known = {x_grid(grid) for grid in grids}
        for x in [x for x in ranked if x not in known][: request.options_per_layer // 2]:
            grids.update(dict.fromkeys(each.with_x(x, 1)))
        for x in ranked[: request.options_per_layer // 3]:
            grids.update(dict.fromkeys(each.with_x(x, 2)))
        found.append(list(grids))
    if request.objective == "words":
        count_words({each.counted: grids for each, grids in zip(candidates, found, strict=True)})
    return [
        [LayerOption(p, each.cost(p)) for p in each.placed(grids)]
        for each, grids in zip(candidates, found, strict=True)
    ]


def _ranked_x_grids(neighbours: Sequence[Sequence[PerAxis]]) -> list[PerAxis]:
    """The splits of x that neighbours have among their best grids, the most frequent first.

    Every neighbour gives 1/(1 + place) to each of its splits, so its best ones count most.
    """
    score: dict[PerAxis, float] = {}
    for grids in neighbours:
        for place, x in enumerate(dict.fromkeys(x_grid(grid) for grid in grids)):
            score[x] = score.get(x, 0.0) + 1 / (1 + place)
    return sorted(score, key=lambda x: (-score[x], x))


def _own_best(candidates: GridCandidates, count: int) -> list[tuple[float, PlacedGrid]]:
    """The best grids of a class: those that use all processes, and a few cheaper ones that do not.

    If no grid that uses all processes is near the best one, the best grids of any size, and one full one.
    """
    full, best = candidates.best(count, full=True), candidates.best(count)
    if not full or full[0][0] > NEAR * best[0][0]:
        return [*best, *full[:1]]
    return [*full, *(each for each in best if each[0] < full[0][0])][: count + count // 3]


def strategy_options(
    candidates: Sequence[GridCandidates], axes: str, count: int = OPTIONS_OF_STRATEGY
) -> list[list[LayerOption]] | int:
    """The options of every class within one strategy; or the position of a class that has none."""
    result: list[list[LayerOption]] = []
    for position, each in enumerate(candidates):
        found = each.best(count, axes)
        if not found and not each.request.strict_axes:
            found = each.best(count)
        if not found:
            return position
        result.append([LayerOption(p, each.cost(p)) for _, best in found for p in each.placements(best.grid)])
    return result


def options_within(
    candidates: Sequence[GridCandidates],
    neighbours: Sequence[Sequence[int]],
    layers: Sequence[int],
    some: Sequence[str],
    count: int = OPTIONS_OF_STRATEGY,
) -> dict[str, list[list[LayerOption]] | int]:
    """`strategy_options`, uniform grids, and grids that split x as the best ones of neighbouring layers do.

    layers: class -> the number of its layers. some: axes of strategies; words of the grids of all are counted
    together. A pooling costs the same on many grids; without its neighbours' splits it would be redistributed
    twice. Strategies of all axes contain the uniform grids of the others.
    """
    found = {axes: strategy_options(candidates, axes, count) for axes in some}
    tables = {axes: table for axes, table in found.items() if not isinstance(table, int)}
    more = {
        axes: _more_grids(candidates, neighbours, layers, axes, table, count)
        for axes, table in tables.items()
    }
    if candidates[0].request.objective == "words":
        count_words(
            {
                each.counted: [grid for new in more.values() for grid in new[position]]
                for position, each in enumerate(candidates)
            }
        )
    for position, each in enumerate(candidates):
        for axes, table in tables.items():
            table[position] += [LayerOption(p, each.cost(p)) for p in each.placed(more[axes][position])]
    return found


def _more_grids(
    candidates: Sequence[GridCandidates],
    neighbours: Sequence[Sequence[int]],
    layers: Sequence[int],
    axes: str,
    table: Sequence[Sequence[LayerOption]],
    count: int,
) -> list[list[PerAxis]]:
    """By class: uniform grids, and those that split x as neighbouring layers do; without those of a table."""
    own = [list(dict.fromkeys(option.placed.grid for option in row)) for row in table]
    uniform = uniform_grids(candidates, layers, axes) if set(axes) != set(AXES) else []
    found = []
    for position, each in enumerate(candidates):
        known = {x_grid(grid) for grid in own[position]}
        ranked = _ranked_x_grids([own[other] for other in neighbours[position]])
        new = list[PerAxis]()
        for x in [x for x in ranked if x not in known][:count]:
            new += each.with_x(x, 1, axes)
        near = (nearest(each, grid, axes) for grid in uniform)
        new += [grid for grid in near if grid is not None]
        found.append([grid for grid in dict.fromkeys(new) if grid not in own[position]])
    return found


def check_feasible(
    candidates: Sequence[GridCandidates], nodes: Sequence[Node], request: NetworkRequest
) -> None:
    """Raises `InfeasibleError` if a layer has no grid at all. Both sequences have one entry per layer."""
    for each, node in zip(candidates, nodes, strict=True):
        if not len(each.grids.rows):
            raise InfeasibleError(
                f"{node.name}: no grid of {request.procs} processes keeps the balance; "
                f"{either(('raise {}', 'balance'), 'take another number of processes')}"
            )
