"""The collector is off within the block only, and stays off where the user has switched it off."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from synth.base.collector import without_collector
from synth.network.margins.fronts import Factor, Front, Fronts


@pytest.fixture(params=[True, False])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_the_collector_is_as_before_after_the_block(collects: bool) -> None:
    with without_collector(), without_collector():
        assert not gc.isenabled()
    assert gc.isenabled() == collects
    with pytest.raises(KeyError), without_collector():
        raise KeyError
    assert gc.isenabled() == collects


def test_margins_are_chosen_without_walks_over_all_points() -> None:
    """Before, the collector walked the points of all labels again and again."""

    class Looked(Fronts):
        def pruned(self, points: Front) -> Front:
            assert not gc.isenabled()
            return super().pruned(points)

    rows = {(a, b): [(float(a * b % 7), 0.0, None)] for a in range(3) for b in range(3)}
    assert Looked(1.0).best([Factor(("x", "y"), rows), Factor(("y", "z"), rows)])[0][:2] == (0.0, 0.0)
