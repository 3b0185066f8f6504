"""What a program calls the tensors of its nest: dIn, dKer and dOut are gradients.

A gradient is stored like its tensor, so a training program has one set of functions for both.
"""

from __future__ import annotations

from synth.layer.axes import Tensor
from synth.layer.passes import role_name
from synth.planning.plan import Plan


def roles(plan: Plan, tensor: Tensor) -> tuple[str, ...]:
    """The roles of a tensor: `("dIn",)` in a backward pass, `("In", "dIn")` in a training step."""
    return tuple(sorted({role_name(pass_, tensor) for pass_ in plan.passes}))


def role_names(plan: Plan, tensor: Tensor) -> str:
    """The same for people: `In and dIn`."""
    return " and ".join(roles(plan, tensor))


def suffix(plan: Plan, tensor: Tensor) -> str:
    """How the names of a tensor's functions end: `owned_din` in a backward pass, `owned_in` in a step."""
    return tensor.lower() if plan.later else roles(plan, tensor)[0].lower()
