"""The table of printed times: its networks, the numbers in the documentation, and one row computed anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.papers.printed_times import Row, rows, wan_decoder

PAGE = Path(__file__).resolve().parents[2] / "docs/published.md"


def shown() -> list[list[str]]:
    """The cells of the page's table."""
    lines = [
        line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line.count("|") == 10
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_decoders_have_the_parameters_and_operations_that_the_page_names() -> None:
    for version, parameters, tflop in (("2.1", 73.6, 633), ("2.2", 557, 1378)):
        network = wan_decoder(version, 81, 1280, 720)
        assert network.parameters / 1e6 == pytest.approx(parameters, rel=1e-3)
        assert 2 * sum(node.operations for node in network.planned) / 1e12 == pytest.approx(tflop, rel=1e-3)
        last = list(network.nodes.values())[-1]
        channels, shrink = (3, 1) if version == "2.1" else (12, 2)
        assert last.shape == (1, channels, 81, 1280 // shrink, 720 // shrink)


def test_the_page_has_every_row() -> None:
    made = list(rows())
    assert [(row.group, row.machine, str(row.procs), f"{row.printed:.3f}") for row in made] == [
        (cells[0], cells[2], cells[3], cells[4]) for cells in shown()
    ]


def check(row: Row, cells: Sequence[str]) -> None:
    """The page says what the model predicts."""
    found = row.predicted()
    assert float(cells[5]) == pytest.approx(found, abs=6e-4), row  # as it is rounded
    assert int(cells[6].rstrip("%")) == pytest.approx(100 * (found / row.printed - 1), abs=0.6), row


def test_a_row_is_predicted_as_the_page_says() -> None:
    pairs = zip(rows(), shown(), strict=True)
    row, cells = next((row, cells) for row, cells in pairs if row.group == "wan21-h200" and row.procs == 1)
    check(row, cells)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_rows_are_predicted_as_the_page_says() -> None:
    for row, cells in zip(rows(), shown(), strict=True):
        check(row, cells)
