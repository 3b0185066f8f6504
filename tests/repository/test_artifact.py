"""What papers use: the checker of certificates without synth, ARTIFACT.md, CITATION.cff."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from scripts import loaded
from seeded_problems import random_plan

from synth.analysis.certificate import plan_certificate
from synth.base.errors import CheckError, InputError
from synth.bounds import certificate_check
from synth.bounds.holder_brascamp_lieb import hbl_constant
from synth.layer.layer import Layer
from synth.planning.derive import plan

Kind = type[Exception] | tuple[type[Exception], ...]
ROOT = Path(__file__).parents[2]
CHECKER = ROOT / "artifact/check_certificate.py"


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return loaded(CHECKER)


def test_it_runs_without_synth(tmp_path: Path) -> None:
    """`-I -S`: neither this folder nor any installed package can be imported."""
    right, wrong, other = (tmp_path / name for name in ("right.json", "wrong.json", "other.json"))
    data = plan_certificate(plan("examples/conv.yaml", 64))
    right.write_text(json.dumps(data))
    wrong.write_text(json.dumps({**data, "words": "200000"}))
    other.write_text("[]")
    for paths, code, said in (
        ([right], 0, "proved: a process receives at least 146400883/1000 words"),
        ([right, wrong], 1, "WRONG: it is not true: 6: 146400.88"),
        ([right, other], 2, "other.json: not a certificate"),
        ([], 2, "name certificates"),
    ):
        command = [sys.executable, "-I", "-S", str(CHECKER), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == code
        assert said in done.stdout + done.stderr


def test_it_imports_the_standard_library_alone() -> None:
    lines = CHECKER.read_text(encoding="utf-8").splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= {"__future__", *sys.stdlib_module_names}
    assert {"json", "fractions"} <= imported


def test_it_accepts_the_certificates_of_random_plans(checker: ModuleType) -> None:
    rng = random.Random(11)
    for _ in range(20):
        data = plan_certificate(random_plan(rng))
        assert checker.check(data) == data["claim"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "artifact/certificates").glob("*.json")), ids=lambda path: path.stem
)
def test_certificates_of_the_repository_are_those_of_plans(checker: ModuleType, path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    network, layer, procs = path.stem.split("-")
    now = plan_certificate(plan(ROOT / f"examples/{network}/{layer}.yaml", int(procs)))
    assert checker.check(data) == data["claim"] == now["claim"]
    assert data["problem"] == now["problem"]


def test_it_accepts_transposed_layers_contractions_and_segments(checker: ModuleType) -> None:
    layer = Layer.conv2d([4, 16, 7, 7], 8, [4, 4], stride=2, padding=1, transposed=True)
    checker.check(plan_certificate(plan(layer, 4)))
    contraction = plan(Layer.einsum("bij,bjk->bik", {"b": 8, "i": 64, "j": 32, "k": 48}), 64)
    data = plan_certificate(contraction)
    assert float(Fraction(data["words"])) == pytest.approx(contraction.bound.words, abs=2e-3)
    assert contraction.bound.words > 0
    checker.check(data)
    with pytest.raises(checker.Wrong, match="each index"):
        checker.contraction({"equation": "bij,bjk->bi", "index_extents": {"b": 8, "i": 64, "j": 32, "k": 48}})
    whole = plan("examples/conv.yaml", 64)
    tight = plan_certificate(type(whole)(whole.layer, 64, whole.grid, whole.first, limit_bytes=32 * 1024))
    assert tight["segments"] > 1
    checker.check(tight)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": {"Out": 1605632, "In": 1605632, "Ker": 589825}},
        {"multiply_adds": 3355443201},
        {"most_work": 52428799},
        {"procs": 65},
        {"segments": 2},
        {"nu": "4390249"},
        {"constants": []},
        {"memory_words": 100},
        {"claim": "a process receives at least 1 word"},
        {"digest": "0000000000000000"},
        {"more": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_field_is_refused(checker: ModuleType, change: dict[str, Any]) -> None:
    data = {**plan_certificate(plan("examples/conv.yaml", 64)), **change}
    if "digest" not in change:
        data["digest"] = certificate_check.digest(data)
    assert refused(checker.check, data, checker.Wrong)
    assert refused(certificate_check.check, data, (CheckError, KeyError))


@pytest.mark.parametrize(
    "change",
    [
        {"extents": {"b": 1}},
        {"dtype": "float8"},
        {"groups": True},
        {"groups": 1.0},
        {"input": [32, 128, 28.0, 28]},
        {"padding": [True, 1]},
        {"padding": [[1, 1.0], 1]},
        {"kernel": [3, "3"]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_field_of_the_layer_that_proves_nothing_is_checked_too(
    checker: ModuleType, change: dict[str, Any], tmp_path: Path
) -> None:
    data = plan_certificate(plan("examples/conv.yaml", 64))
    data["problem"] = {**data["problem"], **change}
    data["digest"] = certificate_check.digest(data)
    assert refused(checker.check, data, checker.Wrong)
    (tmp_path / "bound.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"bound\.json: problem"):
        certificate_check.check_file(str(tmp_path / "bound.json"))


@pytest.mark.parametrize("key", ["multiply_adds", "sizes"])
def test_a_count_is_a_whole_number(checker: ModuleType, key: str) -> None:
    data = plan_certificate(plan("examples/conv.yaml", 64))
    given = data[key]
    data[key] = {name: float(n) for name, n in given.items()} if key == "sizes" else float(given)
    data["digest"] = certificate_check.digest(data)
    assert refused(checker.check, data, checker.Wrong)
    assert refused(certificate_check.check, data, CheckError)


def test_a_changed_extent_of_a_contraction_is_refused(checker: ModuleType) -> None:
    layers = [
        Layer.einsum("bij,bjk->bik", {"b": 8, "i": 64, "j": 32, "k": 48}),
        Layer.matmul(64, 32, 48),
        Layer.conv1d((2, 4, 9), 4, 3, padding=[[1, 2]], groups=2),
        Layer.conv2d([4, 16, 7, 7], 8, [4, 4], stride=2, padding=1, transposed=True),
    ]
    for layer in layers:
        problem = layer.to_json()
        assert checker.same(problem, checker.whole_problem(problem))
        for key in problem["extents"]:
            other = {**problem, "extents": {**problem["extents"], key: 7919}}
            assert not checker.same(other, checker.whole_problem(other))


def refused(check: Callable[[dict[str, Any]], object], data: dict[str, Any], kind: Kind) -> bool:
    """Whether a checker finds a false step."""
    try:
        check(data)
    except kind:
        return True
    return False


@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("outputs", [3, 4, 14, 56])
def test_constants_are_proved_just_above_their_values_and_not_below(
    checker: ModuleType, outputs: int, taps: int
) -> None:
    square = Fraction(hbl_constant(outputs, taps) ** 2)
    assert checker.proved(outputs, taps, square * (1 + Fraction(1, 10**7)))
    assert not checker.proved(outputs, taps, square * (1 - Fraction(1, 10**6)))


def test_rows_of_the_artifact_are_run_and_compared(tmp_path: Path) -> None:
    runner = loaded(ROOT / "artifact/run.py")
    short = runner.rows()
    assert len(short) == 12
    assert all(row.claim and row.commands for row in short)
    first, second = next(row.commands for row in short if len(row.commands) == 2)
    assert (first.split()[1], second.split()[1]) == ("plan", "simulate")
    row = runner.Row("", ["python -c 'print(1)'", "python -c 'print(2,   3)'"], "2 3")
    assert runner.failure(row) == ""
    assert "it printed 2 3" in runner.failure(row._replace(figure="2 4"))
    assert "ended with 1" in runner.failure(row._replace(commands=["python -c 1/0"]))


@pytest.mark.slow
@pytest.mark.ranks
def test_the_short_rows_of_the_artifact() -> None:
    assert loaded(ROOT / "artifact/run.py").main([]) == 0


def test_the_citation_is_complete() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == project["version"]
