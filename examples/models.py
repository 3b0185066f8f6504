"""Networks to train: ResNet-50, wide ResNets and CosmoFlow, in plain torch.

The layers are those of `networks/*.yaml`; only images and batches are for the caller to choose.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Bottleneck(nn.Module):
    """Three convolutions and a way around them (He et al., CVPR 2016); the 3x3 one carries the stride."""

    def __init__(self, before: int, width: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.project: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.project = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (b, before, h, w) to (b, after, h/stride, w/stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.project(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Four stages of bottlenecks.

    depths: blocks per stage. base: channels of the first stage; wide: how much wider the 3x3
    convolutions are, as in WRN-50-4 of Dryden et al. (SC'19), whose stages give 4 times `base` channels.
    """

    def __init__(
        self, depths: Sequence[int] = (3, 4, 6, 3), base: int = 64, wide: int = 1, classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, base, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(base), nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        stages, before = [], base
        for stage, depth in enumerate(depths):
            after = 4 * base * 2**stage
            blocks = []
            for block in range(depth):
                stride = 2 if stage and not block else 1
                blocks.append(Bottleneck(before, wide * base * 2**stage, after, stride))
                before = after
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.mean, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(before, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (b, 3, h, w) to scores (b, classes)."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.mean(self.stages(x)), 1))


class CosmoFlow(nn.Module):
    """Volumes to four numbers (Oyama et al., 2020, Table 2).

    size: edge of the volume. base: channels of the first convolution, 16 in print. norms: convolutions
    that a batch normalization follows.
    """

    def __init__(self, size: int = 128, inputs: int = 4, base: int = 16, norms: int = 7) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = inputs
        for number, (times, stride, pooled) in enumerate(
            [(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 2, 1), (16, 1, 1), (16, 1, 0), (16, 1, 0)], 1
        ):
            layers.append(nn.Conv3d(before, times * base, 3, stride, 1, bias=number > norms))
            layers += [nn.BatchNorm3d(times * base)] if number <= norms else []
            layers += [nn.LeakyReLU(), *([nn.MaxPool3d(3, 2, 1)] if pooled else [])]
            before = times * base
            size = -(-size // (2 ** (pooled + (number == 4))))
        self.body, self.flat = nn.Sequential(*layers), nn.Flatten()
        self.fc1 = nn.Linear(before * size**3, 128 * base)
        self.fc2, self.fc3 = nn.Linear(128 * base, 16 * base), nn.Linear(16 * base, 4)
        self.act = nn.LeakyReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Volumes (b, inputs, d, h, w) to (b, 4)."""
        x = self.act(self.fc1(self.flat(self.body(x))))
        return self.fc3(self.act(self.fc2(x)))
