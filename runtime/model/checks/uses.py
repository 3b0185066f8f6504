"""What torch would do with a network as a whole, refused where its ranks cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree


class Refused:
    """Raises a sentence where something walks over it, and not if it is looked at."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __iter__(self) -> Iterator[NoReturn]:
        raise ValueError(self.reason)

    def __repr__(self) -> str:
        return f"refused: {self.reason}"


# DistributedDataParallel makes a set of it before anything else
NO_WRAPPER = Refused(
    "a network of synth.parallelize sums its gradients itself; do not wrap it in"
    " DistributedDataParallel (accelerate: do not prepare() it)"
)


NO_RECORD = (
    "cannot record a network of synth.parallelize, whose ranks exchange words; give it"
    " the model of one process, with the values of net.full_state_dict() loaded"
)


def require_no_sharding(hook: object) -> None:
    """Raise `ValueError` for the hook by which `fully_shard` begins."""
    if type(getattr(hook, "__self__", None)).__name__ == "FSDPState":  # not imported
        raise ValueError(
            "a network of synth.parallelize holds its parameters in parts itself; do"
            " not call fully_shard on it, but give parallelize a mesh of two dimensions"
            " for replicas"
        )


def require_eager(args: Any, kwargs: Any) -> None:
    """Raise `ValueError` where another program records or transforms the call."""
    jit: Any = torch.jit
    if jit.is_tracing():
        refuse_recording("torch.jit.trace")
    if torch.compiler.is_exporting():
        refuse_recording("torch.export")
    if get_proxy_mode() is not None:
        refuse_recording("make_fx, or a transform that records,")
    _refuse_transforms()
    for each in _pytree.tree_leaves((args, kwargs)):
        if isinstance(each, fx.Proxy):
            refuse_recording("torch.fx")


def refuse_recording(what: str) -> NoReturn:
    """Raise `ValueError`: what records the calls of one process."""
    raise ValueError(f"{what} {NO_RECORD}")


def _refuse_transforms() -> None:
    """Raise `ValueError` inside of a transform of `torch.func`, or of forward mode."""
    functorch: Any = torch._C._functorch
    if functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        raise ValueError(
            "a transform of torch.func, such as vmap, grad or jvp, and forward-mode AD"
            " cannot run a network of synth.parallelize, whose ranks exchange words;"
            " call the network itself, and backward() for gradients"
        )
