"""Values of which several ranks have parts, combined on all of these ranks.

Moments, or sums, of words that ranks divide: each rank has a part of every value in its
box, and all ranks whose boxes have the value want it whole.

* In one round each rank sends its part to all others that hold the value.
* In two rounds the parts of a value go to its owner, and the whole returns.

Reductions need the first of the two rounds: their values stay with the owners. The
second one is its adjoint, for gradients.

One round takes one latency less, and moves (P - 1) / (2 (P - 1) / P) = P / 2 times the
words. It is taken while it moves at most `ROUND` words more. All ranks combine the same
parts in the same order, so they get the same bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from synth.runtime.comm.collectives import native_gather
from synth.runtime.comm.exchanges import Exchange, Words, around, overlaps, times
from synth.runtime.comm.layout import Layout, disjoint, split_copies
from synth.runtime.comm.messages import all_to_all
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.compiled.constants import real_tensors
from synth.runtime.grid.boxes import (
    Box,
    Interval,
    intersect,
    overlap,
    shape,
    volume,
    within,
)
from synth.runtime.grid.rules.shared_rounds import in_one_round, owned_share
from synth.runtime.grid.spans import waiting
from synth.runtime.grid.transport import near, through_host, transport_of

SMALL = 2**20  # bytes that a rank sends to all others in one all-to-all
# parts by rank, (ranks, numbers, *box), and where the box is -> (numbers, *box)
Combine = Callable[[torch.Tensor, tuple[slice, ...]], torch.Tensor]


class Swap(NamedTuple):
    """What ranks of a group send each other in one all-to-all.

    sent: rank of the group -> what it gets of the own box.
    received: rank of the group -> the box that comes from it.
    """

    sent: tuple[Box, ...]
    received: tuple[Box, ...]


class SharedParts:
    """Combines the parts that ranks have of some values.

    held: the values of which each rank has parts, and which it wants whole.
    count: of received words.
    homes: boxes, equal or disjoint, whose ranks divide the values of each among them;
        by default those of `held`. A home lies in the box that its rank holds.
    """

    def __init__(
        self,
        held: Layout,
        process_groups: ProcessGroups,
        count: Callable[[int], None],
        homes: Layout | None = None,
    ) -> None:
        self.held, self.count, me = held, count, held.ranks.me
        self.homes = homes or held
        self.ranks = sharing(held)
        alone = len(self.ranks) == 1
        self.group = None if alone else process_groups.of(self.ranks)
        self.apart = disjoint(held.boxes)
        self.one_round = not self.apart or few_words(held.boxes[me], len(self.ranks))

    @property
    def alone(self) -> bool:
        """Whether no other rank has a part of the own values."""
        return len(self.ranks) == 1

    def sums(self, own: torch.Tensor) -> torch.Tensor:
        """Sums of some numbers per value, (numbers, *own box), over the ranks."""
        return self._combined(own, lambda parts, _: parts.sum(0))

    def owned_parts(
        self, own: torch.Tensor, none: Sequence[float] = ()
    ) -> torch.Tensor:
        """The parts of the owned values by rank, (ranks, numbers, *owned box).

        none: the numbers of a value of which a rank has no part; by default zeros.
        """
        to_owners, _ = self._by_owner
        return self._by_rank(own, to_owners, self.owned.mine, none)

    def from_owners(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """(numbers, *own box), from what the owners have for each rank.

        The adjoint of `owned_parts`.

        values: by rank, (numbers, *owned box).
        """
        mine, (_, back) = self.held.mine, self._by_owner
        whole = values[0].new_empty(len(values[0]), *shape(mine))
        pairs = zip(values, back.sent, strict=True)
        leaving = [
            each[(slice(None), *within(box, self.owned.mine))] for each, box in pairs
        ]
        pieces = self._swapped(leaving, back.received)
        for box, piece in zip(back.received, pieces, strict=True):
            whole[(slice(None), *within(box, mine))] = piece
        return whole

    @cached_property
    def owned(self) -> Layout:
        """One owner for every value."""
        return split_copies(self.homes)

    def words(self) -> Words:
        """By rank, what it receives if a value is one number."""
        held = self.held
        direct = overlaps(held, held).sum(0).tolist()
        if not self.apart:
            return tuple(direct)
        boxes, ranks = held.boxes, Counter(held.boxes)
        if all(few_words(box, number) for box, number in ranks.items()):
            return tuple(direct)
        twice = around(held, self.owned)
        return tuple(
            one if few_words(box, ranks[box]) else two
            for box, one, two in zip(boxes, direct, twice, strict=True)
        )

    # -- exchanges -----------------------------------------------------------------

    def _combined(self, own: torch.Tensor, combine: Combine) -> torch.Tensor:
        if self.alone:
            return own
        mine = self.held.mine
        if self.one_round:
            if self._alike and not through_host(own, self.group):
                self.count((len(self.ranks) - 1) * own.numel())
                parts = gather_small(own, len(self.ranks), self.group)
            else:
                parts = self._by_rank(own, self._around, mine)
            return combine(parts, within(mine, mine))
        total = combine(self.owned_parts(own), within(self.owned.mine, mine))
        return self.from_owners([total] * len(self.ranks))

    @cached_property
    def _alike(self) -> bool:
        """Whether all ranks of the group have parts of the same values."""
        return all(self.held.boxes[rank] == self.held.mine for rank in self.ranks)

    @cached_property
    def _around(self) -> Swap:
        """Every rank sends its part to all others that hold a value."""
        boxes, mine = self.held.boxes, self.held.mine
        both = tuple(overlap(mine, boxes[rank]) for rank in self.ranks)
        return Swap(both, both)

    @cached_property
    def _by_owner(self) -> tuple[Swap, Swap]:
        """Parts to the owners, and what these made of them to all ranks."""
        held, owned = self.held, self.owned
        theirs = tuple(overlap(held.mine, owned.boxes[rank]) for rank in self.ranks)
        mine = tuple(overlap(owned.mine, held.boxes[rank]) for rank in self.ranks)
        return Swap(theirs, mine), Swap(mine, theirs)

    def _by_rank(
        self, own: torch.Tensor, swap: Swap, box: Box, none: Sequence[float] = ()
    ) -> torch.Tensor:
        """(ranks, numbers, *box): the parts of all ranks in a box.

        none: the numbers where a rank has no part; by default zeros.
        """
        mine = self.held.mine
        leaving = [own[(slice(None), *within(each, mine))] for each in swap.sent]
        pieces = self._swapped(leaving, swap.received)
        if all(each == box for each in swap.received):
            return torch.stack(pieces)
        parts = own.new_zeros(len(self.ranks), len(own), *shape(box))
        for place, number in enumerate(none):
            parts[:, place] = number
        for part, each, piece in zip(parts, swap.received, pieces, strict=True):
            part[(slice(None), *within(each, box))] = piece
        return parts

    def _swapped(
        self, leaving: Sequence[torch.Tensor], boxes: Sequence[Box]
    ) -> list[torch.Tensor]:
        """The pieces of all ranks, in one all-to-all.

        leaving: what each rank gets, (numbers, *box). boxes: of what comes from each.
        """
        numbers, device = len(leaving[0]), leaving[0].device
        sent = torch.cat([piece.flatten() for piece in leaving])
        sent = sent.to(near(device, self.group))
        sizes = [numbers * volume(box) for box in boxes]
        arriving = sent.new_empty(sum(sizes))
        counts = [piece.numel() for piece in leaving]
        with waiting("wait for messages"):
            all_to_all(arriving, sent, sizes, counts, self.group).wait()
        me = self.ranks.index(self.held.ranks.me)
        self.count(sum(sizes) - sizes[me])
        pieces = torch.split(arriving.to(device), sizes)
        pairs = zip(pieces, boxes, strict=True)
        return [piece.view(numbers, *shape(box)) for piece, box in pairs]


class Moments(SharedParts):
    """Mean and variance of groups of words, of which ranks have parts.

    sizes: for each of the first dimensions, how many of its rows are in a group; all
    rows of the others are. groups: that ranks hold; by default those of their words.
    group_words: of a group.
    """

    def __init__(
        self,
        layout: Layout,
        sizes: tuple[int, ...],
        process_groups: ProcessGroups,
        count: Callable[[int], None],
        groups: Layout | None = None,
    ) -> None:
        self.layout, self.sizes = layout, sizes
        self.group_words = math.prod((*sizes, *layout.whole[len(sizes) :]))
        super().__init__(groups or self._held(layout), process_groups, count)
        self._shares: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def _held(self, layout: Layout) -> Layout:
        whole = [n // size for n, size in zip(layout.whole, self.sizes, strict=False)]
        return layout.with_boxes(whole, map(self._groups_of, layout.boxes))

    def _groups_of(self, box: Box) -> Box:
        pairs = zip(box, self.sizes, strict=False)
        return tuple((low // n, -(-high // n)) for (low, high), n in pairs)

    def exchanges(self) -> list[Exchange]:
        """Two numbers per group in each pass."""
        words = times(2, self.words())
        return [Exchange(words, words)]

    def moments(self, own: torch.Tensor) -> torch.Tensor:
        """Mean and variance of all words, (2, *own groups), from those of the own."""
        if self.alone:
            return own
        kind = own.dtype, own.device
        if kind not in self._shares:
            with real_tensors():
                shares = self._shares_of_ranks().to(own.device, own.dtype)
            self._shares[kind] = shares
        shares = self._shares[kind]

        def combine(parts: torch.Tensor, box: tuple[slice, ...]) -> torch.Tensor:
            each = shares[(slice(None), *box)]
            return torch.stack(weighted_moments(parts[:, 0], parts[:, 1], each))

        return self._combined(own, combine)

    def _shares_of_ranks(self) -> torch.Tensor:
        """(rank, *own groups) -> the part of a group's words there."""
        mine = self.held.mine
        found = torch.zeros(len(self.ranks), *shape(mine), dtype=torch.float64)
        for shares, rank in zip(found, self.ranks, strict=True):
            box, both = self.layout.boxes[rank], overlap(self.held.boxes[rank], mine)
            rest = math.prod(shape(box[len(both) :])) / self.group_words
            part = torch.tensor(rest, dtype=torch.float64)
            for each in zip(box, both, self.sizes, strict=False):
                part = part.unsqueeze(-1) * torch.tensor(rows_in(*each))
            shares[within(both, mine)] = part
        return found


