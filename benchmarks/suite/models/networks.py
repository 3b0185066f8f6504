"""The measured networks, and the shapes of their batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from examples.decoders import decoder
from examples.models import CosmoFlow, ResNet
from examples.unet3d import UNet3d


class Case(NamedTuple):
    """A network with its batch.

    least: rows at the input for one row at the coarsest resolution, for cuts by rows.
    inference: whether only a forward pass runs. alone: whether it is so large that only one contender at a
    time has room in memory.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    least: int = 1
    inference: bool = False
    alone: bool = False


MODELS = {
    "resnet50": Case(ResNet, (16, 3, 64, 64)),
    "cosmoflow": Case(lambda: CosmoFlow(64, norms=4), (4, 4, 64, 64, 64)),
    "cosmoflow, one volume": Case(lambda: CosmoFlow(64, norms=4), (1, 4, 64, 64, 64)),
    "unet3d": Case(lambda: UNet3d(base=16, levels=3), (4, 1, 32, 32, 32), 4),
    "unet3d, one volume": Case(lambda: UNet3d(base=16, levels=3), (1, 1, 64, 48, 48), 4),
    "vae decoder": Case(lambda: decoder(2, widths=(32, 64, 128, 128)), (1, 4, 32, 32), inference=True),
    "wrn50_4": Case(lambda: ResNet(wide=4), (16, 3, 64, 64), alone=True),
}
