"""Calls that shuffle channels and positions; see `synth.runtime.rules.shuffles`."""

from __future__ import annotations

from torch import nn

from synth.runtime.operators.call import Call
from synth.runtime.rules.shuffles import channel_mean, shuffle


def shuffle_of(call: Call) -> int | None:
    """The dimension that has the channels; None for calls that do anything else."""
    if len(call.inputs) != 1 or call.parameters or not all(call.shapes[0]):
        return None
    if call.function in (shuffle, channel_mean):
        return 1
    by_class = isinstance(call.module, nn.PixelShuffle | nn.PixelUnshuffle)
    names = ("pixel_shuffle", "pixel_unshuffle")
    by_name = call.module is None and call.word in names
    return len(call.out) - 3 if by_class or by_name else None
