"""Layouts of activations: who holds which box of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from synth.runtime.grid.boxes import Box, cut, shape, volume
from synth.runtime.grid.process_grid import At
from synth.runtime.grid.ranks import Ranks


@dataclass(frozen=True)
class Layout:
    """The shape of a whole tensor and the box of every rank.

    ranks: the ranks that hold it; `boxes[i]` is that of `ranks.members[i]`. They do not
        count when layouts are compared.
    """

    whole: tuple[int, ...]
    boxes: tuple[Box, ...]
    ranks: Ranks = field(compare=False)

    @property
    def mine(self) -> Box:
        """The box of this rank."""
        return self.boxes[self.ranks.me]

    @property
    def most_words(self) -> int:
        """Words of the largest box."""
        return max(map(volume, self.boxes))

    @property
    def held_words(self) -> int:
        """Words of all boxes: fewer than those of the tensor if some are lost."""
        return sum(map(volume, self.boxes))

    def box(self, at: At) -> Box:
        """The box of the member `at["rank"]`, as `fetch_rows` asks for it."""
        return self.boxes[at["rank"]]

    def with_boxes(self, whole: Sequence[int], boxes: Iterable[Box]) -> Layout:
        """A layout of another tensor on the same ranks."""
        return Layout(tuple(whole), tuple(boxes), self.ranks)


def replicated(whole: Sequence[int], ranks: Ranks) -> Layout:
    """Every rank holds the whole tensor."""
    frame = tuple((0, extent) for extent in whole)
    return Layout(tuple(whole), (frame,) * ranks.size, ranks)


def even(whole: Sequence[int], ranks: Ranks) -> Layout:
    """Dimension 0 is cut over as many ranks as possible, dimension 1 over the others.

    Parts are empty where there are fewer words than ranks. A scalar cannot be cut: all
    ranks have it, each with a part of its gradient.
    """
    if not whole:
        return replicated(whole, ranks)
    size = ranks.size
    fits = (d for d in range(1, size + 1) if size % d == 0 and d <= whole[0])
    first = max(fits, default=1)
    first = size if len(whole) == 1 else first
    boxes = []
    for rank in range(size):
        box = [(0, extent) for extent in whole]
        box[0] = cut(box[0], first, rank // (size // first))
        if len(whole) > 1:
            box[1] = cut(box[1], size // first, rank % (size // first))
        boxes.append(tuple(box))
    return Layout(tuple(whole), tuple(boxes), ranks)


def disjoint(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes are equal or share no word."""
    kinds = list(dict.fromkeys(boxes))
    pairs = ((one, other) for i, one in enumerate(kinds) for other in kinds[:i])
    return all(
        any(min(a[1], b[1]) <= max(a[0], b[0]) for a, b in zip(*pair, strict=True))
        for pair in pairs
    )


def split_copies(held: Layout) -> Layout:
    """One owner for each word: ranks with equal boxes cut them along the longest dim.

    Boxes that are not equal must be disjoint.
    """
    boxes = []
    for rank, box in enumerate(held.boxes):
        peers = [peer for peer, other in enumerate(held.boxes) if other == box]
        sizes = shape(box)
        dim = sizes.index(max(sizes))
        part = cut(box[dim], len(peers), peers.index(rank))
        boxes.append((*box[:dim], part, *box[dim + 1 :]))
    return held.with_boxes(held.whole, boxes)


def one_owner(held: Layout) -> Layout:
    """A layout with one owner for each word, a rank that holds the word if possible."""
    if not held.whole:  # a scalar cannot be cut: all ranks own it
        return held
    if disjoint(held.boxes):
        return split_copies(held)
    return even(held.whole, held.ranks)
