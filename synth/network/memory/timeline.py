"""Words that every rank holds over time: storages with counted holders, and the most of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.float64]  # one number per rank


class Storage:
    """Words that a rank holds until the last holder lets go."""

    def __init__(self, timeline: Timeline, words: Words) -> None:
        self.timeline, self.words, self.holders = timeline, words, 1
        self.parts: list[Part] = []
        timeline.add(words)

    def hold(self) -> Storage:
        """The same with one more holder."""
        self.holders += 1
        return self

    def free(self) -> None:
        """One holder less."""
        self.holders -= 1
        if self.holders == 0:
            self.timeline.add(-self.words)
            for part in self.parts:
                part.keep()

    def hold_on(self, ranks: NDArray[np.bool_]) -> Part:
        """A holder on some ranks alone."""
        self.parts.append(Part(self, ranks))
        return self.parts[-1]


class Part:
    """A storage that some ranks hold on to: it takes over their words when all others let go."""

    def __init__(self, whole: Storage, ranks: NDArray[np.bool_]) -> None:
        self.whole, self.ranks = whole, ranks
        self.kept: Storage | None = None

    def keep(self) -> None:
        """Nobody else holds the storage."""
        self.kept = Storage(self.whole.timeline, np.where(self.ranks, self.whole.words, 0.0))

    def free(self) -> None:
        """Let go."""
        if self.kept is None:
            self.whole.parts.remove(self)
        else:
            self.kept.free()


class Timeline:
    """What is live now, and the most so far, by rank."""

    def __init__(self, ranks: int) -> None:
        self.live: Words = np.zeros(ranks)
        self.peak: Words = np.zeros(ranks)

    def add(self, words: Words) -> None:
        """More words from now on, or fewer."""
        self.live = self.live + words
        self.peak = np.maximum(self.peak, self.live)

    def brief(self, words: Any) -> None:
        """Words that are held for a moment beside those that are live."""
        self.peak = np.maximum(self.peak, self.live + words)

    def new(self, words: Words) -> Storage:
        """A storage of so many words, with one holder."""
        return Storage(self, words)
