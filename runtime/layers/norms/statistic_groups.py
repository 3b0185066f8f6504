"""Which ranks share the statistics of a batch normalization, and over which words.

Statistics are global, over the whole batch, or local, over the samples of some ranks.
Local statistics are those of DDP, where each process normalizes the samples that it
has. Here ranks may hold parts of samples. So the samples are divided at every cut that
no rank's box crosses, and the ranks that hold parts of one division share statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from synth.runtime.comm.exchanges import Words
from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, Interval, intersect, shape, volume
from synth.runtime.tensor.partition import Partition


@dataclass(frozen=True)
class StatisticGroup:
    """The ranks with which this one shares mean and variance of its channels.

    ranks: their indices. span: the channels that they hold. words: of each channel in
    the group. fewest: the same of the smallest group of all ranks.
    counts: (rank, channel of the span), how many words there are.
    """

    ranks: tuple[int, ...]
    span: Interval
    words: int
    fewest: int
    counts: torch.Tensor


def whole_batch(layout: Layout) -> StatisticGroup:
    """Statistics over all samples: ranks that share channels, transitively.

    layout: of the input, (b, c, *spatial).
    """
    return _group(layout, layout.boxes, (0, layout.whole[0]), layout.whole[0])


def own_samples(layout: Layout) -> StatisticGroup:
    """Statistics over the samples of this rank and of those that hold parts of them.

    A rank without words is in no group.
    """
    groups = sample_groups(layout.boxes)
    mine = layout.mine
    here = (mine[0][0], mine[0][0])
    if volume(mine):
        here = next(each for each in groups if each[0] <= mine[0][0] < each[1])
    nothing = ((0, 0),) * len(layout.whole)
    boxes = [box if _is_inside(box, here) else nothing for box in layout.boxes]
    least = min((high - low for low, high in groups), default=0)
    return _group(layout, boxes, here, least)


def exchanged_words(layout: Layout, local: bool) -> Words:
    """By rank, what it receives if groups exchange one word per channel of their span.

    local: whether groups are those of `own_samples`, else of `whole_batch`.
    """
    found = [0] * layout.ranks.size
    everyone = dict(enumerate(layout.boxes))
    divided: list[dict[int, Box]] = [everyone]
    if local:
        divided = [
            {rank: box for rank, box in everyone.items() if _is_inside(box, samples)}
            for samples in sample_groups(layout.boxes)
        ]
    for boxes in divided:
        for span, ranks in _sharing_by_span({r: b[1] for r, b in boxes.items()}):
            for rank in ranks:
                found[rank] = (len(ranks) - 1) * (span[1] - span[0])
    return tuple(found)


def _sharing_by_span(held: dict[int, Interval]) -> Iterator[tuple[Interval, list[int]]]:
    """The ranks that share channels, transitively, with the span of these."""
    ranks: list[int] = []
    begin = end = 0
    for rank, (low, high) in sorted(held.items(), key=lambda pair: pair[1]):
        if low >= high:
            continue
        if ranks and low >= end:
            yield (begin, end), ranks
            ranks = []
        begin, end = (begin, max(end, high)) if ranks else (low, high)
        ranks.append(rank)
    if ranks:
        yield (begin, end), ranks


def sample_groups(boxes: Iterable[Box]) -> list[Interval]:
    """The divisions of the samples: intervals between cuts that no box crosses."""
    joined: list[Interval] = []
    for low, high in sorted({box[0] for box in boxes if volume(box)}):
        if joined and low < joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def first_samples(layout: Layout) -> Partition:
    """Who holds running statistics that are local: the ranks of the first samples.

    DDP likewise keeps the buffers of rank 0. Every other rank has an empty box.
    """
    first, *_ = [*sample_groups(layout.boxes), (0, 0)]
    boxes = [(box[1],) if _is_inside(box, first) else ((0, 0),) for box in layout.boxes]
    return Partition(layout.with_boxes(layout.whole[1:2], boxes))


def _is_inside(box: Box, samples: Interval) -> bool:
    """Whether a box has words of some samples, of which it has no others."""
    return bool(volume(box)) and samples[0] <= box[0][0] < samples[1]


def _group(
    layout: Layout, boxes: Sequence[Box], samples: Interval, least: int
) -> StatisticGroup:
    """The group of this rank among some boxes. least: samples of the smallest group."""
    span, ranks = _sharing(boxes, layout.ranks.me)
    counts = torch.tensor([_counts(boxes[rank], span) for rank in ranks])
    positions = math.prod(layout.whole[2:])
    words = (samples[1] - samples[0]) * positions
    return StatisticGroup(tuple(ranks), span, words, least * positions, counts)


def _counts(box: Box, span: Interval) -> list[int]:
    """How many words of each channel of the span a rank with this box holds."""
    low, high = box[1]
    words = math.prod(shape(box)) // max(1, high - low)
    return [words if low <= channel < high else 0 for channel in range(*span)]


def _sharing(boxes: Sequence[Box], rank: int) -> tuple[Interval, list[int]]:
    """The channels and the ranks that share channels with one rank, transitively."""
    low, high = boxes[rank][1]
    ranks: list[int] = []
    while True:
        found = []
        for peer, box in enumerate(boxes):
            both = intersect(box[1], (low, high))
            if peer == rank or both[1] > both[0]:
                found.append(peer)
        if found == ranks:
            return (low, high), ranks
        ranks = found
        held = [boxes[peer][1] for peer in ranks]
        low, high = min(h[0] for h in held), max(h[1] for h in held)
