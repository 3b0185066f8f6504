"""The derivation: its numbers are the plan's, for every kind of layer, as text and as LaTeX."""

from __future__ import annotations

import random

import pytest
import sympy
from seeded_problems import random_plan

from synth.planning.derive import plan as plan_layer
from synth.planning.plan import Plan
from synth.reports.derivation import Symbols, explain, sections


@pytest.mark.parametrize(
    "layer", ["conv", "grouped", "conv1d", "matmul", "resnet50/conv1_7x7", "cosmoflow/conv3"]
)
@pytest.mark.one_in(3)
def test_numbers_are_those_of_the_plan(layer: str) -> None:
    plan = plan_layer(f"examples/{layer}.yaml", 16)
    parts = {part.title: part for part in sections(plan)}
    (cost,) = parts["Cost of the chosen loop order (Eq. 3)"].equations
    assert cost.numeric == pytest.approx(plan.paper_cost["eq3"])
    (eq4,) = parts["Without halos (Eq. 4)"].equations
    assert float(eq4.numeric) == pytest.approx(plan.closed_form.cost)
    for equation in parts["Footprints of a tile"].equations:
        assert equation.numeric > 0


def test_random_plans_have_numbers() -> None:
    rng = random.Random(5)
    for _ in range(15):
        plan = random_plan(rng)
        symbols = Symbols(plan)
        for tensor, access in symbols.accesses.items():
            words = access.footprint(symbols.tile)
            sizes = plan.nest.loop_extents(plan.tile)
            assert symbols.number(words) == plan.nest.accesses[tensor].footprint(sizes)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_layer("examples/conv.yaml", 64)


def test_text(plan: Plan) -> None:
    text = explain(plan)
    assert "t_* = A**(2/3)*K**(2/3)" in text
    assert "case 2a" in text
    assert "146400.9 words" in text
    assert all(len(line) <= 110 for line in text.splitlines())


def test_latex(plan: Plan) -> None:
    text = explain(plan, "latex")
    assert text.count(r"\begin{multline*}") == text.count(r"\end{multline*}") > 5
    assert text.count("{") == text.count("}")
    assert r"A^{\frac{2}{3}} K^{\frac{2}{3}}" in text
    assert r"T_{k} \frac{\partial L}{\partial T_{k}} = " in text


def test_every_case_is_explained() -> None:
    cases = set()
    for layer, procs, memory in (
        ("examples/conv.yaml", 64, None),
        ("examples/resnet50/conv1_7x7.yaml", 16, None),
        ("examples/conv.yaml", 64, "256KiB"),
    ):
        made = plan_layer(layer, procs, memory)
        cases.add(made.closed_form.case)
        assert f"case {made.closed_form.case}" in explain(made)
    assert cases == {"1b", "2a", "2b"}


def test_training() -> None:
    assert "The pass is training" in explain(plan_layer("examples/small.yaml", 8, pass_="training"))


def test_t_star_is_where_the_derivative_vanishes() -> None:
    A, K, t = sympy.symbols("A K t", positive=True)
    assert (
        sympy.diff(t + 2 * A * K / sympy.sqrt(t), t).subs(t, (A * K) ** sympy.Rational(2, 3)).simplify() == 0
    )
