"""`forward` of a network, in which Dynamo finds one operator."""

from __future__ import annotations

from typing import Any

import torch


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
        entry = self.entry
        given = [
            *args,
            *(kwargs[name] for name in entry.names[len(args) :] if name in kwargs),
        ]
        fits = len(given) == len(args) + len(kwargs) == len(entry.names)
        if not entry.version:
            fits = False  # it is read, so that code is compiled again for another one
        if entry.keys is not None and fits:
            kind = given[0].device.type
            lowers = torch.is_autocast_enabled(kind)
            low = torch.get_autocast_dtype(kind) if lowers else None
            train = torch.is_grad_enabled() and not entry.inference
            needs = [train and each.requires_grad for each in given]
            made = torch.ops.synth.network(
                entry.state, given, needs, entry.anchor, entry.number, train, low
            )
            entry.state = made[-1]
            outs = made[:-1]
            if not entry.keys:
                return outs[0]
            return (
                dict(zip(entry.keys, outs, strict=True))
                if isinstance(entry.keys[0], str)
                else tuple(outs)
            )
    return self.call_eagerly(args, kwargs)
