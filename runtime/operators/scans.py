"""Calls that scan a dimension: each row of the result is made of all rows up to it.

`cumsum`, `cumprod`, `logcumsumexp`, and values and indices of `cummax` and `cummin`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count
from synth.runtime.operators.call import Call
from synth.runtime.rules.local_forms import LocalForm, whole_along
from synth.runtime.rules.rule import Rule
from synth.runtime.rules.scans import SCANS, index_rule, scan_rule


class ScanForm(NamedTuple):
    """A scan along a dimension.

    operator: of torch, of one word. local: how ranks scan that have all of its rows.
    indices: whether the result has the indices of extrema.
    """

    name: str
    dim: int
    operator: Callable[..., torch.Tensor]
    local: LocalForm
    indices: bool

    def rule(self, source: Layout, count: Count) -> Rule | None:
        """The rule where ranks cut the dimension; None where they do not."""
        if self.indices:
            return index_rule(self.name, self.dim, source, count)
        return scan_rule(self.name, self.dim, source, self.operator, count)


def scan_of(call: Call) -> ScanForm | None:
    """What a call scans; None for others."""
    if call.module is not None or len(call.inputs) != 1 or call.parameters:
        return None
    name, part = getattr(call.function, "picked", (call.word, 0))
    shape = call.shapes[0]
    if name not in SCANS or not shape or call.out != shape or 0 in shape:
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
    local = whole_along(shape, [dim], shape, range(len(shape)))
    return ScanForm(name, dim, operator, local, indices=part == 1)
