"""The three passes of a layer. They share one loop nest and exchange the roles of its tensors.

    pass              reads                         writes
    forward           In (along k), Ker (along x)   Out (along c)
    backward-data     dOut (along c), Ker (along x) dIn (along k)
    backward-filter   dOut (along c), In (along k)  dKer (along x)

A tensor that a pass reads is gathered by the group of processes that need the same slice. A tensor that a
pass writes is reduce-scattered over this group. "along" names the tensor's lacking index. A gradient has
the ownership of its tensor, so both have the same name here.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import permutations
from typing import Literal

from synth.layer.axes import TENSORS, Tensor

Pass = Literal["forward", "backward-data", "backward-filter"]
Passes = tuple[Pass, ...]  # in order of execution: one alone, or those of a training step
Task = Pass | Literal["training"]  # training: forward and the gradients, with one grid and one ownership

TASKS: tuple[Task, ...] = ("forward", "backward-data", "backward-filter", "training")
PASSES: Passes = ("forward", "backward-data", "backward-filter")
# A transposed convolution is the backward-data pass of a convolution.
# pass of the transposed convolution <-> pass of that convolution
TURNED: dict[Pass, Pass] = {
    "forward": "backward-data",
    "backward-data": "forward",
    "backward-filter": "backward-filter",
}
WRITES: dict[Pass, Tensor] = {"forward": "Out", "backward-data": "In", "backward-filter": "Ker"}
GRADIENTS: tuple[Tensor, ...] = ("In", "Ker")  # the gradients that a training step computes by default


def sequences(transposed: bool = False, gradients: Collection[Tensor] = GRADIENTS) -> tuple[Passes, ...]:
    """The possible orders of the passes of a training step: forward first, then the gradients in any order.

    `gradients` are the layer's tensors whose gradients are wanted. The first layer of a network needs no
    dIn. The passes are those of the nest, which a transposed layer shares with its convolution.
    """
    first, *later = (pass_ for pass_ in PASSES if pass_ == "forward" or WRITES[pass_] in gradients)
    orders = ((first, *order) for order in permutations(later))
    return tuple(tuple(TURNED[pass_] if transposed else pass_ for pass_ in order) for order in orders)


def gradients_of(passes: Passes, transposed: bool = False) -> tuple[Tensor, ...]:
    """The layer's tensors whose gradients a training step with these passes of its nest computes."""
    own = (TURNED[pass_] if transposed else pass_ for pass_ in passes[1:])
    return tuple(sorted(WRITES[pass_] for pass_ in own))


def reads(pass_: Pass) -> tuple[Tensor, ...]:
    """The two tensors that a pass reads."""
    return tuple(tensor for tensor in TENSORS if tensor != WRITES[pass_])


def reuse_intervals(sequence: Passes = PASSES) -> dict[Tensor, tuple[Pass, Pass]]:
    """Tensor -> (the pass that gathers it and may save it, the pass that may reuse it).

    Contains the tensors that two passes of a training step read. Empty for a single pass.
    """
    readers = {t: [pass_ for pass_ in sequence if WRITES[pass_] != t] for t in TENSORS}
    return {tensor: (who[0], who[1]) for tensor, who in readers.items() if len(who) == 2}


def gathers(passes: Passes = PASSES, kept: Collection[Tensor] = TENSORS) -> dict[Tensor, int]:
    """How often the passes gather each tensor: once per reading pass, once less if it is in `kept`."""
    shared = reuse_intervals(passes)
    return {t: sum(WRITES[pass_] != t for pass_ in passes) - (t in kept and t in shared) for t in TENSORS}


def moves(passes: Passes = PASSES, kept: Collection[Tensor] = TENSORS) -> dict[Tensor, int]:
    """How often the passes communicate each tensor: its gathers and its reductions."""
    reduced = [WRITES[pass_] for pass_ in passes]
    return {tensor: times + reduced.count(tensor) for tensor, times in gathers(passes, kept).items()}


def role_name(pass_: Pass, tensor: Tensor) -> str:
    """The name of a tensor's role in a pass. `dOut`, `dIn` and `dKer` are gradients."""
    gradient = pass_ != "forward" and (tensor == "Out" or tensor == WRITES[pass_])
    return f"d{tensor}" if gradient else tensor
