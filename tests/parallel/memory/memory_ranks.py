"""What the ranks of the memory tests do: measure what a network holds at most, beside what its plan says."""

from __future__ import annotations

from typing import Any

import torch
from checkpoint_ranks import Checkpointed
from shared_plan import shared_plan
from torch import nn
from zoo import unet

import synth
from benchmarks.margins import UNet
from benchmarks.network_memory import beside_plan
from synth.runtime.grid.allocation_counter import allocated, least_peak, live_bytes
from synth.runtime.layers.planned_layer import PlannedLayer


class Residual(nn.Module):
    """A block of a decoder: group norms, convolutions, a sum."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, out)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(nn.functional.silu(self.norm1(x)))
        h = self.conv2(nn.functional.silu(self.norm2(h)))
        return self.shortcut(x) + h


def decoder() -> nn.Module:
    """A small decoder of an autoencoder."""
    return nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1),
        Residual(64, 64),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(64, 64, 3, padding=1),
        Residual(64, 32),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(32, 32, 3, padding=1),
        Residual(32, 32),
        nn.GroupNorm(8, 32),
        nn.SiLU(),
        nn.Conv2d(32, 3, 3, padding=1),
    )


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(channels, inner, 1, bias=False),
                nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
                nn.Conv2d(inner, out, 1, bias=False),
            ]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(inner), nn.BatchNorm2d(inner), nn.BatchNorm2d(out)])
        self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for place, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = norm(conv(h))
            h = torch.relu(h) if place < 2 else h
        return torch.relu(h + self.down(x))


def resnet() -> nn.Module:
    """A short ResNet."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, 2, 3, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Bottleneck(32, 16, 1),
        Bottleneck(64, 32, 2),
        Bottleneck(128, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def cosmoflow() -> nn.Module:
    """Convolutions of volumes with poolings, as CosmoFlow has them."""
    layers: list[nn.Module] = []
    for channels, out in ((4, 16), (16, 32), (32, 64)):
        layers += [nn.Conv3d(channels, out, 3, padding=1), nn.LeakyReLU(), nn.AvgPool3d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 32), nn.LeakyReLU(), nn.Linear(32, 4))


def maxima() -> nn.Module:
    """A large convolution before a maximum pooling: a step holds most in its backward pass."""
    return nn.Sequential(
        *(nn.Conv3d(16, 16, 3, padding=1), nn.LeakyReLU(), nn.MaxPool3d(2)), nn.Conv3d(16, 16, 3, padding=1)
    )


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "decoder": (decoder, (1, 4, 32, 32)),
    "resnet": (resnet, (8, 3, 96, 96)),
    "unet": (lambda: unet(2, (16, 32, 64), 1), (4, 1, 160, 160)),
    "cosmoflow": (cosmoflow, (2, 4, 32, 32, 32)),
    "maxima": (maxima, (1, 16, 32, 32, 32)),
    "checkpoints": (lambda: Checkpointed("each", 32), (4, 4, 64, 64)),
    "nested": (lambda: Checkpointed("nested", 32), (4, 4, 64, 64)),
}