def rows_in(rows: Interval, groups: Interval, size: int) -> list[int]:
    """How many of some rows are in each of some groups of so many."""
    own = (intersect(rows, (g * size, (g + 1) * size)) for g in range(*groups))
    return [last - first for first, last in own]


def weighted_moments(
    means: torch.Tensor, variances: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of words from those of their parts, along dimension 0.

    shares: the fraction of the words that each part has.
    The formula is that of Chan, Golub and LeVeque (1983).
    """
    mean = (shares * means).sum(0)
    spread = (means - mean).square() + variances
    return mean, (shares * spread).sum(0)


def sharing(held: Layout) -> tuple[int, ...]:
    """The ranks that hold some words of this rank's box, transitively; itself, too."""
    me = held.ranks.me
    left = dict.fromkeys(box for box in held.boxes if volume(box))
    if held.mine not in left:
        return (me,)
    found, fresh = {held.mine}, [held.mine]
    while fresh:
        box = fresh.pop()
        more = [
            each for each in left if each not in found and volume(overlap(box, each))
        ]
        found.update(more)
        fresh += more
    return tuple(rank for rank, box in enumerate(held.boxes) if box in found)


def few_words(box: Box, ranks: int) -> bool:
    """Whether ranks that hold one box combine their parts in one round."""
    extents = shape(box)
    return bool(in_one_round(volume(box), owned_share(extents, ranks), ranks))


def gather_small(own: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
    """The values of each rank of a group, by rank; few words of one shape.

    If they are small, in one all-to-all where that is quick, as on gloo. Its all-gather
    takes longer. It is a ring of as many steps as there are other ranks; between two
    ranks it takes 1.3 to 2 times the processor time.
    """
    own = own.contiguous()
    rows = own.new_empty(ranks, *own.shape)
    small = own.numel() * own.element_size() * ranks <= SMALL
    with waiting("wait for messages"):
        if small and transport_of(group, own.device).quick_all_to_all:
            sent = own.expand(ranks, *own.shape).flatten()
            all_to_all(rows.view(-1), sent, None, None, group).wait()
        else:
            native_gather(rows, own, group)
    return rows


# -- of words that several ranks hold --------------------------------------------------


def of_owned(shard: torch.Tensor, owned: Layout, held: Layout) -> torch.Tensor:
    """The words of a shard that this rank owns."""
    if owned.mine == held.mine:
        return shard
    return shard[within(owned.mine, held.mine)].contiguous()


def zero_but_owned(values: torch.Tensor, owned: Layout, held: Layout) -> torch.Tensor:
    """Words like those of a shard; 0 for those that other ranks own."""
    if owned.mine == held.mine:
        return values
    kept, place = torch.zeros_like(values), within(owned.mine, held.mine)
    kept[place] = values[place]
    return kept
