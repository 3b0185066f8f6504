"""Rows that a rank holds beside its own: it computes some, and fetches others.

Boxes may overlap. Every word has one owner, which sends it to whom it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.messages import Messages, exchange
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.redistribute import Count, in_memory
from synth.runtime.grid.boxes import Box, outside, overlap, shape, volume, within


class _Pending(NamedTuple):
    """Messages on their way, and the boxes in each that arrives."""

    messages: Messages
    boxes: list[list[Box]]


class Ring:
    """What ranks own, compute, need and hold of a tensor.

    owned: boxes in which every word has one owner. computed: what the rank computes,
    its own box among it. needed: what it reads. held: the least box with what it
    computes and needs. Its words that are neither are zero, and nobody reads them.
    """

    def __init__(
        self, owned: Layout, computed: Layout, needed: Layout, count: Count
    ) -> None:
        self.owned, self.computed, self.needed = owned, computed, needed
        pairs = zip(computed.boxes, needed.boxes, strict=True)
        self.held = owned.with_boxes(owned.whole, (_hull(*each) for each in pairs))
        self.count = count
        self.me = owned.ranks.me

    def own_words(self, held: torch.Tensor) -> torch.Tensor:
        """The words of the own box, of those that the rank holds."""
        own, here = self.owned.mine, self.held.mine
        if own == here:
            return held
        if not volume(own):
            return held.flatten()[:0].reshape(shape(own))
        return held[within(own, here)].contiguous()

    def completed(self, made: torch.Tensor) -> torch.Tensor:
        """What the rank holds, from what it has computed: it fetches the others.

        Differentiable: the gradients of fetched words return to their owners, which add
        them to their own.
        """
        if not self.moves and self.held.mine == self.computed.mine:
            return made
        return with_adjoint(made, self._fetched, self._returned)

    def _fetched(self, made: torch.Tensor) -> torch.Tensor:
        """The held words, from the computed ones."""
        pending = self._start(made, self.computed.mine, self.pieces)
        held = made.new_zeros(shape(self.held.mine))
        if volume(self.computed.mine):
            held[within(self.computed.mine, self.held.mine)] = made
        for box, part in self._arrived(pending):
            held[within(box, self.held.mine)] = part
        return held

    def _returned(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the computed words, from that of the held ones.

        Half precision is added in float32 and rounded once.
        """
        here, inner = self.held.mine, self.computed.mine
        pending = self._start(
            gradient, here, lambda mine, peer: self.pieces(peer, mine)
        )
        if volume(inner):
            total = gradient[within(inner, here)].to(sum_dtype(gradient.dtype))
        else:
            total = gradient.new_zeros(shape(inner))
        total = total.clone(memory_format=torch.contiguous_format)
        for box, part in self._arrived(pending):
            total[within(box, inner)] += part
        return total.to(gradient.dtype)

    def _start(
        self,
        values: torch.Tensor,
        here: Box,
        pieces: Callable[[int, int], list[Box]],
    ) -> _Pending:
        """Send a message to each peer that wants words, and receive those of others.

        values: the words of the box `here`. pieces: what one rank sends to another.
        """
        values, ranks = in_memory(values), self.owned.ranks
        sends, extents, boxes = list[Any](), list[Any](), list[list[Box]]()
        for peer in range(ranks.size):
            going, coming = pieces(self.me, peer), pieces(peer, self.me)
            if going:
                words = [values[within(box, here)].flatten() for box in going]
                sends.append((peer, torch.cat(words)))
            if coming:
                extents.append((peer, (sum(map(volume, coming)),)))
                boxes.append(coming)
        self.count(sum(words for _, (words,) in extents))
        return _Pending(exchange(values, sends, extents, ranks.group), boxes)

    def _arrived(self, pending: _Pending) -> Iterator[tuple[Box, torch.Tensor]]:
        """The boxes that peers have sent, and their words."""
        for words, boxes in zip(pending.messages.arrived(), pending.boxes, strict=True):
            sizes = list(map(volume, boxes))
            parts: Any = words.split(sizes)  # type: ignore[no-untyped-call]
            for box, part in zip(boxes, parts, strict=True):
                yield box, part.reshape(shape(box))

    def pieces(self, owner: int, reader: int) -> list[Box]:
        """The boxes that a reader fetches from an owner."""
        return self._pieces[owner][reader]

    @cached_property
    def _pieces(self) -> list[list[list[Box]]]:
        """By owner and reader."""
        ranks = range(len(self.owned.boxes))
        lacked = [
            outside(need, here) if volume(need) else []
            for need, here in zip(self.needed.boxes, self.computed.boxes, strict=True)
        ]

        def between(owner: int, reader: int) -> list[Box]:
            if owner == reader:
                return []
            found = (overlap(part, self.owned.boxes[owner]) for part in lacked[reader])
            return [box for box in found if volume(box)]

        return [[between(owner, reader) for reader in ranks] for owner in ranks]

    @cached_property
    def moves(self) -> bool:
        """Whether any rank fetches words."""
        return any(any(boxes) for boxes in self._pieces)

    def exchange(self) -> Exchange:
        """The words that ranks receive, and those of gradients on the way back."""
        ranks = range(len(self.owned.boxes))
        words = [[sum(map(volume, boxes)) for boxes in row] for row in self._pieces]
        received = tuple(sum(row[me] for row in words) for me in ranks)
        return Exchange(received, tuple(map(sum, words)))


def _hull(one: Box, other: Box) -> Box:
    """The least box around two; an empty one adds nothing."""
    if not volume(one) or not volume(other):
        return one if volume(one) else other if volume(other) else one
    pairs = zip(one, other, strict=True)
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs)
