"""Counting the words that a rank receives, and noting what it started last."""

from __future__ import annotations

from collections.abc import Callable


class Words:
    """Counts the words that this rank receives: (phase, step, tensor) -> words."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, int, str], int] = {}
        self.started, self.latest = 0, "no communication yet"
        self.part = ""  # what the phases that are counted now belong to

    def during(self, part: str) -> Words:
        """This counter; from now on its phases are those of one part of a program."""
        self.part = f"{part} "
        return self

    def enter(self, stage: str) -> None:
        """Note what this rank starts, for the others to see where it is."""
        self.started, self.latest = self.started + 1, stage

    def counter(self, phase: str, step: int, tensor: str) -> Callable[[int], None]:
        """A function that adds received words to one entry."""
        phase = self.part + phase
        self.enter(f"{tensor}, {phase} step {step}")

        def count(words: int) -> None:
            key = phase, step, tensor
            if words:
                self.steps[key] = self.steps.get(key, 0) + words

        return count

    def received(self) -> dict[str, int]:
        """Words received per tensor, as halo (there or back), and in total."""
        words = dict.fromkeys(("In", "Ker", "Out", "halo", "total"), 0)
        for (phase, _, tensor), received in self.steps.items():
            words[tensor] += received
            words["total"] += received
            halo = phase.endswith(("halo", "return"))
            words["halo"] += received if halo else 0
        return words
