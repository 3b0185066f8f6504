"""What surrounds a call of torch and must not change what a network is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from synth.runtime.kernels.autocast import no_autocast


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """No inference mode, no_grad, autocast or default device of the user's in here.

    Hooks on saved tensors, such as those of a checkpoint around the call, see nothing.

    The generator of the host is after this as it was before, whatever is drawn in here.
    device: of the network.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        no_autocast(device),
        torch.device("cpu"),
        torch.random.fork_rng(devices=[]),
        saved_as_they_are(),
    ):
        yield


def saved_as_they_are() -> Any:
    """Tensors that autograd saves are kept in here, whatever hooks are around.

    torch does not ask hooks whether a tensor was changed in place, so these do.
    """
    return torch.autograd.graph.saved_tensors_hooks(_kept, _unchanged)


def _kept(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    values = tensor.detach()  # an output that held itself would never be freed
    return values, -1 if values.is_inference() else values._version


def _unchanged(kept: tuple[torch.Tensor, int]) -> torch.Tensor:
    values, version = kept
    if version >= 0 and values._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by"
            f" an inplace operation: a tensor of {tuple(values.shape)} is at version"
            f" {values._version}, and was saved at version {version}"
        )
    return values


@contextmanager
def single_precision() -> Iterator[None]:
    """New tensors are of torch.float32 in here, whatever the user's default is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
