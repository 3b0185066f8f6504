"""The outcome of a simulation: words received by rank, in all and per (phase, step, tensor)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import Tensor
from synth.layer.intervals import volume
from synth.schedule.schedule import Move, Round
from synth.simulation.numpy_kernels import Values

Step = tuple[str, int, Tensor]  # phase, step, tensor
COUNTED = ("in", "ker", "out", "halo")


@dataclass(frozen=True)
class Simulation:
    """The outcome: `out` in storage order (None when only counting), words received and held per rank."""

    out: Values | None
    received: dict[str, list[int]]  # "in", "ker", "out", "halo", "total" -> words by rank
    peak: list[int]
    steps: dict[Step, list[int]]  # (phase, step, tensor) -> words received by rank

    def most(self) -> dict[str, int]:
        """The most words that any rank received, as `volume.Received.most`."""
        return {name: max(words) for name, words in self.received.items()}


class Traffic:
    """Counts the words of moves where they arrive, by rank."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._words = {name: self._zeros() for name in COUNTED}
        self._steps: dict[Step, NDArray[np.int64]] = {}

    def _zeros(self) -> NDArray[np.int64]:
        return np.zeros(self._ranks, np.int64)

    def count(self, move: Move, now: Round) -> None:
        """Count one move of a round; rows that neighbours send count as halo, too."""
        targets, words = list(move.targets), volume(move.box)
        self._words[move.tensor.lower()][targets] += words
        if move.kind in ("halo", "return"):
            self._words["halo"][targets] += words
        self._steps.setdefault((now.phase, now.step, move.tensor), self._zeros())[targets] += words

    @property
    def received(self) -> dict[str, list[int]]:
        """Words by rank: "in", "ker", "out", "halo" (part of "in") and "total"."""
        total = self._words["in"] + self._words["ker"] + self._words["out"]
        return {name: words.tolist() for name, words in {**self._words, "total": total}.items()}

    @property
    def steps(self) -> dict[Step, list[int]]:
        """(phase, step, tensor) -> words by rank."""
        return {key: words.tolist() for key, words in self._steps.items()}
