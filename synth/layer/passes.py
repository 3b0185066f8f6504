"""The three passes of a layer: one nest with the roles of its tensors exchanged.

    pass              reads                         writes
    forward           In (along k), Ker (along x)   Out (along c)
    backward-data     dOut (along c), Ker (along x) dIn (along k)
    backward-filter   dOut (along c), In (along k)  dKer (along x)

A tensor that is read is brought to the processes that need the same slice of it; a tensor that is written
is summed over them. A gradient lives exactly where its tensor lives, so it goes by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import permutations
from typing import Literal

from synth.layer.axes import TENSORS, Tensor

Pass = Literal["forward", "backward-data", "backward-filter"]
Passes = tuple[Pass, ...]  # in order of execution: one alone, or those of a training step
Task = Pass | Literal["training"]  # training: forward and the gradients, on one grid and one ownership

TASKS: tuple[Task, ...] = ("forward", "backward-data", "backward-filter", "training")
PASSES: Passes = ("forward", "backward-data", "backward-filter")
# A transposed convolution is the backward-data pass of a convolution; its own passes are, in terms of that:
TURNED: dict[Pass, Pass] = {
    "forward": "backward-data",
    "backward-data": "forward",
    "backward-filter": "backward-filter",
}
WRITES: dict[Pass, Tensor] = {"forward": "Out", "backward-data": "In", "backward-filter": "Ker"}
GRADIENTS: tuple[Tensor, ...] = ("In", "Ker")  # that a training step makes, if not told otherwise


def sequences(transposed: bool = False, gradients: Collection[Tensor] = GRADIENTS) -> tuple[Passes, ...]:
    """The orders in which a step may do the passes of its nest: two gradients come either way around.

    gradients: those that are wanted, of the layer's own tensors; nobody asks for dIn of a network's input.
    """
    first, *later = (pass_ for pass_ in PASSES if pass_ == "forward" or WRITES[pass_] in gradients)
    orders = ((first, *order) for order in permutations(later))
    return tuple(tuple(TURNED[pass_] if transposed else pass_ for pass_ in order) for order in orders)


def gradients_of(passes: Passes, transposed: bool = False) -> tuple[Tensor, ...]:
    """The gradients that a step with these passes of its nest makes, of the layer's own tensors."""
    own = (TURNED[pass_] if transposed else pass_ for pass_ in passes[1:])
    return tuple(sorted(WRITES[pass_] for pass_ in own))


def reads(pass_: Pass) -> tuple[Tensor, ...]:
    """The two tensors that a pass reads."""
    return tuple(tensor for tensor in TENSORS if tensor != WRITES[pass_])


def reuse_intervals(sequence: Passes = PASSES) -> dict[Tensor, tuple[Pass, Pass]]:
    """tensor -> (the pass that gathers it and may keep it, the pass that then finds it kept).

    Of a training step; a pass alone keeps nothing for another one.
    """
    readers = {t: [pass_ for pass_ in sequence if WRITES[pass_] != t] for t in TENSORS}
    return {tensor: (who[0], who[1]) for tensor, who in readers.items() if len(who) == 2}


def gathers(passes: Passes = PASSES, kept: Collection[Tensor] = TENSORS) -> dict[Tensor, int]:
    """How often passes gather each tensor: for each that reads it, less what one finds `kept` by another."""
    shared = reuse_intervals(passes)
    return {t: sum(WRITES[pass_] != t for pass_ in passes) - (t in kept and t in shared) for t in TENSORS}


def moves(passes: Passes = PASSES, kept: Collection[Tensor] = TENSORS) -> dict[Tensor, int]:
    """How often passes move each tensor: what they gather, and what each of them sums."""
    summed = [WRITES[pass_] for pass_ in passes]
    return {tensor: times + summed.count(tensor) for tensor, times in gathers(passes, kept).items()}


def role_name(pass_: Pass, tensor: Tensor) -> str:
    """The name of a tensor's role in a pass: `dOut`, `dIn` and `dKer` are gradients."""
    gradient = pass_ != "forward" and (tensor == "Out" or tensor == WRITES[pass_])
    return f"d{tensor}" if gradient else tensor
