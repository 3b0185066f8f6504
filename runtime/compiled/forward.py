"""`forward` of a network, in which Dynamo finds one operator."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Fields(NamedTuple):
    """An object of a dataclass, as outputs of libraries are, by its fields."""

    kind: Any
    given: dict[str, Any]


def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What the model gives, with partitioned tensors.

    It takes the arguments of the model's `forward`. Each tensor is the whole, the
    same on all ranks, a partitioned tensor, a DTensor, or this rank's part with the
    shape of its box. A single number is given as a plain tensor.

    Raises `ValueError` for a batch of another shape or on other ranks, and
    `RuntimeError` on all ranks if they call other things or give other batches.
    In inference no gradients are recorded, with or without `torch.no_grad()`.
    """
    if torch.compiler.is_exporting():
        return self.call_exported(args, kwargs)
    if torch.compiler.is_dynamo_compiling():
        entry = self._entry
        if not entry.version:  # read, so that code is compiled again for another one
            return self.call_eagerly(args, kwargs)
        given = None
        mode = self._shown.training  # the property of a network has no graph
        if entry.form is not None and entry.training in (None, mode):
            given = tensors_of(entry.call, args, kwargs)
        if given is not None:
            kind = given[0].device.type
            lowers = torch.is_autocast_enabled(kind)
            low = torch.get_autocast_dtype(kind) if lowers else None
            train = torch.is_grad_enabled() and not entry.inference
            needs = [train and each.requires_grad for each in given]
            made = torch.ops.synth.network(
                entry.state, given, needs, entry.anchor, entry.number, train, low
            )
            entry.state = made[-1]
            return filled(entry.form, made[:-1])
    return self.call_eagerly(args, kwargs)


def tensors_of(form: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """The tensors of a call, see `CallForm`; None for one of another plan."""
    if len(args) > len(form.parameters):
        return None
    given = {**dict(zip(form.parameters, args, strict=False)), **kwargs}
    for name in (*form.names, *form.asked):
        if name not in given:
            return None
    for name, each in given.items():
        if name in form.names:
            if not isinstance(each, torch.Tensor):
                return None
        elif name not in form.values or not _same(form.values[name], each):
            return None
    return [given[name] for name in form.names]


def _same(planned: Any, now: Any) -> bool:
    """Whether two values that are no tensors are equal, as in `tracing.inputs`.

    It is written here, as Dynamo follows no other code of the runtime.
    """
    if isinstance(now, torch.Tensor):
        return False
    return planned is now or (type(planned) is type(now) and planned == now)


def filled(form: Any, outs: Any) -> Any:
    """The outputs in the form in which a model gives them; see `Entry`."""
    if isinstance(form, Fields):
        return form.kind(**filled(form.given, outs))
    if isinstance(form, dict):
        return {key: filled(each, outs) for key, each in form.items()}
    if isinstance(form, list):
        return [filled(each, outs) for each in form]
    if isinstance(form, tuple):
        return tuple([filled(each, outs) for each in form])
    return None if form is None else outs[form]
