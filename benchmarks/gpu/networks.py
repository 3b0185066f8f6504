"""Training steps, or decoding, of whole networks at world size 1: ours, plain torch and DDP."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import nn

import synth
from benchmarks.gpu.timing import WARM, emptied, in_turns, median, peak_bytes, ratio, settings, wait
from examples.decoders import WIDTHS, decoder
from examples.models import CosmoFlow, ResNet
from examples.unet3d import UNet3d

OURS, PLAIN, DDP = "ours", "torch", "DDP"


class Case(NamedTuple):
    """A network and its batch, both also small for a try, and whether only a forward pass runs."""

    make: Callable[[bool], nn.Module]
    shape: tuple[int, ...]
    small: tuple[int, ...]
    inference: bool = False


CASES = {
    "ResNet-50": Case(lambda small: ResNet(), (64, 3, 224, 224), (2, 3, 32, 32)),
    "WRN-50-4": Case(lambda small: ResNet(wide=1 if small else 4), (32, 3, 224, 224), (2, 3, 32, 32)),
    "CosmoFlow 128³": Case(
        lambda small: CosmoFlow(32 if small else 128), (4, 4, 128, 128, 128), (2, 4, 32, 32, 32)
    ),
    "3-D U-Net": Case(lambda small: UNet3d(8 if small else 32, 4), (2, 1, 128, 128, 128), (1, 1, 16, 16, 16)),
    "VAE decoder": Case(
        lambda small: decoder(2, (32, 32) if small else WIDTHS), (1, 4, 128, 128), (1, 4, 8, 8), True
    ),
}
MODES = {  # name -> (TF32, autocast to bf16, channels last)
    "float32": (True, False, False),
    "bf16": (True, True, False),
    "bf16, channels last": (True, True, True),
}


class Runner:
    """A network with its batch, and the timed step."""

    def __init__(self, net: nn.Module, batch: torch.Tensor, low: bool, inference: bool) -> None:
        self.net, self.batch, self.low, self.inference = net, batch, low, inference
        self.optimizer: Any = None
        if not inference:
            self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def _cast(self) -> Any:
        kind = self.batch.device.type
        return torch.autocast(kind, torch.bfloat16) if self.low else nullcontext()

    def loss(self) -> torch.Tensor:
        """The mean of squares of the output, in float32."""
        with self._cast():
            out: torch.Tensor = self.net(self.batch)
        return out.float().square().mean()

    def step(self) -> None:
        """The timed step: forward, backward and SGD; in inference the forward pass alone."""
        if self.inference:
            with torch.no_grad(), self._cast():
                self.net(self.batch)
            return
        self.optimizer.zero_grad()
        torch.autograd.backward(self.loss())
        self.optimizer.step()


def runners(case: Case, mode: str, small: bool, device: torch.device) -> dict[str, Callable[[], Runner]]:
    """How to make the same network for each contender, with equal parameters."""
    _, low, last = MODES[mode]
    shape = case.small if small else case.shape
    torch.manual_seed(0)
    model, batch = case.make(small).to(device), torch.randn(shape, device=device)
    if last:
        layout: Any = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        model, batch = cast(Any, model).to(memory_format=layout), batch.contiguous(memory_format=layout)
    kind = "inference" if case.inference else "training"
    model.train(not case.inference)
    lean: Any = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
    wraps: dict[str, Callable[[nn.Module], nn.Module]] = {
        OURS: lambda net: synth.parallelize(net, shape, mode=kind),
        PLAIN: lambda net: net,
        DDP: lambda net: nn.parallel.DistributedDataParallel(net, **lean),
    }
    if case.inference:
        del wraps[DDP]
    return {
        name: lambda wrap=wrap: Runner(wrap(copy.deepcopy(model)), batch, low, case.inference)  # type: ignore[misc]
        for name, wrap in wraps.items()
    }


def measured(name: str, mode: str, device: torch.device, rounds: int, small: bool) -> dict[str, Any]:
    """A line of the table. small: with the small batch, for a try on a processor.

    Raises `ValueError` where our loss is not that of plain torch.
    """
    case = CASES[name]
    found: dict[str, dict[str, Any]] = {key: {} for key in ("losses", "memory", "launch")}
    made: dict[str, Runner] = {}
    with settings(MODES[mode][0]):
        for each, make in runners(case, mode, small, device).items():
            before = allocated(device)
            made[each] = runner = make()
            with torch.no_grad():
                found["losses"][each] = float(runner.loss())
            runner.step()
            found["memory"][each] = peak_bytes(runner.step, device) - before
            found["launch"][each] = launching(runner, device)
        ours, theirs = (found["losses"][each] for each in (OURS, PLAIN))
        if abs(ours - theirs) > (0.05 if MODES[mode][1] else 2e-3) * abs(theirs):
            raise ValueError(f"{name}, {mode}: the loss is {ours}, torch's is {theirs}")
        times = in_turns({each: runner.step for each, runner in made.items()}, rounds, device)
    made.clear()
    emptied(device)
    return {
        "network": name,
        "mode": mode,
        "shape": case.small if small else case.shape,
        "inference": case.inference,
        "seconds": median(times),
        "ratios": {each: ratio(times, each, OURS) for each in times if each != OURS},
        **found,
    }


def allocated(device: torch.device) -> int:
    """Bytes that torch has allocated, after unused memory was given back."""
    emptied(device)
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def launching(runner: Runner, device: torch.device) -> float:
    """Seconds after which a step has launched all its kernels, with nothing before them."""
    for _ in range(WARM):
        runner.step()
    found = []
    for _ in range(5):
        wait(device)
        begin = time.perf_counter()
        runner.step()
        found.append(time.perf_counter() - begin)
    return min(found)
