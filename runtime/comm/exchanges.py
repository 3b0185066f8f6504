"""Words that ranks receive, from the boxes of all ranks alone; nothing is sent.

Each step of a network says its exchanges: the same layouts decide what it sends when it
runs. So planned words are those that the ranks count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from synth.runtime.comm.layout import Layout, one_owner
from synth.runtime.comm.row_sets import RowSets

Words = tuple[int, ...]  # that each rank receives, by its index


class Exchange(NamedTuple):
    """One exchange of a step.

    forward: words in the forward pass. backward: on the way back, which there is if one
    of `needs` gets a gradient: the place of an argument, or the name of a parameter.
    """

    forward: Words
    backward: Words
    needs: tuple[int | str, ...] = (0,)


def moved(source: Layout, target: Layout, *needs: int | str) -> list[Exchange]:
    """Those of `redistribute`; `needs` is what moves, by default the first argument."""
    if source.boxes == target.boxes:
        return []
    words = overlaps(source, target)
    return [Exchange(_listed(words.sum(0)), _listed(words.sum(1)), needs or (0,))]


def summed(held: Layout, owned: Layout, *needs: int | str) -> list[Exchange]:
    """Those of `add_boxes`, whose adjoint is a redistribution."""
    found = moved(owned, held, *needs)
    return [Exchange(back, there, asked) for there, back, asked in found]


def around(held: Layout, owned: Layout | None = None) -> Words:
    """Words of partial sums that go to their owners, and of sums that come back."""
    owned = owned or one_owner(held)
    if held.boxes == owned.boxes:
        return none(held)
    words = overlaps(owned, held)
    return _listed(words.sum(0) + words.sum(1))


def copied(held: Layout, owned: Layout, name: str) -> list[Exchange]:
    """Those of `sum_copies`: the gradient of a parameter of which ranks hold copies."""
    return [Exchange(none(held), around(held, owned), (name,))]


def picked(sets: RowSets) -> list[Exchange]:
    """Those of `fetch_row_sets`."""
    ranks = range(len(sets.owned.boxes))
    words = torch.zeros(len(ranks), len(ranks), dtype=torch.int64)
    for owner in ranks:
        for reader in ranks:
            if owner != reader:
                places = sets.places(owner, reader)
                sizes = (max(0, place.stop - place.start) for place in places)
                words[owner, reader] = math.prod(sizes)
    return [Exchange(_listed(words.sum(0)), _listed(words.sum(1)))]


def none(layout: Layout) -> Words:
    """No words for any rank."""
    return (0,) * len(layout.boxes)


def added(words: Iterable[Words]) -> Words:
    """The sums by rank; at least one is given."""
    return tuple(map(sum, zip(*words, strict=True)))


def times(number: int, words: Words) -> Words:
    """So many times the words."""
    return tuple(number * each for each in words)


def overlaps(source: Layout, target: Layout) -> torch.Tensor:
    """(owner, reader) -> words of the reader's target that are in the owner's source.

    What a rank has itself does not count.
    """
    size = len(source.boxes)
    words = torch.ones(size, size, dtype=torch.int64)
    for dim in range(len(source.whole)):
        here = torch.tensor([box[dim] for box in source.boxes])[:, None]
        there = torch.tensor([box[dim] for box in target.boxes])[None]
        low = torch.maximum(here[..., 0], there[..., 0])
        high = torch.minimum(here[..., 1], there[..., 1])
        words *= (high - low).clamp_(min=0)
    return words.fill_diagonal_(0)


def _listed(words: torch.Tensor) -> Words:
    return tuple(words.tolist())
