"""What a rank of a network did in some passes: words, seconds, operations."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from synth.runtime.grid.spans import Waited


@dataclass(frozen=True)
class Metrics:
    """Of one rank, between two calls of `Network.metrics`.

    passes: forward passes. words: received, those of gradients included, as
        `Network.received` counts them. bytes: these words in the dtype of the network;
        under autocast some travel in a smaller one.
    seconds: on the clock. waiting: of these, for which the rank waited for words of
        others (of every network of the process). On a GPU messages wait on streams, so
        `waiting` has only what blocks the process; `torch.profiler` shows the rest.
    operations: floating-point operations of the whole model in these passes: two for
        each multiply-add of its convolutions, matrix products and attention, three
        times as many in a pass with gradients (forward, dIn and dKer). Padding zeros,
        other operators, and what checkpoints compute again are not counted.
    ranks: among which the operations are divided.
    """

    passes: int
    words: int
    bytes: int
    seconds: float
    waiting: float
    operations: int
    ranks: int

    @property
    def computing(self) -> float:
        """Seconds without those of waiting: kernels, Python, the user's own code."""
        return self.seconds - self.waiting

    @property
    def rate(self) -> float:
        """Operations of one rank per second."""
        return self.operations / self.ranks / self.seconds if self.seconds else 0.0

    def mfu(self, peak: float) -> float:
        """Model FLOPs utilization: the share of a peak of operations per second.

        peak: of one rank, say 989e12 for bfloat16 on an H100. Raises `ValueError`
        unless it is positive.
        """
        if not peak > 0:
            raise ValueError(f"peak is {peak}; give a rank's operations per second")
        return self.rate / peak

    def __str__(self) -> str:
        each = self.seconds / max(1, self.passes)
        share = self.waiting / self.seconds if self.seconds else 0.0
        return (
            f"{self.passes} passes, {each:.4g} s each, {share:.1%} of it waiting;"
            f" {self.words} words received; {self.rate / 1e9:.4g} Gflop/s per rank"
        )


@dataclass
class Meter:
    """Counts the passes of a network, and their operations."""

    passes: int = 0
    operations: int = 0
    words: int = 0  # received before
    since: float = field(default_factory=time.perf_counter)
    waited: float = field(default_factory=lambda: Waited.seconds)

    def add(self, operations: int, gradients: bool) -> None:
        """A forward pass of so many operations."""
        self.passes += 1
        self.operations += operations * (3 if gradients else 1)

    def read(self, words: int, word_bytes: int, ranks: int) -> Metrics:
        """What was counted since the meter was made. words: received until now."""
        return Metrics(
            self.passes,
            words - self.words,
            (words - self.words) * word_bytes,
            time.perf_counter() - self.since,
            Waited.seconds - self.waited,
            self.operations,
            ranks,
        )
