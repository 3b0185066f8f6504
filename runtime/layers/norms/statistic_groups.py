"""Which ranks share the statistics of a batch normalization, and over which words.

Statistics are global, over the whole batch, or local, over the samples of some ranks.
Local statistics are those of DDP, where each process normalizes the samples that it
has. Here ranks may hold parts of samples. So the samples are divided at every cut that
no rank's box crosses, and the ranks that hold parts of one division share statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from synth.runtime.comm.exchanges import Words, overlaps
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.shared_parts import Moments
from synth.runtime.grid.boxes import Box, Interval, joined, volume
from synth.runtime.tensor.partition import Partition


class ChannelMoments(Moments):
    """Mean and variance of the channels of (b, c, *spatial), over some samples.

    layout: of the input. local: whether these are the samples of this rank and of those
    that hold parts of them, else all. A rank without words is with no others then.
    owned: boxes within those of the layout, of whose words the moments are.
    fewest: words of a channel in the smallest such group of any rank.
    """

    def __init__(
        self,
        layout: Layout,
        local: bool,
        process_groups: ProcessGroups,
        count: Callable[[int], None],
        owned: Layout,
    ) -> None:
        parts = divisions(layout, owned) if local else [(layout, owned)]
        mine = [each for each in parts if not local or volume(each[0].mine)]
        none = _division(layout, (0, 0))
        held, own = mine[0] if mine else (none, none)
        self.all_held = [_channels(each) for each, _ in parts]
        sizes = own.whole[0], 1
        super().__init__(own, sizes, process_groups, count, _channels(held))
        self.one_round = True
        samples = min((each.whole[0] for each, _ in parts), default=0)
        self.fewest = samples * volume(tuple((0, n) for n in layout.whole[2:]))

    def words(self) -> Words:
        """By rank, what it receives if a value is one number."""
        each = [overlaps(held, held).sum(0).tolist() for held in self.all_held]
        return tuple(map(sum, zip(*each, strict=True)))


def _channels(layout: Layout) -> Layout:
    """The channels that ranks hold, also those of which they have no words."""
    boxes = (((0, 1), box[1]) for box in layout.boxes)
    return layout.with_boxes((1, layout.whole[1]), boxes)


def divisions(*layouts: Layout) -> list[tuple[Layout, ...]]:
    """For each of the `sample_groups` of the first, what ranks hold of its samples."""
    groups = sample_groups(layouts[0].boxes)
    return [tuple(_division(each, group) for each in layouts) for group in groups]


def _division(layout: Layout, samples: Interval) -> Layout:
    low, high = samples
    boxes = [
        ((box[0][0] - low, box[0][1] - low), *box[1:])
        if _is_inside(box, samples)
        else ((0, 0),) * len(box)
        for box in layout.boxes
    ]
    return layout.with_boxes((high - low, *layout.whole[1:]), boxes)


def sample_groups(boxes: Iterable[Box]) -> list[Interval]:
    """The samples in the shortest intervals such that no box crosses an end."""
    return joined(box[0] for box in boxes if volume(box))


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
