"""Shuffles: channels that become positions of a map, positions channels, and means.

A rank that has all channels of its positions needs no words of others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, first_rows, within
from synth.runtime.rules.access import Access, Groups, Same
from synth.runtime.rules.rule import LocalCall, Rule, pulled, where_words


class ShuffleForm(NamedTuple):
    """A reshape to `wide`, a permutation to `dims`, and a reshape to `shape`."""

    wide: tuple[int, ...]
    dims: tuple[int, ...]
    shape: tuple[int, ...]


def shuffle_form(
    before: Sequence[int], factors: Sequence[int], order: Sequence[int], down: bool
) -> ShuffleForm:
    """How (b, c·f, *n) is (b, c, *f·n); `down`: how that is (b, c·f, *n) again.

    before: the shape. factors: f, along each spatial dimension. order: of these
    dimensions among the channels; ascending it is that of `torch.pixel_shuffle`.
    """
    (batch, channels, *rows), each = before, range(len(factors))
    pairs, words = list(zip(rows, factors, strict=True)), math.prod(factors)
    if down:
        wide = [part for size, f in pairs for part in (size // f, f)]
        dims = [*(3 + 2 * d for d in order), *(2 + 2 * d for d in each)]
        shape = [channels * words, *(size // f for size, f in pairs)]
        return ShuffleForm((batch, channels, *wide), (0, 1, *dims), (batch, *shape))
    inner = [factors[d] for d in order]
    dims = [at for d in each for at in (2 + len(each) + d, 2 + order.index(d))]
    shape = [channels // words, *(size * f for size, f in pairs)]
    wide = [channels // words, *inner, *rows]
    return ShuffleForm((batch, *wide), (0, 1, *dims), (batch, *shape))


def shuffle(
    x: torch.Tensor, factors: Sequence[int], order: Sequence[int], down: bool
) -> torch.Tensor:
    """Channels as positions, or positions as channels; see `shuffle_form`."""
    form = shuffle_form(x.shape, factors, order, down)
    return x.reshape(form.wide).permute(form.dims).reshape(form.shape)


def reordered(
    x: torch.Tensor, extents: Sequence[int], order: Sequence[int]
) -> torch.Tensor:
    """Channels in another order: split into some extents, which are permuted."""
    dims = [1 + dim for dim in order]
    wide = x.reshape(x.shape[0], *extents, *x.shape[2:])
    rest = range(1 + len(dims), wide.dim())
    return wide.permute(0, *dims, *rest).flatten(1, len(dims))


def channel_mean(x: torch.Tensor, size: int) -> torch.Tensor:
    """The mean of every `size` neighbouring channels."""
    wide = x.reshape(x.shape[0], x.shape[1] // size, size, *x.shape[2:])
    return wide.mean(2)


def shuffled(source: Layout, out: Layout, call: LocalCall) -> Rule:
    """A shuffle whose result has any boxes. call: torch's function of some whole rows.

    Along a dimension some rows of the input are the words of some of the result.
    """
    sizes = list(zip(source.whole, out.whole, strict=True))
    accesses = tuple(_access(dim, *pair) for dim, pair in enumerate(sizes))
    operand = pulled(source, accesses, out)
    around = tuple(map(_around, accesses, out.mine))
    inner = within(out.mine, around)
    cut = around != out.mine

    def local(box: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = call(box)
        return made[inner].contiguous() if cut else made

    return Rule(out, (operand,), where_words(local, out))


def where_source(source: Layout, whole: Sequence[int]) -> Layout:
    """The owner of the first word that a row of a result is made of owns the row."""
    sizes = list(zip(source.whole, whole, strict=True))

    def made(box: Box) -> Box:
        return tuple(first_rows(e, *pair) for e, pair in zip(box, sizes, strict=True))

    return source.with_boxes(whole, map(made, source.boxes))


def _access(dim: int, size: int, n: int) -> Access:
    common = math.gcd(size, n)
    return Same(dim) if size == n else Groups(dim, n // common, size // common)


def _around(access: Access, rows: tuple[int, int]) -> tuple[int, int]:
    """The rows of a result that are made of what some of them read."""
    if not isinstance(access, Groups):
        return rows
    low, high = rows
    return low // access.rows * access.rows, -(-high // access.rows) * access.rows
