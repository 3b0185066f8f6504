"""Operators that act on every word by itself; operands are broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from synth.runtime.comm.layout import Layout, even
from synth.runtime.grid.boxes import volume
from synth.runtime.rules.access import aligned
from synth.runtime.rules.rule import LocalCall, Rule, pulled

# Functions that act on every word by itself, but of which torch does not say so; in
# models and on their outputs. Names are without the _ of functions that act in place.
UNTAGGED = frozenset(
    (
        *(
            "__eq__",
            "__and__",
            "__or__",
            "__xor__",
            "__invert__",
            "__floordiv__",
            "__rsub__",
        ),
        *("__rdiv__", "__rtruediv__", "__rpow__", "__rfloordiv__", "__rmod__"),
        *("subtract", "multiply", "divide", "negative", "absolute", "floor_divide"),
        *("prelu", "hardswish", "softsign", "tanhshrink", "logsigmoid", "log_sigmoid"),
        *("elu_backward", "hardsigmoid_backward", "hardswish_backward"),
        *("hardtanh_backward", "leaky_relu_backward", "log_sigmoid_backward"),
        *("mish_backward", "softplus_backward", "masked_fill", "fill"),
        *("long", "int", "short", "char", "byte", "bool"),
        *("__lshift__", "__rshift__", "__rlshift__", "__rrshift__"),
    )
)
# losses of words, where they are not reduced; none that torch refuses by its words
LOSSES = frozenset(
    (
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
        "binary_cross_entropy_with_logits",
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


def pointwise(
    sources: Sequence[Layout],
    call: LocalCall,
    whole: Sequence[int] | None = None,
    like: int | None = None,
) -> Rule:
    """All operands come to one of them.

    whole: the shape of the result; None for that of the largest operand. like: the
    place of the operand; None for the largest one, the first of those.
    """
    base = base_of([source.whole for source in sources], like)
    out = expanded(sources[base], whole)
    operands = (
        pulled(source, aligned(source.whole, out.whole), out, place)
        for place, source in enumerate(sources)
    )
    return Rule(out, tuple(operands), call)


def expanded(layout: Layout, whole: Sequence[int] | None) -> Layout:
    """A layout broadcast to a larger shape: every rank has the new extents.

    All ranks have a scalar, so they divide what it is broadcast to.
    """
    if whole is None or tuple(whole) == layout.whole:
        return layout
    if not layout.whole:
        return even(whole, layout.ranks)
    skip = len(whole) - len(layout.whole)
    boxes = []
    for box in layout.boxes:
        made = [(0, extent) for extent in whole]
        for dim, each in enumerate(box, skip):
            if layout.whole[dim - skip] == whole[dim]:
                made[dim] = each
        boxes.append(tuple(made) if volume(box) else ((0, 0),) * len(made))
    return layout.with_boxes(whole, boxes)


def base_of(shapes: Sequence[Sequence[int]], like: int | None) -> int:
    """The place of the operand to which the others come: the largest, if none is given.

    It is the first of those with the most words.
    """
    words = list(map(math.prod, shapes))
    return words.index(max(words)) if like is None else like
