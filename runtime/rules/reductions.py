"""Sums, extrema, deviations and norms of rows that ranks may cut, and poolings of all.

Each rank reduces the rows that it has of every window. Parts of a value go to its
owner, which combines them: the first round of `SharedParts`. The gradient of a value
returns to all ranks that had a part of it, so no pass gathers the input.

Row `i` of the `n` of a result reads the input rows from ⌊i·size/n⌋ to ⌈(i+1)·size/n⌉,
as torch's adaptive pooling does. With n = 1 a window has all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.exchanges import Exchange, summed, times
from synth.runtime.comm.layout import Layout, disjoint, even
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count
from synth.runtime.comm.shared_parts import SharedParts, weighted_moments
from synth.runtime.compiled.constants import real_tensors
from synth.runtime.grid.boxes import (
    Interval,
    first_rows,
    held_rows,
    intersect,
    overlap,
    shape,
    volume,
    within,
)
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.rules.rule import Operand, Rule

# "first": a maximum whose gradient goes to the first of equal rows, as in max pooling;
# that of "amax" and "amin" is divided among all of them
Word = Literal[
    "mean", "sum", "amax", "amin", "first", "var", "std", "norm", "logsumexp"
]
FLOAT_ROWS = 1 << 24  # of which float32 tells the first apart
NO_PART = (-math.inf, math.inf)  # the maximum of no rows, and where it is


class Joined(NamedTuple):
    """A reduction whose parts are joined by operators of torch, with their gradients.

    own: (numbers, *values) of rows along some dimensions. whole: the values, from the
    numbers and the rows of the parts, (ranks, numbers, *values) and (ranks, *values).
    none: the numbers of no rows.
    """

    own: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    whole: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    none: tuple[float, ...] = (0.0,)


def _deviation(correction: float, root: bool) -> Joined:
    def own(shard: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
        variance, mean = torch.var_mean(shard, over, correction=0, keepdim=True)
        return torch.stack([mean, variance])

    def whole(parts: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        count = rows.sum(0)
        means, variances = parts.unbind(1)
        _, variance = weighted_moments(means, variances, rows / count)
        variance = variance * (count / (count - correction).clamp(0))
        zero = variance == 0  # where torch gives a root the gradient 0
        return (
            variance.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)
            if root
            else variance
        )

    return Joined(own, whole, (0.0, 0.0))


def _norm(order: float) -> Joined:
    return Joined(
        lambda shard, over: torch.linalg.vector_norm(shard, order, over, True)[None],
        lambda parts, _: torch.linalg.vector_norm(parts.squeeze(1), order, 0),
    )


def _log_of_sum(_: float) -> Joined:
    return Joined(
        lambda shard, over: torch.logsumexp(shard, over, True)[None],
        lambda parts, _: torch.logsumexp(parts.squeeze(1), 0),
        (-math.inf,),
    )


# a correction of the number of rows, or the order of a norm -> how parts are joined
JOINED: dict[str, Callable[[float], Joined]] = {
    "var": lambda correction: _deviation(correction, root=False),
    "std": lambda correction: _deviation(correction, root=True),
    "norm": _norm,
    "logsumexp": _log_of_sum,
}


class ReductionForm(NamedTuple):
    """A sum, mean, extremum, deviation or norm of the rows of windows along dimensions.

    over: these. extents: of the result along them; 1 but of "mean", "sum" and "first".
    keep: whether these dimensions stay; else their extents are 1.
    operator: of torch, called with one word; it says the dtype under autocast.
    setting: the correction of a deviation, or the order of a norm.
    """

    word: Word
    over: tuple[int, ...]
    extents: tuple[int, ...]
    keep: bool
    operator: Operator
    setting: float = 1.0

    @property
    def adds(self) -> bool:
        """Whether parts of a value are added, and are one number each."""
        return self.word in ("mean", "sum")

    @property
    def joined(self) -> Joined | None:
        """How parts of a value are joined; None for sums and extrema."""
        return JOINED[self.word](self.setting) if self.word in JOINED else None


def reduction(
    form: ReductionForm, source: Layout, process_groups: ProcessGroups, count: Count
) -> Rule:
    """The rule of a reduction. count: of the parts of values that a rank receives."""
    made = CutReduction(form, source, process_groups, count)
    return Rule(made.layout, (Operand(source, made.wanted),), made, made)


class CutReduction:
    """A reduction on ranks that may cut its rows, from a layout; see `reduction`."""

    def __init__(
        self,
        form: ReductionForm,
        source: Layout,
        process_groups: ProcessGroups,
        count: Count,
    ) -> None:
        self.word, self.over, extents, self.keep, self.operator, _ = form
        self.joined = form.joined
        self.extents, self.adds = dict(zip(self.over, extents, strict=True)), form.adds
        self.wanted = source
        if not disjoint(self._homes(source).boxes):
            self.wanted = even(source.whole, source.ranks)
        self.held, homes = self._held(self.wanted), self._homes(self.wanted)
        self.parts = SharedParts(self.held, process_groups, count, homes)
        self.layout = self._result(self.parts.owned)
        self.windows: dict[int, list[Interval]] = {}
        for dim, n in self.extents.items():
            rows, size = range(*self.held.mine[dim]), source.whole[dim]
            self.windows[dim] = [held_rows((i, i + 1), n, size) for i in rows]

    def _with_rows(self, layout: Layout, rows: dict[int, list[Interval]]) -> Layout:
        """Values of the result, whose rows along `over` are given for every rank.

        None where the box of a rank is empty.
        """
        whole = [self.extents.get(dim, n) for dim, n in enumerate(layout.whole)]
        boxes = [
            tuple(rows[d][rank] if d in rows else each for d, each in enumerate(box))
            if volume(box)
            else ((0, 0),) * len(box)
            for rank, box in enumerate(layout.boxes)
        ]
        return layout.with_boxes(whole, boxes)

    def _held(self, layout: Layout) -> Layout:
        """The values of which each rank has parts."""
        rows = {
            dim: [held_rows(box[dim], layout.whole[dim], n) for box in layout.boxes]
            for dim, n in self.extents.items()
        }
        return self._with_rows(layout, rows)

    def _homes(self, layout: Layout) -> Layout:
        """The values that each rank owns, with all ranks of an equal box."""
        used = [box if volume(box) else None for box in layout.boxes]
        rows = {
            dim: home_rows([b[dim] if b else None for b in used], layout.whole[dim], n)
            for dim, n in self.extents.items()
        }
        return self._with_rows(layout, rows)

    def _result(self, owned: Layout) -> Layout:
        """The owned values in the dimensions of the result."""
        if self.keep:
            return owned
        kept = [dim for dim in range(len(owned.whole)) if dim not in self.over]
        used = (box if volume(box) else ((0, 0),) * len(box) for box in owned.boxes)
        boxes = (tuple(box[dim] for dim in kept) for box in used)
        return owned.with_boxes([owned.whole[dim] for dim in kept], boxes)

    def __call__(self, shard: torch.Tensor) -> torch.Tensor:
        """The owned words of the result."""
        dtype = operator_dtype("reduction", self.operator, shard)
        with no_autocast(shard.device):
            if not shard.numel():
                own = shard.new_zeros(shape(self.held.mine)) + shard.sum()
            elif self.adds:
                own = self._sums(shard, sum_dtype(dtype))
            elif self.joined is not None:
                own = self._joined(shard.to(sum_dtype(dtype)), self.joined)
            else:
                own = self._extrema(shard.to(sum_dtype(dtype)))
        return own.reshape(shape(self.layout.mine)).to(dtype)

    def _own_rows(self, dim: int) -> list[tuple[int, int]]:
        """(first row in the own box, number of rows) of the part of each window."""
        low, high = self.wanted.mine[dim]
        own = (intersect(each, (low, high)) for each in self.windows[dim])
        return [(first - low, last - first) for first, last in own]

    def _sums(self, shard: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The owned sums, or means."""
        whole = [dim for dim, n in self.extents.items() if n == 1]
        own = torch.sum(shard, whole, True, dtype=dtype) if whole else shard
        divisor: Any = 1
        for dim, windows in self.windows.items():
            if dim not in whole:
                rows = [own.narrow(dim, *each) for each in self._own_rows(dim)]
                own = torch.cat(
                    [each.sum(dim, True, dtype=dtype) for each in rows], dim
                )
            sizes = [last - first for first, last in windows]
            each = own.new_tensor(sizes).reshape(-1, *[1] * (own.dim() - dim - 1))
            divisor = divisor * (sizes[0] if len({*sizes}) == 1 else each)
        own = own / divisor if self.word == "mean" else own
        return self._by_rank(own.unsqueeze(0)).sum(0)

    def _joined(self, shard: torch.Tensor, form: Joined) -> torch.Tensor:
        """The owned values, from the numbers of all ranks that have rows of them."""
        parts = self._by_rank(form.own(shard, self.over), form.none)
        return form.whole(parts, self._rows_of_ranks.to(parts))

    def _by_rank(self, own: torch.Tensor, none: Sequence[float] = ()) -> torch.Tensor:
        """The numbers of the owned values on each rank; see `SharedParts.owned_parts`.

        Differentiable.
        """
        parts = self.parts
        if parts.alone:
            return own.unsqueeze(0)
        return with_adjoint(
            own,
            lambda numbers: parts.owned_parts(numbers, none),
            lambda gradient: parts.from_owners(gradient.unbind(0)),
        )

    @cached_property
    def _rows_of_ranks(self) -> torch.Tensor:
        """(rank, *owned values): how many rows of a value each rank has."""
        mine = self.parts.owned.mine
        with real_tensors():
            found = torch.zeros(len(self.parts.ranks), *shape(mine)).double()
            for rows, rank in zip(found, self.parts.ranks, strict=True):
                extents = shape(self.wanted.boxes[rank])
                both = overlap(self.held.boxes[rank], mine)
                rows[within(both, mine)] = math.prod(extents[dim] for dim in self.over)
        return found

    def _extrema(self, shard: torch.Tensor) -> torch.Tensor:
        """The owned maxima or minima.

        A rank sends its extremum, and with it the number of its rows that have it, or
        the position of the first of them.
        """
        reduce = torch.amin if self.word == "amin" else torch.amax
        if self.parts.alone and self.word != "first":
            return reduce(shard, self.over, True)
        if self.word == "first":
            own, marks = self._first_maxima(shard)
        else:
            own = reduce(shard, self.over, True)
            marks = (shard == own.detach()).sum(self.over, keepdim=True)
        if self.parts.alone:
            return own
        rows = math.prod(self.wanted.whole[dim] for dim in self.over)
        own = own if rows <= FLOAT_ROWS else own.double()
        extrema: torch.Tensor = _ExtremaAtOwners.apply(  # type: ignore[no-untyped-call]
            own, marks.to(own.dtype), self.parts, self.word
        )
        return extrema

    def _first_maxima(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The own maxima, and the positions of the first of them in the whole map."""
        places, step = shard.new_zeros((), dtype=torch.int64).expand(shard.shape), 1
        for dim in reversed(self.over):
            start, best, found = self.wanted.mine[dim][0], [], []
            for first, rows in self._own_rows(dim):
                most, row = shard.narrow(dim, first, rows).max(dim, keepdim=True)
                before = places.narrow(dim, first, rows).gather(dim, row)
                best.append(most)
                found.append(before + (row + first + start) * step)
            shard, places = torch.cat(best, dim), torch.cat(found, dim)
            step *= self.wanted.whole[dim]
        return shard, places

    def exchanges(self) -> list[Exchange]:
        """Parts of values."""
        parts, back = summed(self.held, self.parts.owned), 1
        numbers = 1 if self.adds else 2  # of an extremum, one returns
        if self.joined is not None:
            numbers = back = len(self.joined.none)
        return [
            each._replace(
                forward=times(numbers, each.forward),
                backward=times(back, each.backward),
            )
            for each in parts
        ]


def home_rows(
    blocks: Sequence[Interval | None], size: int, extent: int
) -> list[Interval]:
    """The rows of the result that each of some blocks of input rows owns.

    A block owns those of which it has the first row. Where no block has the first row
    of two, a block without any owns the one that its own first row is in, together with
    all others that do.
    """
    starts = [first_rows(each or (0, 0), size, extent) for each in blocks]
    if any(last - first > 1 for first, last in starts):
        return starts
    lows = [each[0] * extent // size if each else 0 for each in blocks]
    pairs = zip(starts, lows, strict=True)
    return [each if each[1] > each[0] else (low, low + 1) for each, low in pairs]


class _ExtremaAtOwners(torch.autograd.Function):
    """Extrema of parts at their owners; a gradient goes to the ranks that have them."""

    @staticmethod
    def forward(
        ctx: Any,
        own: torch.Tensor,
        marks: torch.Tensor,
        parts: SharedParts,
        word: Word,
    ) -> torch.Tensor:
        """The extrema of the owned values, from those of all ranks.

        marks: how many rows have a rank's extremum; of "first" where the first one is.
        """
        none = NO_PART if word == "first" else ()
        values, marks = parts.owned_parts(torch.stack([own, marks]), none).unbind(1)
        top = values.amin(0) if word == "amin" else values.amax(0)
        if word == "first":
            marks = marks.masked_fill(values != top, math.inf)
            shares = (marks == marks.amin(0)).to(own.dtype)
        else:
            marks = marks.masked_fill(values != top, 0)
            shares = marks / marks.sum(0)
        ctx.parts = parts
        ctx.save_for_backward(shares)
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the own extrema."""
        (shares,) = ctx.saved_tensors
        back = ctx.parts.from_owners([(gradient * each)[None] for each in shares])
        return back[0], None, None, None


OPERATORS: dict[str, Operator] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "amax": torch.amax,
    "amin": torch.amin,
    "var": partial(torch.var, correction=0),
    "std": partial(torch.std, correction=0),
    "norm": partial(torch.norm, dim=0),
    "logsumexp": partial(torch.logsumexp, dim=0),
}
