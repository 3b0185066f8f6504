"""What surrounds the collectives: counting words, putting panels together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from runtime.blocks import Box, shape, within

Piece = tuple[Box, torch.Tensor, Any]  # what part of a panel, its values, their request
Coming = tuple[Box, torch.Tensor, Iterable[Piece]]  # a panel, a like tensor, pieces


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


def assemble(box: Box, like: torch.Tensor, pieces: Iterable[Piece]) -> torch.Tensor:
    """Wait for the pieces of a box one after the other and put them together."""
    whole = None
    for part, values, request in pieces:
        request.wait()
        if part == box:
            return values
        whole = like.new_empty(shape(box)) if whole is None else whole
        whole[within(part, box)] = values
    return like.new_empty(shape(box)) if whole is None else whole


def settle(coming: dict[str, Coming], panels: dict[str, torch.Tensor]) -> None:
    """Wait for the panels on their way; each takes the place of the one before."""
    while coming:
        tensor, panel = coming.popitem()
        panels.pop(tensor, None)
        panels[tensor] = assemble(*panel)
