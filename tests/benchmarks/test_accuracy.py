"""Predictions of held-out ranks do not get worse; the two sets stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.accuracy import SETS, load, nonnegative, published, report, score, scores

LEAST = {  # (set, strategy, variant, network) -> mean accuracy on held-out ranks
    ("runs", "data", "data", "resnet50"): 0.87,
    ("runs", "data", "data", "vgg16"): 0.95,
    ("runs", "data+spatial", "hybrid", "resnet50"): 0.96,
    ("figure", "data", "b=64", "resnet50"): 0.86,
    ("figure", "data", "b=32", "vgg16"): 0.96,
    ("figure", "filter", "b=32", "vgg16"): 0.94,
    ("figure", "channel", "b=32", "vgg16"): 0.96,
    ("figure", "data+spatial", "b=1", "cosmoflow"): 0.94,
}


def test_accuracy_does_not_fall() -> None:
    made = {
        (s.series.source, s.series.strategy, s.series.variant, s.series.network): s.mean for s in scores()
    }
    for key, least in LEAST.items():
        assert made[key] >= least, key


def test_fits_see_small_ranks_of_one_set_only() -> None:
    for source in SETS:
        for series in load(source):
            assert max(p.ranks for p in series.small) < min(p.ranks for p in series.large)
            changed = type(series)(
                series.source,
                series.strategy,
                series.variant,
                series.network,
                (*series.small, *(type(p)(p.ranks, 99.0) for p in series.large)),
            )
            assert score(changed).coefficients == score(series).coefficients


def test_published_bars_and_table() -> None:
    assert published()["data", "resnet50"] == pytest.approx(0.84, abs=0.005)
    assert published()["data+spatial", "cosmoflow"] == pytest.approx(0.31, abs=0.005)
    assert "cosmoflow" in report(scores())


def test_nonnegative_least_squares() -> None:
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert nonnegative(rows, np.array([3.0, 5.0, 7.0])) == pytest.approx([1.0, 2.0])
    assert nonnegative(rows, np.array([3.0, 2.0, 1.0]))[1] == 0.0
