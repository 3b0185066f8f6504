"""The plan: everything that was decided for one layer, and the numbers that follow from it.

A plan is frozen data. Its `id` is a hash of the decisions alone (layer, processes, grid, tiling), so two
plans with the same id emit the same program, and ranks can compare ids before they talk.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from synth.axes import PerAxis
from synth.distribution import Distribution
from synth.memory import Footprints, Memory
from synth.nest import Nest
from synth.schedule import Schedule
from synth.tiling import Tiling

if TYPE_CHECKING:
    from synth.layer import Layer

SCHEMA = "synth.plan/1"


@dataclass(frozen=True)
class Plan:
    """A layer on a process grid with a schedule."""

    layer: Layer
    procs: int  # processes that were asked for; the grid may leave a few idle
    grid: PerAxis
    tiling: Tiling

    @property
    def nest(self) -> Nest:
        """The loop nest of the layer."""
        return self.layer.nest

    @property
    def used_procs(self) -> int:
        """Processes that work."""
        return self.grid.size

    @cached_property
    def distribution(self) -> Distribution:
        """Who works on what and owns what."""
        return Distribution(self.nest, self.grid)

    @cached_property
    def schedule(self) -> Schedule:
        """All moves and computations of all ranks."""
        return Schedule(self.distribution, self.tiling)

    @cached_property
    def words(self) -> dict[str, int]:
        """The most words any rank receives: "in", "ker", "out", "halo" (part of in), "total"."""
        from synth.words import received

        return received(self.distribution, self.tiling).most()

    @cached_property
    def memory(self) -> Memory:
        """The most words any rank holds, per phase."""
        return Footprints(self.distribution).memory(self.tiling)

    @property
    def work(self) -> PerAxis:
        """W: the largest block of work, per axis."""
        return self.distribution.most_work

    @property
    def tile(self) -> PerAxis:
        """T: the largest tile, per axis."""
        return self.tiling.sizes(self.work)

    @property
    def algorithm(self) -> str:
        """2D when the index that the stationary tensor lacks is not split; else 2.5D or 3D."""
        return "2D" if self.distribution.group_size(self.tiling.stationary) == 1 else "3D"

    def decisions(self) -> dict[str, Any]:
        """The decisions, as JSON data: what `id` hashes."""
        return {
            "problem": self.layer.to_json(),
            "procs": self.procs,
            "grid": self.grid._asdict(),
            "stationary": self.tiling.stationary,
            "tiles": self.tiling.counts._asdict(),
            "swapped": self.tiling.swapped,
        }

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits that name the decisions."""
        text = json.dumps(self.decisions(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]
