"""Boxes of convolutions from the rows that they read, beside the convolution of the whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from synth.runtime.comm.layout import Layout, replicated
from synth.runtime.grid.boxes import Box, shape, within
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.rules.convolution import convolution

EMPTY: Box = ((0, 0),) * 3
MODULES = {
    "strided": nn.Conv1d(2, 4, 3, 2, 1),
    "dilated, in groups": nn.Conv1d(2, 4, 3, 1, 2, dilation=2, groups=2),
    "wide padding": nn.Conv1d(2, 3, 2, 2, 5, bias=False),
    "transposed": nn.ConvTranspose1d(2, 4, 3, 2, 1, output_padding=1),
    "transposed, with gaps": nn.ConvTranspose1d(2, 3, 1, 3, 0, output_padding=2, dilation=2),
}


@pytest.mark.parametrize("name", MODULES)
def test_boxes_that_overlap_or_are_empty(name: str) -> None:
    module = MODULES[name].double()
    x = torch.randn(2, 2, 11).double()
    with torch.no_grad():
        whole = module(x)
    rows = whole.shape[2]
    spans = (0, rows), (0, 2), (1, 4), (rows // 2, rows), (rows - 1, rows)
    boxes: list[Box] = [EMPTY, *(((0, 2), (0, whole.shape[1]), span) for span in spans)]
    for me, box in enumerate(boxes):
        ranks = AbsentRanks(tuple(range(len(boxes))), me)
        out = Layout(tuple(whole.shape), tuple(boxes), ranks)
        rule = convolution(module, replicated(tuple(x.shape), ranks), out)
        reads = rule.operands[0].reads
        assert isinstance(reads, Layout)
        with torch.no_grad():
            made = rule.call(
                x[within(reads.mine, ((0, 2), (0, 2), (0, 11)))], **dict(module.named_parameters())
            )
        assert made.shape == shape(box)
        torch.testing.assert_close(made, whole[within(box, tuple((0, n) for n in whole.shape))])
