"""What a layer of a network can choose from: placed grids with their cost, and the strategies they belong to.

The family is every grid of at most P processes within the work balance, see `family`. A layer's options are
the grids with the fewest words (or the least time), those that other layers like, and the choices of the best
single strategies; so a plan is never worse than these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from synth.base.errors import InfeasibleError, UsageError
from synth.layer.axes import AXES, ROW_MAJOR, SPATIAL, Order, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, Passes, gathers, moves, sequences
from synth.machine.hierarchy import Machine
from synth.machine.layer_time import compute_seconds, layer_seconds
from synth.machine.rank_groups import CHANNELS_SWAPPED, ORDERS, distinct_orders
from synth.network.graph import Edge, Node
from synth.network.planner.grid_family import family, largest_block
from synth.network.planner.owned_boxes import EVERY, Boxes, Placed
from synth.search.grid_ranges import shared_rows
from synth.search.grids import Space, all_grids
from synth.search.strategies import STRATEGIES

BATCH = 16  # grids whose words are counted at once
ORDERS_KEPT = 2  # placements of one grid
TIMED = 96  # grids of a kind that are timed, those with the lowest bounds; a third of it per strategy
ELEMENTS = 1 << 18  # grids times ranks of one count
BALANCE = 0.10  # extra work that a process may have, unless told otherwise
NEAR = 1.25  # times the least cost that is still near
STRATEGY_AXES: dict[str, str] = {each.name: each.axes for each in STRATEGIES if each.name != "2.5D"}


@dataclass(frozen=True)
class Asked:
    """The request: processes, objective ("words" or "time"), pass, memory limit per process."""

    procs: int
    objective: str = "words"
    training: bool = False
    limit_bytes: int | None = None
    machine: Machine | None = None
    balance: float = BALANCE
    keep: int = 12  # options per layer that are kept for their own cost
    axes: str = ""  # grids may split these axes only; "" for all
    strict: bool = True  # whether `axes` bind layers that cannot use all processes within them
    placement: bool = True  # whether ranks may be placed in other orders than row-major
    exact: bool = False  # whether layers with weights use every process, balanced or not, where one can
    kept: frozenset[Tensor] = frozenset({"Out"})  # training: gathered once, kept for a later pass
    inward: bool = True  # training: whether the gradient of the network's input is made, too

    def __post_init__(self) -> None:
        if not 0 <= self.balance <= 10:
            raise UsageError(f"balance is {self.balance}; it must be between 0 (no extra work) and 10")

    def returns(self, edge: Edge) -> bool:
        """Whether the gradient of what an edge moves goes back over it."""
        return self.training and (self.inward or edge.trained)

    @property
    def orders(self) -> tuple[Order, ...]:
        """Orders of the axes over the ranks."""
        if not self.placement:
            return (ROW_MAJOR,)
        return ORDERS if self.objective == "time" else (ROW_MAJOR, CHANNELS_SWAPPED)


@dataclass(frozen=True)
class Kind:
    """What layers with the same choices have in common."""

    nest: Nest
    weighted: bool
    rows: tuple[int, ...] = ()  # positions of a transposed layer's output; () for all others
    inward: bool = True  # whether training makes the gradient of what the layer is given

    @classmethod
    def of(cls, node: Node, inward: bool = True) -> Kind:
        """The kind of a planned node."""
        assert node.layer is not None
        rows = node.layer.output_shape[2:] if node.layer.transposed else ()
        return cls(node.layer.nest, node.weighted, rows, inward)

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """The gradients that training makes, of the layer's own tensors."""
        return tuple(t for t, made in zip(GRADIENTS, (self.inward, self.weighted), strict=True) if made)

    def passes(self, training: bool) -> Passes:
        """The passes of the nest: the one that runs forward, in training with the gradients."""
        return sequences(bool(self.rows), self.gradients if training else ())[0]

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """What the layer is given and what it gives, as tensors of its nest."""
        return ("Out", "In") if self.rows else ("In", "Out")


