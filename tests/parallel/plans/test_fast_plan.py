"""Plans for time: measured numbers that are kept, and whole weights on every rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool, exact, pool_of

from synth.base.errors import UsageError
from synth.machine.file import parse_machine
from synth.machine.measured import machine_text
from synth.parallel.fast_plan import margin_of, objective_of
from synth.parallel.machine_here import NEEDED, _write, kept

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "fast_plan_ranks.py", 4)


@pytest.mark.parametrize(
    ("axes", "words", "called", "halos"),  # layers in one call of torch, and those of them with a halo
    [("b", 216, 5, 0), ("bhw", 216, 5, 0), ("hw", 216, 1, 1), ("ck", 216 // 4, 1, 0)],
)
@pytest.mark.one_in(4)
def test_copies_of_weights_train_as_in_one_process(
    ranks: RankPool, axes: str, words: int, called: int, halos: int
) -> None:
    found = ranks.call("copied", axes)
    assert [each.pop("called") for each in found] == [called] * 4
    assert [each.pop("halos") for each in found] == [halos] * 4
    assert [each.pop("words") for each in found] == [words] * 4
    assert not any(each.pop("moved") for each in found)
    exact(found, "loss", "state")


def test_a_plan_file_with_whole_weights_trains_as_in_one_process(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.call("from_file", str(tmp_path))
    assert {each.pop("whole") for each in found} == {5}
    assert len({each.pop("held") for each in found}) == 1
    assert not any(each.pop("moved") for each in found)
    exact(found, "loss", "state")


@pytest.mark.slow
def test_the_machine_is_measured_once(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.call("fastest", str(tmp_path))
    exact([each["errors"] for each in found], "loss", "state", "applied")
    assert not any(each["moved"] for each in found)
    (name,) = found[0]["kept"]
    assert name.startswith("synth/")
    assert "gloo_cpu_float64_4-ranks" in name
    assert all(each["numbers"] == found[0]["numbers"] for each in found)
    machine = parse_machine(machine_text(found[0]["numbers"], "here"), "here")
    assert machine.compute.rate > 1e6
    assert "measuring this machine on 4 ranks" in ranks.said()


def test_a_local_normalization_of_whole_samples_is_that_of_torch(ranks: RankPool) -> None:
    exact(ranks.call("normalized", (8, 3, 5, 5)), "error")


def test_the_objective_is_time_or_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNTH_OBJECTIVE")
    assert objective_of(None, "training") == "time"
    assert objective_of(None, "inference") == "words"
    monkeypatch.setenv("SYNTH_OBJECTIVE", "words")
    assert objective_of(None, "training") == "words"
    assert objective_of("time", "inference") == "time"
    with pytest.raises(UsageError, match="objective is 'speed'; it must be time or words"):
        objective_of("speed", "training")
    monkeypatch.setenv("SYNTH_OBJECTIVE", "fast")
    with pytest.raises(UsageError, match="environment variable SYNTH_OBJECTIVE is 'fast'"):
        objective_of(None, "training")


@pytest.mark.parametrize(
    ("errors", "margin"),
    [
        ({}, 0.05),
        ({"kernels": 0.01, "rate": 0.5}, 0.05),
        ({"kernels": 0.08, "collectives of node": 0.11}, 0.11),
        ({"kernels": 9.99}, 0.15),
    ],
)
def test_the_margin_is_what_fits_err_by(errors: dict[str, float], margin: float) -> None:
    assert margin_of(errors) == margin


FACTS = {"host": "here", "threads": "1-threads"}
NUMBERS: dict[str, Any] = {**dict.fromkeys(NEEDED, 1.0), "others": 0.0}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"ranks": 4}', "\x00", '{"schema": "synth.measured/1"}', "[" * 5000]
)
def test_a_damaged_file_is_measured_anew(text: str, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert kept(path, FACTS) == (None, "")
    path.write_text(text)
    assert kept(path, FACTS) == (None, "are damaged or of another version")
    path.unlink()
    path.mkdir()
    assert kept(path, FACTS)[1].startswith("cannot be read")


def test_numbers_of_another_machine_or_of_long_ago_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "here.json", time.time()
    _write(path, FACTS, NUMBERS)
    assert kept(path, FACTS) == (NUMBERS, "")
    other = {**FACTS, "threads": "4-threads"}
    assert kept(path, other)[1] == "are of another machine (its threads: 1-threads, here 4-threads)"
    path.write_text(path.read_text().replace('"call": 1.0', '"call": 2.0'))
    assert kept(path, FACTS)[1] == "are damaged or of another version"
    for others, age, said in (
        (0.0, 3600 * 24 * 29, ""),
        (0.0, 3600 * 24 * 31, "are 31 days old"),
        (0.0, -3600 * 48, "have a later date than today"),
        (0.5, 60, ""),
        (0.5, 3600 * 2, "are 2 hours old, measured while others used 50% of the processors"),
    ):
        _write(path, FACTS, {**NUMBERS, "others": others})
        monkeypatch.setattr(time, "time", lambda age=age: now + age)
        found, why = kept(path, FACTS)
        monkeypatch.undo()
        assert (why, found is None) == (said, bool(said))
