"""The gap: its parts add up; on real layers it stays where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gap import study
from synth.analysis.sweep import Sweep
from synth.bounds.regimes import split_gap
from synth.layer.layer import load_layer


def test_parts_add_up() -> None:
    gap = split_gap(10.0, 8.0, 7.0, 5.0)
    assert (gap.integer, gap.halo, gap.bound, gap.total) == (2.0, 1.0, 2.0, 5.0)


def test_parts_of_a_real_layer() -> None:
    point = Sweep(load_layer("examples/resnet50/conv1_7x7.yaml").nest).point(1024, None).received
    assert point.gap is not None
    assert point.plan is not None
    assert point.gap.total == pytest.approx(point.plan.words - point.bound)
    assert min(point.gap.integer, point.gap.halo, point.gap.bound) > 0


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
    assert f"7×7 images with 3×3 kernels: {share} % of" in Path("docs/gap.md").read_text(encoding="utf-8")
