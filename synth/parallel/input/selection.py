"""What a rank reads of every batch: its own words of an input, and of labels those of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.layer.axes import SPATIAL, Tensor
from synth.layer.intervals import Interval
from synth.layer.nest import Nest
from synth.parallel.input.samples import Rows
from synth.planning.plan import Plan

if TYPE_CHECKING:
    from synth.runtime.model.network import Network
    from synth.runtime.tensor.partition import Partition


@dataclass(frozen=True)
class ShardSelection:
    """What a rank reads of every batch: which of its samples, and which rows of each."""

    batch: int
    samples: Interval
    rows: tuple[Rows, ...]  # of channels and spatial dimensions
    whole: tuple[int, ...]  # of a sample

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, *spatial) of the shard."""
        sizes = (sum(len(range(*each.indices(n))) for each in rows)
                 for rows, n in zip(self.rows, self.whole, strict=True))  # fmt: skip
        return (self.samples[1] - self.samples[0], *sizes)


def of_partition(place: Partition) -> ShardSelection:
    """What this rank holds of a partitioned batch."""
    samples, *rest = place.box
    return ShardSelection(place.shape[0], samples, tuple((slice(*each),) for each in rest), place.shape[1:])


def of_plan(plan: Plan, rank: int, halo: bool = False) -> ShardSelection:
    """What a rank owns of In, or with `halo` the rows that its block reads of the channels that it owns.

    Rows that a stride skips are not read. What a transposed layer is given is Out of its nest, without halo.
    """
    if not plan.layer.spatial_axes:
        raise UsageError(f"{plan.layer.name} is a matrix product; feed convolutions")
    if plan.classes:
        classes = option("classes", {axis: 1 for axis, _ in plan.classes})
        raise UsageError(
            f"{plan.layer.name} is planned with residue classes, whose samples no file has; "
            f"plan with {classes}"
        )
    at = plan.distribution.at(rank)
    given: Tensor = "Out" if plan.layer.transposed else "In"
    box = plan.distribution.carried(given, at) if halo else plan.distribution.owned(given, at)
    samples, group, channel, *spatial = box
    n = plan.nest.extents
    width = n.k if plan.layer.transposed else n.c
    channels = [slice(g * width + channel[0], g * width + channel[1]) for g in range(*group)]
    rows = [
        (slice(*interval),) if plan.layer.transposed else _runs(plan.nest, axis, interval)
        for axis, interval in zip(SPATIAL, spatial, strict=True)
        if axis in plan.layer.spatial_axes
    ]
    return ShardSelection(plan.layer.input[0], samples, (channels, *rows), plan.layer.input[1:])


def _runs(nest: Nest, axis: str, interval: Interval) -> Rows:
    """The user's rows that an interval of the rows that are read stands for."""
    rows = [nest.windows[axis].source(row) for row in range(*interval)]
    if not rows:
        return (slice(0, 0),)
    steps = {after - before for before, after in pairwise(rows)}
    if len(steps) <= 1:
        return (slice(rows[0], rows[-1] + 1, steps.pop() if steps else 1),)
    ends = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1]
    return [slice(rows[i], rows[j - 1] + 1) for i, j in zip([0, *ends], [*ends, len(rows)], strict=True)]


class Places:
    """The inputs and outputs of a network for batches of some number of samples.

    Raises `ValueError` where a batch of this size fits no plan. All ranks of all replicas make it.
    """

    def __init__(self, net: Network, batch: int) -> None:
        program = net.program_for(batch)
        self.batch = batch
        self.inputs = list(program.input_partitions.values())
        self.outputs = [place for place in program.output_partitions.values() if place.shape]
        if not any(place.shape[:1] == (batch,) for place in self.outputs):
            self.outputs = self.inputs

    def of(self, samples: Sequence[tuple[int, ...]]) -> list[Partition]:
        """Where the parts of a batch lie, by the shapes of one sample of each.

        The first one with the shape of an input lies as this input, all others lie as labels.
        """
        free = list(self.inputs)
        found: list[Partition] = []
        for sample in samples:
            fits = next((place for place in free if tuple(place.shape) == (self.batch, *sample)), None)
            if fits is not None:
                free.remove(fits)
            found.append(self.label(sample) if fits is None else fits)
        return found

    def label(self, sample: tuple[int, ...]) -> Partition:
        """Where labels lie: as the output that they are compared with.

        sample: their shape for one sample. That of an output is one word for each of its words, and without
        its channels one class for all of them. Labels of any other shape are cut by samples alone.
        """
        for place in self.outputs:
            if tuple(place.shape) == (self.batch, *sample):
                return place
            if place.shape[0] == self.batch and tuple(place.shape[2:]) == sample:
                return place.without((1,), keepdim=False)
        first = next(place for place in self.outputs if place.shape[0] == self.batch)
        boxes = [(box[0], *((0, extent) for extent in sample)) for box in first.layout.boxes]
        return first.with_boxes((self.batch, *sample), boxes)

    def samples(self) -> list[Interval]:
        """By rank: the samples of which it holds something."""
        places = [place for place in (*self.inputs, *self.outputs) if place.shape[0] == self.batch]
        spans = zip(*([box[0] for box in place.layout.boxes] for place in places), strict=True)
        held = [[(low, high) for low, high in span if high > low] for span in spans]
        return [(min(low for low, _ in each), max(high for _, high in each)) if each else (0, 0)
                for each in held]  # fmt: skip
