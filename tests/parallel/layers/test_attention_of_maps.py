"""Attention over the positions of a map: no reshape moves words, and keys and values are gathered once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_of_maps_ranks import Joint, model
from rank_pool import RankPool, pool_of
from torch import nn
from torch.nn import functional

from synth.parallel import counted_plan
from synth.parallel.front_end.trace_model import trace_model
from synth.parallel.plan_model import plan_model
from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.operators.alike_positions import joined_positions
from synth.runtime.operators.table import Operators
from synth.runtime.rules.position_blocks import blocks_of

MAP = (1, 4, 6, 8)


ranks = pool_of(__file__, "attention_of_maps_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("shape", "mode", "heads"),
    [(MAP, "inference", 1), (MAP, "training", 1), ((1, 4, 5, 7), "inference", 1), (MAP, "inference", 2)],
    ids=str,
)
@pytest.mark.one_in(6)
def test_attention_is_that_of_one_process(shape: Any, mode: str, heads: int, ranks: RankPool) -> None:
    for found in ranks.call("compared", shape, "hw", mode, heads, False):
        assert found["error"] < 1e-11
        assert found["words"] == (found["planned"],) * 2
        if shape == MAP:
            assert found["calls"]["flatten"] == found["calls"]["add"] == 0
        if (shape, mode, heads) == (MAP, "inference", 1):  # each rank lacks three quarters of one value
            assert found["steps"]["LayerOfAllRows"] == 2
            assert found["calls"]["scaled_dot_product_attention"] == 6 * 8 * 8 * 3 // 4


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("how", "axes", "samples"),
    [("map", "hw", 1), ("heads", "hw", 1), ("map", "bh", 2), ("apart", "hw", 1), ("pair", "h", 1)],
    ids=str,
)
@pytest.mark.one_in(2)
def test_what_one_layer_or_convolutions_make_is_computed_of_all_rows(
    how: str, axes: str, samples: int, ranks: RankPool
) -> None:
    for found in ranks.call("of_one_value", (samples, *MAP[1:]), axes, how):
        assert found["error"] < 1e-11
        assert found["words"] == (found["planned"],) * 2
        assert found["steps"]["LayerOfAllRows"] == (2 if how == "apart" else 1)
        whole, cut = 6 * 8 * 8, 4 // samples  # ranks gather rows of their samples alone
        assert found["calls"]["scaled_dot_product_attention"] == whole * (cut - 1) // cut
        assert not any(words for name, words in found["calls"].items() if name.startswith("reshape"))


@pytest.mark.ranks
@pytest.mark.parametrize("shape", [MAP, (2, 4, 6, 8)], ids=str)
@pytest.mark.one_in(2)
def test_attention_with_a_mask(shape: Any, ranks: RankPool) -> None:
    for found in ranks.call("compared", shape, "hw", "inference", 1, False, True):
        assert found["error"] < 1e-11
        counted, planned = found["words"]
        assert counted == planned


@pytest.mark.ranks
def test_positions_that_are_told_apart_keep_their_order(ranks: RankPool) -> None:
    for found in ranks.call("compared", MAP, "hw", "inference", 1, True):
        assert found["error"] < 1e-11
        assert found["words"] == (found["planned"],) * 2
        assert found["calls"]["flatten"] > 0


@pytest.mark.parametrize("along", [1, 2])
def test_grids_are_counted_where_attention_is_not_all_that_moves(
    along: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of one sample gathers the same words on all grids; a softmax of rows does not."""

    class Shares(Joint):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.softmax(along))

    asked = list[Any]()
    monkeypatch.setattr(counted_plan, "_fewer_axes", lambda plan: (asked.append(plan), ())[1])
    plan = plan_model(model((1, 4, 32, 32), Shares(8, "map")), (1, 4, 32, 32), 4, mode="inference")
    assert bool(asked) == (along == 2)
    assert plan.words.most > 2 * plan.cost  # with attention


def joined(rows: Any) -> int:
    """How often positions are joined in any order, if this is what a model makes of rows."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.places = nn.Conv2d(4, 8, 1), nn.Parameter(torch.randn(48, 1))
            self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            out = rows(self, y.flatten(2).transpose(1, 2))
            return out.transpose(1, 2).reshape(y.shape)

    net = Rows()
    graph = trace_model(net, MAP).graph
    return len(joined_positions(graph, Operators(dict(net.named_modules()), dict(net.named_parameters()))))


def attends(q: torch.Tensor, k: torch.Tensor, **options: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, k, **options)


ALIKE = {
    "pointwise": (lambda m, y: functional.silu(m.norm(m.linear(y))) + y, 1),
    "attention": (lambda m, y: attends(y, m.linear(y)), 1),
    "softmax of channels": (lambda m, y: y.softmax(-1), 0),
    "softmax of positions": (lambda m, y: y.softmax(1), 0),
    "positions have a number": (lambda m, y: y + m.places, 0),
    "later positions are hidden": (lambda m, y: attends(y, y, is_causal=True), 0),
    "the first row": (lambda m, y: y[:, :1] + y, 0),
    "positions shift": (lambda m, y: y.roll(1, 1), 0),
    "rows read other rows": (lambda m, y: m.linear(y.transpose(1, 2).reshape(1, 48, 8)), 0),
}


@pytest.mark.parametrize("name", ALIKE)
def test_positions_in_any_order(name: str) -> None:
    """Only where every call treats them alike."""
    rows, wanted = ALIKE[name]
    assert joined(rows) == wanted


def layout(whole: tuple[int, ...], boxes: tuple[Box, ...]) -> Layout:
    return Layout(whole, boxes, AbsentRanks.numbered(len(boxes)))


def test_blocks_are_numbered_by_rank() -> None:
    halves = ((0, 2), (2, 3)), ((0, 1), (1, 4))
    boxes: tuple[Box, ...] = tuple(((0, 1), (0, 5), r, c) for r in halves[0] for c in halves[1])
    found = blocks_of(layout((1, 5, 3, 4), boxes), (2, 4))
    assert found is not None
    assert found.places == ((0, 2), (2, 8), (8, 9), (9, 12))
    assert found.rows[2, 8] == ((0, 2), (1, 4))
    twice = blocks_of(layout((2, 5, 3, 4), (*boxes, *(((1, 2), *box[1:]) for box in boxes))), (2, 4))
    assert twice is not None
    assert (twice.places, twice.among) == (found.places * 2, (0,) * 4 + (1,) * 4)


def test_copies_and_other_blocks_per_sample_are_no_blocks() -> None:
    upper, lower = ((0, 1), (0, 5), (0, 2), (0, 4)), ((0, 1), (0, 5), (2, 4), (0, 4))
    assert blocks_of(layout((1, 5, 4, 4), (upper, lower)), (2, 4))
    assert blocks_of(layout((1, 5, 4, 4), (upper, lower, upper, lower)), (2, 4)) is None
    sides: tuple[Box, ...] = tuple(((1, 2), (0, 5), (0, 4), columns) for columns in ((0, 2), (2, 4)))
    assert blocks_of(layout((2, 5, 4, 4), (upper, lower, *sides)), (2, 4)) is None
