"""`synth plan --explain`: the derivation for one layer, in symbols and numbers, as text or LaTeX.

Footprints and costs come from the functions that the planner uses (`nest.Access`,
`paper_cost.accessed_cost`), evaluated over sympy symbols instead of integers. Accessed words (Eq. 3 and 4 of
Li et al., SPAA'21) lead to the closed form; the plan itself is the optimum in received words.
One section is about the Karush-Kuhn-Tucker conditions of Eq. 4, see `bounds.kkt`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from synth.base.extras import extra_needed
from synth.base.units import show_words
from synth.bounds.closed_form import ClosedForm, Eq4
from synth.bounds.kkt import Kkt, Lagrangian, conditions, mean_step
from synth.bounds.paper_cost import ORDER, accessed_cost
from synth.layer.axes import AXES, KERNEL_OF, SPATIAL, TENSORS, Tensor
from synth.layer.nest import accesses
from synth.planning.decisions import phrases
from synth.planning.plan import Plan
from synth.planning.summary import ratio_of
from synth.reports.derivation_text import Equation, Section, Style, latex, text

WHERE = {
    "1a": "the memory is smaller than the share q: t = M",
    "1b": "t* < q < M: the share q itself is the best tile, more would not pay (2D)",
    "2a": "q <= t* <= M: the block grows until t = t* (3D)",
    "2b": "q < M < t*: the block grows as far as memory allows, t = M (2.5D)",
}


@extra_needed()
def explain(plan: Plan, style: Style = "text") -> str:
    """The derivation of a plan as text or as a LaTeX fragment (amsmath)."""
    parts = list(sections(plan))
    title = f"{plan.layer.name} on {plan.procs} processes, plan {plan.id}"
    return text(title, parts) if style == "text" else latex(title, parts)


def sections(plan: Plan) -> Iterator[Section]:
    """The sections of the derivation, in order."""
    symbols = Symbols(plan)
    yield _nest(plan)
    yield _footprints(plan, symbols)
    yield _order(plan, symbols)
    yield _closed_form(plan)
    yield kkt_section(plan)
    yield _integers(plan, symbols)
    yield _bound(plan)


class Symbols:
    """Symbols of the nest where the layer has an extent above 1, and their values in the plan."""

    def __init__(self, plan: Plan) -> None:
        import sympy

        nest = plan.nest
        sizes = nest.loop_extents()
        self.values: dict[Any, int] = {}

        def of(prefix: str, index: str, value: int) -> Any:
            if sizes[index] == 1:
                return sympy.Integer(1)
            symbol = sympy.Symbol(f"{prefix}_{index}", positive=True)
            self.values[symbol] = value
            return symbol

        self.W: dict[str, Any] = {a: of("W", a, getattr(plan.work, a)) for a in AXES}
        self.T: dict[str, Any] = {a: of("T", a, getattr(plan.tile, a)) for a in AXES}
        kernels: dict[str, Any] = {
            KERNEL_OF[a]: of("N", KERNEL_OF[a], nest.windows[a].kernel) for a in SPATIAL
        }
        stride: dict[str, Any] = {}
        dilation: dict[str, Any] = {}
        for axis in SPATIAL:
            window = nest.windows[axis]
            # a stride or dilation that is 1, or has no effect, is written as the number
            stride[axis] = self._step("sigma", axis, window.stride if sizes[axis] > 1 else 1)
            dilation[axis] = self._step("delta", axis, window.dilation if window.kernel > 1 else 1)
        self.accesses = accesses(stride, dilation, dict.fromkeys(SPATIAL, 0))
        self.block: dict[str, Any] = {**self.W, **kernels}
        self.tile: dict[str, Any] = {**self.T, **kernels}

    def _step(self, name: str, axis: str, value: int) -> Any:
        import sympy

        if value == 1:
            return sympy.Integer(1)
        symbol = sympy.Symbol(f"{name}_{axis}", positive=True)
        self.values[symbol] = value
        return symbol

    def number(self, expression: Any) -> Any:
        """The expression with the numbers of the plan in place of the symbols."""
        import sympy

        return sympy.sympify(expression).subs(self.values)


def _nest(plan: Plan) -> Section:
    nest = plan.nest
    lines = [f"{a.tensor}[{', '.join(map(str, a.dims))}]" for a in nest.accesses.values()]
    return Section(
        "The nest",
        [
            f"{plan.layer}.",
            *(f"{line}." for line in phrases(plan)),
            f"{lines[2]} += {lines[0]} * {lines[1]}, with {nest}.",
            f"{show_words(nest.work)} multiply-adds, {show_words(nest.real_work)} of them on real input; "
            + ", ".join(f"|{t}| = {show_words(nest.words[t])}" for t in TENSORS)
            + " words.",
            "In lacks k, Ker lacks x = (b, d, h, w), Out lacks c: along those it is shared.",
        ],
    )


def _footprints(plan: Plan, symbols: Symbols) -> Section:
    equations = []
    for tensor in TENSORS:
        words = symbols.accesses[tensor].footprint(symbols.tile)
        equations.append(Equation(f"F_{tensor}", words, symbols.number(words)))
    return Section(
        "Footprints of a tile",
        ["A tile T touches, per spatial dimension, sigma*(T-1) + delta*(N-1) + 1 input positions."],
        equations,
    )


def _order(plan: Plan, symbols: Symbols) -> Section:
    stationary = plan.first.stationary
    cost = accessed_cost(symbols.accesses, stationary, symbols.block, symbols.tile)
    order = " > ".join(axis for axis in ORDER[stationary] if plan.nest.loop_extents()[axis] > 1)
    inner = {"Out": "c", "Ker": "x", "In": "k"}[stationary]
    return Section(
        "Cost of the chosen loop order (Eq. 3)",
        [
            f"{stationary} is stationary: the tile loops run {order}; "
            f"the innermost, {inner}, does not change it.",
            "Every other tensor is loaded once per iteration of the loops around it.",
            *_role(plan),
        ],
        [Equation("cost", cost, symbols.number(cost))],
    )


def _closed_form(plan: Plan) -> Section:
    import sympy

    form = plan.closed_form
    problem = Eq4.of(plan.layer.nest, plan.procs, plan.limit_words)
    term = problem.term(form.stationary)
    first, second = (f"T_{name}" for name in term.names)
    A, q, t, s, a, b = sympy.symbols("A q t s a b", positive=True)
    Ta, Tb = (sympy.Symbol(name, positive=True) for name in (first, second))
    numbers = {
        A: problem.A,
        q: term.q,
        s: term.s,
        a: term.a,
        b: term.b,
        Ta: _tiles(plan)[0],
        Tb: _tiles(plan)[1],
    }
    objective = sympy.Max(q, t) + A * (a / Ta + b / Tb)
    if problem.groups_per_process > 1:  # several groups, one after the other
        groups = sympy.Symbol("G", positive=True)
        objective, numbers[groups] = groups * objective, problem.groups_per_process
    limit = "any" if math.isinf(problem.M_L) else show_words(problem.M_L)
    return Section(
        "Without halos (Eq. 4)",
        [
            "A halo-free tile of x = b*d*h*w and one step of the streaming index leave two tile sizes; for a "
            f"stationary tile of t = s*{first}*{second} words the best block has max(q, t) words.",
            f"{form.stationary} stationary is the cheapest; s = {term.s:g}, a = {term.a:g}, b = {term.b:g}, "
            f"A = N_k*N_c*N_x/P = {problem.A:g}, q = {term.q:g} words, tile memory {limit} words.",
        ],
        [Equation("cost", objective, objective.subs(t, s * Ta * Tb).subs(numbers))],
    )


def _tiles(plan: Plan) -> tuple[float, float]:
    form = plan.closed_form
    of = {"k": form.t_k, "x": form.t_x, "c": form.t_c}
    names = Eq4.of(plan.layer.nest, plan.procs, plan.limit_words).term(form.stationary).names
    return of[names[0]], of[names[1]]


def _role(plan: Plan) -> list[str]:
    if plan.pass_ == "forward":
        return []
    return [f"The pass is {plan.pass_}: the nest is the same, but other tensors are read and written."]


def _integers(plan: Plan, symbols: Symbols) -> Section:
    words = {key: show_words(value) for key, value in plan.words.items()}
    cost = accessed_cost(symbols.accesses, plan.first.stationary, symbols.block, symbols.tile)
    eq3 = show_words(float(symbols.number(cost)))
    owned = show_words(plan.nest.total_words / plan.used_procs)
    return Section(
        "Integers",
        [
            f"Over all grids of at most {plan.procs} processes, stationary tensors and tiles the fewest "
            f"received words are found by exact search: grid {plan.grid.shown()}, {plan.first}.",
            f"Blocks W = {plan.work.shown()}, tiles T = {plan.tile.shown()}.",
            f"Eq. 3 at these integers charges {eq3} accessed words; about {owned} of what is accessed is "
            "owned, and what a process owns does not travel.",
            f"Received, at most by any rank: In {words['in']} (halo {words['halo']}), Ker {words['ker']}, "
            f"Out {words['out']}; together {words['total']} words.",
        ],
    )


def _bound(plan: Plan) -> Section:
    bound = plan.bound
    order: tuple[Tensor, ...] = ("Out", "In", "Ker")
    accessed = ", ".join(f"{t} {x:.1f}" for t, x in zip(order, bound.x, strict=True))
    told, caution = ratio_of(plan.words["total"], bound)
    ratio = "no ratio" if told == "none" else f"the plan is at {told} of it"
    ratio += f": {caution}" if caution else ""
    segments = f"{bound.segments} segment{'s' * (bound.segments > 1)}"
    return Section(
        "The lower bound",
        [
            f"Processes that each do at most {show_words(bound.most_work)} multiply-adds on real input touch "
            "X_O, X_I, X_K words in all with X_O*X_I*X_K >= V, and every tensor is touched whole; the least "
            f"sum is, per process, at {accessed}.",
            f"Less the {bound.resident:.1f} words that it owns, a process receives at least "
            f"{bound.words:.1f} words on average ({segments}); {ratio}.",
            f"Assumed: {'; '.join(plan.assumptions)}.",
            f"At fair load, {show_words(plan.fair_bound.most_work)} multiply-adds each, the bound is "
            f"{plan.fair_bound.words:.1f} words.",
        ],
    )


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
