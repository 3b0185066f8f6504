"""Calls of a model that move or select rows; see `synth.runtime.rules.row_calls`."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from synth.runtime.kernels.autocast import Operator
from synth.runtime.operators.call import Call
from synth.runtime.rules.row_calls import MovedRows, rows_of
from synth.runtime.rules.rule import Rule, in_one_dtype

PADS: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d), "constant"),
    **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d), "constant"),
    nn.ReflectionPad1d: "reflect",
    nn.ReflectionPad2d: "reflect",
    nn.ReflectionPad3d: "reflect",
    nn.ReplicationPad1d: "replicate",
    nn.ReplicationPad2d: "replicate",
    nn.ReplicationPad3d: "replicate",
    **dict.fromkeys((nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d), "circular"),
}


def moved_rows(call: Call) -> MovedRows | None:
    """The row maps of a call; None for calls that do anything else."""
    if len(call.inputs) != 1 or call.parameters:
        return None
    if not call.shapes[0] or not call.out or not all(call.out):
        return None
    shape = call.shapes[0]
    module: Any = call.module
    if module is None:
        name, part = getattr(call.function, "picked", (call.word, 0))
        found = rows_of(name, shape, call.node.args[1:], call.node.kwargs, part)
    elif type(module) is nn.ChannelShuffle:
        found = rows_of("channel_shuffle", shape, (module.groups,), {})
    else:
        mode, value = PADS.get(type(module)), getattr(module, "value", 0.0)
        found = (
            rows_of("pad", shape, (module.padding, mode, value), {}) if mode else None
        )
    return found if found is not None and found.shape == call.out else None


def as_autocast(call: Call, rule: Rule) -> Rule:
    """The rule, in the dtype in which autocast has reflected and repeated rows."""
    if call.module is None:
        args, kwargs = call.node.args, call.node.kwargs
        mode = args[2] if len(args) > 2 else kwargs.get("mode")
        mode = mode if call.word == "pad" else None
    else:
        mode = PADS.get(type(call.module))
    if mode not in ("reflect", "replicate"):
        return rule
    operator = _pad_operator(mode, len(call.out))
    return rule._replace(call=in_one_dtype("padding", operator, rule.call))


@cache
def _pad_operator(mode: str, dims: int) -> Operator:
    """torch's own padding of one word. It pads all dimensions but one or two."""
    padded = max(1, dims - 2)

    def one(word: torch.Tensor) -> torch.Tensor:
        rows = word.expand(*[1] * (dims - padded), *[2] * padded)
        return functional.pad(rows, [1] * 2 * padded, mode)

    return one
