"""Counting the words that a rank receives, and noting what it started last."""

from __future__ import annotations

from collections.abc import Callable

import torch

from synth.runtime.grid.boxes import Box, shape


class Words:
    """Counts the words that this rank receives: (phase, step, tensor) -> words.

    finite: look for NaN and infinity in what a rank is given and computes, and raise
        `FloatingPointError` with tensor and step.
    """

    def __init__(self, finite: bool = False) -> None:
        self.finite = finite
        self.steps: dict[tuple[str, int, str], int] = {}
        self.started, self.latest = 0, "no communication yet"
        self.part, self.whole = "", self

    def during(self, part: str) -> Words:
        """The same counter for one part of a program: its phases bear that name."""
        words = Words(self.finite)
        words.steps, words.whole = self.steps, self.whole
        words.part = f"{part} "
        return words

    def enter(self, stage: str) -> None:
        """Note what this rank starts, for the others to see where it is."""
        self.whole.started, self.whole.latest = self.whole.started + 1, stage

    def counter(self, phase: str, step: int, tensor: str) -> Callable[[int], None]:
        """A function that adds received words to one entry."""
        phase = self.part + phase
        self.enter(f"{tensor}, {phase} step {step}")

        def count(words: int) -> None:
            key = phase, step, tensor
            if words:
                self.steps[key] = self.steps.get(key, 0) + words

        return count

    def given(
        self, tensor: str, values: torch.Tensor, box: Box, dtype: torch.dtype
    ) -> None:
        """Refuse a share that is not what this rank owns: `ValueError`."""
        if values.shape != shape(box) or values.dtype != dtype:
            raise ValueError(
                f"{tensor} is {tuple(values.shape)} of {values.dtype}, but this rank"
                f" owns {shape(box)} of {dtype}; give every rank its own box"
            )
        self.search(tensor, values, "as it was given")

    def look(self, tensor: str, step: int, values: torch.Tensor) -> None:
        """Look for NaN in the sums that a rank holds after a step."""
        self.search(tensor, values, f"after {self.part}loop step {step}")

    def search(self, tensor: str, values: torch.Tensor, when: str) -> None:
        """Raise `FloatingPointError` if NaN is looked for and found."""
        if not self.finite or bool(torch.isfinite(values).all()):
            return
        count = int((~torch.isfinite(values)).sum())
        raise FloatingPointError(
            f"{tensor} has NaN or infinity in {count} of {values.numel()} words {when}"
        )

    def received(self) -> dict[str, int]:
        """Words received per tensor, as halo (there or back), and in total."""
        words = dict.fromkeys(("In", "Ker", "Out", "halo", "total"), 0)
        for (phase, _, tensor), received in self.steps.items():
            words[tensor] += received
            words["total"] += received
            halo = phase.endswith(("halo", "return"))
            words["halo"] += received if halo else 0
        return words
