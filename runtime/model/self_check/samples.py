"""Values with which a model is run, so that a mistake in any call shows.

Zeros and ones would hide what they multiply, and a mask of one value what it masks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from synth.runtime.model.templates import device_of
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tensor.partitioned import PartitionedTensor, whole_words
from synth.runtime.tracing.inputs import Arguments, Spec
from synth.runtime.tracing.unsupported import plain_copies

Example = torch.Tensor | None  # None for a shape
SPREAD = 0.1  # of what is added to parameters that are all alike


def in_dtype(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A copy of a model that computes in a dtype, with values that differ.

    dtype: of its real tensors, those that are plain attributes among them; None to let
    all have their own. Parameters that are all alike get other values, and running
    statistics, too.
    """
    made = copy.deepcopy(model, plain_copies(model))
    if dtype is not None:
        made._apply(lambda values: as_real(values, dtype))  # type: ignore[no-untyped-call]
        for module in made.modules():
            for name, each in vars(module).items():
                if isinstance(each, torch.Tensor):
                    setattr(module, name, as_real(each, dtype))
    with torch.no_grad():
        for values in made.parameters():
            _vary(values)
        for name, buffer in made.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(torch.randn_like(buffer), alpha=SPREAD)
            elif name.endswith("running_var"):
                buffer.mul_(0.5 + torch.rand_like(buffer))
    return made


def with_values(
    template: nn.Module, network: nn.Module, device: torch.device, first: bool
) -> nn.Module:
    """A model without values, with the buffers of a network and random parameters.

    All ranks call this; first: whether this is the one that is given a copy.
    """
    buffers = {name: whole_words(each) for name, each in network.named_buffers()}
    if not first:
        return template
    made = copy.deepcopy(template).to_empty(device=device)
    with torch.no_grad():
        for values in made.parameters():
            spread = SPREAD
            if values.dim() > 1:
                spread = (values.numel() / values.shape[0]) ** -0.5
            values.copy_(spread * torch.randn_like(values) + (values.dim() < 2))
        for name, buffer in made.named_buffers():
            buffer.copy_(buffers[name])
    return made


def as_real(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in a real dtype, or in the complex one of its precision."""
    if values.is_complex():
        return values.to(dtype.to_complex())
    return values.to(dtype) if values.is_floating_point() else values


def _vary(values: torch.Tensor) -> None:
    if not is_trainable(values) or not values.numel():
        return
    if bool((values != values.flatten()[0]).any()):
        return
    if values.numel() > 1:
        values.add_(torch.randn_like(values), alpha=SPREAD)
    elif not bool(values.any()):  # a gate that is closed at first
        values.fill_(SPREAD)


def tried(
    model: nn.Module,
    arguments: Arguments,
    examples: Sequence[Example],
    dtype: torch.dtype,
) -> Iterator[list[torch.Tensor]]:
    """Inputs to try in turn, until the model takes them and gives finite numbers.

    examples: of the user, in the extents of `arguments`. dtype: of what is real.
    """
    here = device_of(model)
    rows = [
        each.num_embeddings
        for each in model.modules()
        if isinstance(each, nn.Embedding)
    ]
    most = min(rows, default=2)
    pairs = list(zip(arguments.specs, examples, strict=True))
    kinds = "normal", "positive", "example"
    last: list[torch.Tensor] = []
    for kind in kinds:
        made = [_value(spec, each, dtype, most, kind).to(here) for spec, each in pairs]
        same = len(last) == len(made) and all(map(torch.equal, last, made))
        if not same:
            yield made
        last = made


def _value(
    spec: Spec, example: Example, dtype: torch.dtype, most: int, kind: str
) -> torch.Tensor:
    own = spec.dtype or dtype
    real = own.is_floating_point or own.is_complex
    if own.is_floating_point and own.itemsize < dtype.itemsize:
        own = dtype
    if example is not None and (kind == "example" or _tells(example, spec)):
        return example.detach().to(own).clone()
    if own == torch.bool:
        made = torch.rand(spec.shape) < 0.5
        if made.dim() and made.shape[-1] > 1:
            made[..., 0], made[..., -1] = True, False
        return made
    if not real:
        return torch.randint(0, most, spec.shape).to(own)
    if kind == "positive" and own.is_floating_point:
        return torch.rand(spec.shape, dtype=own) * 0.9 + 0.1
    return torch.randn(spec.shape, dtype=own)


def _tells(example: torch.Tensor, spec: Spec) -> bool:
    """Whether an example has values that were meant: finite ones that differ."""
    if spec.dtype is None or example.is_meta or not example.numel():
        return False
    real = is_trainable(example)
    if real and not bool(torch.isfinite(example).all()):
        return False
    if real and float(example.abs().max()) > 1e4:  # memory that nobody has written
        return False
    if example.numel() == 1:
        return bool(example.any())
    return bool((example != example.flatten()[0]).any())


def cut_to(example: Any, shape: Sequence[int]) -> Example:
    """The first words of an example along every dimension; None where it is none.

    One rank alone has no words of a partitioned example.
    """
    plain = not isinstance(example, PartitionedTensor | DTensor)
    if not isinstance(example, torch.Tensor) or not plain:
        return None
    return example.detach()[tuple(slice(extent) for extent in shape)]
