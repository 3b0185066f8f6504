"""Models that this project did not write, from their libraries' configurations; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, tuple[int, ...]]  # a model, and the shape of its input


def resnet(**how: Any) -> nn.Module:
    from transformers import ResNetConfig
    from transformers.models.resnet.modeling_resnet import ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(**how))


def convnext(**how: Any) -> nn.Module:
    from transformers import ConvNextConfig
    from transformers.models.convnext.modeling_convnext import ConvNextForImageClassification

    return ConvNextForImageClassification(ConvNextConfig(**how))


def regnet(**how: Any) -> nn.Module:
    from transformers import RegNetConfig
    from transformers.models.regnet.modeling_regnet import RegNetForImageClassification

    return RegNetForImageClassification(RegNetConfig(**how))


def unet(dims: int = 3, channels: tuple[int, ...] = (16, 32, 64, 128, 256), units: int = 2) -> nn.Module:
    from monai.networks.nets.unet import UNet

    return UNet(dims, 1, 2, channels, (2,) * (len(channels) - 1), num_res_units=units)


def densenet(**how: Any) -> nn.Module:
    from monai.networks.nets.densenet import DenseNet

    return DenseNet(spatial_dims=2, in_channels=1, out_channels=3, **how)


def segresnet(dims: int = 3, **how: Any) -> nn.Module:
    from monai.networks.nets.segresnet import SegResNet

    return SegResNet(spatial_dims=dims, init_filters=8, in_channels=1, out_channels=2, **how)


def tiny() -> dict[str, Built]:
    """All six, small enough for a second on four ranks."""
    small: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}
    blocks: dict[str, Any] = {"blocks_down": (1, 1), "blocks_up": (1,)}
    dense: dict[str, Any] = {"init_features": 8, "growth_rate": 4, "block_config": (2, 2), "bn_size": 2}
    return {
        "resnet": (resnet(embedding_size=8, layer_type="basic", **small), (4, 3, 32, 32)),
        "convnext": (convnext(num_stages=2, **small), (4, 3, 32, 32)),
        "regnet": (regnet(embedding_size=8, groups_width=4, **small), (4, 3, 32, 32)),
        "unet": (unet(2, (4, 8, 16), 1), (4, 1, 16, 16)),
        "densenet": (densenet(**dense), (4, 1, 32, 32)),
        "segresnet": (segresnet(2, **blocks), (4, 1, 16, 16)),
        "unet3": (unet(3, (4, 8), 1), (2, 1, 8, 8, 8)),
        "segresnet3": (segresnet(3, **blocks), (2, 1, 8, 8, 8)),
    }


class Transposed(nn.Module):
    """Transposed convolutions of all kinds: more rows at the end, rows that no kernel meets, groups."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)
        self.b = nn.ConvTranspose2d(6, 4, 2, stride=3, groups=2)
        self.c = nn.ConvTranspose2d(4, 6, 3, dilation=2, padding=2, bias=False)
        self.d = nn.ConvTranspose2d(6, 3, 1, stride=2, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(torch.relu(self.c(self.b(self.a(x)))))


class Mixed(nn.Module):
    """Joins, gates, resizing, norms with and without parameters, loose parameters, a roll of all words."""

    def __init__(self) -> None:
        super().__init__()
        self.point, self.down = nn.Conv2d(3, 6, 1, stride=2), nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.groups, self.each = nn.GroupNorm(3, 12), nn.InstanceNorm2d(12, affine=True)
        self.slope, self.up = nn.PReLU(12), nn.Upsample(scale_factor=1.7, mode="bilinear")
        self.best, self.drop = nn.AdaptiveMaxPool2d(2), nn.Dropout(0.0)
        self.scale, self.last = nn.Parameter(torch.rand(12, 1, 1)), nn.Conv2d(12, 4, 3)
        self.words, self.norm = nn.Linear(4, 5), nn.LayerNorm(5)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("mean", torch.rand(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - self.mean
        y = torch.cat([self.point(x), self.down(x)], 1)
        y = self.slope(self.each(self.groups(y))) * self.scale
        z = nn.functional.interpolate(y, scale_factor=2, mode="nearest")
        z = z * torch.sigmoid(z.mean((2, 3), keepdim=True))
        z = self.last(self.drop(self.up(z)))
        z = self.best(nn.functional.pad(z, (1, 1)).roll(1))
        return self.norm(nn.functional.silu(self.words(z.flatten(2).transpose(1, 2))))


class Few(nn.Module):
    """Extents of three, which four ranks cannot cut evenly: some of them idle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.back, self.head = nn.ConvTranspose2d(3, 3, 2, stride=2, groups=3), nn.Linear(3, 3)
        self.last = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.back(torch.cat([self.norm(self.conv(x)), x], 1)[:, 2:5])
        return self.last(torch.relu(self.head(y.mean((2, 3)))))


class Partly(nn.Module):
    """A part without gradients, divided by a single number and shifted by another."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.shift, self.factor = nn.Parameter(torch.rand(())), nn.Parameter(torch.rand(()))
        self.scale = nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.one(x)
        x = torch.relu(self.two(x)) * self.scale
        return self.last(x / (x.abs().mean() + self.shift + 1)) * self.factor


class Rounded(torch.autograd.Function):
    """Rounds, and passes twice the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


class Functions(nn.Module):
    """A function with a backward pass of its own, and one that changes buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Rounded.apply(self.one(x))
        return self.two(nn.functional.batch_norm(x, self.mean, self.variance, training=True))


class Drops(nn.Module):
    """Dropout as a function that follows the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.conv(x), 0.5, self.training)


class Twice(nn.Module):
    """A convolution that is called twice: both calls have its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(torch.relu(self.conv(x))))


class Skips(nn.Module):
    """A small U-Net: what was convolved before a pooling is joined to what is upsampled after it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.MaxPool2d(2)
        self.deep, self.up = nn.Conv2d(8, 12, 3, padding=1), nn.Upsample(scale_factor=2)
        self.back, self.head = nn.Conv2d(20, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.down(x)))
        y = self.up(torch.relu(self.deep(self.pool(x))))
        return self.head(torch.relu(self.back(torch.cat([y, x], 1))))


def small_unet() -> nn.Module:
    """MONAI's, with convolutions that are transposed and skipped channels."""
    return unet(2, (4, 8, 16), 1)


def normed(**how: Any) -> nn.Sequential:
    """A normalization between two convolutions, and one that is computed from the gathered whole."""
    parts = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6, **how), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1)
    return nn.Sequential(*parts, nn.LayerNorm([4, 8, 8]), nn.PReLU(4), nn.GroupNorm(2, 4))


