"""The operators `synth::network` and `synth::network_backward`.

The first runs a forward pass as it is, and keeps its graph until the second runs the
backward pass, which fills the gradients of the network's parameters. Each takes what
the one before gave, so that no compiler drops, merges or reorders passes: all ranks
exchange words in the same order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import fx

ENTRIES: WeakValueDictionary[int, Entry] = WeakValueDictionary()
MOST = 16  # forward passes that wait for their backward pass


class Entry:
    """What a compiled call of a network reads of it.

    number: by which the operators find it. call: how it gives its tensors. training:
    the mode that it was planned in; None where it has one graph in both. form: what the
    model gives, of tuples, lists, dicts, None and `Fields`, with the number of each
    output in its place; None where it is not called as one operator. state: of the last
    pass. waiting: the outputs and inputs of passes whose backward pass has not come, by
    their numbers.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        shapes: Callable[..., Any],
        behind: Callable[..., Mapping[int, set[int]]],
    ) -> None:
        """run: a pass. shapes: extents and dtypes of outputs for extents of inputs, and
        the dtype of autocast. behind: place of an output -> the places of inputs that
        get a gradient from it, for extents of inputs.
        """
        self.run, self.shapes, self.behind = run, shapes, behind
        # no other one has it: torch keeps compiled code for later processes and forks
        self.number = secrets.randbits(62)
        ENTRIES[self.number] = self
        self.state = torch.zeros((), dtype=torch.int64)
        self.anchor = torch.zeros((), requires_grad=True)
        self.call: Any = None
        self.training: bool | None = None
        self.form: Any = None
        self.version = ""
        self.inference = False
        self.waiting: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}


@contextmanager
def _as_outside() -> Iterator[None]:
    """Autograd records in here, which torch switches off inside of an operator."""
    guard: Any = torch._C._PreserveDispatchKeyGuard
    with guard(), torch.enable_grad():
        key = torch._C.DispatchKey.AutogradFunctionality
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield


def _network(
    state: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    needs: Sequence[bool],
    anchor: torch.Tensor,
    number: int,
    train: bool,
    low: torch.dtype | None,
) -> list[torch.Tensor]:
    entry = ENTRIES[number]
    after = state + 1
    lowers: Any = nullcontext()
    if low is not None:  # which torch switches off in compiled code
        lowers = torch.autocast(inputs[0].device.type, low)
    if not train:
        with torch.no_grad(), lowers:
            return [*(each.clone() for each in entry.run(inputs)), after]
    with _as_outside(), lowers:
        pairs = zip(inputs, needs, strict=True)
        given = [each.detach().requires_grad_(need) for each, need in pairs]
        made = entry.run(given)
    entry.waiting[int(after)] = made, given
    if len(entry.waiting) > MOST:
        entry.waiting.pop(next(iter(entry.waiting)))
    return [*(each.detach().clone() for each in made), after]


def _shapes(
    state: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    needs: Sequence[bool],
    anchor: torch.Tensor,
    number: int,
    train: bool,
    low: torch.dtype | None,
) -> list[torch.Tensor]:
    found = ENTRIES[number].shapes(_extents(inputs), low)
    made = [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in found]
    return [*made, torch.empty_like(state)]


def _extents(given: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(map(int, each.shape)) for each in given]


def _backward(
    state: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    places: Sequence[int],
    inputs: Sequence[torch.Tensor],
    number: int,
) -> list[torch.Tensor]:
    entry = ENTRIES[number]
    if int(state) not in entry.waiting:
        raise RuntimeError(
            f"the backward pass of a compiled network ran already, or {MOST} forward"
            " passes or a change of its modules came between; call backward() after"
            " each forward pass"
        )
    made, given = entry.waiting.pop(int(state))
    with _as_outside():
        pairs = zip(places, gradients, strict=True)
        asked = [(made[at], each) for at, each in pairs if made[at].requires_grad]
        if asked:
            outs, grads = zip(*asked, strict=True)
            torch.autograd.backward(outs, grads)
    return [
        torch.zeros_like(each) if each.grad is None else _plain(each.grad)
        for each in given
    ]


def _plain(gradient: Any) -> torch.Tensor:
    whole: torch.Tensor = (
        gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    )
    return whole.clone()


def _like_inputs(
    state: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    places: Sequence[int],
    inputs: Sequence[torch.Tensor],
    number: int,
) -> list[torch.Tensor]:
    return [torch.empty_like(each) for each in inputs]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, given, _, _, ctx.number, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[-1], *given)


def _derivative(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
    state, *given = ctx.saved_tensors
    places = [at for at, each in enumerate(gradients[:-1]) if each is not None]
    asked = [gradients[at] for at in places]
    back: Any = torch.ops.synth.network_backward
    made = back(state, asked, places, given, ctx.number)
    behind = ENTRIES[ctx.number].behind(_extents(given))
    reached = set[int]().union(*(behind[at] for at in places))
    inputs = [each if at in reached else None for at, each in enumerate(made)]
    return None, inputs, None, made[0].new_zeros(()), None, None, None


def register() -> None:
    """Define the operators in `torch.ops.synth`, if this process has not done so."""
    if hasattr(torch.ops.synth, "network"):
        return
    network: Any = torch.library.custom_op("synth::network", _network, mutates_args=())
    network.register_fake(_shapes)
    network.register_autograd(_derivative, setup_context=_setup)
    backward: Any = torch.library.custom_op(
        "synth::network_backward", _backward, mutates_args=()
    )
    backward.register_fake(_like_inputs)
    for name in ("network", "network_backward"):
        fx.node.has_side_effect(getattr(torch.ops.synth, name).default)
