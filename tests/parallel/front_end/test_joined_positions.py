"""Frames that are joined, are samples, or are normalized: the planner sees what lies around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import synth
from synth.base.errors import InputError
from synth.network.file import parse_network
from synth.parallel.front_end.trace_model import trace_model

SHAPE = (1, 4, 5, 16, 16)


class Causal(nn.Module):
    """A convolution that repeats the first frame before the others, behind a normalization of channels."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(c, k, 3, padding=(0, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.normalize(x, dim=1)
        made: torch.Tensor = self.conv(torch.cat([x[:, :, :1], x[:, :, :1], x], 2))
        return made.relu()


class Film(nn.Module):
    """Causal layers around one of images, for which frames are samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Causal(4, 8), Causal(8, 4)
        self.images = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        b, c, t, h, w = x.shape
        images = self.images(x.permute(0, 2, 1, 3, 4).reshape(b * t, c, h, w))
        return self.last(images.view(b, t, c, h, w).permute(0, 2, 1, 3, 4))


class Halves(nn.Module):
    """Joined frames of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.both = (nn.Conv3d(4, 4, 3, padding=1) for _ in range(3))
        self.last = nn.Conv3d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.both(x)
        made: torch.Tensor = self.last(torch.cat([self.one(x[:, :, :2]), self.other(x[:, :, 2:])], 2))
        return made


@pytest.mark.parametrize("model", [Film, Halves])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_all_words_are_those_that_the_planner_sees(model: Any, mode: str) -> None:
    plan = synth.plan_model(model().train(mode == "training"), SHAPE, 4, axes="hw", mode=mode)
    assert plan.words.most <= 1.01 * plan.cost + plan.statistics_words
    assert len({placed.grid for placed in plan.placed_grids}) == 1


@pytest.mark.parametrize("model", [Film, Halves])
def test_a_file_has_the_same_edges(model: Any) -> None:
    traced = trace_model(model(), SHAPE)
    assert parse_network(traced.file_text(), "film.yaml").edges == traced.network.edges
    assert any(edge.source_path or edge.target_path for edge in traced.network.edges)


FILE = """network: joined
input: [1, 4, 2, 8, 8]
layers:
  - conv3d: {{out_channels: 4, kernel: 3, padding: 1}}
    name: one
  - gathered: {{shape: [1, 4, 4, 8, 8], divided: joined, joined: {}}}
    from: [one, input]
  - conv3d: {{out_channels: 4, kernel: 3, padding: 1}}
"""


@pytest.mark.parametrize("dim", [0, 1, 3, 5])
def test_inputs_that_do_not_make_the_shape_are_refused(dim: int) -> None:
    assert parse_network(FILE.format(2), "joined.yaml").edges
    with pytest.raises(InputError, match=r"joined is \d, but 1x4x2x8x8, 1x4x2x8x8 do not make 1x4x4x8x8"):
        parse_network(FILE.format(dim), "joined.yaml")
