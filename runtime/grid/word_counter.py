"""Traffic counter: the words that a rank receives, and what the rank started last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from synth.runtime.grid.boxes import Box, shape
from synth.runtime.grid.spans import mark


class TrafficCounter:
    """Counts the words that this rank receives: (phase, step, tensor) -> words.

    finite: check shards and sums for NaN and infinity, and raise `FloatingPointError`
        with the tensor and the step.

    `network` is the counter of the network that this one's `layer` is part of. It
    learns what starts.
    """

    def __init__(self, finite: bool = False) -> None:
        self.finite = finite
        self.network: TrafficCounter | None = None
        self.layer = ""
        self.steps: dict[tuple[str, int, str], int] = {}
        self.started, self.latest = 0, "no communication yet"
        self.prefix, self.whole = "", self

    def for_pass(self, pass_: str) -> TrafficCounter:
        """The same counter for one pass of a step: its phases begin with that name."""
        counter = TrafficCounter(self.finite)
        counter.steps, counter.whole = self.steps, self.whole
        counter.prefix = f"{pass_} "
        return counter

    def enter(self, stage: str) -> None:
        """Record what this rank starts; the failure detector reports it."""
        whole = self.whole
        whole.started, whole.latest = whole.started + 1, stage
        if whole.network is not None:
            layer = f"{whole.layer}: " if whole.layer else ""
            whole.network.enter(f"{layer}{stage}")
        else:
            mark(stage)

    def counter(self, phase: str, step: int, tensor: str) -> Callable[[int], None]:
        """A function that adds received words to one entry."""
        phase = self.prefix + phase
        self.enter(f"{tensor}, {phase} step {step}")

        return partial(self.add, phase, step, tensor)

    def add(self, phase: str, step: int, tensor: str, words: int) -> None:
        """Add received words to one entry."""
        key = phase, step, tensor
        if words:
            self.steps[key] = self.steps.get(key, 0) + words

    def count(self, phase: str, tensor: str, words: int, step: int) -> None:
        """Record that a step of a phase starts, and add the words that it receives."""
        self.counter(phase, step, tensor)(words)

    def check_shard(
        self, tensor: str, values: torch.Tensor, box: Box, dtype: torch.dtype
    ) -> None:
        """Raise `ValueError` unless `values` have the box's shape and this dtype."""
        if values.shape != shape(box) or values.dtype != dtype:
            raise ValueError(
                f"{tensor} is {tuple(values.shape)} of {values.dtype}, but this rank"
                f" owns {shape(box)} of {dtype}; give every rank its own box"
            )
        self.require_finite(tensor, values, "as it was given")

    def check_finite(self, tensor: str, step: int, values: torch.Tensor) -> None:
        """Check the sums of a rank after a step for NaN and infinity."""
        self.require_finite(tensor, values, f"after {self.prefix}loop step {step}")

    def require_finite(self, tensor: str, values: torch.Tensor, when: str) -> None:
        """Raise `FloatingPointError` for NaN or infinity, if checks are on."""
        if not self.finite or bool(torch.isfinite(values).all()):
            return
        count = int((~torch.isfinite(values)).sum())
        raise FloatingPointError(
            f"{tensor} has NaN or infinity in {count} of {values.numel()} words {when}"
        )

    def received(self) -> dict[str, int]:
        """Words received per tensor, as halo rows (fetched or returned), in total."""
        words = dict.fromkeys(("In", "Ker", "Out", "halo", "total"), 0)
        for (phase, _, tensor), received in self.steps.items():
            words[tensor] += received
            words["total"] += received
            halo = phase.endswith(("halo", "return"))
            words["halo"] += received if halo else 0
        return words
