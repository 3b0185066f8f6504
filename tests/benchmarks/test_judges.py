"""A selection of torch's own modules and operators between planned layers on 4 ranks, beside one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from effort import tried
from processes import Processes

from benchmarks.judges import cuts
from benchmarks.judges.__main__ import missing, repeated
from benchmarks.judges.cases import (
    CRASH,
    EQUAL,
    MISCOUNTED,
    REFUSED,
    VOID,
    WRONG,
    Case,
    Outcome,
    store,
    stored,
    worst,
)
from benchmarks.judges.grids import layers
from benchmarks.judges.one_case import Comparison, Right, largest
from benchmarks.judges.selection import Selection, exists
from benchmarks.judges.table import by_name, expected_failures, page

EVERY = tried(720, 180)  # of so many cases one is run
LEAST = tried(10, 40)  # cases that are equal


def run(processes: Processes, results: Path, *flags: str, seconds: float = 280) -> str:
    """What the command prints; it must end well."""
    command = [sys.executable, "-m", "benchmarks.judges", "--results", str(results), *flags]
    started = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said, _ = started.communicate(timeout=seconds)
    assert started.returncode == 0, said
    return str(said)


@pytest.mark.ranks
def test_a_selection_is_equal_to_one_process(processes: Processes, tmp_path: Path) -> None:
    results = tmp_path / "judges.jsonl"
    said = run(processes, results, "--every", str(EVERY), "--limit", "40")
    done = {str(case): outcome for case, outcome in stored(results).items()}
    assert {name: outcome.verdict for name, outcome in done.items() if outcome.verdict != EQUAL} == {}, said
    assert len(done) >= LEAST


@pytest.mark.ranks
@pytest.mark.slow
def test_what_goes_wrong_on_ranks_becomes_an_outcome(processes: Processes) -> None:
    script = Path(__file__).with_name("judge_pool_ranks.py")
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    started = processes.start([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True)
    said, _ = started.communicate(timeout=120)
    found: dict[str, Any] = json.loads(said)
    assert found["void"] is None
    assert (found["refused"]["verdict"], found["refused"]["why"]) == (REFUSED, "no")
    assert found["refused by one"]["verdict"] == CRASH
    assert found["refused by one"]["why"].startswith("ranks differ: rank 0: equal || rank 1: refused")
    assert found["hangs"]["verdict"] == CRASH
    assert "rank 1 hangs in " in found["hangs"]["why"]
    assert (found["wrong on one"]["verdict"], found["wrong on one"]["seconds"]) == (WRONG, 2.0)
    assert "rank 1 ended with code 3" in found["ends"]["why"]
    assert (found["crashes"]["verdict"], found["crashes"]["why"]) == (CRASH, "KeyError: 1")
    assert found["equal"]["verdict"] == EQUAL  # the ranks start anew after each of these


def test_a_run_goes_on_and_repeats(tmp_path: Path) -> None:
    """What has an outcome is not run again, but for the verdicts that are asked for."""
    results, told = tmp_path / "judges.jsonl", Outcome(WRONG, "output 0 1 off")
    case = Case("layers", "groups", 0, "float64", layers()["groups"][0].cut, after=False)
    store(results, case, Outcome(EQUAL))
    store(results, case, told)
    assert {each: replace(found, commit="") for each, found in stored(results).items()} == {case: told}
    asked = Selection(["layers"], ["groups"])
    assert case in asked.cases("layers", "groups", "float64")
    assert case not in missing(asked, stored(results))
    assert case in missing(asked, {})
    assert repeated(asked, stored(results), [WRONG]) == [case]
    assert repeated(asked, stored(results), [CRASH]) == []
    assert repeated(Selection(["modules"]), stored(results), [WRONG]) == []
    store(results, case, Outcome(VOID))
    assert stored(results) == {}


def test_cases_of_samples_that_are_gone_are_known() -> None:
    case = Case("layers", "groups", 0, "float64", "w4")
    assert exists(case)
    assert exists(replace(case, base="operators", name="add"))
    assert not exists(replace(case, sample=1000))
    assert not exists(replace(case, base="operators", name="empty_like"))  # gives memory as it is
    assert not exists(replace(case, base="modules", name="nn.Gone"))


def test_a_case_is_named_by_its_text() -> None:
    case = Case("layers", "same extents", 3, "bfloat16", "h4 w2", after=False, training=False, ranks=8)
    assert str(case) == "layers/same extents/3/bfloat16/h4 w2/buffer/pos/evaluation/8 ranks"
    assert Case.read(str(case)) == case
    assert Case.read("operators/add/0/float64/free/input/in place/after").call == "in place"


def test_every_cut_divides_another_axis() -> None:
    extents = cuts.extents_of((4, 4, 8, 6), 4, 5)
    assert extents == {"b": 4, "c": 4, "k": 5, "h": 8, "w": 6}
    assert cuts.grid("batch", extents, 0) == {"b": 4}
    assert cuts.grid("channels", extents, 0) == {"c": 4}
    assert cuts.grid("filters", {**extents, "k": 3}, 0) == {"k": 2}
    assert cuts.grid("filters", {**extents, "k": 1}, 0) is None
    assert [cuts.grid("spatial", extents, turn) for turn in range(2)] == [{"w": 4}, {"h": 4}]
    assert cuts.grid("spatial", {"b": 4, "c": 4, "k": 4}, 0) is None
    mixed = [cuts.grid("mixed", extents, turn) for turn in range(len(cuts.MIXED))]
    assert all(each is not None and list(each.values()) == [2, 2] for each in mixed)
    assert cuts.grid("free", {}, 0) == {}
    assert cuts.read(cuts.shown({"h": 2, "w": 4})) == {"h": 2, "w": 4}


def test_samples_of_every_dtype_come_between_layers() -> None:
    """An operator of floating-point numbers, one of integers, and one that draws."""
    selection = Selection(["operators"], cuts=["channels"])
    for name in ("add", "bitwise_and", "rand_like"):
        (case,) = selection.cases("operators", name, "float64")
        right = Right(case)
        assert right.random == (name == "rand_like")
        assert right.trains == (name != "bitwise_and")
    assert selection.cases("operators", "zeros", "float64") == []  # it takes no tensor


@pytest.mark.parametrize("rounded", [False, True])
def test_differences_are_seen(rounded: bool) -> None:
    dtype = torch.bfloat16 if rounded else torch.float64
    right = torch.linspace(-1, 2, 7, dtype=dtype)
    compare = Comparison(rounded, dict)
    compare("equal", right.clone(), right, right.double())
    compare("rounded", right * (1 + (1e-2 if rounded else 1e-10)), right, right.double())
    assert compare.found == {}
    compare("off", right * (1 + (4e-2 if rounded else 1e-7)), right, right.double())
    compare("shape", right[None], right)
    compare("dtype", right.float(), right)
    compare("nan", torch.where(right > 1, torch.nan, right), right)
    compare("one word", torch.where(right > 1, 0, right), right)
    assert compare.found.keys() == {"off", "shape", "dtype", "nan", "one word"}


def test_rounding_hides_no_wrong_gradient() -> None:
    """Words that cancel have gradients of rounding alone; others have some per cent of it."""
    right = Right(Case.read("operators/softmax/1/bfloat16/spatial/buffer/pos/after"))
    compare = Comparison(rounded=True, noise=lambda: right.noise)
    shares = []
    for name, values in right.values().items():
        share = right.noise[name] / largest(values)
        shares.append(share)
        values = values.detach()
        compare(name, values, values)
        if share < 0.05:
            compare(name, values * 1.3, values, values.double())
            assert name in compare.found
            compare.found.clear()
    assert max(shares) > 0.3
    assert min(shares) < 0.05
    assert not compare.found


def test_the_page_has_what_is_not_equal() -> None:
    case = Case("operators", "add", 0, "float64", "free")
    sentence = "UsageError: some sentence of (2, 3) | more (model.py:12)"
    done = {
        case: Outcome(EQUAL),
        replace(case, sample=1): Outcome(WRONG, "output 0 0.5 off"),
        replace(case, name="cummax"): Outcome(REFUSED, sentence),
        replace(case, base="modules", name="nn.Linear"): Outcome(EQUAL),
    }
    layer = Case("layers", "groups", 0, "float64", "w4")
    grids = {layer: Outcome(EQUAL), replace(layer, sample=1, ranks=8): Outcome(WRONG)}
    assert {key[2]: each.verdict for key, each in by_name(done).items()} == {
        "add": WRONG,
        "cummax": REFUSED,
        "nn.Linear": EQUAL,
    }
    text = page("# Head\n\n## Cases\n\nstale table", {**done, **grids})
    assert text.startswith("# Head\n\n## Cases\n\n| |")
    assert "stale table" not in text
    assert "| modules | float64 | 1 | 0 | 0 | 0 | 0 | 1 | 1 |" in text
    assert "| operators | float64 | 1 | 1 | 0 | 0 | 1 | 2 | 0 |" in text
    assert "| cummax (operators, float64) | some sentence of (...) \\| more |" in text
    assert "| add (operators, float64) | output 0 0.5 off |" in text
    assert "| refused | 1 | cummax |" in text
    assert "| groups | 1 of 1 | 0 of 1 |" in text
    assert {"cummax", "nn.functional.conv2d"} <= expected_failures()
    assert worst([Outcome(MISCOUNTED), Outcome(REFUSED), Outcome(EQUAL)]).verdict == MISCOUNTED
