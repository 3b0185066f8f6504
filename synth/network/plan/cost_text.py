"""What a plan of a network costs, as text: that of a plan, and that of a plan file, which loads no numpy."""

from __future__ import annotations

from collections.abc import Mapping

from synth.base.units import show_words


def cost_text(objective: str, cost: float, beside: Mapping[str, int]) -> str:
    """The seconds of a step, or all words that a process receives: in layers, between them, and `beside`.

    Words are a sum of maxima over ranks, and have not all steps of a traced model, such as recurrent layers,
    scans and margins of calls: `NetworkPlan.words` has all words of each rank.
    """
    if objective == "time":
        return f"{cost * 1e3:.4g} ms"
    parts = [
        f"layers {show_words(cost)}",
        *(f"{cause} {show_words(words)}" for cause, words in beside.items()),
    ]
    shown = f" ({', '.join(parts)})" if beside else " in layers and between them"
    return f"{show_words(cost + sum(beside.values()))} words received per process{shown}"
