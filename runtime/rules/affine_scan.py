"""Recurrences h = a · h + b along a dimension that ranks cut.

Of its own rows each rank makes one affine map, (b, a). The maps of the ranks before it,
applied to the start, give the state before its own rows (`prefix_exchange`); then it
computes its rows as one process does. In the backward pass gradients of states follow
the same recurrence from the last row on. Blelloch (1990) has this form of scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.prefix_exchange import (
    Line,
    beside_words,
    exclusive_prefix,
    own_line,
    words_received,
)
from synth.runtime.comm.redistribute import Count
from synth.runtime.grid.boxes import Box
from synth.runtime.kernels.autocast import no_autocast
from synth.runtime.rules.access import aligned, read_box
from synth.runtime.rules.scans import composed


def affine_scan(
    factors: torch.Tensor | float,
    terms: torch.Tensor,
    start: torch.Tensor | None,
    dim: int,
) -> torch.Tensor:
    """States h[k] = factors[k] · h[k - 1] + terms[k] along a dimension.

    factors: a number, or broadcast to the terms. start: h[-1], without the dimension;
    None where the first state is the first term.
    """
    if terms.is_meta:  # shape, dtype, and what it depends on
        made = factors * terms + terms
        if start is None:
            return made
        return made + start.expand(made.select(dim, 0).shape).unsqueeze(dim)
    rows = terms.unbind(dim)
    each: Sequence[torch.Tensor | float] = [factors]
    if isinstance(factors, torch.Tensor):
        each = factors.unbind(dim)
    each = each if len(each) == len(rows) else [each[0]] * len(rows)
    return torch.stack(_states(list(zip(each, rows, strict=True)), start), dim)


class CutAffineScan(NamedTuple):
    """A recurrence on ranks that may cut its rows.

    layout: of the states. factors: the shape of the whole factors.
    lines: ranks whose rows follow each other. needs: see `Exchange`.
    """

    dim: int
    layout: Layout
    factors: tuple[int, ...]
    lines: tuple[Line, ...]
    needs: tuple[int | str, ...]

    @property
    def line(self) -> Line:
        """That of this rank; () where it has no words."""
        return own_line(self.lines, self.layout.ranks)

    def __call__(
        self,
        factors: torch.Tensor,
        terms: torch.Tensor,
        start: torch.Tensor | None,
        count: Count,
    ) -> torch.Tensor:
        """The own states, of the shape of the terms; differentiable once."""
        extents = [-1] * terms.dim()
        extents[self.dim] = terms.shape[self.dim]
        dtype = torch.promote_types(factors.dtype, terms.dtype)
        if start is not None:
            dtype = torch.promote_types(dtype, start.dtype)
        wide = sum_dtype(dtype)
        one, other = (each.to(wide) for each in (factors, terms))
        first = None if start is None else start.to(wide)
        with no_autocast(terms.device):
            made: torch.Tensor = _AffineScan.apply(  # type: ignore[no-untyped-call]
                one.expand(extents), other, first, self, count
            )
        return made.to(dtype)

    def exchanges(self) -> list[Exchange]:
        """The map of a rank in each round, there and back."""
        shape = self.layout.whole
        access = aligned(self.factors, shape)

        def words(box: Box) -> int:
            read = read_box(access, box)
            return beside_words(box, self.dim) + beside_words(read, self.dim)

        given = self.layout, self.lines, words
        there, back = (words_received(*given, turned=way) for way in (False, True))
        return [Exchange(there, back, self.needs)]


class _AffineScan(torch.autograd.Function):
    """The own states, from the own factors and terms and the start of all rows."""

    @staticmethod
    def forward(
        ctx: Any,
        factors: torch.Tensor,
        terms: torch.Tensor,
        start: torch.Tensor | None,
        scan: CutAffineScan,
        count: Count,
    ) -> torch.Tensor:
        """Rows along the dimension; the first rank of a line begins at the start."""
        rows = list(zip(factors.unbind(scan.dim), terms.unbind(scan.dim), strict=True))
        ranks, line = scan.layout.ranks, scan.line
        first = line[0] == ranks.me
        before = torch.zeros_like(rows[0][1])
        if first and start is not None:
            before = start.expand(before.shape)
        fresh = first and start is None
        if len(line) > 1:
            state = _states(rows, None if fresh else before)[-1]
            found = exclusive_prefix(
                [state, factors.prod(scan.dim)], line, composed, ranks, count
            )
            before = before if found is None else found[0]
        states = torch.stack(_states(rows, None if fresh else before), scan.dim)
        ctx.scan, ctx.count, ctx.first = scan, count, first
        ctx.start = None if start is None else start.shape
        ctx.save_for_backward(factors, states, before)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of factors, terms and start."""
        factors, states, before = ctx.saved_tensors
        scan: CutAffineScan = ctx.scan
        dim, ranks, line = scan.dim, scan.layout.ranks, scan.line[::-1]
        factors = factors.conj()
        rows = list(zip(factors.unbind(dim), gradient.unbind(dim), strict=True))
        after = torch.zeros_like(before)
        if len(line) > 1:
            for factor, own in reversed(rows):
                after = factor * (own + after)
            state = [after, factors.prod(dim)]
            found = exclusive_prefix(state, line, composed, ranks, ctx.count)
            after = torch.zeros_like(before) if found is None else found[0]
        made = []
        for factor, own in reversed(rows):
            whole = own + after
            made.append(whole)
            after = factor * whole
        terms = torch.stack(made[::-1], dim)
        earlier = torch.cat([before.unsqueeze(dim), states], dim)
        earlier = earlier.narrow(dim, 0, len(rows)).conj()
        start = None if ctx.start is None else after.sum_to_size(ctx.start)
        if start is not None and not ctx.first:
            start = torch.zeros_like(start)
        return (terms * earlier).sum_to_size(factors.shape), terms, start, None, None


def _states(
    rows: Sequence[tuple[torch.Tensor | float, torch.Tensor]],
    state: torch.Tensor | None,
) -> list[torch.Tensor]:
    """Those of rows, (factor, term). state: before; None: the first is its term."""
    made = list[torch.Tensor]()
    for factor, term in rows:
        state = term if state is None else factor * state + term
        made.append(state)
    return made
