"""The memory of many plans at once: those that differ in their tiles along x. Arrays over these tilings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, SPATIAL, Axis, PerAxis, Tensor
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import ONES, PassPlan

Array = NDArray[Any]  # int64, or Python ints where 64 bits are not enough


class XTilings:
    """Tilings along x of the blocks of one distribution.

    sizes: how many tiles each has. splits: for each choice of axes that are split, the places of the tilings
    that split these.
    """

    def __init__(self, footprints: Footprints, counts: Sequence[PerAxis]) -> None:
        self.footprints, self.counts, self._tiles = footprints, counts, integers(counts)
        self.sizes: Array = integers([each.size for each in counts])
        split = (self._tiles > 1).astype(np.int64) @ (1 << np.arange(len(AXES)))
        self.splits = [np.flatnonzero(split == each) for each in np.unique(split)]

    def memory(self, planned: Callable[[PerAxis], PassPlan]) -> Array:
        """The words of `Footprints.memory` of the plan with each tiling; buffers of messages are not kept.

        planned: the plan with some tiles along x. Its other tiles do not depend on these.
        """
        words = np.empty(len(self.counts), self._flat["In"].dtype)
        for places in self.splits:
            plan = planned(self.counts[places[-1]])
            steps = self.sizes[places] * (plan.steps // int(self.sizes[places[-1]]))
            few, many = places[steps <= 2], places[steps > 2]
            for place in few.tolist():
                words[place] = self.footprints.memory(planned(self.counts[place])).words
            if len(many):
                plan = planned(self.counts[many[-1]])
                words[many] = self.footprints.memory_of_many(plan, *self._largest(plan, many))
        return words

    def _largest(self, plan: PassPlan, places: Array) -> tuple[dict[Tensor, Array], Array]:
        """Words of the largest tiles of each tensor, and of In with zeros around it, of some tilings."""
        size = plan.sizes(self.footprints.work)
        kernel = size.g * size.c * size.k * self.footprints.nest.taps
        tiles: dict[Tensor, Array] = {
            "In": self._flat["In"][places] * size.c,
            "Ker": np.full(len(places), kernel, self._flat["In"].dtype),
            "Out": self._flat["Out"][places] * size.k,
        }
        padded = self._flat["padded"][places] * size.c
        if plan.written != "In" and self.footprints.distribution.keeps_zeros:
            padded[self._whole[places]] = 0
        return tiles, padded

    @cached_property
    def _whole(self) -> Array:
        """Whether a tiling splits samples only."""
        spatial = [AXES.index(axis) for axis in SPATIAL]
        whole: Array = (self._tiles[:, spatial] == 1).all(axis=1)
        return whole

    @cached_property
    def _flat(self) -> dict[str, Array]:
        """Words of the largest tile of In, of Out, and of In with zeros around it, for one channel each."""
        footprints, work = self.footprints, self.footprints.work
        inputs = outputs = area = work.g * self._along("b", lambda plan, _: [plan.sizes(work).b])[0]
        copied = list[tuple[Array, Array]]()
        for axis in SPATIAL:
            own, framed, most, copies = self._along(axis, self._lengths)
            turned = axis in footprints.nest.turned
            inputs, outputs = inputs * (own if turned else framed), outputs * (framed if turned else own)
            area, copied = area * most, [*copied, (most, copies)]
        flat = {"In": inputs, "Out": outputs}
        # as many words as the tile has with zeros along all axes, if a kernel cannot add those of one axis
        padded = [area // np.maximum(most, 1) * copies for most, copies in copied]
        flat["padded"] = np.maximum.reduce(padded)
        channels = max(work.c, work.k) * footprints.distribution.grid.size
        largest = max(int(words.max()) for words in flat.values()) * channels
        kernel = work.g * work.c * work.k * footprints.nest.taps * footprints.distribution.grid.size
        exact = np.int64 if max(largest, kernel, footprints.nest.total_words) < 2**58 else object
        return {name: words.astype(exact) for name, words in flat.items()}

    def _lengths(self, plan: PassPlan, axis: Axis) -> list[int]:
        """Of the largest tile along an axis: positions, rows of the framed tensor, and as of `PaddedRows`."""
        footprints, padded = self.footprints, self.footprints.padded_rows(axis, plan)
        own = int(getattr(plan.sizes(footprints.work), axis))
        return [own, footprints.rows(axis, plan), padded.most, padded.copied]

    def _along(self, axis: Axis, lengths: Callable[[PassPlan, Axis], list[int]]) -> Array:
        """Some lengths along an axis, of the tiles of each tiling, as Python ints."""
        tiles, places = np.unique(self._tiles[:, AXES.index(axis)], return_inverse=True)
        found = [lengths(PassPlan("Ker", ONES.with_(axis, int(n))), axis) for n in tiles]
        return np.array(found, object).T[:, places]


def integers(numbers: Sequence[Any]) -> Array:
    """An array of exact integers, or of tuples of them."""
    exact = np.array(numbers, object)
    return exact.astype(np.int64) if exact.max() < 2**62 else exact
