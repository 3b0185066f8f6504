"""Certificates prove the bound of the plan; a certificate that was changed proves nothing false."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from seeded_problems import random_plan

from synth.analysis.certificate import check_plan, plan_certificate
from synth.base.errors import CheckError, InfeasibleError, InputError
from synth.bounds.certificate_check import check, check_file, digest, facts, proved
from synth.bounds.holder_brascamp_lieb import hbl_constant
from synth.layer.layer import Layer
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
@pytest.mark.one_in(3)
def test_certificates_prove_what_plans_print(layer: str, procs: int) -> None:
    made = plan_layer(layer, procs)
    data = plan_certificate(made)
    steps = check(data)
    assert steps[-2].endswith("as claimed")
    assert steps[-1] == f"so {data['claim']}"
    assert f"at most {data['most_work']} multiply-adds in each" in data["claim"]
    assert float(Fraction(data["words"])) == pytest.approx(made.bound.words, rel=1e-6, abs=2e-3)


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
        assert words == layer.nest.read_words


def test_the_bound_is_that_of_the_certificate_where_rows_lie_in_gaps() -> None:
    """Stride 3 and dilation 2: no window reads one row of three, so it is no word of In."""
    layer = Layer.conv2d((8, 14, 6, 9), 14, 2, stride=3, padding=1, dilation=2, name="odd")
    made = plan_layer(layer, 16)
    assert layer.nest.read_words["In"] == 8 * 14 * 3 * 5
    assert float(Fraction(plan_certificate(made)["words"])) == pytest.approx(made.bound.words, abs=2e-3)
    assert made.bound.words == pytest.approx(191.852, abs=1e-3)
    assert made.bound.words <= made.words["total"]


@pytest.mark.parametrize("groups", [1, 2])
def test_facts_of_transposed_layers(groups: int) -> None:
    layer = Layer.conv2d(
        [4, 16, 7, 9],
        8,
        [4, 3],
        stride=[2, 3],
        padding=[1, 0],
        transposed=True,
        output_padding=[0, 1],
        groups=groups,
    )
    words, work, _, _ = facts(layer.to_json())
    assert work == layer.nest.real_work
    assert words == {name: layer.nest.words[name] for name in ("Out", "In", "Ker")}
    made = plan_layer(layer, 4)
    data = plan_certificate(made)
    check(data)
    assert float(Fraction(data["words"])) == pytest.approx(made.bound.words, rel=1e-6, abs=2e-3)


def test_several_segments(plan: Plan) -> None:
    data = plan_certificate(plan)
    tight = Plan(plan.layer, 64, plan.grid, plan.first, limit_bytes=32 * 1024)
    several = plan_certificate(tight)
    assert several["segments"] > 1
    assert float(Fraction(several["words"])) > float(Fraction(data["words"]))
    assert float(Fraction(several["words"])) == pytest.approx(tight.bound.words, rel=1e-6)
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


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All (path, value) of JSON data, objects and arrays included."""
    if path:
        yield path, data
    for key, value in (
        data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    ):
        yield from leaves(value, (*path, key))


def changed(value: Any) -> list[Any]:
    """Other values of the same kind, and of other kinds."""
    if isinstance(value, str):
        near = (
            [str(Fraction(value) + step) for step in (1, -1)]
            if re.fullmatch(r"[1-9]\d*(/\d+)?", value)
            else []
        )
        return [*near, value + "1", "", None]
    if isinstance(value, int):
        return [value + 1, value - 1, str(value), None, *([0] if value else [])]
    return [None, 1] if value else [1, 10**9, "", {}]


def mutants(data: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Copies of a certificate with one value changed, removed or added, and the path of it."""
    for path, value in leaves(data):
        for other in [*changed(value), leaves]:
            edited = copy.deepcopy(data)
            within: Any = edited
            for key in path[:-1]:
                within = within[key]
            if other is leaves:
                del within[path[-1]]
            else:
                within[path[-1]] = other
            yield path, edited
    yield ("more",), {**copy.deepcopy(data), "more": 1}


@pytest.mark.parametrize(
    ("layer", "procs", "memory"),
    [
        (Layer.conv2d((2, 4, 6, 6), 4, 3, padding=1), 4, None),
        (Layer.matmul(64, 32, 48), 8, "6KB"),
        (Layer.conv1d((2, 3, 9), 4, 2), 2, None),
    ],
)
@pytest.mark.one_in(3)
def test_every_changed_field_is_refused(tmp_path: Path, layer: Layer, procs: int, memory: str | None) -> None:
    data = plan_certificate(plan_layer(layer, procs, memory))
    file = tmp_path / "c.json"
    file.write_text(json.dumps(data))
    check_file(str(file))
    count = 0
    for path, edited in mutants(data):
        file.write_text(json.dumps(edited))
        with pytest.raises((CheckError, InputError)):
            check_file(str(file))
        assert path
        count += 1
    assert count > 100


def test_a_new_digest_makes_no_false_claim_true(tmp_path: Path) -> None:
    data = plan_certificate(plan_layer(Layer.conv2d((2, 4, 6, 6), 4, 3, padding=1), 4))
    file, accepted = tmp_path / "c.json", set()
    for path, edited in mutants(data):
        file.write_text(json.dumps({**edited, "digest": digest(edited)}))
        try:
            claimed = check_file(str(file))[-1]
        except (CheckError, InputError):
            continue
        accepted.add(path[0])
        assert claimed == f"so {data['claim']}"
    assert accepted <= {"constants", "digest"}  # another proof of the same claim; the same digest


def test_a_certificate_is_about_a_plan(plan: Plan) -> None:
    data = plan_certificate(plan)
    assert plan.id in check_plan(data, plan)
    for other in (plan_layer("examples/conv.yaml", 32), plan_layer("examples/conv.yaml", 64, "16MiB")):
        with pytest.raises(CheckError, match="is not about plan"):
            check_plan(data, other)


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
        ('{"schema": "synth.certificate/1"}', "is not a certificate"),
        ('{"schema": "synth.certificate/2"}', "problem is not an object"),
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
        "import hashlib",
        "import itertools",
        "import json",
        "import math",
        "import re",
        "from collections.abc import Mapping",
        "from fractions import Fraction",
        "from typing import Any",
        "from synth.base.errors import CheckError, InputError",
        "from synth.base.user_files import MOST_JSON, read_text",
        "from synth.bounds.assumptions import claim",
        "from synth.layer.layer import Layer",
    ]
    assert "math.sqrt" not in source


def test_resident_weights_have_several_owners_and_no_bound(plan: Plan) -> None:
    resident = dataclasses.replace(plan, resident=frozenset({"Ker"}))
    assert (resident.bound.words, resident.surface_bound, resident.fair_bound.words) == (0.0, 0.0, 0.0)
    with pytest.raises(InfeasibleError, match="one owner each"):
        plan_certificate(resident)


def test_training_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="one pass"):
        plan_certificate(plan_layer("examples/small.yaml", 4, pass_="training"))
