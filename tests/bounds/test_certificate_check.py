"""Certificates prove the bound of the plan; a certificate that was changed proves nothing false."""

from __future__ import annotations

import copy
import json
import random
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from seeded_problems import random_plan

from synth.analysis.certificate import plan_certificate
from synth.base.errors import CheckError, InfeasibleError, InputError
from synth.bounds.certificate_check import check, check_file, facts, proved
from synth.bounds.holder_brascamp_lieb import hbl_constant
from synth.planning.derive import plan as plan_layer
from synth.planning.plan import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_layer("examples/conv.yaml", 64)


@pytest.mark.parametrize(
    ("layer", "procs"),
    [
        ("examples/conv.yaml", 64),
        ("examples/grouped.yaml", 16),
        ("examples/conv1d.yaml", 8),
        ("examples/matmul.yaml", 64),
        ("examples/resnet50/conv1_7x7.yaml", 61),
        ("examples/cosmoflow/conv5.yaml", 32),
    ],
)
def test_certificates_prove_what_plans_print(layer: str, procs: int) -> None:
    made = plan_layer(layer, procs)
    data = plan_certificate(made)
    assert check(data)[-1].endswith("as claimed")
    assert data["words_decimal"] == pytest.approx(made.bound.words, rel=1e-6, abs=2e-3)


def test_certificates_of_random_plans() -> None:
    rng = random.Random(7)
    for _ in range(60):
        made = random_plan(rng)
        data = plan_certificate(made)
        check(data)
        assert float(Fraction(data["words"])) >= made.bound.words * (1 - 1e-6) - 2e-3


def test_facts_agree_with_the_nest() -> None:
    rng = random.Random(3)
    for _ in range(60):
        layer = random_plan(rng).layer
        words, work, _, _ = facts(layer.to_json())
        assert work == layer.nest.real_work
        assert (words["Out"], words["Ker"]) == (layer.nest.words["Out"], layer.nest.words["Ker"])
        assert words["In"] <= layer.nest.words["In"]  # rows in irregular gaps are owned, not read


def test_several_segments(plan: Plan) -> None:
    data = plan_certificate(plan)
    tight = Plan(plan.layer, 64, plan.grid, plan.first, limit_bytes=32 * 1024)
    several = plan_certificate(tight)
    assert several["segments"] > 1
    assert several["words_decimal"] > data["words_decimal"]
    assert several["words_decimal"] == pytest.approx(tight.bound.words, rel=1e-6)
    check(several)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": "146401"}, "words follow"),
        ({"sizes": {"Out": 1, "In": 1, "Ker": 1}}, "sizes are"),
        ({"multiply_adds": 1}, "multiply_adds are"),
        ({"most_work": 10}, "64 processes of 10"),
        ({"segments": 2}, "several segments need a memory limit"),
        ({"nu": "0"}, "ν/x"),
        ({"x": {"Out": "9999999", "In": "9999999", "Ker": "9999999"}}, "x_O·x_I·x_K <= V"),
    ],
)
def test_false_steps_are_found(plan: Plan, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckError, match=message.replace("(", r"\(")):
        check({**plan_certificate(plan), **change})


def test_false_constants_are_found(plan: Plan) -> None:
    data = plan_certificate(plan)
    wrong = copy.deepcopy(data)
    wrong["constants"][0]["square"] = "2917/1000"
    with pytest.raises(CheckError, match="C\\(14,3\\)"):
        check(wrong)
    wrong = copy.deepcopy(data)
    wrong["constants"][0]["weight"] = "7/10"
    with pytest.raises(CheckError, match="weight"):
        check(wrong)


@pytest.mark.parametrize(
    ("outputs", "taps"), [(2, 2), (7, 2), (100, 2), (5, 3), (14, 3), (56, 3), (14, 4), (3, 9)]
)
def test_constants_are_proved_and_no_smaller_ones(outputs: int, taps: int) -> None:
    square = Fraction(hbl_constant(outputs, taps) ** 2)
    assert proved(outputs, taps, square * (1 + Fraction(1, 10**9)))
    assert not proved(outputs, taps, square * (1 - Fraction(1, 10**5)))


def test_not_a_certificate(tmp_path: Path, plan: Plan) -> None:
    file = tmp_path / "c.json"
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "is not a certificate"),
        ('{"schema": "synth.plan/1"}', "is not a certificate"),
        ('{"schema": "synth.certificate/1"}', "problem is not an object"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            check_file(str(file))
    for key, value in (("procs", 64.0), ("nu", "1e9"), ("x", None), ("segments", True), ("constants", [])):
        file.write_text(json.dumps({**plan_certificate(plan), key: value}))
        with pytest.raises(InputError, match="not a complete certificate"):
            check_file(str(file))
    with pytest.raises(InputError, match="cannot be read"):
        check_file(str(tmp_path / "missing.json"))


def test_the_checker_needs_no_arithmetic_but_its_own() -> None:
    source = Path(sys.modules["synth.bounds.certificate_check"].__file__ or "").read_text(encoding="utf-8")
    imports = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    assert imports == [
        "from __future__ import annotations",
        "import itertools",
        "import json",
        "import math",
        "import re",
        "from fractions import Fraction",
        "from pathlib import Path",
        "from typing import Any",
        "from synth.base.errors import CheckError, InputError",
        "from synth.layer.layer import Layer",
    ]
    assert "math.sqrt" not in source


def test_training_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="one pass"):
        plan_certificate(plan_layer("examples/small.yaml", 4, pass_="training"))
