"""A reshape, a permutation and a reshape that are a shuffle of channels and positions become one call."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from synth.parallel.front_end.trace_model import TracedModel, trace_model
from synth.runtime.rules.shuffles import shuffle

Call = Callable[[torch.Tensor], torch.Tensor]


class Behind(nn.Module):
    """A call on what a convolution makes."""

    def __init__(self, call: Call, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = getattr(nn, f"Conv{len(shape) - 2}d")(shape[1], shape[1], 1)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.first(x))


def traced(call: Call, shape: tuple[int, ...]) -> TracedModel:
    return trace_model(Behind(call, shape).eval(), shape)


def check(call: Call, shape: tuple[int, ...]) -> str:
    """The one shuffle of a call gives the same words. Returns its kind in the network."""
    found = traced(call, shape)
    (node,) = (each for each in found.graph.nodes if each.target is shuffle)
    values = torch.arange(math.prod(shape)).reshape(shape)
    assert torch.equal(shuffle(values, *node.args[1:]), call(values))
    kinds = [each.kind for each in found.network.nodes.values()]
    assert len(kinds) == 2
    return kinds[1]


@given(st.data())
def test_any_order_of_factors_is_found(data: st.DataObject) -> None:
    """With factors and extents of 1, of one to three dimensions, in both directions."""
    dims, down = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    factors = data.draw(
        st.lists(st.integers(1, 3), min_size=dims, max_size=dims).filter(lambda f: max(f) > 1)
    )
    order = data.draw(st.permutations(range(dims)))
    small = [data.draw(st.integers(1, 4)) for _ in range(2 + dims)]
    words = math.prod(factors)
    wide = (small[0], small[1] * words, *small[2:])
    tall = (*small[:2], *(n * f for n, f in zip(small[2:], factors, strict=True)))
    apart = [part for n, f in zip(small[2:], factors, strict=True) for part in (n, f)]

    def up(x: torch.Tensor) -> torch.Tensor:
        x = x.view(small[0], small[1], *(factors[dim] for dim in order), *small[2:])
        places = [place for d in range(dims) for place in (2 + dims + d, 2 + order.index(d))]
        return x.permute(0, 1, *places).contiguous().view(tall)

    def back(x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(*small[:2], *apart)
        return x.permute(0, 1, *(3 + 2 * d for d in order), *(2 + 2 * d for d in range(dims))).reshape(wide)

    call, shape = (back, tall) if down else (up, wide)
    assert check(call, shape) == ("pixelunshuffle" if down else "pixelshuffle")


def flattened(x: torch.Tensor) -> torch.Tensor:
    """As decoders of films have it: time, rows and columns, whose factors are in another order."""
    x = x.reshape(1, 2, 3, 2, 2, 2, 4, 4).permute(0, 1, 5, 2, 6, 4, 7, 3)
    return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)


def to_tokens(x: torch.Tensor) -> torch.Tensor:
    """As encoders of latents have it."""
    x = x.view(1, 3, 4, 2, 4, 2).permute(0, 1, 3, 5, 2, 4).reshape(1, 12, 4, 4)
    return torch.tanh(x)


def test_forms_of_decoders_are_found() -> None:
    assert check(flattened, (1, 24, 2, 4, 4)) == "pixelshuffle"
    found = traced(to_tokens, (1, 3, 8, 8))
    assert [node.kind for node in found.network.nodes.values()] == ["conv2d", "pixelunshuffle", "relu"]
    for call in (nn.PixelUnshuffle(2), lambda x: functional.pixel_unshuffle(x, 2)):
        assert [each.kind for each in traced(call, (1, 3, 8, 8)).network.nodes.values()][
            1
        ] == "pixelunshuffle"


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """The channels of a position stand apart: no block of channels makes a block of the result."""
    return x.view(1, 2, 2, 3, 4, 4).permute(0, 3, 4, 1, 5, 2).reshape(1, 3, 8, 8)


def read_between(x: torch.Tensor) -> torch.Tensor:
    """What lies between is read, too."""
    y = x.view(1, 3, 2, 2, 4, 4)
    return y.permute(0, 1, 4, 2, 5, 3).reshape(1, 3, 8, 8) + y.sum()


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Rows of one word become those of another dimension."""
    return x.view(1, 3, 2, 2, 4, 4).permute(0, 1, 2, 4, 5, 3).reshape(1, 3, 8, 8)


def exchanged(x: torch.Tensor) -> torch.Tensor:
    """Channels change places."""
    return x.view(1, 3, 4, 4, 4).transpose(1, 2).reshape(1, 12, 4, 4)


@pytest.mark.parametrize("call", [channels_last, read_between, mixed, exchanged])
def test_other_calls_stay(call: Call) -> None:
    assert all(each.target is not shuffle for each in traced(call, (1, 12, 4, 4)).graph.nodes)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.transpose(1, 2),
        lambda x: x.contiguous().transpose(1, 2).contiguous(),
        lambda x: x.reshape(1, 12, 4).view(1, 12, 1, 4).permute(0, 2, 1, 3),
    ],
)
def test_one_head_that_changes_places_with_positions_is_no_shuffle(call: Call) -> None:
    assert all(each.target is not shuffle for each in traced(call, (1, 12, 1, 4)).graph.nodes)
