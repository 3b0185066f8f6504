"""The gap between a plan and its bound: its parts, and its size on real layers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.gap import decoders, gap_of, heads, kinds, representative, rows, study, summary
from synth.analysis.sweep import Sweep
from synth.bounds.geometric_program import relax_received
from synth.bounds.universal import universal_bound
from synth.layer.layer import Layer, load_layer
from synth.schedule.distribution import Distribution
from synth.search.branch_and_bound import search
from synth.search.request import Request


def test_parts_of_a_real_layer() -> None:
    """Each part is the difference between two numbers that are computed on their own."""
    nest = load_layer("examples/resnet50/conv1_7x7.yaml").nest
    gap = Sweep(nest).point(1024, None).received.gap
    assert gap is not None
    found = search(Request(nest, 1024))
    bound = universal_bound(nest, 1024, None, Distribution(nest, found.grid).most_real_work).words
    relaxed = relax_received(nest, found.grid.size).cost
    assert gap.integer == pytest.approx(found.tiling.words - relaxed, rel=1e-4)
    assert gap.halo + gap.bound == pytest.approx(relaxed - bound, rel=1e-4)
    assert min(gap.integer, gap.halo, gap.bound) > 0


@pytest.mark.parametrize("layer", [Layer.matmul(64, 64, 64), Layer.conv2d((8, 64, 8, 8), 64, 1)])
def test_a_layer_without_halo_has_no_gap_by_halos(layer: Layer) -> None:
    gap = Sweep(layer.nest).point(64, None).received.gap
    assert gap is not None
    assert gap.halo == pytest.approx(0, abs=1e-4 * layer.nest.total_words)


@pytest.mark.slow
def test_gap_of_twelve_layers_and_the_table_of_the_documentation() -> None:
    text = Path("docs/gap.md").read_text(encoding="utf-8")
    found = {}
    for padded, name in ((True, "as they are"), (False, "without padding")):
        for ratio, values in study(padded).items():
            found[name, ratio] = values
            assert f"| {name} | {ratio} | {' | '.join(f'{v:.3f}' for v in values)} |" in text
    middle, high, most = found["without padding", "Eq. 3"]
    assert middle <= 1.03
    assert high <= 1.105
    assert most <= 1.15
    assert found["as they are", "received"][0] <= 1.09


def test_multiply_adds_on_padding() -> None:
    nest = load_layer("examples/resnet50/conv5_x_3x3.yaml").nest
    share = round(100 * (1 - nest.real_work / nest.work))
    assert f"for 7×7 images and 3×3 kernels, {share} % of" in Path("docs/gap.md").read_text(encoding="utf-8")


def documented(name: str, bound: str) -> list[float]:
    """Median, 90th percentile and maximum of a row of the second table."""
    (row,) = re.findall(
        rf"^\| {re.escape(name)} \| {bound} \| (.*) \|$",
        Path("docs/gap.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return [float(cell) for cell in row.split(" | ")]


@pytest.mark.parametrize("name", ["heads", "decoders"])
def test_heads_and_decoders_are_no_worse_than_documented(name: str) -> None:
    pairs = [gap_of(layer, procs) for layer in kinds()[name] for procs in (4, 16, 64)]
    assert len(rows(name, pairs)) == 2
    for bound, values in zip(("universal", "with surface"), zip(*pairs, strict=True), strict=True):
        for found, most in zip(summary(values), documented(name, bound), strict=True):
            assert found <= most + 0.006
    assert all(surface <= universal for universal, surface in pairs)
    assert len(heads()) == len(decoders()) == 5


@pytest.mark.slow
def test_the_second_table_of_the_documentation() -> None:
    for row in representative():
        name, bound, *cells = row.strip("| ").split(" | ")
        for found, most in zip(map(float, cells), documented(name, bound), strict=True):
            assert found <= most + 0.006
