"""Rows that a rank holds beside its own: it computes some, and fetches others.

Boxes may overlap. Every word has one owner, which sends it to whom it lacks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.messages import start_messages, wait_for
from synth.runtime.comm.process_groups import through_host
from synth.runtime.comm.redistribute import Count, in_memory
from synth.runtime.grid.boxes import Box, outside, overlap, shape, volume, within


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
            return held.new_zeros(shape(own))
        return held[within(own, here)].contiguous()

    def completed(self, made: torch.Tensor) -> torch.Tensor:
        """What the rank holds, from what it has computed: it fetches the others."""
        if not self.moves and self.held.mine == self.computed.mine:
            return made
        if made.dtype == torch.bool:  # which gloo does not send
            return self.completed(made.view(torch.uint8)).view(torch.bool)
        sends, receives = self._messages(in_memory(made))
        requests = start_messages(
            [(peer, piece) for peer, piece, _ in receives],
            sends,
            self.owned.ranks.group,
        )
        held = made.new_zeros(shape(self.held.mine))
        if volume(self.computed.mine):
            held[within(self.computed.mine, self.held.mine)] = made
        self.count(sum(piece.numel() for _, piece, _ in receives))
        wait_for(requests)
        for _, piece, boxes in receives:
            sizes = list(map(volume, boxes))
            parts = piece.to(made.device).split(sizes)
            for box, part in zip(boxes, parts, strict=True):
                held[within(box, self.held.mine)] = part.reshape(shape(box))
        return held

    def _messages(self, made: torch.Tensor) -> tuple[list[Any], list[Any]]:
        """(rank, words) to send, and (rank, room, boxes) to receive: one per peer."""
        ranks, here, cpu = self.owned.ranks, self.computed.mine, torch.device("cpu")
        near = cpu if through_host(made, ranks.group) else made.device
        sends, receives = list[Any](), list[Any]()
        for peer in range(ranks.size):
            going = self.pieces(self.me, peer)
            if going:
                words = [made[within(box, here)].flatten() for box in going]
                sends.append((peer, torch.cat(words).to(near)))
            coming = self.pieces(peer, self.me)
            if coming:
                room = made.new_empty(sum(map(volume, coming)), device=near)
                receives.append((peer, room, coming))
        return sends, receives

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
        """The words that ranks receive; nothing returns."""
        size = len(self.owned.boxes)
        received = [
            sum(volume(box) for owner in range(size) for box in self._pieces[owner][me])
            for me in range(size)
        ]
        return Exchange(tuple(received), (0,) * size, ())


def _hull(one: Box, other: Box) -> Box:
    """The least box around two; an empty one adds nothing."""
    if not volume(one) or not volume(other):
        return one if volume(one) else other if volume(other) else one
    pairs = zip(one, other, strict=True)
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs)
