"""Nearest resizing of shards: torch's own where it gives the same rows, an index elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, within
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.layers.rows.resize import resize_step


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(
    ("rows", "columns", "out", "plain"),
    [
        ((0, 8), (0, 6), (16, 18), True),
        ((4, 8), (0, 6), (16, 18), True),
        ((2, 5), (0, 6), (16, 12), True),
        ((0, 8), (0, 6), (13, 9), True),  # the whole, as torch has it
        ((3, 8), (0, 6), (12, 6), False),  # a block whose rows repeat in another rhythm
    ],
)
def test_rows_of_a_block_are_those_of_the_whole(
    mode: str, rows: tuple[int, int], columns: tuple[int, int], out: tuple[int, int], plain: bool
) -> None:
    mine: Box = ((0, 2), (0, 3), rows, columns)
    whole = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(0))
    layout = Layout((2, 3, 8, 6), (mine,), AbsentRanks.numbered(1))
    step: Any = resize_step(nn.Upsample(out, mode=mode), layout, (2, 3, *out), lambda _: None)
    shard = whole[within(step.wanted.mine, tuple((0, n) for n in whole.shape))]
    expected = functional.interpolate(whole, out, mode=mode)
    expected = expected[within(step.layout.mine, tuple((0, n) for n in expected.shape))]
    torch.testing.assert_close(step._resized(shard), expected, rtol=0, atol=0)
    assert step.plain == plain
