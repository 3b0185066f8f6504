"""Points the ranks of tests to a GPU: SYNTH_TEST_DEVICE=cuda, and SYNTH_TEST_BACKEND=nccl beside it.

    SYNTH_TEST_DEVICE=cuda python -m pytest tests/parallel -m "not slow"

What a test or an example makes, models and batches, is then made on the GPU, which all ranks share. The
runtime says by itself where its tensors are. Messages pass through gloo, or through nccl with
SYNTH_TEST_BACKEND. NCCL refuses two ranks of one host on one GPU, so each rank then calls itself a host.
"""

from __future__ import annotations

import os
import sys
from typing import Any

PLACES = "/tests/", "/examples/"  # where tensors are made on the GPU


def asked_device() -> str:
    """The device that the environment asks for; "" for the processor."""
    return os.environ.get("SYNTH_TEST_DEVICE", "")


def backend() -> str:
    """The backend of the default process group."""
    return "cpu:gloo,cuda:nccl" if os.environ.get("SYNTH_TEST_BACKEND") == "nccl" else "gloo"


def flags() -> tuple[str, ...]:
    """Those of an emitted program."""
    return ("--device", asked_device()) if asked_device() else ()


def own_host(rank: int) -> dict[str, str]:
    """Variables of a rank that calls itself a host of its own, which nccl then reaches by sockets."""
    return {
        "NCCL_HOSTID": f"rank-{rank}",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def enter(rank: int) -> None:
    """On a rank: from now on tensors of tests are made on the device that was asked for."""
    if backend() != "gloo":
        os.environ |= own_host(rank)
    device = asked_device()
    if not device:
        return
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    class OfTests(TorchFunctionMode):
        """Gives what tests make the device, where they name none."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in makers and kwargs.get("device") is None and _called_by_test():
                kwargs["device"] = device
            return func(*args, **kwargs)

    makers = _device_constructors()
    torch.backends.cudnn.allow_tf32 = False  # tests compare float32 with one process
    if device == "cuda":
        torch.cuda.set_device(0)
    OfTests().__enter__()


def _called_by_test() -> bool:
    """Whether the first caller outside torch is a test or an example."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    return any(place in frame.f_code.co_filename for place in PLACES)