def strides() -> nn.Module:
    """Strides, a pooling of windows that overlap, a transposed convolution, and a dilation."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 5, 2, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.SiLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.GELU()),
        nn.Conv2d(16, 8, 3, padding=2, dilation=2),
    )


def volumes() -> nn.Module:
    """Convolutions of volumes with a norm and a pooling."""
    return nn.Sequential(
        *(nn.Conv3d(2, 8, 3, padding=1), nn.LeakyReLU(), nn.Conv3d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)),
        *(nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, padding=1), nn.ReLU()),
        nn.Conv3d(16, 4, 3, padding=1),
    )


WITH_MARGINS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "decoder": NETWORKS["decoder"],
    "skips": (lambda: UNet(8, 3), (1, 3, 128, 128)),
    "volumes": (volumes, (1, 2, 32, 32, 32)),
    "strides": (strides, (1, 3, 160, 144)),
}

# name -> (a layer, the shape of its batch), as of ResNet, ResNeXt, WaveNet, decoders and CosmoFlow
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "stem": (lambda: nn.Conv2d(3, 64, 7, 2, 3), (8, 3, 112, 112)),
    "conv5": (lambda: nn.Conv2d(256, 256, 3, padding=1), (4, 256, 7, 7)),
    "pointwise": (lambda: nn.Conv2d(128, 512, 1), (4, 128, 14, 14)),
    "projection": (lambda: nn.Conv2d(256, 256, 1, stride=2), (8, 256, 14, 14)),
    "grouped": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=8), (4, 64, 28, 28)),
    "dilated": (lambda: nn.Conv2d(32, 32, 3, padding=2, dilation=2), (1, 32, 64, 64)),
    "signal": (lambda: nn.Conv1d(64, 64, 3, padding=2, dilation=2), (4, 64, 2000)),
    "dilated far": (lambda: nn.Conv2d(64, 64, 3, padding=4, dilation=4), (1, 64, 128, 128)),
    "dilated, many rows": (lambda: nn.Conv2d(128, 64, 3, padding=12, dilation=12), (1, 128, 48, 48)),
    "dilated signal": (lambda: nn.Conv1d(64, 64, 3, padding=8, dilation=8), (4, 64, 8000)),
    "dilated depthwise": (lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2, groups=64), (4, 64, 33, 33)),
    "unread rows": (lambda: nn.Conv2d(16, 32, 3, stride=4), (4, 16, 98, 98)),
    "unread points": (lambda: nn.Conv2d(64, 64, 1, stride=2), (2, 64, 113, 113)),
    "unread volume": (lambda: nn.Conv3d(16, 16, 3, stride=4), (1, 16, 50, 50, 50)),
    "unread end": (lambda: nn.Conv2d(64, 64, 3, stride=2), (1, 64, 128, 128)),
    "transposed": (lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), (2, 64, 32, 32)),
    "volume": (lambda: nn.Conv3d(32, 64, 3, padding=1), (4, 32, 8, 8, 8)),
    "linear": (lambda: nn.Linear(1024, 512), (128, 1024)),
}


def measure_layer(name: str) -> dict[str, tuple[float, float]]:
    """Pass -> (bytes at most, as measured; as planned) on this rank; a step makes dIn, too."""
    return _measured(*LAYERS[name], input_gradient=True)


def measure(name: str, axes: str = "") -> dict[str, tuple[float, float]]:
    """Pass -> (bytes at most, as measured; as planned) on this rank. Grids split these axes only."""
    return _measured(*NETWORKS[name], axes=axes)


def _measured(make: Any, shape: tuple[int, ...], **options: Any) -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    before = live_bytes()
    model = nn.Sequential(make())
    plan = shared_plan(model, shape, **options)
    net = synth.parallelize(model, shape, plan=plan)
    del model
    return beside_plan(net, plan, before, times=5)


def beside_one_process() -> float:
    """What a decoder allocates without gradients on this rank, over what it allocates in one process."""
    torch.manual_seed(0)
    model, shape = decoder(), (1, 4, 64, 64)
    net, batch = synth.parallelize(model, shape), torch.randn(shape)
    with torch.inference_mode():
        shard = net.scatter(batch)
        net(shard)
        return least_peak(lambda: net(shard)) / allocated(lambda: model(batch)).peak


def measure_margins(name: str, training: bool) -> dict[str, tuple[float, float]]:
    """`measure` of a plan for words with margins, which it has."""
    torch.manual_seed(0)
    before = live_bytes()
    make, shape = WITH_MARGINS[name]
    model = nn.Sequential(make()).requires_grad_(training)
    mode: Any = {} if training else {"mode": "inference"}
    plan = shared_plan(model.train(training), shape, objective="words", recompute=0.3, **mode)
    net = synth.parallelize(model, shape, plan=plan, **mode)
    del model
    found = beside_plan(net, plan, before, ("forward", "step") if training else ("forward",), times=5)
    return {**found, "margins": (plan.margins is not None, any(map(any, plan.margins.rows.values())))}


class Masked(nn.Module):
    """Attention of the words of an image, with a mask that forward makes by writing rows of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.heads = nn.Conv2d(3, 8, 3, padding=1), 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = self.first(x).flatten(2).unflatten(1, (self.heads, -1)).transpose(2, 3)
        size = words.shape[2]
        mask = torch.full((size, size), -float("inf"))
        for frame in range(8):
            mask[frame * (size // 8) : (frame + 1) * (size // 8), : (frame + 1) * (size // 8)] = 0
        return nn.functional.scaled_dot_product_attention(words, words, words, mask)


def beside_mask() -> tuple[float, float]:
    """What attention allocates, over the bytes of its mask; its distance from one process."""
    torch.manual_seed(0)
    model, shape = Masked().eval(), (1, 3, 32, 32)
    net, batch = synth.parallelize(model, shape, mode="inference"), torch.randn(shape)
    with torch.no_grad():
        far = float((net(batch).full_tensor() - model(batch)).abs().max())
        return least_peak(lambda: net(batch)) / (4 * 1024**2), far


def rooms_left() -> tuple[int, int, float]:
    """Buffers with room for a halo, after a pass and after one that raises; distance from one process."""
    torch.manual_seed(0)
    model, shape = decoder(), (1, 4, 32, 32)
    plan, batch = shared_plan(model, shape, axes="hw"), torch.randn(shape)
    net = synth.parallelize(model, shape, plan=plan)
    rooms = net.program.context.rooms.kept
    with torch.no_grad():
        far = float((net(batch).full_tensor() - model(batch)).abs().max())
        left = len(rooms)
        step = next(step for step in net.program.steps.values() if isinstance(step, PlannedLayer))
        forward, step.module.forward = step.module.forward, _raise
        try:
            net(batch)
        except ArithmeticError:
            step.module.forward = forward
        return left, len(rooms), far


def _raise(shard: torch.Tensor) -> torch.Tensor:
    raise ArithmeticError("a layer that ends")