@dataclass(frozen=True)
class Choice:
    """One option of a layer."""

    placed: Placed
    cost: float


class Catalogue:
    """All grids of one kind, most promising first; costs are exact and computed when they are asked for."""

    def __init__(self, kind: Kind, asked: Asked) -> None:
        self.kind, self.asked, self.nest = kind, asked, kind.nest
        self.costs: dict[Placed, float] = {}
        self.words: dict[PerAxis, int] = {}
        self.shared: dict[tuple[str, int], int] = {}
        self.found: dict[tuple[int, str, bool], list[tuple[float, Placed]]] = {}
        timed, uneven = asked.objective == "time", asked.exact and kind.weighted
        grids = family(kind.nest, asked.procs, asked.balance, asked.exact, uneven, timed)
        self.bounds: dict[PerAxis, float] = {}
        self._bounded(grids)

    def _bounded(self, grids: Iterable[PerAxis]) -> None:
        """Adds grids with their bounds, and sorts anew."""
        self.bounds |= {grid: self._bound(grid) for grid in grids}
        self.bounds = dict(sorted(self.bounds.items(), key=lambda each: (each[1], each[0])))

    def _bound(self, grid: PerAxis) -> float:
        """A lower bound of the cost: words of an average rank, or seconds."""
        words, parts = self.nest.words, grid.size
        inputs = words["In"] * (1 / (grid.x * grid.g * grid.c) - 1 / parts)
        gathered = inputs if self.kind.rows else inputs + self._halo(grid)
        ker = words["Ker"] * (1 / (grid.g * grid.c * grid.k) - 1 / parts) if self.kind.weighted else 0.0
        out = words["Out"] * (1 / (grid.x * grid.g * grid.k) - 1 / parts)
        passes, kept = self.kind.passes(self.asked.training), self.asked.kept
        moved, times = gathers(passes, kept)["In"], moves(passes, kept)
        received = moved * gathered + (times["In"] - moved) * inputs + times["Ker"] * ker + times["Out"] * out
        received *= 1 - 1e-9
        if self.asked.objective == "words":
            return received
        machine = self.asked.machine
        assert machine is not None
        beta = min(min([level.beta, *(b for _, b in level.small)]) for level in machine.levels)
        work = largest_block(self.nest, grid)
        computing = len(passes) * compute_seconds(machine, self.nest, work, self.kind.weighted)
        return max(computing, received * self.nest.word_bytes * beta / 2)

    def _halo(self, grid: PerAxis) -> float:
        """Words of In that an average rank reads beyond its even share; a lower bound."""
        n, rows, read = self.nest.extents, 1, 1
        for axis in SPATIAL:
            window, parts = self.nest.windows[axis], getattr(grid, axis)
            if (axis, parts) not in self.shared:
                self.shared[axis, parts] = shared_rows(window, parts)
            rows, read = rows * window.size, read * (window.size + self.shared[axis, parts])
        return n.b * n.g * n.c * max(0, read - rows) / (grid.x * grid.g * grid.c)

    def cost(self, placed: Placed) -> float:
        """Words or seconds of one placed grid, remembered."""
        if self.asked.objective == "words":
            self._count([placed.grid])
            return float(self.words[placed.grid])
        if placed not in self.costs:
            machine = self.asked.machine
            assert machine is not None
            how = self.kind.passes(self.asked.training), self.kind.weighted
            self.costs[placed] = layer_seconds(machine, self.nest, placed.grid, placed.order, *how)
        return self.costs[placed]

    @cached_property
    def full(self) -> list[PerAxis]:
        """The grids that use all processes, most promising first."""
        return [grid for grid in self.bounds if grid.size == self.asked.procs]

    @cached_property
    def by_split(self) -> dict[frozenset[str], list[PerAxis]]:
        """Axes that are split -> the grids that split just these."""
        found: dict[tuple[bool, ...], list[PerAxis]] = {}
        for grid in self.bounds:
            found.setdefault(tuple([n > 1 for n in grid]), []).append(grid)
        return {
            frozenset(axis for axis, cut in zip(AXES, split, strict=True) if cut): grids
            for split, grids in found.items()
        }

    def within(self, axes: str) -> list[PerAxis]:
        """The grids that split no other axes than `axes`, most promising first."""
        if set(axes) == set(AXES):
            return list(self.bounds)
        found = [grid for split, grids in self.by_split.items() if split <= set(axes) for grid in grids]
        return sorted(found, key=lambda grid: (self.bounds[grid], grid))

    @cached_property
    def by_cut(self) -> dict[PerAxis, list[PerAxis]]:
        """Cut of x -> the grids that have it, most promising first."""
        found: dict[PerAxis, list[PerAxis]] = {}
        for grid in self.bounds:
            found.setdefault(_x_cut(grid), []).append(grid)
        return found

    def orders(self, grid: PerAxis) -> list[Placed]:
        """The cheapest ways to place a grid."""
        placed = [Placed(grid, order) for order in distinct_orders(grid, self.asked.orders)]
        return sorted(placed, key=self.cost)[:ORDERS_KEPT]

    def _count(self, grids: Sequence[PerAxis]) -> None:
        """Exact words of some grids at once."""
        new = [grid for grid in grids if grid not in self.words]
        if new:
            boxes = Boxes(self.nest, [Placed(g) for g in new], self.asked.procs)
            passes = self.kind.passes(self.asked.training)
            words, _ = boxes.words(passes, self.kind.weighted, self.asked.kept)
            self.words.update(zip(new, map(int, words), strict=True))

    def best(self, count: int, axes: str = "", full: bool = False) -> list[tuple[float, Placed]]:
        """The cheapest grids that split no other axes than `axes`, each in its best order; or `full` ones.

        Best first: a grid is looked at only while its lower bound is below the worst that is kept. Words
        are exact; of a large family only the most promising grids are timed.
        """
        key = count, axes, full
        if key not in self.found:
            self.found[key] = self._best(*key)
        return self.found[key]

    def _best(self, count: int, axes: str, full: bool) -> list[tuple[float, Placed]]:
        found: list[tuple[float, int, Placed]] = []
        fits = self.full if full else self.within(axes or "".join(AXES))
        if not fits and self.asked.objective == "time":
            fits = self._fewer(axes)
        batch = max(1, min(BATCH, ELEMENTS // min(self.asked.procs, EVERY)))
        if self.asked.objective == "time":
            fits = self._timed(fits, TIMED // 3 if axes else TIMED)
        for start in range(0, len(fits), batch):
            if len(found) >= count and self.bounds[fits[start]] > found[count - 1][0]:
                break
            found += self._batch(fits[start : start + batch], start, count, found)
            found.sort(key=lambda each: each[:2])
        return [(cost, placed) for cost, _, placed in found[:count]]

    def _timed(self, grids: Sequence[PerAxis], most: int) -> list[PerAxis]:
        """The most promising grids that use all processes, and some that do not."""
        full = [grid for grid in grids if grid.size == self.asked.procs][:most]
        fewer = [grid for grid in grids if grid.size < self.asked.procs]
        kept = {*full, *fewer[: max(most // 3, most - len(full))]}
        return [grid for grid in grids if grid in kept]

    def least(self) -> float:
        """A proven lower bound of every grid's cost: the best one, or the bound of those never timed."""
        found = self.best(1)[0][0]
        if self.asked.objective == "words":
            return found
        timed = set(self._timed(list(self.bounds), TIMED))
        return min([found, *(bound for grid, bound in self.bounds.items() if grid not in timed)])

    def _fewer(self, axes: str) -> list[PerAxis]:
        """Grids that split only some axes and so cannot use all processes: those with the least work."""
        fixed: dict[str, int] = {axis: 1 for axis in AXES if axis not in axes}
        grids = all_grids(Space(self.nest, self.asked.procs, fixed, False), self.asked.procs)
        least = min(largest_block(self.nest, grid).size for grid in grids)
        fits = [g for g in grids if largest_block(self.nest, g).size <= least]
        self.bounds |= {g: self._bound(g) for g in fits}
        return sorted(fits, key=lambda g: (self.bounds[g], g))

    def _batch(
        self, grids: list[PerAxis], start: int, count: int, found: list[tuple[float, int, Placed]]
    ) -> list[tuple[float, int, Placed]]:
        if self.asked.objective == "words":
            self._count(grids)
            return [(self.cost(Placed(g)), start + i, Placed(g)) for i, g in enumerate(grids)]
        worst = found[count - 1][0] if len(found) >= count else float("inf")
        result = []
        for i, grid in enumerate(grids):
            if self.bounds[grid] > worst:
                break
            fastest = self.orders(grid)[0]
            result.append((self.cost(fastest), start + i, fastest))
        return result


def options(
    catalogues: Sequence[Catalogue],
    near: Sequence[Sequence[int]],
    extra: Sequence[Iterable[Placed]],
    asked: Asked,
) -> list[list[Choice]]:
    """Per catalogue its own best grids, grids that cut x as the catalogues `near` it would, and `extra`."""
    own = [[placed.grid for _, placed in _own(c, asked.keep)] for c in catalogues]
    result = []
    for position, catalogue in enumerate(catalogues):
        wanted = dict.fromkeys(own[position])
        liked: dict[PerAxis, float] = {}
        for other in near[position]:
            for place, cut in enumerate(dict.fromkeys(_x_cut(grid) for grid in own[other])):
                liked[cut] = liked.get(cut, 0.0) + 1 / (1 + place)
        cuts = sorted(liked, key=lambda g: (-liked[g], g))
        known = {_x_cut(grid) for grid in wanted}
        for cut in [c for c in cuts if c not in known][: asked.keep // 2]:
            wanted.update(dict.fromkeys(_with_cut(cut, catalogue, 1)))
        for cut in cuts[: asked.keep // 3]:
            wanted.update(dict.fromkeys(_with_cut(cut, catalogue, 2)))
        every = dict.fromkeys([*(p for g in wanted for p in catalogue.orders(g)), *extra[position]])
        result.append([Choice(p, catalogue.cost(p)) for p in every])
    return result


def _own(catalogue: Catalogue, keep: int) -> list[tuple[float, Placed]]:
    """The best grids of a catalogue: those that use all processes, and a few that do not and are better.

    Where no grid that uses all comes near the best, the best ones however many they use.
    """
    full, best = catalogue.best(keep, full=True), catalogue.best(keep)
    if not full or full[0][0] > NEAR * best[0][0]:
        return [*best, *full[:1]]
    return [*full, *(each for each in best if each[0] < full[0][0])][: keep + keep // 3]


def strategy_choices(catalogues: Sequence[Catalogue], axes: str, count: int = 4) -> list[list[Choice]] | int:
    """Per catalogue the options within one strategy; or the position of a layer that has none."""
    result: list[list[Choice]] = []
    for position, catalogue in enumerate(catalogues):
        found = catalogue.best(count, axes)
        if not found and not catalogue.asked.strict:
            found = catalogue.best(count)
        if not found:
            return position
        result.append(
            [Choice(p, catalogue.cost(p)) for _, best in found for p in catalogue.orders(best.grid)]
        )
    return result


def feasible(catalogues: Sequence[Catalogue], nodes: Sequence[Node], asked: Asked) -> None:
    """Raises `InfeasibleError` where a layer has no grid at all."""
    for catalogue, node in zip(catalogues, nodes, strict=True):
        if not catalogue.bounds:
            raise InfeasibleError(
                f"{node.name}: no grid of {asked.procs} processes keeps the balance; raise --balance or take "
                f"another number of processes"
            )


def _x_cut(grid: PerAxis) -> PerAxis:
    """The cut of x alone: what neighbours can have in common."""
    return grid._replace(g=1, c=1, k=1)


def _with_cut(cut: PerAxis, catalogue: Catalogue, count: int) -> list[PerAxis]:
    """The most promising grids of a catalogue with the given cut of x."""
    return catalogue.by_cut.get(cut, [])[:count]
