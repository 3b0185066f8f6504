"""Exchange of rows that are no interval: each rank wants some rows of every dimension.

The words that a rank wants are all that have one of its rows in each dimension. Sender
and receiver know the rows of all ranks, so they need no messages about sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.messages import exchange
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.redistribute import in_memory
from synth.runtime.grid.boxes import shape
from synth.runtime.grid.row_maps import inside

Rows = tuple[Sequence[int], ...]  # for each dimension, sorted rows of the whole
Count = Callable[[int], None]  # is called with received words


class RowSets(NamedTuple):
    """The boxes that the ranks own, and the rows of each dimension that they want."""

    owned: Layout
    wanted: tuple[Rows, ...]

    @property
    def mine(self) -> Rows:
        """The rows that this rank wants."""
        return self.wanted[self.owned.ranks.me]

    def places(self, owner: int, reader: int) -> tuple[slice, ...]:
        """Which of the reader's rows an owner has."""
        pairs = zip(self.wanted[reader], self.owned.boxes[owner], strict=True)
        return tuple(inside(rows, interval) for rows, interval in pairs)

    def rows_of_owner(self, owner: int, reader: int) -> list[list[int]]:
        """The same rows, numbered from the owner's first one."""
        found = []
        places = self.places(owner, reader)
        if any(place.stop <= place.start for place in places):
            return [[] for _ in places]  # the reader wants nothing of it
        box = self.owned.boxes[owner]
        for rows, place, (low, _) in zip(self.wanted[reader], places, box, strict=True):
            found.append([row - low for row in rows[place]])
        return found


def fetch_row_sets(own: torch.Tensor, sets: RowSets, count: Count) -> torch.Tensor:
    """The words with the wanted rows, from the ranks that own them; differentiable."""
    return with_adjoint(
        own,
        lambda values: _fetched(values, sets, count),
        lambda gradient: _added(gradient, sets, count),
    )


def _fetched(own: torch.Tensor, sets: RowSets, count: Count) -> torch.Tensor:
    """The words with the wanted rows of this rank."""
    me = sets.owned.ranks.me
    result = own.new_empty([len(rows) for rows in sets.mine])
    sends = _by_peer(sets, lambda peer: _picked(own, sets.rows_of_owner(me, peer)))
    sizes = _by_peer(sets, lambda peer: _sizes(sets, peer, me))
    kept = _picked(own, sets.rows_of_owner(me, me))
    if kept.numel():
        result[sets.places(me, me)] = kept
    for peer, piece in _exchange(own, sends, sizes, sets, count):
        result[sets.places(peer, me)] = piece
    return result


def _added(gradient: torch.Tensor, sets: RowSets, count: Count) -> torch.Tensor:
    """The sums of the gradients of the owned words; the adjoint of `_fetched`."""
    me = sets.owned.ranks.me
    sums = gradient.new_zeros(shape(sets.owned.mine), dtype=sum_dtype(gradient.dtype))
    sends = _by_peer(sets, lambda peer: gradient[sets.places(peer, me)])
    sizes = _by_peer(sets, lambda peer: _sizes(sets, me, peer))
    _add(sums, sets.rows_of_owner(me, me), gradient[sets.places(me, me)])
    for peer, piece in _exchange(gradient, sends, sizes, sets, count):
        _add(sums, sets.rows_of_owner(me, peer), piece)
    return sums.to(gradient.dtype)


def _by_peer(sets: RowSets, made: Callable[[int], Any]) -> dict[int, Any]:
    """Other rank -> what is made for it."""
    ranks = sets.owned.ranks
    return {peer: made(peer) for peer in range(ranks.size) if peer != ranks.me}


def _sizes(sets: RowSets, owner: int, reader: int) -> list[int]:
    places = sets.places(owner, reader)
    return [max(0, place.stop - place.start) for place in places]


def _picked(values: torch.Tensor, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """The words with some rows of every dimension."""
    for dim, each in enumerate(rows):
        if _consecutive(each):
            values = values.narrow(dim, each[0] if each else 0, len(each))
        else:
            values = values.index_select(dim, _index(each, values))
    return values


def _add(
    sums: torch.Tensor, rows: Sequence[Sequence[int]], piece: torch.Tensor
) -> None:
    """Add a piece to the words with some rows, each given once."""
    if not piece.numel():
        return
    view, scattered = sums, []
    for dim, each in enumerate(rows):
        if _consecutive(each):
            view = view.narrow(dim, each[0], len(each))
        else:
            scattered.append(dim)
    piece = piece.to(sums.dtype)
    if not scattered:
        view += piece
        return
    *others, last = scattered
    for dim in others:
        extents = [*piece.shape]
        extents[dim] = view.shape[dim]
        wide = piece.new_zeros(extents)
        piece = wide.index_copy_(dim, _index(rows[dim], sums), piece)
    view.index_add_(last, _index(rows[last], sums), piece)


def _index(rows: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=like.device)


def _consecutive(rows: Sequence[int]) -> bool:
    return not rows or rows[-1] - rows[0] == len(rows) - 1


def _exchange(
    values: torch.Tensor,
    sends: dict[int, torch.Tensor],
    sizes: dict[int, list[int]],
    sets: RowSets,
    count: Count,
) -> list[tuple[int, torch.Tensor]]:
    """Send a piece to each rank; return what the ranks send, of the given sizes."""
    outgoing = [(peer, in_memory(each)) for peer, each in sends.items() if each.numel()]
    incoming = [(peer, size) for peer, size in sizes.items() if math.prod(size)]
    count(sum(math.prod(size) for _, size in incoming))
    arrived = exchange(values, outgoing, incoming, sets.owned.ranks.group).arrived()
    return [(peer, piece) for (peer, _), piece in zip(incoming, arrived, strict=True)]
