"""The tables of docs/literature.md are what the functions compute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from synth.base.units import show_words
from synth.bounds.closed_form import Eq4, best
from synth.bounds.holder_brascamp_lieb import hbl_constant, weighted_work
from synth.bounds.universal import matmul_memory_independent, sequential_bound, universal_bound
from synth.layer.layer import Layer, load_layer
from synth.planning.derive import plan

PAGE = Path("docs/literature.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("procs", [3, 36, 512])
def test_matrix_products(procs: int) -> None:
    made = plan(Layer.matmul(9600, 2400, 600), procs)
    theirs = matmul_memory_independent(9600, 2400, 600, procs)
    assert universal_bound(made.nest, procs).words == pytest.approx(theirs, rel=1e-9)
    grid = f"{made.grid.b} × {made.grid.k} × {made.grid.c}"
    words = [show_words(each) for each in (theirs, theirs, made.words["total"])]
    assert re.search(rf"^\| {procs} \| \dD \| {' . '.join(words)} \| {grid} \|$", PAGE, re.MULTILINE)


def test_convolutions_in_one_fast_memory() -> None:
    rows = re.findall(r"^\| (conv\w+) \| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for name, memory, cells in rows:
        nest, M = load_layer(f"examples/resnet50/{name}.yaml").nest, int(memory)
        plain = sequential_bound(nest.real_work, (nest.strides / nest.taps) ** 0.5, M)
        found = (sequential_bound(weighted_work(nest, 1), 1.0, M), plain, nest.total_words)
        assert cells.split(" | ") == [show_words(each) for each in (*found, best(Eq4.of(nest, 1, M)).cost)]
        assert found[0] > plain
    assert round(hbl_constant(7, 3) ** 2, 2) == float(re.findall(r"C\(7, 3\)² = ([\d.]+) in", PAGE)[0])
