"""`synth bounds`: all bounds of one layer at every point of a range of processes and memory.

There are two accountings, which must not be mixed (docs/bounds.md):
    received   universal bound ≤ relaxation ≤ best integer plan. The limit is for all memory of a process.
    accessed   universal bound, sequential bound, the tables of the paper as printed and as corrected, Eq. 4
               with all its bounds, relaxation of Eq. 3 and, on request, its integer optimum. The limit is
               for the tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from synth.analysis.gp_parametric import ProgramFamily
from synth.base.errors import InfeasibleError
from synth.base.work_balance import BALANCE
from synth.bounds.closed_form import (
    Eq4,
    best,
    table1_corrected,
    table1_printed,
    table2_corrected,
    table2_printed,
)
from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.paper_cost import accessed_optimum
from synth.bounds.regimes import Gap, Regime, regime_of, regime_of_grid, split_gap
from synth.bounds.surface import surface_bound
from synth.bounds.universal import matmul_memory_independent, sequential_bound, universal_bound
from synth.layer.axes import Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.residue_classes import Classes, class_choices
from synth.planning.summary import is_small, shown_ratio
from synth.schedule.distribution import Distribution
from synth.search.class_search import search_classes, search_classes_or_none
from synth.search.request import Optimum, Request


@dataclass(frozen=True)
class BestPlan:
    """The best integer plan at a point. `words` are those of the most receiving process."""

    words: int
    grid: PerAxis
    stationary: Tensor
    regime: Regime
    used_words: int
    turned: tuple[Axis, ...] = ()  # axes along which blocks are cut by input rows
    classes: Classes = ()  # (axis, number of residue classes), where the classes are samples


@dataclass(frozen=True)
class Received:
    """Received words per process."""

    bound: float
    segments: int
    most_work: int  # the most multiply-adds of one process that the bound assumes
    fair_bound: float  # the bound for equal work, ⌈F/P⌉ multiply-adds
    with_surface: float  # the bound with the surface of regions; at least `bound`
    regime: Regime
    relaxation: float | None
    plan: BestPlan | None  # None: no plan fits
    gap: Gap | None
    matmul: float | None  # bound of Al Daas et al.; None if the layer is not a matrix product
    small: bool = False  # whether the bound is a small rest of what a process accesses and owns

    @property
    def shown_ratio(self) -> str:
        """`ratio` for people: a dash where there is none, a star where a small bound makes it large."""
        return "-" if self.ratio is None else f"{shown_ratio(self.ratio)}{'*' * self.small}"

    @property
    def ratio(self) -> float | None:
        """Words of the plan / bound. None if there is no plan, or if the bound is 0 and the words are not."""
        if self.plan is None:
            return None
        if self.bound > 0:
            return self.plan.words / self.bound
        return 1.0 if self.plan.words == 0 else None


@dataclass(frozen=True)
class Accessed:
    """Accessed words per process, in a global virtual memory. Tables are (case, words)."""

    bound: float
    sequential: float | None  # 2·F·κ₂/(P·RS·√M) - 2M; None without a memory limit
    table1_printed: tuple[str, float]
    table1_corrected: tuple[str, float]
    table2_printed: float
    table2_corrected: float
    closed_form: tuple[str, float] | None  # Eq. 4 with all its bounds; None if no tile fits
    stationary: Tensor | None
    relaxation: float | None
    integer: float | None  # None if not requested, or without a grid of exactly P processes


@dataclass(frozen=True)
class Point:
    """All bounds for one number of processes and one memory limit."""

    procs: int
    limit_bytes: int | None  # per process
    received: Received
    accessed: Accessed


@dataclass(frozen=True)
class SweepOptions:
    """The values that a sweep computes in addition to bounds and closed forms."""

    plans: bool = True
    relaxations: bool = True
    eq3: bool = False
    balance: float = BALANCE
    exact_procs: bool = False


def is_matmul(nest: Nest) -> bool:
    """Whether the nest is one matrix product: 1x1 kernels and no groups."""
    return nest.taps == 1 and nest.extents.g == 1


class Sweep:
    """Computes the points of one layer. It caches programs and plans."""

    def __init__(self, nest: Nest, options: SweepOptions | None = None) -> None:
        self.nest, self.options = nest, options or SweepOptions()
        choices = class_choices(nest, {}, self.options.balance) if self.options.relaxations else ()
        self.families = [ProgramFamily(nest.by_classes(classes)) for classes in choices]
        self._found: dict[int, list[tuple[float, Optimum | None]]] = {}

    def points(
        self,
        procs: Iterable[int],
        limits_bytes: Iterable[int | None],
        tick: Callable[[], None] = lambda: None,
    ) -> list[Point]:
        """All points, ordered by P in the given order, then by falling limit.

        Calls `tick` after every point.
        """
        sizes = sorted(limits_bytes, key=lambda size: math.inf if size is None else size, reverse=True)
        made = []
        for p in procs:
            for size in sizes:
                made.append(self.point(p, size))
                tick()
        return made

    def point(self, procs: int, limit_bytes: int | None) -> Point:
        """The point of `procs` processes with `limit_bytes` of memory each."""
        limit_words = None if limit_bytes is None else limit_bytes // self.nest.word_bytes
        return Point(
            procs, limit_bytes, self._received(procs, limit_words), self._accessed(procs, limit_words)
        )

    def _received(self, procs: int, words: int | None) -> Received:
        nest, plan = self.nest, self._plan(procs, words)
        fair = universal_bound(nest, procs, words)
        turned = nest.by_classes(plan.classes).turn(plan.turned) if plan else nest
        load = Distribution(turned, plan.grid).most_real_work if plan else fair.most_work
        bound = universal_bound(nest, procs, words, load)
        relaxed = gap = None
        if self.families:
            used = plan.grid.size if plan else procs  # idle processes neither own nor receive
            relaxed = self._relaxed(used, words)
            without_halos = self._relaxed(used, words, halos=False)
            if plan and relaxed is not None and without_halos is not None:
                gap = split_gap(plan.words, relaxed, without_halos, bound.words)
        matmul = None
        if is_matmul(nest):
            matmul = matmul_memory_independent(nest.extents.x, nest.extents.k, nest.extents.c, procs)
        regime = regime_of(bound)
        surface = max(bound.words, surface_bound(nest, procs, load))
        numbers = (bound.words, bound.segments, load, fair.words, surface)
        small = plan is not None and is_small(plan.words, bound)
        return Received(*numbers, regime, relaxed, plan, gap, matmul, small)

    def _relaxed(self, procs: int, words: int | None, halos: bool = True) -> float | None:
        """The least relaxation over residue classes, or None if no stationary slice fits."""
        found = [family.received(procs, words, halos) for family in self.families]
        return min((cost for cost in found if cost is not None), default=None)

    def _accessed(self, procs: int, words: int | None) -> Accessed:
        nest = self.nest
        bound = universal_bound(nest, procs, words, accounting="accessed").words
        sequential = None
        if words:
            sequential = max(0.0, sequential_bound(weighted_work(nest, 1) / procs, 1.0, words))
        eq4 = Eq4.of(nest, procs, words)
        try:
            form = best(eq4)
        except InfeasibleError:
            form = None
        tables = (table1_printed(eq4), table1_corrected(eq4), table2_printed(eq4), table2_corrected(eq4))
        return Accessed(
            bound,
            sequential,
            *tables,
            (form.case, form.cost) if form else None,
            form.stationary if form else None,
            self.families[-1].accessed(procs, words) if self.families else None,  # without classes
            self._eq3(procs, words) if self.options.eq3 else None,
        )

    def _eq3(self, procs: int, words: int | None) -> float | None:
        try:
            return float(accessed_optimum(self.nest, procs, words).cost)
        except InfeasibleError:
            return None

    # -- plans ------------------------------------------------------------------------------------------

    def _plan(self, procs: int, words: int | None) -> BestPlan | None:
        if not self.options.plans:
            return None
        found = self._search(procs, words)
        if found is None:
            return None
        free = self._search(procs, None)
        binds = free is not None and free.tiling.words < found.tiling.words
        regime = regime_of_grid(found.grid, binds)
        tiling = found.tiling
        cuts = found.turned, found.classes
        return BestPlan(tiling.words, found.grid, tiling.first.stationary, regime, tiling.used_words, *cuts)

    def _search(self, procs: int, words: int | None) -> Optimum | None:
        """The optimum, or None if no plan fits.

        An optimum that was found for a limit and uses m words is the optimum for every limit from m on up
        to that limit.
        """
        cached = self._found.setdefault(procs, [])
        limit: float = math.inf if words is None else words
        for earlier_limit, found in cached:
            if found is not None and found.tiling.used_words <= limit <= earlier_limit:
                return found
            if found is None and limit <= earlier_limit:
                return None
        request = _request(self.nest, procs, words, self.options)
        result = None
        if limit >= self.nest.total_words / procs:  # otherwise the shards do not fit
            result = search_classes_or_none(request, {})
        cached.append((limit, result))
        return result


def _request(nest: Nest, procs: int, limit_words: int | None, options: SweepOptions) -> Request:
    """The search for the best plan, cut by output or by input rows along each axis."""
    balance, exact = options.balance, options.exact_procs
    return Request(nest, procs, limit_words, balance=balance, exact=exact, turnable=nest.turnable)


def why_nothing_fits(
    nest: Nest, procs: int, limit_bytes: int, options: SweepOptions
) -> InfeasibleError | None:
    """The error that says why no plan fits `limit_bytes` per process, or None if one fits.

    Its message names the least memory that is enough.
    """
    try:
        search_classes(_request(nest, procs, limit_bytes // nest.word_bytes, options), {})
    except InfeasibleError as fault:
        return fault
    return None
