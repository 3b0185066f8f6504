"""Operators that act on every word by itself; operands are broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence

from synth.runtime.comm.layout import Layout
from synth.runtime.rules.access import aligned
from synth.runtime.rules.rule import LocalCall, Rule, pulled


def pointwise(sources: Sequence[Layout], call: LocalCall) -> Rule:
    """All operands come to the largest one, the first of those."""
    out = largest(sources)
    operands = (
        pulled(source, aligned(source.whole, out.whole), out, place)
        for place, source in enumerate(sources)
    )
    return Rule(out, tuple(operands), call)


def largest(layouts: Sequence[Layout]) -> Layout:
    """The layout with the most words, the first of them."""
    return max(layouts, key=lambda layout: math.prod(layout.whole))
