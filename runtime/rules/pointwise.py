"""Operators that act on every word by itself; operands are broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from synth.runtime.comm.layout import Layout
from synth.runtime.rules.access import aligned
from synth.runtime.rules.rule import LocalCall, Rule, pulled

# Functions that act on every word by itself, but of which torch does not say so; in
# models and on their outputs. Names are without the _ of functions that act in place.
UNTAGGED = frozenset(
    (
        *("__and__", "__or__", "__xor__", "__invert__", "__floordiv__", "__rsub__"),
        *("__rdiv__", "__rtruediv__", "__rpow__", "__rfloordiv__", "__rmod__"),
        *("subtract", "multiply", "divide", "negative", "absolute", "floor_divide"),
        *("prelu", "hardswish", "softsign", "tanhshrink", "logsigmoid", "log_sigmoid"),
        *("elu_backward", "hardsigmoid_backward", "hardswish_backward"),
        *("hardtanh_backward", "leaky_relu_backward", "log_sigmoid_backward"),
        *("mish_backward", "softplus_backward", "masked_fill", "fill"),
    )
)


@cache
def is_pointwise(name: str) -> bool:
    """Whether a function of torch, by its name, acts on every word by itself.

    It may have other forms that do not, as `max` of one tensor.
    """
    if name in UNTAGGED or name.startswith("__"):
        return name in UNTAGGED  # others, such as `__ixor__`, change their operand
    packet: Any = getattr(torch.ops.aten, name, None)
    forms = packet.overloads() if hasattr(packet, "overloads") else []
    tags = (getattr(packet, form).tags for form in forms)
    return any(
        torch.Tag.pointwise in each and torch.Tag.nondeterministic_seeded not in each
        for each in tags
    )


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
