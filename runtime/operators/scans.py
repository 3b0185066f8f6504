"""Calls that scan a dimension: each row of the result is made of all rows up to it.

`cumsum`, `cumprod`, `logcumsumexp`, and the values of `cummax` and `cummin`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from synth.runtime.operators.call import Call
from synth.runtime.rules.local_forms import LocalForm, whole_along
from synth.runtime.rules.scans import SCANS


class ScanForm(NamedTuple):
    """A scan along a dimension.

    operator: of torch, of one word. local: how ranks scan that have all of its rows.
    """

    name: str
    dim: int
    operator: Callable[..., torch.Tensor]
    local: LocalForm


def scan_of(call: Call) -> ScanForm | None:
    """What a call scans; None for others."""
    if call.module is not None or len(call.inputs) != 1 or call.parameters:
        return None
    name, part = getattr(call.function, "picked", (call.word, 0))
    shape = call.shapes[0]
    if name not in SCANS or part or not shape or call.out != shape or 0 in shape:
        return None
    kwargs = dict(call.node.kwargs)
    dtype: Any = kwargs.pop("dtype", None)
    args = (*call.node.args[1:], *kwargs.values())
    if len(args) != 1 or type(args[0]) is not int or isinstance(dtype, fx.Node):
        return None
    if str(getattr(call.function, "__name__", "")).endswith("_"):
        return None  # which keeps the dtype of its operand
    dim = args[0] % len(shape)
    options = {} if dtype is None else {"dtype": dtype}
    operator = partial(SCANS[name].scan, dim=0, **options)
    return ScanForm(
        name, dim, operator, whole_along(shape, [dim], shape, range(len(shape)))
    )
