"""Exclusive prefixes over ranks that stand in a line: what all ranks before one have.

Each rank has a state. In the first round it goes to the next rank; then every rank
sends what it has so far over 1, 2, 4, ... places. A rank receives at most one state per
round, and of P ranks the last is ready after 1 + ⌈log2(P - 1)⌉ rounds. This is the
exclusive form of the scan of Hillis and Steele (1986).

A suffix is the prefix of the line in the other direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from synth.runtime.comm.exchanges import Words
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.messages import exchange
from synth.runtime.comm.redistribute import Count, in_memory
from synth.runtime.grid.boxes import Box, Interval, overlap, volume
from synth.runtime.grid.ranks import Ranks

State = list[torch.Tensor]
Line = tuple[int, ...]  # indices of ranks, in the order of their rows
Combine = Callable[[State, State], State]  # earlier, later -> both


def lines_along(layout: Layout, dim: int) -> list[Line] | None:
    """The lines of ranks whose boxes follow each other along a dimension.

    Ranks without words are in none. None where some box has no place in a line: boxes
    that share words, or that differ in part along another dimension.
    """
    found: dict[Box, list[int]] = {}
    for rank, box in enumerate(layout.boxes):
        if volume(box):
            found.setdefault(_beside(box, dim), []).append(rank)
    kinds = list(found)
    for place, one in enumerate(kinds):
        if any(volume(overlap(one, other)) for other in kinds[:place]):
            return None
    lines = []
    for ranks in found.values():
        line = sorted(ranks, key=lambda rank: layout.boxes[rank][dim])
        rows = [layout.boxes[rank][dim] for rank in line]
        if not _follow(rows, layout.whole[dim]):
            return None
        lines.append(tuple(line))
    return lines


def own_line(lines: Sequence[Line], ranks: Ranks) -> Line:
    """The line that this rank is in; () where it has no words."""
    return next((line for line in lines if ranks.me in line), ())


def _beside(box: Box, dim: int) -> Box:
    """A box without one of its dimensions."""
    return (*box[:dim], *box[dim + 1 :])


def _follow(rows: Sequence[Interval], extent: int) -> bool:
    """Whether intervals follow each other from 0 to an extent."""
    ends = [0, *(high for _, high in rows)]
    return ends[-1] == extent and ends[:-1] == [low for low, _ in rows]


def states_received(place: int) -> int:
    """How many states the rank at a place of a line receives."""
    return 1 + (place - 1).bit_length() if place else 0


def words_received(
    layout: Layout, lines: Sequence[Line], words: Callable[[Box], int], turned: bool
) -> Words:
    """By rank, the words that it receives.

    words: of the state of a rank with some box. turned: of suffixes.
    """
    found = [0] * len(layout.boxes)
    for line in lines:
        for place, rank in enumerate(line[::-1] if turned else line):
            found[rank] = states_received(place) * words(layout.boxes[rank])
    return tuple(found)


def distances(ranks: int) -> Iterator[int]:
    """Over how many places states go in each round of a line of ranks."""
    if ranks > 1:
        yield 1
    distance = 1
    while distance < ranks - 1:
        yield distance
        distance *= 2


def exclusive_prefix(
    own: State, line: Line, combine: Combine, ranks: Ranks, count: Count
) -> State | None:
    """The states of all ranks before this one, combined in their order.

    own: the state of this rank; those of all ranks have the same shapes and one dtype.
    combine: associative. count: of received words. None for the first rank of the line.
    """
    place, found = line.index(ranks.me), None
    for number, distance in enumerate(distances(len(line))):
        given = found if number else own
        target = place + distance if given is not None else len(line)
        source = place - distance
        peers = line[target] if target < len(line) else None
        comes = line[source] if source >= min(number, 1) else None
        received = _swapped(given or own, peers, comes, ranks, count)
        if received is not None:
            found = received if found is None else combine(received, found)
    return found


def _swapped(
    state: State, target: int | None, source: int | None, ranks: Ranks, count: Count
) -> State | None:
    """Send a state to one rank, and receive one from another, where there are such."""
    if target is None and source is None:
        return None
    sends = []
    if target is not None:
        flat = torch.cat([in_memory(each).flatten() for each in state])
        sends.append((target, flat))
    sizes = [each.numel() for each in state]
    extents = [] if source is None else [(source, (sum(sizes),))]
    arrived = exchange(state[0], sends, extents, ranks.group).arrived()
    if source is None:
        return None
    count(sum(sizes))
    pieces = torch.split(arrived[0], sizes)
    return [piece.view(each.shape) for piece, each in zip(pieces, state, strict=True)]


def beside_words(box: Box, dim: int) -> int:
    """The words of a row of a box."""
    return math.prod(high - low for low, high in _beside(box, dim))
