"""Local response normalization: words divided by a sum over neighbouring channels."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Window
from synth.runtime.rules.access import Same, Windows, read_box
from synth.runtime.rules.rule import Rule, pulled, where_words


def response_norm(module: Any, source: Layout) -> Rule:
    """`torch.nn.LocalResponseNorm`: a channel reads those around it.

    Words beyond the box that is read are zeros, as those beyond the whole. They reach
    channels of others alone.
    """
    near = Window(source.whole[1], module.size, padding=module.size // 2)
    dims = range(len(source.whole))
    reads = tuple(Windows(1, near) if dim == 1 else Same(dim) for dim in dims)
    first, last = source.mine[1]
    before = first - read_box(reads, source.mine)[1][0]

    def call(shard: torch.Tensor) -> torch.Tensor:
        numbers = module.size, module.alpha, module.beta, module.k
        made = functional.local_response_norm(shard, *numbers)
        return made.narrow(1, before, last - first).contiguous()

    return Rule(source, (pulled(source, reads, source),), where_words(call, source))
