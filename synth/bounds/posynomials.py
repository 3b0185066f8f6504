"""Geometric programs in cvxpy: variables, posynomials, and the least value of one under constraints.

cvxpy is imported only when a program is built.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from synth.base.extras import extra_needed
from synth.layer.axes import AXES, Axis
from synth.layer.nest import Nest

Expression = Any  # a cvxpy expression or a number


@extra_needed()
def variables(nest: Nest, prefix: str) -> dict[Axis, Expression]:
    """One positive variable per axis with extent > 1, and the number 1 for the others."""
    import cvxpy as cp

    sizes = nest.extents._asdict()
    return {a: cp.Variable(pos=True, name=f"{prefix}_{a}") if sizes[a] > 1 else 1.0 for a in AXES}


def values_of(solved: Mapping[Axis, Expression]) -> dict[Axis, float]:
    """The values of the variables of a solved program."""
    return {a: float(v if isinstance(v, float) else v.value) for a, v in solved.items()}


def product(factors: list[Expression]) -> Expression:
    """The product of posynomials and numbers. A factor 0 (layers of padding) gives 0, not a posynomial."""
    result: Expression = 1.0
    for factor in factors:
        if isinstance(factor, float) and factor == 0.0:
            return 0.0
        result = factor if isinstance(result, float) and result == 1.0 else result * factor
    return result


def total(terms: Iterable[Expression]) -> Expression:
    """The sum of posynomials and numbers, without the terms that are the number 0."""
    nonzero = [term for term in terms if not (isinstance(term, float) and term == 0.0)]
    return sum(nonzero[1:], nonzero[0])


@extra_needed()
def minimised(objective: Expression, constraints: list[Any]) -> float | None:
    """The optimal value of a geometric program, or None if it has no solution."""
    import cvxpy as cp

    if any(c is False for c in constraints):
        return None
    if isinstance(objective, int | float):
        return float(objective)
    problem = cp.Problem(cp.Minimize(objective), [c for c in constraints if not isinstance(c, bool)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Solution may be inaccurate")  # 1e-5 instead of 1e-8 is enough
        problem.solve(gp=True, solver=cp.CLARABEL)  # type: ignore[no-untyped-call]
    if problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        return float(problem.value)
    return None
