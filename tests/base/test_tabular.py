"""Results as rows, CSV text and pandas frames."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import synth
from synth.base.errors import MissingExtraError, UsageError
from synth.base.tabular import Tabular, flat

NETWORK = "examples/networks/tutorial.yaml"


class Table(Tabular):
    """A table of two rows with different columns."""

    def records(self) -> list[dict[str, Any]]:
        return [{"a": 1, "b": None}, {"a": 2, "c": "x, y"}]


def test_csv_has_a_column_for_every_key_and_nothing_where_a_row_has_none() -> None:
    assert Table().to_csv() == 'a,b,c\n1,,\n2,,"x, y"\n'


def test_csv_is_written_to_a_path(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for each in (path, str(path)):
        assert Table().to_csv(each) == path.read_text() == Table().to_csv()
    with pytest.raises(UsageError, match="nowhere"):
        Table().to_csv(tmp_path / "nowhere/table.csv")


def test_json_data_as_one_row() -> None:
    data = {"grid": {"b": 4, "k": 1, "c": 2}, "words": {"in": 3, "none": None}, "order": ["b", "c"], "n": 1.5}
    assert flat(data) == {"grid": "b=4 c=2", "words.in": 3, "words.none": None, "order": "b c", "n": 1.5}
    assert flat({"grid": None})["grid"] is None
    assert flat({"grid": {"b": 1}})["grid"] == "1"


def test_results_are_tables_of_their_numbers() -> None:
    study = synth.lower_bounds("examples/small.yaml", [2, 4], relaxations=False)
    network = synth.plan(NETWORK, 4)
    predicted = synth.predict(NETWORK, 4, "a100")
    one = synth.predict(NETWORK, 4, "a100", strategy="data")
    assert isinstance(network, synth.NetworkPlan)
    assert isinstance(one, synth.Prediction)
    assert isinstance(predicted, synth.Comparison)
    assert [row["procs"] for row in study.records()] == [2, 4]
    layers = network.to_json()["layers"]
    assert [row["name"] for row in network.records()] == [layer["name"] for layer in layers]
    assert {row["strategy"] for row in predicted.records()} >= {"plan", "data", "pipeline"}
    assert sum(row["forward"] for row in one.records()) == pytest.approx(one.total.forward)
    tables: list[Tabular] = [study, network, predicted, one]
    for each in tables:
        rows = list(csv.DictReader(io.StringIO(each.to_csv())))
        assert len(rows) == len(each.records())
        assert not any("{" in text for row in rows for text in row.values())


def test_a_frame_has_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert Table().to_pandas() == Table().records()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        Table().to_pandas()
