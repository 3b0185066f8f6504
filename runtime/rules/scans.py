"""Scans along a dimension that ranks cut: sums, products and extrema of rows so far.

Every rank scans its own rows. What all rows before them give is one state, a word for
each line along the dimension: the exclusive prefix of the last rows of the ranks before
(`prefix_exchange`). It is joined to the own rows. So words do not depend on the extent.
For the indices of extrema the state is an extremum and the index of its row.

Let P be the prefix that a rank gets, T its own last row, and P' = f(P, T) what it adds
up to. With G the gradient of P', that of P is the own one plus ∂f/∂P · G, and that of T
is ∂f/∂T · G. The backward pass is a scan of such affine maps in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.exchanges import Exchange, none, times
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import largest, smallest, sum_dtype
from synth.runtime.comm.prefix_exchange import (
    Line,
    State,
    beside_words,
    exclusive_prefix,
    lines_along,
    own_line,
    words_received,
)
from synth.runtime.comm.redistribute import Count, in_memory
from synth.runtime.grid.boxes import Box
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.rules.rule import Operand, Rule, is_trainable

Two = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Slopes = Callable[
    [torch.Tensor, torch.Tensor], tuple[torch.Tensor | None, torch.Tensor | None]
]


class ScanKind(NamedTuple):
    """A scan of single words.

    scan: of torch, called with a tensor and a dimension. combine: earlier, later.
    start: the state before all rows. slopes: from P and T the derivatives of f by P and
    by T; None for 1. later: of an extremum, whether T is f(P, T), and not P.
    """

    scan: Callable[..., torch.Tensor]
    combine: Two
    start: Callable[[torch.dtype], float]
    slopes: Slopes
    later: Two | None = None


def _added_exponents(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """log(exp + exp), also where both are -∞, and with gradients there."""
    none = one == -torch.inf
    return torch.where(none, other, torch.logaddexp(one.masked_fill(none, 0), other))


def _exponent_slopes(
    before: torch.Tensor, own: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    both = _added_exponents(before, own)
    both = both.masked_fill(both == -torch.inf, 0)
    return torch.exp(before - both), torch.exp(own - both)


def _extremum(greater: bool) -> ScanKind:
    """Of equal rows torch takes the last one; a row that is no number stays."""

    def later(before: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        wins = own >= before if greater else own <= before
        return (wins | own.isnan()) & ~(before.isnan() & ~own.isnan())

    def combine(before: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return torch.where(later(before, own), own, before)

    def slopes(
        before: torch.Tensor, own: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wins = later(before, own)
        return (~wins).to(own.dtype), wins.to(own.dtype)

    def scan(values: torch.Tensor, dim: int) -> torch.Tensor:
        call = torch.cummax if greater else torch.cummin
        return call(values, dim).values

    return ScanKind(scan, combine, smallest if greater else largest, slopes, later)


SCANS: dict[str, ScanKind] = {
    "cumsum": ScanKind(
        torch.cumsum, torch.add, lambda _: 0, lambda _, own: (None, None)
    ),
    "cumprod": ScanKind(
        torch.cumprod, torch.mul, lambda _: 1, lambda before, own: (own, before)
    ),
    "logcumsumexp": ScanKind(
        torch.logcumsumexp, _added_exponents, lambda _: -torch.inf, _exponent_slopes
    ),
    "cummax": _extremum(greater=True),
    "cummin": _extremum(greater=False),
}


class CutScan(NamedTuple):
    """A scan along a dimension, on the ranks that cut it.

    lines: ranks whose rows follow each other; ranks without words are in none.
    """

    name: str
    dim: int
    layout: Layout
    lines: tuple[Line, ...]

    @property
    def line(self) -> Line:
        """That of this rank; () where it has no words."""
        return own_line(self.lines, self.layout.ranks)

    def __call__(
        self, shard: torch.Tensor, dtype: torch.dtype, count: Count
    ) -> torch.Tensor:
        """The own rows of the result, in a dtype; differentiable.

        Half precision is scanned in float32 and rounded once.
        """
        kind = SCANS[self.name]
        own = kind.scan(shard.to(sum_dtype(dtype)), self.dim)
        if len(self.line) > 1:
            last = own.narrow(self.dim, own.shape[self.dim] - 1, 1)
            before: torch.Tensor = _Carried.apply(last, self, count)  # type: ignore[no-untyped-call]
            own = kind.combine(before, own)
        return own.to(dtype)

    def before(self, own: torch.Tensor, count: Count) -> torch.Tensor:
        """The state before the own rows. own: their last row."""
        kind, ranks = SCANS[self.name], self.layout.ranks

        def combine(earlier: State, later: State) -> State:
            return [kind.combine(earlier[0], later[0])]

        found = exclusive_prefix([own], self.line, combine, ranks, count)
        start = kind.start(own.dtype)
        return torch.full_like(own, start) if found is None else found[0]

    def exchanges(self) -> list[Exchange]:
        """A word of every line of rows there; back as many, or two numbers each."""

        def words(box: Box) -> int:
            return beside_words(box, self.dim)

        given = self.layout, self.lines, words
        back = words_received(*given, turned=True)
        numbers = 1 if self.name == "cumsum" else 2
        return [Exchange(words_received(*given, turned=False), times(numbers, back))]

    def after(
        self, own: torch.Tensor, slope: torch.Tensor | None, count: Count
    ) -> torch.Tensor:
        """The gradient of what the own rows add up to, from the ranks behind.

        own: the gradient of the state before the own rows. slope: see `ScanKind`.
        """
        state = [own] if slope is None else [own, slope]
        combine = _added if slope is None else composed
        ranks, line = self.layout.ranks, self.line[::-1]
        found = exclusive_prefix(state, line, combine, ranks, count)
        return torch.zeros_like(own) if found is None else found[0]


class CutIndices(NamedTuple):
    """Which row is the extremum of all rows so far. scan: of the extrema themselves.

    The state of a rank is the extremum of its rows and the index of that row, both as
    whole numbers of 64 bits.
    """

    scan: CutScan

    def __call__(self, shard: torch.Tensor, count: Count) -> torch.Tensor:
        """The own rows of the indices, which have no gradient."""
        dim, layout, line = self.scan.dim, self.scan.layout, self.scan.line
        call = torch.cummax if self.scan.name == "cummax" else torch.cummin
        extrema, rows = call(shard.detach(), dim)
        rows = rows + layout.mine[dim][0]
        if len(line) < 2:
            return rows
        wide = torch.float64 if shard.is_floating_point() else torch.int64
        extrema = extrema.to(wide)
        last = [each.narrow(dim, each.shape[dim] - 1, 1) for each in (extrema, rows)]
        state = [in_memory(last[0]).view(torch.int64), last[1]]
        combine = partial(self._combined, dtype=wide)
        found = exclusive_prefix(state, line, combine, layout.ranks, count)
        if found is None:
            return rows
        before, first = found
        return torch.where(self._later(before.view(wide), extrema), rows, first)

    def _later(self, before: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        later = SCANS[self.scan.name].later
        assert later is not None
        return later(before, own)

    def _combined(self, earlier: State, later: State, dtype: torch.dtype) -> State:
        values = earlier[0].view(dtype), later[0].view(dtype)
        wins = self._later(*values)
        pairs = zip(earlier, later, strict=True)
        return [torch.where(wins, own, before) for before, own in pairs]

    def exchanges(self) -> list[Exchange]:
        """An extremum and an index of every line of rows; nothing comes back."""
        there, _ = self.scan.exchanges()[0][:2]
        return [Exchange(times(2, there), none(self.scan.layout))]


def _added(one: State, other: State) -> State:
    return [one[0] + other[0]]


def composed(first: State, then: State) -> State:
    """Two affine maps x → b + a · x, each as [b, a], the first one inside."""
    return [then[0] + then[1] * first[0], then[1] * first[1]]


def scanned_dtype(name: str, values: torch.Tensor) -> torch.dtype:
    """The dtype of torch's result: sums and products of integers are wide."""
    if name in ("cumsum", "cumprod") and not is_trainable(values):
        return torch.int64
    return values.dtype


