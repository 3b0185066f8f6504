"""Pooling of one rank's box, without the rows that come from others."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Window
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.rows.pooling import Pool


@pytest.mark.parametrize("padded", [True, False], ids=["zeros count", "zeros do not count"])
def test_a_block_may_have_fewer_rows_than_the_kernel(padded: bool) -> None:
    whole = torch.randn(1, 2, 5, 5, 5, dtype=torch.float64)
    frame = ((0, 1), (0, 2), (0, 5), (0, 5))
    boxes = (*frame, (0, 1)), (*frame, (1, 5))  # the first makes one output column of two input columns
    source = Layout(tuple(whole.shape), boxes, Ranks((0, 1), 0))
    pool = Pool(source, [Window(5, 3, 2, 1, 1)] * 3, (3, 3, 3), print, "avg_pool", padded)
    own = whole[..., slice(*pool.wanted.mine[-1])]
    assert own.shape[-1] == 2
    right = functional.avg_pool3d(whole, 3, 2, 1, count_include_pad=padded)[..., :1]
    assert torch.allclose(pool._pooled(own), right)
