"""The checker that is proved in Coq accepts what is true of a layer, to the last word, and nothing false."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from seeded_problems import random_layer

import synth
from synth.analysis.certificate import plan_certificate
from synth.base.errors import CheckError, InfeasibleError, InputError, SynthError, UsageError
from synth.bounds import proved_check
from synth.bounds.assumptions import claim
from synth.bounds.certificate import certificate, least_constant
from synth.bounds.certificate_check import check, digest
from synth.bounds.constant_proof import coefficients, constant_proof
from synth.bounds.proved_check import prove, verdicts
from synth.cli.main import main
from synth.layer.layer import Layer, load_layer
from synth.search.strategies import STRATEGIES, Strategy

LAYERS = [
    path
    for path in sorted(Path("examples").rglob("*.yaml"))
    if path.parent.name not in ("networks", "schemas")
]
MUTANTS = 500
NUMBERS = (
    "procs",
    "most_work",
    "multiply_adds",
    "segments",
    "memory_words",
    "sizes",
    "nu",
    "x",
    "multipliers",
    "words",
)
NAMES = (
    *NUMBERS,
    "square",
    "weight",
    "outputs",
    "taps",
    "input",
    "out_channels",
    "kernel",
    "stride",
    "padding",
    "dilation",
)
needs_coq = pytest.mark.skipif(
    shutil.which("coqc") is None, reason=f"coq is not installed: apt-get install {proved_check.PACKAGES}"
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs that `make proof-quick` has compiled from the same files are not compiled again."""
    compiled = Path("build/proof")
    for source in {*Path("proof").glob("*.v")} - {Path("proof/Assumptions.v")}:
        copy, done = compiled / source.name, (compiled / source.name).with_suffix(".vo")
        if (
            not done.exists()
            or copy.read_bytes() != source.read_bytes()
            or done.stat().st_mtime < copy.stat().st_mtime
        ):
            return
    monkeypatch.setattr(proved_check, "_compiled", compiled.resolve)


