"""The three passes of a layer: one nest with the roles of its tensors exchanged.

    pass              reads                         writes
    forward           In (along k), Ker (along x)   Out (along c)
    backward-data     dOut (along c), Ker (along x) dIn (along k)
    backward-filter   dOut (along c), In (along k)  dKer (along x)

A tensor that is read is brought to the processes that need the same slice of it; a tensor that is written
is summed over them. A gradient lives exactly where its tensor lives, so it goes by the tensor's name.
"""

from __future__ import annotations

from typing import Literal

from synth.axes import TENSORS, Tensor

Pass = Literal["forward", "backward-data", "backward-filter"]
Task = Pass | Literal["training"]  # training: all three, on one grid and one ownership

TASKS: tuple[Task, ...] = ("forward", "backward-data", "backward-filter", "training")
PASSES: tuple[Pass, ...] = ("forward", "backward-data", "backward-filter")
# A transposed convolution is the backward-data pass of a convolution; its own passes are, in terms of that:
TURNED: dict[Pass, Pass] = {
    "forward": "backward-data",
    "backward-data": "forward",
    "backward-filter": "backward-filter",
}
WRITES: dict[Pass, Tensor] = {"forward": "Out", "backward-data": "In", "backward-filter": "Ker"}

# tensor -> (the pass that gathers it and may keep it, the pass that then finds it kept)
SPANS: dict[Tensor, tuple[Pass, Pass]] = {
    "In": ("forward", "backward-filter"),
    "Ker": ("forward", "backward-data"),
    "Out": ("backward-data", "backward-filter"),
}


def in_order(transposed: bool = False) -> tuple[Pass, ...]:
    """The passes of a training step of a layer as passes of its nest, in order of execution."""
    return tuple(TURNED[pass_] for pass_ in PASSES) if transposed else PASSES


def spans(transposed: bool = False) -> dict[Tensor, tuple[Pass, Pass]]:
    """`SPANS` of a layer; of a transposed one with the roles exchanged."""
    if not transposed:
        return SPANS
    other: dict[Tensor, Tensor] = {"In": "Out", "Ker": "Ker", "Out": "In"}
    return {other[t]: (TURNED[gathers], TURNED[finds]) for t, (gathers, finds) in SPANS.items()}


def reads(pass_: Pass) -> tuple[Tensor, ...]:
    """The two tensors that a pass reads."""
    return tuple(tensor for tensor in TENSORS if tensor != WRITES[pass_])


def shown(pass_: Pass, tensor: Tensor) -> str:
    """The name of a tensor's role in a pass: `dOut`, `dIn` and `dKer` are gradients."""
    gradient = pass_ != "forward" and (tensor == "Out" or tensor == WRITES[pass_])
    return f"d{tensor}" if gradient else tensor