def frozen(*names: str, evaluated: tuple[str, ...] = (), **how: Any) -> nn.Module:
    """The same with some parameters that are not trained, and some modules in evaluation."""
    model = normed(**how)
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    for name in evaluated:
        model.get_submodule(name).eval()
    return model


def as_they_are() -> dict[str, nn.Module]:
    """Models whose parts are frozen, evaluated or detached, on inputs of (4, 4, 8, 8)."""
    names = [name for name, _ in normed().named_parameters()]
    return {
        "partly": Partly(),
        "functions": Functions(),
        "weights": frozen("0.weight", "1.bias", "4.weight", "5.weight", "6.bias"),
        "biases": frozen("0.bias", "1.weight", "3.bias", "4.bias", "6.weight"),
        "first": frozen(*[name for name in names if name[0] in "01"], evaluated=("1",)),
        "last": frozen(*[name for name in names if name[0] not in "01"]),
        "evaluated": frozen(evaluated=("",)),
        "averaged": frozen(momentum=None, affine=False),
    }


def own() -> dict[str, Built]:
    """Layers that none of the six has."""
    return {
        "transposed": (Transposed(), (2, 4, 5, 6)),
        "mixed": (Mixed(), (3, 3, 12, 10)),
        "twice": (Twice(), (3, 3, 6, 6)),
        "few": (Few(), (3, 3, 3, 3)),
    }
