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
Passes = tuple[Pass, ...]  # in order of execution: one alone, or the three of a training step
Task = Pass | Literal["training"]  # training: all three, on one grid and one ownership

TASKS: tuple[Task, ...] = ("forward", "backward-data", "backward-filter", "training")
PASSES: Passes = ("forward", "backward-data", "backward-filter")
# A transposed convolution is the backward-data pass of a convolution; its own passes are, in terms of that:
TURNED: dict[Pass, Pass] = {
    "forward": "backward-data",
    "backward-data": "forward",
    "backward-filter": "backward-filter",
}
WRITES: dict[Pass, Tensor] = {"forward": "Out", "backward-data": "In", "backward-filter": "Ker"}


def sequences(transposed: bool = False) -> tuple[Passes, Passes]:
    """The orders in which a step may do the passes of its nest: the two gradients come either way around."""
    first, data, filter_ = (TURNED[pass_] for pass_ in PASSES) if transposed else PASSES
    return (first, data, filter_), (first, filter_, data)


def reads(pass_: Pass) -> tuple[Tensor, ...]:
    """The two tensors that a pass reads."""
    return tuple(tensor for tensor in TENSORS if tensor != WRITES[pass_])


def spans(sequence: Passes = PASSES) -> dict[Tensor, tuple[Pass, Pass]]:
    """tensor -> (the pass that gathers it and may keep it, the pass that then finds it kept).

    Empty unless the passes are those of a training step: a pass alone keeps nothing for another one.
    """
    if len(sequence) != len(PASSES):
        return {}
    first, second, last = sequence
    return {WRITES[last]: (first, second), WRITES[second]: (first, last), WRITES[first]: (second, last)}


def shown(pass_: Pass, tensor: Tensor) -> str:
    """The name of a tensor's role in a pass: `dOut`, `dIn` and `dKer` are gradients."""
    gradient = pass_ != "forward" and (tensor == "Out" or tensor == WRITES[pass_])
    return f"d{tensor}" if gradient else tensor
