"""Weights of which a rank holds all that its grid reads."""

from __future__ import annotations

from synth.layer.axes import PerAxis, Tensor
from synth.layer.nest import Nest
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints

KER: frozenset[Tensor] = frozenset({"Ker"})


def slice_words(nest: Nest, grid: PerAxis) -> int:
    """Words of the largest slice of Ker."""
    return Footprints(Distribution(nest, grid, resident=KER)).shards["Ker"]
