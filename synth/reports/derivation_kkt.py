"""The section of a derivation about the Karush-Kuhn-Tucker conditions of Eq. 4, see `bounds.kkt`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from synth.bounds.closed_form import ClosedForm, Eq4
from synth.bounds.kkt import Kkt, Lagrangian, conditions, mean_step
from synth.planning.plan import Plan
from synth.reports.derivation_text import Equation, Section

WHERE = {
    "1a": "the memory is smaller than the share q: t = M",
    "1b": "t* < q < M: the share q itself is the best tile, more would not pay (2D)",
    "2a": "q <= t* <= M: the block grows until t = t* (3D)",
    "2b": "q < M < t*: the block grows as far as memory allows, t = M (2.5D)",
}


def kkt_section(plan: Plan) -> Section:
    """The case that holds at the optimum of Eq. 4, with its multipliers and its AM-GM step."""
    form = plan.closed_form
    problem = Eq4.of(plan.layer.nest, plan.procs, plan.limit_words)
    found, lagrangian = conditions(problem, form), Lagrangian.of(problem, form)
    bounded = any(name.startswith(("most", "least")) for name in found.multipliers)
    a, b, lacked = lagrangian.names
    why = (
        "a bound of a tile is active, so the table of cases does not decide" if bounded else WHERE[form.case]
    )
    shown = "; ".join(
        f"{_constraint(name, lagrangian.names)} ({value:.6g} words)"
        for name, value in found.multipliers.items()
    )
    verdict = "hold" if found.holds else "DO NOT hold"
    worst = max(found.stationarity, found.infeasibility, found.slackness)
    q = problem.term(form.stationary).q
    return Section(
        "The KKT case",
        [
            f"Let B = W_{a}*W_{b}. The cost is convex in log T_{a}, log T_{b}, log B; the constraints are "
            f"linear in them: s*T_{a}*T_{b} <= M, T_{a}*T_{b} <= B, W_{lacked} <= N_{lacked} and >= 1, "
            f"1 <= T_{a} <= N_{a}, 1 <= T_{b} <= N_{b}. So the KKT conditions decide.",
            f"q = {q:g}, t* = {problem.t_star:g}, M = {problem.M_L:g}: case {form.case}; {why}.",
            f"Active, with multipliers: {shown}. All other multipliers are 0.",
            f"Stationarity, feasibility, multipliers >= 0 and complementary slackness {verdict} "
            f"(relative error {worst:.0e}).",
            mean_step(tuple(found.multipliers), lagrangian.names),
            f"Optimum over real numbers: {form.cost:.1f} accessed words at T_k = {form.t_k:.4g}, "
            f"T_x = {form.t_x:.4g}, T_c = {form.t_c:.4g}.",
        ],
        [*_lagrange(problem, form, lagrangian, found), _t_star(problem)],
    )


def _constraint(name: str, names: Sequence[str]) -> str:
    """A constraint as text."""
    a, b, lacked = names
    return {
        "memory": f"s*T_{a}*T_{b} <= M",
        "tile": f"T_{a}*T_{b} <= B",
        "share": f"W_{lacked} <= N_{lacked}",
        "one": f"W_{lacked} >= 1",
        "most_a": f"T_{a} <= N_{a}",
        "most_b": f"T_{b} <= N_{b}",
        "least_a": f"T_{a} >= 1",
        "least_b": f"T_{b} >= 1",
    }[name]


def _lagrange(problem: Eq4, form: ClosedForm, lagrangian: Lagrangian, found: Kkt) -> Iterator[Equation]:
    """The Lagrangian of the active constraints, its derivatives, and its solution in symbols and numbers."""
    import sympy

    active = tuple(found.multipliers)
    yield Equation("L", lagrangian.expression(active))
    for variable, derivative in zip(lagrangian.variables, lagrangian.stationarity(active), strict=True):
        tex = rf"{sympy.latex(variable)} \frac{{\partial L}}{{\partial {sympy.latex(variable)}}}"
        yield Equation(f"{variable} * dL/d{variable}", derivative, sympy.Integer(0), tex)
    solution = lagrangian.solve(active) or {}
    values = lagrangian.values(problem, form.stationary)
    for symbol, value in solution.items():
        yield Equation(str(symbol), value, sympy.sympify(value).subs(values).evalf(8))


def _t_star(problem: Eq4) -> Equation:
    import sympy

    A, K, t = sympy.symbols("A K t", positive=True)
    (star,) = sympy.solve(sympy.diff(t + 2 * A * K / sympy.sqrt(t), t), t)
    return Equation("t_*", star, star.subs({A: problem.A, K: problem.K}).evalf(8))