def cut_scan(name: str, dim: int, layout: Layout) -> CutScan | None:
    """A scan along a dimension that is cut; None where it is not, or not in lines."""
    lines = lines_along(layout, dim)
    if lines is None or all(len(line) == 1 for line in lines):
        return None
    return CutScan(name, dim, layout, tuple(lines))


def scan_rule(
    name: str, dim: int, source: Layout, operator: Operator, count: Count
) -> Rule | None:
    """The rule of a scan that ranks cut; None as for `cut_scan`.

    operator: of torch, called with one word; it says the dtype under autocast.
    """
    scan = cut_scan(name, dim, source)
    if scan is None:
        return None

    def run(shard: torch.Tensor) -> torch.Tensor:
        dtype = operator_dtype(name, operator, shard)
        with no_autocast(shard.device):
            return scan(shard, dtype, count)

    return Rule(source, (Operand(source, source),), run, scan)


def index_rule(name: str, dim: int, source: Layout, count: Count) -> Rule | None:
    """The rule of the indices of an extremum; None as for `cut_scan`."""
    scan = cut_scan(name, dim, source)
    if scan is None:
        return None
    indices = CutIndices(scan)

    def run(shard: torch.Tensor) -> torch.Tensor:
        return indices(shard, count)

    return Rule(source, (Operand(source, source),), run, indices)


class _Carried(torch.autograd.Function):
    """What the rows of all ranks before the own ones add up to."""

    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, scan: CutScan, count: Count
    ) -> torch.Tensor:
        """The state before the own rows, from their last row."""
        before = scan.before(own, count)
        ctx.scan, ctx.count = scan, count
        if scan.name != "cumsum":
            ctx.save_for_backward(before, own)
        return before

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient of the own last row."""
        slope, share = None, None
        if ctx.saved_tensors:
            found = SCANS[ctx.scan.name].slopes(*ctx.saved_tensors)
            slope, share = (each.conj() for each in found if each is not None)
        after = ctx.scan.after(gradient, slope, ctx.count)
        return after if share is None else after * share, None, None
