"""The geometric programs of one layer with processes and memory as parameters, for sweeps.

To canonicalize a program takes ten times as long as to solve it. So a sweep builds each program once and
solves it for many P and M. The programs are those of `bounds.geometric_program`; a test compares them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

from synth.base.extras import extra_needed
from synth.bounds.geometric_program import slices, stationary_limits, tile_footprints, turns
from synth.bounds.posynomials import product, total, variables
from synth.layer.axes import AXES, LACKS, TENSORS, Tensor
from synth.layer.nest import Nest


@dataclass(frozen=True)
class Program:
    """A canonicalized program and its two parameters. If `problem` is None, its value is `constant`."""

    problem: Any  # cvxpy.Problem
    work: Any  # parameter: iterations per process, at least
    limit_words: Any | None  # parameter
    constant: float = 0.0
    floor: float = 0.0  # words that `limit_words` must have, where no variable decides it

    @extra_needed()
    def solve(self, work: float, limit_words: float | None) -> float | None:
        """The optimal value in words, or None if no solution exists."""
        import cvxpy as cp

        if limit_words is not None and limit_words < self.floor:
            return None
        if self.problem is None:
            return self.constant
        self.work.value = work
        if self.limit_words is not None:
            self.limit_words.value = limit_words
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Solution may be inaccurate")
            self.problem.solve(gp=True, solver=cp.CLARABEL)
        solved = self.problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
        return float(self.problem.value) if solved else None


class ProgramFamily:
    """The relaxations of one layer for any number of processes and any memory limit in words."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.turns = nest, turns(nest)
        self._built = cache(self._build)

    def received(self, procs: int, limit_words: float | None = None, halos: bool = True) -> float | None:
        """`relax_received(...).cost` in words, or None if no stationary slice fits.

        Without `halos`, a row that several blocks read counts once.
        """
        nest, limited = self.nest, limit_words is not None
        limits = stationary_limits(nest, procs, limit_words)
        found = [
            self._built(each, "received", tensor, halos, limited).solve(
                max(1.0, each.extents.size / procs), limit if limited else None
            )
            for each in (self.turns if halos else (nest,))  # without halos all cuts are alike
            for tensor, limit in limits.items()
            if limit > 0
        ]
        costs = [cost for cost in found if cost is not None]
        return max(0.0, min(costs) - nest.total_words / procs) if costs else None

    def accessed(self, procs: int, limit_words: float | None = None) -> float | None:
        """Least `relaxation.relax_accessed(...).cost` over stationary tensors; None where no tile fits."""
        work = max(1.0, self.nest.extents.size / procs)
        found = [
            self._built(self.nest, "accessed", t, True, limit_words is not None).solve(work, limit_words)
            for t in TENSORS
        ]
        return min((cost for cost in found if cost is not None), default=None)

    @extra_needed()
    def _build(self, nest: Nest, kind: str, stationary: Tensor, halos: bool, limited: bool) -> Program:
        import cvxpy as cp

        axes = [a for a, n in zip(AXES, nest.extents, strict=True) if n > 1]
        W = variables(nest, "W")
        work = cp.Parameter(pos=True, value=1.0)
        constraints: list[Any] = [c for a in axes for c in (W[a] >= 1, W[a] <= getattr(nest.extents, a))]
        if kind == "received":
            touched = slices(nest, W, halos)
            cost, held = total(touched.values()), touched[stationary]
        else:
            T = variables(nest, "T")
            tiles = tile_footprints(nest, T)
            constraints += [c for a in axes for c in (T[a] >= 1, T[a] <= W[a])]
            held = total(tiles.values())
            cost = total(
                product([tiles[t], *(W[a] / T[a] for a in axes if _moves(a, t, stationary))]) for t in TENSORS
            )
        if not axes:
            return Program(None, work, None, float(cost), float(held))
        constraints.append(product(list(W.values())) >= work)
        if not limited:
            return Program(cp.Problem(cp.Minimize(cost), constraints), work, None)
        if isinstance(held, int | float):
            return Program(cp.Problem(cp.Minimize(cost), constraints), work, None, floor=float(held))
        limit = cp.Parameter(pos=True, value=1.0)
        return Program(cp.Problem(cp.Minimize(cost), [*constraints, held <= limit]), work, limit)


def _moves(axis: str, tensor: Tensor, stationary: Tensor) -> bool:
    """Whether a tensor's tile is loaded again when the tile loop over `axis` advances."""
    return tensor != stationary or axis not in LACKS[tensor]
