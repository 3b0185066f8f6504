"""What a plan of a network costs, as text: that of a plan, and that of a plan file, which loads no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from synth.base.units import show_words


class Received(NamedTuple):
    """Words that the busiest process receives in one pass: in a training step, or in a forward pass.

    exact: whether these are all words of this process, counted from the steps of a model. Else they are a sum
    of maxima over the processes, of layers, between them, and of what `NetworkPlan.words_beside` names; steps
    of a model such as recurrent layers and scans are not in it.
    """

    words: int
    exact: bool

    def __str__(self) -> str:
        if self.exact:
            return f"{show_words(self.words)} words received by the busiest process"
        return f"at most {show_words(self.words)} words received per process"


def received_of(data: Mapping[str, Any]) -> Received:
    """What a plan file for words says."""
    if data.get("received") is not None:
        return Received(data["received"], True)
    beside: Mapping[str, int] = data.get("beside") or {}
    return Received(round(data["cost"]) + sum(beside.values()), False)


def cost_text(objective: str, cost: float, received: Received) -> str:
    """The seconds of a step, or all words that the busiest process receives."""
    return f"{cost * 1e3:.4g} ms" if objective == "time" else str(received)
