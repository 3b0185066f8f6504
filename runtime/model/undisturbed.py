"""What surrounds a call of torch and must not change what a network is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        torch.autograd.graph.saved_tensors_hooks(_same, _same),
    ):
        yield


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@contextmanager
def single_precision() -> Iterator[None]:
    """New tensors are of torch.float32 in here, whatever the user's default is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
