"""Calls that make windows of rows; see `synth.runtime.rules.sliding`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from synth.runtime.comm.layout import Layout
from synth.runtime.operators.call import Call
from synth.runtime.rules.rule import Rule
from synth.runtime.rules.sliding import Along, Sliding

NAMES = ("kernel_size", "dilation", "padding", "stride")
DIMENSION: dict[str, Any] = dict.fromkeys(("dimension", "size", "step"))
DEFAULTS = {"dilation": 1, "padding": 0, "stride": 1}


def windows_of(call: Call) -> Callable[[Layout], Rule] | None:
    """The rule of an `unfold` or a `fold`; None for any other call."""
    if (
        len(call.inputs) != 1
        or call.parameters
        or not all((*call.out, *call.shapes[0]))
    ):
        return None
    module: Any = call.module
    args, kwargs = call.node.args, dict(call.node.kwargs)
    if call.word == "unfold" and len(call.out) > len(call.shapes[0]):  # of a tensor
        numbers = DIMENSION | dict(zip(DIMENSION, args[1:], strict=False)) | kwargs
        dim, size, step = numbers.values()
        return Along(dim % len(call.shapes[0]), size, step).rule
    back = isinstance(module, nn.Fold) or call.word == "fold"
    if not back and not isinstance(module, nn.Unfold) and call.word != "unfold":
        return None
    names = ("output_size", *NAMES) if back else NAMES
    if module is not None:
        given = {name: getattr(module, name) for name in names}
    else:
        given = DEFAULTS | dict(zip(names, args[1:], strict=False)) | kwargs
    pairs = [_pair(given.get(name)) for name in NAMES]
    batched = len(call.out if back else call.shapes[0]) == 4
    if None in pairs or not batched:
        return None
    extents = _pair(given["output_size"]) if back else call.shapes[0][2:]
    sliding = Sliding(extents, *pairs)  # type: ignore[arg-type]
    return sliding.folded if back else sliding.unfolded


def _pair(number: Any) -> tuple[int, int] | None:
    """A number for height and for width; None for what is none."""
    pair = (number, number) if isinstance(number, int) else tuple(number or ())
    return pair if len(pair) == 2 else None
