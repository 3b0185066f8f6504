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
from synth.runtime.rules.shuffles import channel_mean, shuffle

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


def check(call: Call, shape: tuple[int, ...]) -> list[str]:
    """The calls in the place of a call give the same words. Returns their kinds in the network."""
    found = traced(call, shape)
    values = made = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    for node in found.graph.nodes:
        if node.op == "call_function":
            made = node.target(made, *node.args[1:], **node.kwargs)
    assert torch.equal(made, call(values))
    assert [node.target for node in found.graph.nodes].count(shuffle) == 1
    return [each.kind for each in found.network.nodes.values()][1:]


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
    assert check(call, shape) == ["pixelunshuffle" if down else "pixelshuffle"]


@given(st.data())
def test_channels_stand_anywhere_among_the_factors(data: st.DataObject) -> None:
    """As `depth_to_space` of TensorFlow has them: the channels are put into another order as well."""
    dims, down = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    parts = data.draw(st.permutations(range(dims + 1)))  # 0 for the channels
    factors = [2, 3, 2][:dims]
    extents = [data.draw(st.integers(2, 3)), *factors]
    rows, frames = [data.draw(st.integers(1, 3)) for _ in range(dims)], dims == 2 and data.draw(st.booleans())
    lead = [2, 2] if frames else [2]  # samples, and the frames of a film before the channels
    outer, at = len(lead), [len(lead) + parts.index(part) for part in range(dims + 1)]
    places = [place for d in range(dims) for place in (outer + dims + 1 + d, at[1 + d])]
    tall = [*lead, extents[0], *(n * f for n, f in zip(rows, factors, strict=True))]
    wide = [*lead, math.prod(extents), *rows]

    def up(x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(*lead, *(extents[part] for part in parts), *rows)
        return x.permute(*range(outer), at[0], *places).reshape(tall)

    def back(x: torch.Tensor) -> torch.Tensor:
        apart = [part for n, f in zip(rows, factors, strict=True) for part in (n, f)]
        x = x.reshape(*lead, extents[0], *apart)
        inner = [outer + 2 * part if part else outer for part in parts]
        return x.permute(*range(outer), *inner, *(outer + 1 + 2 * d for d in range(dims))).reshape(wide)

    def film(x: torch.Tensor) -> torch.Tensor:
        return call(x.transpose(1, 2)).transpose(1, 2)

    call, shape = (back, tall) if down else (up, wide)
    kinds = ["pixelunshuffle"] if down else ["pixelshuffle"]
    reordered = [] if parts[0] == 0 else ["reindex"]
    kinds = [*kinds, *reordered] if down else [*reordered, *kinds]
    if frames:
        assert check(film, (shape[0], shape[2], shape[1], *shape[3:])) == kinds
    else:
        assert check(call, tuple(shape)) == kinds


def flattened(x: torch.Tensor) -> torch.Tensor:
    """As decoders of films have it: time, rows and columns, whose factors are in another order."""
    x = x.reshape(1, 2, 3, 2, 2, 2, 4, 4).permute(0, 1, 5, 2, 6, 4, 7, 3)
    return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)


def to_tokens(x: torch.Tensor) -> torch.Tensor:
    """As encoders of latents have it."""
    x = x.view(1, 3, 4, 2, 4, 2).permute(0, 1, 3, 5, 2, 4).reshape(1, 12, 4, 4)
    return torch.tanh(x)


def test_forms_of_decoders_are_found() -> None:
    assert check(flattened, (1, 24, 2, 4, 4)) == ["pixelshuffle"]
    found = traced(to_tokens, (1, 3, 8, 8))
    assert [node.kind for node in found.network.nodes.values()] == ["conv2d", "pixelunshuffle", "relu"]
    for call in (nn.PixelUnshuffle(2), lambda x: functional.pixel_unshuffle(x, 2)):
        assert [each.kind for each in traced(call, (1, 3, 8, 8)).network.nodes.values()][
            1
        ] == "pixelunshuffle"


@pytest.mark.parametrize("module", [False, True])
def test_frames_are_shuffled_where_films_have_their_channels(module: bool) -> None:
    """Permutations around them are left out, so that margins go through."""
    call = nn.PixelShuffle(2) if module else lambda x: functional.pixel_shuffle(x, 2)

    def film(x: torch.Tensor) -> torch.Tensor:
        return call(x.permute(0, 2, 1, 3, 4)).permute(0, 2, 1, 3, 4)

    assert check(film, (1, 8, 3, 2, 4)) == ["pixelshuffle"]
    found = traced(film, (1, 8, 3, 2, 4))
    assert len([node for node in found.graph.nodes if node.op.startswith("call")]) == 2
    assert found.network.nodes["shuffle"].direct


def test_means_of_neighbouring_channels_are_found() -> None:
    """Beside a shuffle, as deep compressing autoencoders have them."""

    def down(x: torch.Tensor) -> torch.Tensor:
        return functional.pixel_unshuffle(x, 2).unflatten(1, (-1, 4)).mean(dim=2)

    found = traced(down, (1, 6, 4, 8))
    assert [node.kind for node in found.network.nodes.values()] == ["conv2d", "pixelunshuffle", "channelmean"]
    for call in (lambda x: x.view(1, 3, 2, 4).mean(2), lambda x: x.reshape(1, 2, 3, 4).mean([2])):
        found = traced(call, (1, 6, 4))
        assert [node.kind for node in found.network.nodes.values()] == ["conv1d", "channelmean"]
        values = torch.randn(1, 6, 4)
        (node,) = (each for each in found.graph.nodes if each.target is channel_mean)
        assert torch.equal(channel_mean(values, *node.args[1:]), call(values))
    others = [lambda x: x.view(1, 3, 2, 4).mean(1), lambda x: x.view(1, 3, 2, 4).mean(2, keepdim=True)]
    others += [lambda x: x.view(1, 3, 4, 2).mean(2), lambda x: x.view(1, 3, 2, 4).sum(2)]
    for call in others:
        assert all(each.target is not channel_mean for each in traced(call, (1, 6, 4)).graph.nodes)


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


@pytest.mark.parametrize("call", [read_between, mixed, exchanged])
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
