"""Small models that do with weights what real ones do: compute them in forward, share them, freeze them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as fn
from torch.nn.utils import parametrizations


class LayerScale(nn.Module):
    """A block of ConvNeXt: a trained factor per channel, reshaped in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.gamma = nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) * self.gamma.reshape(1, -1, 1, 1)


class StdConv2d(nn.Conv2d):
    """A convolution with standardized weights, as in timm's residual networks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = fn.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6)
        return fn.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class Normed(nn.Module):
    """The weight of a convolution over its norm, and a large one, which is held in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = StdConv2d(4, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(32, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.second.weight
        weight = self.gain * weight / weight.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
        return fn.conv2d(self.first(x).relu(), weight, self.second.bias, padding=1)


def parametrized() -> nn.Module:
    """Convolutions with weight and spectral norms."""
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(4, 8, 3, padding=1)),
        nn.ReLU(),
        parametrizations.spectral_norm(nn.Conv2d(8, 8, 3, padding=1)),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2, 2),
        parametrizations.weight_norm(nn.Conv2d(4, 4, 1)),
    )


def normed_by_hooks() -> nn.Module:
    """The same by the older functions of torch, which compute weights in hooks; a pooling with places."""
    return nn.Sequential(
        torch.nn.utils.weight_norm(nn.Conv2d(4, 8, 3, padding=1)),
        Pooled(),
        torch.nn.utils.spectral_norm(nn.Conv2d(8, 4, 3, padding=1)),
    )


class Pooled(nn.Module):
    """A pooling that gives the places of its results, and the reverse."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small, places = self.pool(x)
        return x + self.unpool(small * 2, places)


class FrozenBatchNorm(nn.Module):
    """As in torchvision's detectors: buffers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        for name in ("weight", "bias", "mean", "var"):
            self.register_buffer(name, torch.rand(4) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w, b, m, v = (each.reshape(1, -1, 1, 1) for each in (self.weight, self.bias, self.mean, self.var))
        scale = w * (v + 1e-5).rsqrt()
        return self.conv(x) * scale + (b - m * scale)


class Functional(nn.Module):
    """Layers as functions of parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.shift = nn.Parameter(torch.randn(8, 2, 3, 3) / 4), nn.Parameter(torch.randn(8))
        self.up = nn.Parameter(torch.randn(8, 2, 2, 2) / 4)
        self.matrix = nn.Parameter(torch.randn(6, 4) / 4)
        self.scale, self.offset = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = fn.conv2d(x, self.kernel, self.shift, padding=1, groups=2)
        x = fn.group_norm(x, 4, self.scale, self.offset.exp())
        x = fn.conv_transpose2d(fn.relu(x), self.up, None, 2, groups=2)
        x = fn.max_pool2d(fn.instance_norm(x), 2)
        return fn.linear(x.permute(0, 2, 3, 1), self.matrix)


class Twice(nn.Module):
    """One normalization and one convolution on two scales, and with other weights in between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.other, self.scale = nn.Conv2d(4, 4, 1), nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.norm(self.conv(fn.avg_pool2d(x, 2))) * self.scale
        x = self.norm(self.conv(self.other(x))) * self.scale.exp()
        return x + fn.interpolate(small, scale_factor=2) + self.scale


class Tied(nn.Module):
    """One weight in three places, one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.second.weight = self.first.weight
        self.skip = self.same = nn.Conv2d(4, 4, 1)
        self.norm, self.last = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.last.running_mean = self.norm.running_mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.second(fn.relu(self.first(x)))) + self.skip(x)
        return self.last(fn.conv2d(y, self.first.weight.transpose(0, 1), padding=1) + self.same(y))