def made(layer: Layer, procs: int, limit_words: int | None = None, simple: bool = True) -> dict[str, Any]:
    """A certificate at equal work."""
    work = -(-layer.nest.real_work // procs)
    return certificate(layer, procs, limit_words=limit_words, most_work=work, simple=simple)


def limits(layer: Layer, procs: int) -> tuple[int | None, ...]:
    """No memory limit, one of twice the owned words, and one so small that work is cut into segments."""
    owned = sum(layer.nest.words.values()) // procs
    return None, 2 * owned, owned // 8 + 8


def edited(data: dict[str, Any], **change: Any) -> dict[str, Any]:
    """A certificate with changed numbers, whose claim and digest fit them."""
    new = {**copy.deepcopy(data), **change}
    new["claim"] = claim(new["words"], new["procs"], new["most_work"], new["memory_words"])
    return {**new, "digest": digest(new)}


def true(data: dict[str, Any]) -> bool:
    """Whether `check`, which is another derivation, accepts a certificate."""
    try:
        check(data)
    except (CheckError, ValueError, ArithmeticError):
        return False
    return True


def raised(data: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A number of a certificate that was changed, and the changed certificate."""
    name = rng.choice(NAMES)
    step, factor = (
        rng.choice((1, -1, 2, 1000)),
        Fraction(rng.choice((1, 3, 5, 999)), rng.choice((2, 4, 1000))),
    )
    if name in ("procs", "most_work", "multiply_adds", "segments"):
        return name, edited(data, **{name: max(1, data[name] + step)})
    if name == "memory_words":
        return name, edited(data, memory_words=max(1, (data[name] or 0) + step))
    if name in ("nu", "words"):
        return name, edited(data, **{name: str(Fraction(data[name]) * factor)})
    if name in ("sizes", "x", "multipliers"):
        tensor = rng.choice(("Out", "In", "Ker"))
        value = data[name][tensor]
        other = value + step if name == "sizes" else str(Fraction(value) * factor + (name == "multipliers"))
        return name, edited(data, **{name: {**data[name], tensor: other}})
    if name in ("square", "weight", "outputs", "taps"):
        constants = copy.deepcopy(data["constants"])
        if constants:
            each = rng.choice(constants)
            value = each[name]
            each[name] = str(Fraction(value) * factor) if isinstance(value, str) else max(1, value + step)
        return name, edited(data, constants=constants)
    layer = Layer.from_json(data["problem"], "the certificate")
    value = getattr(layer, name)
    if isinstance(value, tuple) and value:
        place = rng.randrange(len(value))
        other = (*value[:place], max(0, value[place] + step), *value[place + 1 :])
    else:
        other = value + layer.groups if isinstance(value, int) else value
    try:
        return name, edited(data, problem=dataclasses.replace(layer, **{name: other}).to_json())
    except SynthError:
        return name, data


@needs_coq
@pytest.mark.usefixtures("built")
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("simple", [False, True], ids=["best constants", "simple constants"])
def test_certificates_of_all_examples_are_accepted_up_to_the_last_word(simple: bool) -> None:
    found, wanted = [], []
    for path in LAYERS:
        layer = load_layer(str(path))
        for procs in (4, 64, 1000):
            for limit_words in limits(layer, procs):
                data = made(layer, procs, limit_words, simple)
                top = Fraction(data["words"])
                found += [edited(data, words=str(math.floor(top) + more)) for more in (0, 1)]
                wanted += [True, False]
    assert len(found) > 2 * 9 * 60
    assert verdicts(found) == wanted


@needs_coq
@pytest.mark.usefixtures("built")
@pytest.mark.slow
def test_random_layers_are_counted_as_coq_counts_them() -> None:
    """Strides, dilations, uneven padding, groups and transposed layers, with and without several segments."""
    rng, datas = random.Random(11), []
    while len(datas) < 300:
        layer, procs = random_layer(rng, 2, 9), rng.randint(1, 9)
        datas.append(made(layer, procs, rng.choice((None, rng.randint(3, 200)))))
    assert any(data["segments"] > 1 for data in datas)
    assert all(verdicts(datas))
    assert not any(verdicts(edited(data, multiply_adds=data["multiply_adds"] + 1) for data in datas))


@needs_coq
@pytest.mark.usefixtures("built")
@pytest.mark.slow
def test_changed_certificates_are_refused_when_they_are_false() -> None:
    rng, false, kept, count = random.Random(5), [], [], Counter[str]()
    bases = [
        made(load_layer("examples/conv.yaml"), 64, simple=False),
        made(load_layer("examples/grouped.yaml"), 64),
        made(load_layer("examples/resnet50/conv3_x_3x3_first.yaml"), 64, 20_000),
        made(Layer.matmul(640, 320, 480), 8, 6000),
        made(Layer.conv1d((2, 3, 40), 4, 3, dilation=2, stride=3, padding=2), 4),
    ]
    assert all(data["words"] != "0" for data in bases)
    while len(false) < MUTANTS:
        name, data = raised(rng.choice(bases), rng)
        if true(data):
            kept.append(data)
        else:
            false.append(data)
            count[name] += 1
    assert set(count) == set(NAMES)
    assert kept
    assert not any(verdicts(false))
    assert all(verdicts(kept))


@needs_coq
@pytest.mark.usefixtures("built")
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_named_strategies_receive_the_proved_bound_or_more() -> None:
    """The largest integer that the proved checker accepts, at the work of a strategy, is below its words."""
    claims, tops, ratios = [], [], []
    for layer in (Layer.matmul(96, 64, 80), load_layer("examples/conv.yaml")):
        for strategy in STRATEGIES:
            try:
                plan = synth.plan(layer, 8, strategy=strategy.name)
            except InfeasibleError:
                continue
            data = plan_certificate(plan)
            top = math.floor(Fraction(data["words"]))
            claims += [edited(data, words=str(top + more)) for more in (0, 1)]
            tops += [True, False]
            assert plan.words["total"] >= top, strategy.name
            ratios.append((strategy.name, plan.words["total"] / max(1, top)))
    assert {"2D", "2.5D", "3D"} <= {name for name, _ in ratios}
    assert min(ratio for _, ratio in ratios) < 1.5  # the bound is not far below the best of them
    assert verdicts(claims) == tops


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_plans_of_matrix_products_receive_the_closed_form_of_grid_words(strategy: Strategy) -> None:
    """What `grid_words` of proof/Strategies.v proves for a grid is what the planner counts."""
    layer = Layer.matmul(97, 65, 81)
    plan = synth.plan(layer, 12, strategy=strategy.name)
    grid, words = plan.distribution.grid, layer.nest.words
    copies = {"Out": grid.c, "In": grid.k, "Ker": grid.x}
    assert int(plan.received.total.sum()) == sum((copies[tensor] - 1) * words[tensor] for tensor in copies)


@needs_coq
@pytest.mark.slow
def test_the_command_names_the_theorem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "bound.json")
    assert main(["plan", "examples/conv.yaml", "--procs", "64", "--certify", "-o", file]) == 0
    assert main(["certify", "--proved", file]) == 0
    printed = capsys.readouterr().out
    assert "without axioms: theorems certified_forward" in printed
    assert printed.splitlines()[-1].endswith(f"{json.loads(Path(file).read_text())['words']} words or more")


def test_a_constant_that_is_too_small_is_refused_in_one_sentence() -> None:
    data = made(load_layer("examples/conv.yaml"), 64, simple=False)
    (constant,) = data["constants"]
    data["constants"] = [{**constant, "square": str(Fraction(constant["square"]) * Fraction(999, 1000))}]
    with pytest.raises(
        InputError,
        match=r"bound\.json: no proof of C\(14,3\)² <= 2\.91\d+ was found, .*--constants simple",
    ):
        prove(data, "bound.json")


@pytest.mark.parametrize(
    "shape", [(1, 1), (14, 2), (2, 7), (3, 3), (9, 3), (4, 4), (4, 50), (200, 4), (3, 300), (5, 9)]
)
def test_constants_of_certificates_have_a_proof(shape: tuple[int, int]) -> None:
    """Integers decide: z > 0 and A·z <= c·z for each form, in directions from (1, 0) to (0, 1)."""
    outputs, taps = shape
    few, many = sorted(shape)
    square, _ = least_constant(outputs, taps)
    steps = constant_proof(outputs, taps, square)
    assert steps is not None
    assert (steps == []) == (square == few)
    points = [point for point, _, _ in steps]
    if few in (3, 4):
        assert points[0][1] == 0
        assert all(p[1] * q[0] < p[0] * q[1] for p, q in itertools.pairwise(points))
    for (point, own, mixed), other in itertools.zip_longest(steps, points[1:]):
        forms = [(own, point, point)] + ([(mixed, point, other)] if other else [])
        for padded, p, q in forms:
            whole, *lags = coefficients(few != 3, p, q)
            for x in range(3, many + 3):
                sums = sum(lag * (padded[x - k] + padded[x + k]) for k, lag in enumerate(lags, start=1))
                assert padded[x] > 0
                assert sums <= (square - 1) * whole * padded[x]
    assert constant_proof(outputs, taps, square * Fraction(9, 10)) is None
    assert constant_proof(outputs, taps, Fraction(1, 2)) is None


def test_simple_constants_are_the_least_that_need_no_certificate() -> None:
    data = made(load_layer("examples/conv.yaml"), 64)
    check(data)
    assert [(each["square"], each["taps"]) for each in data["constants"]] == [("3", 3)]
    assert Fraction(data["words"]) < Fraction(
        made(load_layer("examples/conv.yaml"), 64, simple=False)["words"]
    )


def test_without_coq_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        UsageError, match=r"coqc cannot be started .*; install the Debian packages coq libcoq"
    ):
        prove(made(load_layer("examples/conv.yaml"), 64), "bound.json")


@pytest.mark.parametrize(
    ("answer", "code", "fault", "message"),
    [
        ("     = false\n     : bool\n", 1, CheckError, "the proved checker refuses this certificate"),
        ("     = true\n     : bool\nAxioms:\nA : False\n", 0, CheckError, "Coq did not accept the proof"),
        ("", 1, CheckError, r"Coq did not accept the proof \(Error: broken\)"),
    ],
)
def test_answers_of_coq(
    monkeypatch: pytest.MonkeyPatch, answer: str, code: int, fault: type[Exception], message: str
) -> None:
    done = subprocess.CompletedProcess(["coqc"], code, answer, "x\nError: broken\n")
    asked: Callable[[str], Any] = lambda text: done  # noqa: E731
    monkeypatch.setattr(proved_check, "_coq", asked)
    with pytest.raises(fault, match=message):
        prove(made(load_layer("examples/conv.yaml"), 64), "bound.json")


def test_constants_are_about_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "examples/conv.yaml", "--procs", "4", "--constants", "simple"]) == 2
    assert "--constants simple is about a certificate; add --certify" in capsys.readouterr().err
