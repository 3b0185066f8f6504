"""The Karush-Kuhn-Tucker conditions of Eq. 4 of SPAA'21, in sympy, and the case that holds at an optimum.

Eq. 4 for one stationary tensor, with B = W_a·W_b (the notation of `closed_form`; l is the lacking index):

    minimise    s·B + A·a/T_a + A·b/T_b
    subject to  memory  s·T_a·T_b <= M      tile   T_a·T_b <= B      share  B >= A/N_l   (W_l <= N_l)
                one     B <= A  (W_l >= 1)  T_a <= N_a, T_b <= N_b, T_a >= 1, T_b >= 1

Every B in [T_a·T_b, N_a·N_b] is W_a·W_b of blocks that hold the tile. In the logarithms of T_a, T_b and B
the objective is convex and every constraint is linear. So the conditions are necessary and sufficient
without a constraint qualification. A multiplier is in words: the derivative of the optimum by the
logarithm of the constraint's right side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from synth.bounds.closed_form import ClosedForm, Eq4
from synth.layer.axes import Tensor

NEAR = 1e-7  # relative distance at which a constraint is active, and relative error of stationarity
# constraint -> its derivative by log T_a, log T_b, log B
GRADIENTS: dict[str, tuple[int, int, int]] = {
    "memory": (1, 1, 0),
    "tile": (1, 1, -1),
    "share": (0, 0, -1),
    "one": (0, 0, 1),
    "most_a": (1, 0, 0),
    "most_b": (0, 1, 0),
    "least_a": (-1, 0, 0),
    "least_b": (0, -1, 0),
}


@dataclass(frozen=True)
class Lagrangian:
    """Eq. 4 of one stationary tensor in symbols. `names` are the indices of T_a, T_b and the lacking one."""

    names: tuple[str, str, str]

    @classmethod
    def of(cls, problem: Eq4, form: ClosedForm) -> Lagrangian:
        """The Lagrangian of the problem that `form` solves."""
        term = problem.term(form.stationary)
        return cls((*term.names, term.lacked))

    def values(self, problem: Eq4, stationary: Tensor) -> dict[Any, Any]:
        """The numbers of a problem for the symbols A, M, s, a, b, N_a, N_b and N_l."""
        import sympy

        term = problem.term(stationary)
        extents = (problem.extent(name) for name in self.names)
        numbers = (problem.A, problem.M_L, term.s, term.a, term.b, *extents)
        found = dict(zip(("A", "M", "s", "a", "b", "N_a", "N_b", "N_l"), numbers, strict=True))
        return {self.symbol(name): sympy.Float(value, 30) for name, value in found.items()}

    def symbol(self, name: str) -> Any:
        """A positive symbol of the problem: T_a, T_b, B, A, M, s, a, b, N_a, N_b, N_l, or lambda_*."""
        import sympy

        a, b, lacked = self.names
        shown = {"T_a": f"T_{a}", "T_b": f"T_{b}", "N_a": f"N_{a}", "N_b": f"N_{b}", "N_l": f"N_{lacked}"}
        return sympy.Symbol(shown.get(name, name), positive=True)

    @property
    def variables(self) -> tuple[Any, Any, Any]:
        """T_a, T_b, B."""
        return self.symbol("T_a"), self.symbol("T_b"), self.symbol("B")

    @property
    def objective(self) -> Any:
        """Accessed words of one process and group."""
        Ta, Tb, B = self.variables
        A, s, a, b = (self.symbol(name) for name in ("A", "s", "a", "b"))
        return s * B + A * a / Ta + A * b / Tb

    @cached_property
    def constraints(self) -> dict[str, tuple[Any, Any]]:
        """Constraint -> (left, right) of `left <= right`, both positive."""
        Ta, Tb, B = self.variables
        A, M, s, Na, Nb, Nl = (self.symbol(name) for name in ("A", "M", "s", "N_a", "N_b", "N_l"))
        return {
            "memory": (s * Ta * Tb, M),
            "tile": (Ta * Tb, B),
            "share": (A / Nl, B),
            "one": (B, A),
            "most_a": (Ta, Na),
            "most_b": (Tb, Nb),
            "least_a": (1 / Ta, 1),
            "least_b": (1 / Tb, 1),
        }

    def multiplier(self, constraint: str) -> Any:
        """The symbol of a multiplier."""
        return self.symbol(f"lambda_{constraint}")

    def expression(self, constraints: Sequence[str] = tuple(GRADIENTS)) -> Any:
        """The Lagrangian: objective + Σ λ·log(left/right) over the constraints."""
        import sympy

        terms = (
            self.multiplier(name) * sympy.log(self.constraints[name][0] / self.constraints[name][1])
            for name in constraints
        )
        return self.objective + sum(terms)

    def stationarity(self, constraints: Sequence[str] = tuple(GRADIENTS)) -> list[Any]:
        """The derivatives of the Lagrangian by log T_a, log T_b and log B, which vanish at an optimum."""
        import sympy

        whole = self.expression(constraints)
        return [sympy.expand(v * sympy.diff(whole, v)) for v in self.variables]

    def solve(self, active: Sequence[str]) -> dict[Any, Any] | None:
        """T_a, T_b, B and the multipliers of the active constraints, in symbols.

        The other multipliers are 0. None if these constraints do not determine the point.
        """
        import sympy

        equations = self.stationarity(active)
        unknown = [self.multiplier(name) for name in active]
        # the gradients are integers: eliminate the multipliers, which leaves equations of monomials
        matrix = sympy.Matrix([[GRADIENTS[name][i] for name in active] for i in range(3)])
        if matrix.rank() < len(active):
            return None
        free = [sum(row[i] * equations[i] for i in range(3)) for row in matrix.T.nullspace()]
        ties = [self.constraints[name][0] - self.constraints[name][1] for name in active]
        points = sympy.solve([*free, *ties], list(self.variables), dict=True)
        if len(points) != 1 or len(points[0]) != 3:
            return None
        point = points[0]
        (values,) = sympy.linsolve([each.subs(point) for each in equations], unknown)
        return {**point, **{m: sympy.simplify(v) for m, v in zip(unknown, values, strict=True)}}


@dataclass(frozen=True)
class Kkt:
    """The conditions at one point: multipliers of the active constraints, and how far each one is off."""

    point: tuple[float, float, float]  # T_a, T_b, B
    multipliers: Mapping[str, float]  # words; constraints without an entry have the multiplier 0
    stationarity: float  # largest derivative of the Lagrangian, relative to the cost
    infeasibility: float  # largest relative violation of a constraint
    slackness: float  # largest multiplier times the logarithm of the slack, relative to the cost

    @property
    def holds(self) -> bool:
        """Whether the point is an optimum: stationary, feasible, λ >= 0 and complementary slackness."""
        return (
            self.stationarity <= NEAR
            and self.infeasibility <= NEAR
            and self.slackness <= NEAR
            and min(self.multipliers.values(), default=0.0) >= 0.0
        )


def conditions(problem: Eq4, form: ClosedForm) -> Kkt:
    """The conditions at the tiles of a closed form, whatever it claims about them."""
    term = problem.term(form.stationary)
    tiles = {"k": form.t_k, "x": form.t_x, "c": form.t_c}
    Ta, Tb = (tiles[name] for name in term.names)
    A, s = problem.A, term.s
    B = max(Ta * Tb, term.q / s)
    cost = s * B + A * (term.a / Ta + term.b / Tb)
    logs = {
        "memory": math.log(s * Ta * Tb) - math.log(problem.M_L),
        "tile": math.log(Ta * Tb / B),
        "share": math.log(term.q / s / B),
        "one": math.log(B / A),
        "most_a": math.log(Ta / problem.extent(term.names[0])),
        "most_b": math.log(Tb / problem.extent(term.names[1])),
        "least_a": -math.log(Ta),
        "least_b": -math.log(Tb),
    }
    active = [name for name, value in logs.items() if value > -NEAR]
    wanted = (A * term.a / Ta, A * term.b / Tb, -s * B)
    multipliers, off = _multipliers(active, wanted, cost)
    slack = max((abs(value * logs[name]) / cost for name, value in multipliers.items()), default=0.0)
    return Kkt((Ta, Tb, B), multipliers, off / cost, max(0.0, *logs.values()), slack)


def _multipliers(
    active: Sequence[str], wanted: tuple[float, float, float], scale: float
) -> tuple[dict[str, float], float]:
    """Multipliers λ >= 0 of active constraints with Σ λ·gradient = wanted, and the largest error.

    If there are any, some have at most three independent gradients (Carathéodory). The fewest are taken.
    """
    best: tuple[dict[str, float], float] = ({}, max(map(abs, wanted)))
    for count in range(1, 4):
        for chosen in itertools.combinations(active, count):
            values = _least_squares([GRADIENTS[name] for name in chosen], wanted)
            if values is None or min(values) < -NEAR * scale:
                continue
            found = dict(zip(chosen, (max(0.0, v) for v in values), strict=True))
            sums = (sum(found[name] * GRADIENTS[name][i] for name in chosen) for i in range(3))
            error = max(abs(each - want) for each, want in zip(sums, wanted, strict=True))
            if error < best[1] - NEAR * scale:
                best = found, error
    return best


def _least_squares(columns: Sequence[Sequence[int]], wanted: Sequence[float]) -> list[float] | None:
    """The x with the least |Σ x·column - wanted|², by the normal equations; None if it is not unique."""
    size = len(columns)
    rows = [
        [float(sum(map(int.__mul__, columns[i], columns[j]))) for j in range(size)]
        + [sum(c * w for c, w in zip(columns[i], wanted, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < 1e-9:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(size):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def mean_step(active: Sequence[str], names: Sequence[str]) -> str:
    """The inequality of arithmetic and geometric means that gives the optimum, or why there is none."""
    a, b = names[0], names[1]
    ends = {"most_a": a, "least_a": a, "most_b": b, "least_b": b}
    fixed = [index for name, index in ends.items() if name in active]
    held = "memory" in active or "share" in active
    if not fixed and held:
        return (
            f"AM-GM: T_{a}*T_{b} is fixed, so A*a/T_{a} + A*b/T_{b} >= 2*A*sqrt(a*b/(T_{a}*T_{b})), with "
            f"equality at a/T_{a} = b/T_{b}."
        )
    if not fixed:
        return (
            f"AM-GM: with B = T_{a}*T_{b} the product of the three terms is s*a*b*A^2, so their sum is at "
            "least 3*(s*a*b*A^2)^(1/3), with equality where the three are equal."
        )
    if len(fixed) == 1 and not held and "one" not in active:
        (index,) = fixed
        other, weight = (b, "b") if index == a else (a, "a")
        return (
            f"AM-GM: with T_{index} at its bound, s*T_{index}*T_{other} + A*{weight}/T_{other} >= "
            f"2*sqrt(s*A*{weight}*T_{index}), with equality where the two are equal."
        )
    return "No AM-GM step: active constraints determine both tile sizes."
