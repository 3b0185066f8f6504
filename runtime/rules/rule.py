"""A rule says how ranks compute an operator: what each reads, and what it calls.

Every rank has a box of the result. It brings together what this reads of each operand,
and calls torch on it. All else follows: messages, their words, and gradients, which
return to the ranks that own what was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from synth.runtime.comm.exchanges import Exchange, moved, picked
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.comm.row_sets import RowSets, fetch_row_sets
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.grid.ranks import Ranks
from synth.runtime.kernels.autocast import (
    Operator,
    autocast_dtype,
    no_autocast,
    operator_dtype,
)
from synth.runtime.rules.access import Access, Rows, RowSet, read_box, read_rows

LocalCall = Callable[..., torch.Tensor]


class Operand(NamedTuple):
    """What all ranks own of an operand, and what each reads.

    place: of the operand among the arguments. accesses: from which `reads` follows.
    """

    source: Layout
    reads: Layout | RowSets
    place: int = 0
    accesses: tuple[Access, ...] = ()

    @property
    def stays(self) -> bool:
        """Whether every rank reads what it owns."""
        if isinstance(self.reads, Layout):
            return self.source.boxes == self.reads.boxes
        found = map(_slices, self.source.boxes, self.reads.wanted)
        whole = (tuple(slice(0, n, 1) for n in shape(b)) for b in self.source.boxes)
        return all(one == other for one, other in zip(found, whole, strict=True))

    def brought(self, shard: torch.Tensor, count: Count) -> torch.Tensor:
        """What this rank reads, from the ranks that own it; differentiable."""
        if isinstance(self.reads, Layout):
            return redistribute(shard, self.source, self.reads, count)
        return fetch_row_sets(shard, self.reads, count)

    @property
    def in_own_rows(self) -> bool:
        """Whether every rank reads a part of what it owns, which has a view."""
        if isinstance(self.reads, Layout):
            return self.stays
        return None not in map(_slices, self.source.boxes, self.reads.wanted)

    def own_rows(self, shard: torch.Tensor) -> torch.Tensor | None:
        """A view of what this rank reads; None if some rank reads what others own."""
        if isinstance(self.reads, Layout):
            return shard if self.stays else None
        found = list(map(_slices, self.source.boxes, self.reads.wanted))
        mine = found[self.source.ranks.me]
        return None if mine is None or None in found else shard[mine]

    def exchanges(self) -> list[Exchange]:
        """The words that ranks receive for it, and those of its gradient."""
        if isinstance(self.reads, Layout):
            return moved(self.source, self.reads, self.place)
        each = [] if self.stays else picked(self.reads)
        return [one._replace(needs=(self.place,)) for one in each]


def _slices(box: Box, sets: Sequence[RowSet]) -> tuple[slice, ...] | None:
    """Where rows with one step lie in a box; None for others, and if it lacks any."""
    made = []
    for (low, high), rows in zip(box, sets, strict=True):
        step = rows.step if isinstance(rows, range) and len(rows) > 1 else 1
        first, end = (rows[0], rows[-1] + 1) if rows else (low, low)
        if first < low or end > high or len(rows) != len(range(first, end, step)):
            return None
        made.append(slice(first - low, end - low, step))
    return tuple(made)


class Combined(Protocol):
    """What a call combines over ranks: parts of a value, or what earlier rows give."""

    def exchanges(self) -> list[Exchange]:
        """The words that ranks receive in the call, and those of its gradient."""


class Rule(NamedTuple):
    """An operator on boxes.

    out: who computes which box of the result. call: makes the own box, from what is
    read of the operands, then from the own parameters. combined: what it exchanges.
    """

    out: Layout
    operands: tuple[Operand, ...]
    call: LocalCall
    combined: Combined | None = None

    def exchanges(self) -> list[Exchange]:
        """What is brought together, and then combined."""
        found = [each for one in self.operands for each in one.exchanges()]
        return found + (self.combined.exchanges() if self.combined else [])


@dataclass(frozen=True)
class Together:
    """A call that torch may refuse by its words; what one rank refuses, all do.

    name: of the call, for messages. combined: see `Rule`.
    """

    name: str
    ranks: Ranks
    call: LocalCall
    combined: Combined | None = None

    @classmethod
    def of(cls, name: str, rule: Rule) -> Rule:
        """The rule with such a call."""
        made = cls(name, rule.out.ranks, rule.call, rule.combined)
        return rule._replace(call=made, combined=made)

    def __call__(self, *here: torch.Tensor) -> torch.Tensor:
        """The own box, if all ranks have made theirs."""
        return self.ranks.together(self.name, self.call, *here)

    def exchanges(self) -> list[Exchange]:
        """Those of the call: how it ended is told without words."""
        return self.combined.exchanges() if self.combined else []


def pulled(
    source: Layout, accesses: Sequence[Access], out: Layout, place: int = 0
) -> Operand:
    """An operand of which each rank reads what its box of the result accesses."""
    if any(isinstance(each, Rows) for each in accesses):
        rows = tuple(read_rows(accesses, box) for box in out.boxes)
        return Operand(source, RowSets(source, rows), place, tuple(accesses))
    reads = needed(out, source.whole, accesses)
    return Operand(source, reads, place, tuple(accesses))


def reshaped(source: Layout, held: Layout, out: Layout) -> Rule:
    """The words of an own box in another shape. held: where the input comes first."""
    own = shape(out.mine)
    return Rule(out, (Operand(source, held),), lambda box: box.reshape(own))


def needed(out: Layout, whole: Sequence[int], accesses: Sequence[Access]) -> Layout:
    """What each rank reads of an operand or of a parameter."""
    return out.with_boxes(whole, (read_box(accesses, box) for box in out.boxes))


class Traced(NamedTuple):
    """The dtypes of a call when it was traced: of its first operand, of its result."""

    operand: torch.dtype
    result: torch.dtype

    def of(self, operand: torch.dtype) -> torch.dtype:
        """That of the result for another operand."""
        if self.operand == self.result:
            return operand
        if self.result.is_complex and operand.is_floating_point:
            return operand.to_complex()
        if operand.is_complex and self.result.is_floating_point:
            return operand.to_real()
        floats = self.result.is_floating_point and self.operand.is_floating_point
        return operand if floats else self.result


ResultType = Callable[..., torch.dtype]  # from the operands


def type_of(call: LocalCall, shapes: Sequence[Sequence[int]]) -> ResultType:
    """The dtype that a call gives, under autocast where it is enabled.

    shapes: of operands of which it can compute words.
    """
    known = dict[object, torch.dtype]()

    def of(*here: torch.Tensor) -> torch.dtype:
        low = autocast_dtype(here[0].device)
        key = low, *(each.dtype for each in here)
        if key not in known:
            pairs = zip(here, shapes, strict=True)
            with torch.no_grad():
                words = (  # integers may be places, of which there may be one
                    each.new_full(like, is_trainable(each)) for each, like in pairs
                )
                known[key] = call(*words).dtype
        return known[key]

    return of


def where_words(
    call: LocalCall, out: Layout, dtype: ResultType | None = None
) -> LocalCall:
    """The call, if this rank has words of the result.

    Else a call that gives none. Gradients return from every rank all the same.
    dtype: of the result; None for that of the first operand.
    """
    own = shape(out.mine)
    if math.prod(own):
        return call

    def nothing(*here: torch.Tensor) -> torch.Tensor:
        kind = here[0].dtype if dtype is None else dtype(*here)
        made = here[0].new_zeros(own, dtype=kind)
        floats = [each.sum() for each in here if is_trainable(each)]
        if not floats:
            return made
        zero = _total(floats) * 0
        zero = zero if made.is_complex() or not zero.is_complex() else zero.real
        return made + zero.to(made.dtype)

    return nothing


def _total(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return values[0] if len(values) == 1 else torch.stack(list(values)).sum()


def is_trainable(values: torch.Tensor) -> bool:
    """Whether a tensor has numbers that may have a gradient: floating or complex."""
    return values.is_floating_point() or values.is_complex()


def in_one_dtype(what: str, operator: Operator, call: LocalCall) -> LocalCall:
    """A call that gives the dtype which autocast has for an operator of torch.

    It takes the operand in this dtype, and computes without autocast.
    """

    def run(shard: torch.Tensor) -> torch.Tensor:
        dtype = operator_dtype(what, operator, shard)
        with no_autocast(shard.device):
            return call(shard.to(dtype)).to(dtype)

    return run
