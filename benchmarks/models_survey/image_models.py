"""Super-resolution, optical flow, pairs of images, filters made from data, and segmentation, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry

IMAGE = (2, 3, 16, 16)


def conv(ins: int, outs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the extents, up to its stride."""
    return nn.Conv2d(ins, outs, kernel, stride, kernel // 2)


class Rcan(nn.Module):
    """Residual groups with attention over channels, the mean of colors subtracted (Zhang et al. 2018)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.45, 0.44, 0.40]).view(1, 3, 1, 1), requires_grad=False)
        self.head, self.body = (
            conv(3, width),
            nn.Sequential(conv(width, width), nn.ReLU(True), conv(width, width)),
        )
        self.attention = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, 2, 1),
            nn.ReLU(True),
            nn.Conv2d(2, width, 1),
            nn.Sigmoid(),
        )
        self.tail = nn.Sequential(conv(width, 4 * width), nn.PixelShuffle(2), conv(width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, 2 h, 2 w)"""
        x = self.head(x - self.mean)
        inner = self.body(x)
        return self.tail(x + inner * self.attention(inner)) + self.mean


class Rrdb(nn.Module):
    """A residual dense block of ESRGAN, on an image that is unshuffled first (Wang et al. 2018)."""

    def __init__(self, width: int = 8, grow: int = 4) -> None:
        super().__init__()
        self.first, self.last = conv(12, width), conv(width, 12)
        self.convs = nn.ModuleList(conv(width + n * grow, grow if n < 2 else width) for n in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w) of the same shape."""
        x = self.first(functional.pixel_unshuffle(x, 2))
        features = [x]
        for layer in self.convs[:-1]:
            features.append(functional.leaky_relu(layer(torch.cat(features, 1)), 0.2, inplace=True))
        x = self.convs[-1](torch.cat(features, 1)) * 0.2 + x
        return functional.pixel_shuffle(self.last(x), 2)


class SwinIr(nn.Module):
    """Shifted windows with a mask and relative positions, between convolutions (Liang et al. 2021)."""

    index: torch.Tensor
    mask: torch.Tensor

    def __init__(self, width: int = 8, heads: int = 2, window: int = 4, size: int = 16) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2
        self.first, self.last = conv(3, width), nn.Sequential(conv(width, 12), nn.PixelShuffle(2))
        self.qkv, self.out, self.norm = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.LayerNorm(width),
        )
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        cells = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        ).flatten(1)
        far = (cells[:, :, None] - cells[:, None]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", far[..., 0] * (2 * window - 1) + far[..., 1])
        parts, count = torch.zeros(1, size, size, 1), 0
        for rows in (slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None)):
            for columns in (slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None)):
                parts[:, rows, columns] = count
                count += 1
        parts = self.windows(parts).squeeze(-1)
        unequal = parts.unsqueeze(1) - parts.unsqueeze(2)
        self.register_buffer("mask", unequal.masked_fill(unequal != 0, -100.0).masked_fill(unequal == 0, 0.0))

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        """(b, h, w, c) as (windows, cells, c)."""
        b, h, w, c = x.shape
        n = self.window
        return x.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, n * n, c)

    def attended(self, x: torch.Tensor, shift: int) -> torch.Tensor:
        """One block of attention."""
        b, h, w, c = x.shape
        y = self.windows(torch.roll(self.norm(x), (-shift, -shift), (1, 2)) if shift else self.norm(x))
        q, k, v = self.qkv(y).reshape(*y.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.table[self.index.view(-1)].view(*self.index.shape, -1).permute(
            2, 0, 1
        ).contiguous().unsqueeze(0)
        if shift:
            n = self.mask.shape[0]
            scores = scores.view(b, n, self.heads, *scores.shape[2:]) + self.mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.heads, *scores.shape[3:])
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(y.shape))
        n = self.window
        y = y.view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, c)
        return x + (torch.roll(y, (shift, shift), (1, 2)) if shift else y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, 16, 16); (b, 3, 32, 32)."""
        x = self.first(x)
        y = self.attended(self.attended(x.permute(0, 2, 3, 1), 0), self.shift)
        return self.last(x + y.permute(0, 3, 1, 2))


class Restormer(nn.Module):
    """Attention across channels with a temperature, and gated depthwise layers (Zamir et al. 2022)."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.first, self.last = heads, conv(3, width), conv(width, 3)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv, self.deep = (
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(3 * width, 3 * width, 3, 1, 1, groups=3 * width),
        )
        self.out, self.norm = nn.Conv2d(width, width, 1), nn.LayerNorm(width)
        self.gate, self.back = nn.Conv2d(width, 2 * width, 3, 1, 1, groups=width), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w) of the same shape."""
        image, x = x, self.first(x)
        b, c, h, w = x.shape
        y = self.norm(x.flatten(2).transpose(1, 2)).transpose(1, 2).view(b, c, h, w)
        q, k, v = (
            each.reshape(b, self.heads, c // self.heads, h * w) for each in self.deep(self.qkv(y)).chunk(3, 1)
        )
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        y = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1) @ v
        x = x + self.out(y.reshape(b, c, h, w))
        one, other = self.gate(x).chunk(2, dim=1)
        return image + self.last(x + self.back(functional.gelu(one) * other))


class NafNet(nn.Module):
    """Simple gates, channel attention and scales from zero (Chen et al. 2022)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = conv(3, width), conv(width, 3)
        self.one, self.deep, self.two = (
            nn.Conv2d(width, 2 * width, 1),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width),
            nn.Conv2d(width, width, 1),
        )
        self.sca, self.beta = (
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1)),
            nn.Parameter(torch.zeros(1, width, 1, 1)),
        )
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w), padded to a multiple of eight inside."""
        _, _, h, w = x.size()
        x = functional.pad(x, (0, (8 - w % 8) % 8, 0, (8 - h % 8) % 8))
        inner = self.first(x)
        mean = inner.mean(1, keepdim=True)
        y = (inner - mean) / ((inner - mean).pow(2).mean(1, keepdim=True) + 1e-6).sqrt()
        one, other = self.deep(
            self.one(self.weight.view(1, -1, 1, 1) * y + self.bias.view(1, -1, 1, 1))
        ).chunk(2, 1)
        y = one * other
        inner = inner + self.two(y * self.sca(y)) * self.beta
        return (self.last(inner) + x)[:, :, :h, :w]


class PwcNet(nn.Module):
    """Warping by a flow, and a cost volume of shifts (Sun et al. 2018)."""

    def __init__(self, width: int = 6, reach: int = 1) -> None:
        super().__init__()
        self.reach, self.features = reach, nn.ModuleList([conv(3, width, 3, 2), conv(width, width, 3, 2)])
        self.flow = nn.ModuleList(conv((2 * reach + 1) ** 2 + width + 2 * n, 2) for n in range(2))
        self.up = nn.ConvTranspose2d(2, 2, 4, 2, 1)

    def cost(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """(b, shifts, h, w)"""
        h, w, r = one.shape[2], one.shape[3], self.reach
        wide = functional.pad(other, [r] * 4)
        shifts = [
            torch.mean(one * wide[:, :, y : y + h, x : x + w], 1, keepdim=True)
            for y in range(2 * r + 1)
            for x in range(2 * r + 1)
        ]
        return functional.leaky_relu(torch.cat(shifts, 1), 0.1)

    def warped(self, x: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
        """x, read where the flow says, and zero outside."""
        b, _, h, w = x.size()
        xx = torch.arange(0, w).view(1, -1).repeat(h, 1).view(1, 1, h, w).repeat(b, 1, 1, 1)
        yy = torch.arange(0, h).view(-1, 1).repeat(1, w).view(1, 1, h, w).repeat(b, 1, 1, 1)
        grid = torch.cat((xx, yy), 1).to(x.dtype) + flow
        grid = torch.stack([2.0 * grid[:, 0] / (w - 1) - 1.0, 2.0 * grid[:, 1] / (h - 1) - 1.0], -1)
        mask = functional.grid_sample(torch.ones_like(x), grid, align_corners=True)
        return functional.grid_sample(x, grid, align_corners=True) * (mask > 0.999).to(x.dtype)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
        """The flow at a quarter and at half of the extents."""
        pairs = []
        for layer in self.features:
            one, other = functional.leaky_relu(layer(one), 0.1), functional.leaky_relu(layer(other), 0.1)
            pairs.append((one, other))
        (fine1, fine2), (coarse1, coarse2) = pairs
        flow = self.flow[0](torch.cat((self.cost(coarse1, coarse2), coarse1), 1))
        up = self.up(flow)
        corr = self.cost(fine1, self.warped(fine2, up * 0.625))
        return [flow, up + self.flow[1](torch.cat((corr, fine1, up), 1))]


class Stereo(nn.Module):
    """A volume of disparities, 3-D convolutions, a soft minimum (GC-Net, PSMNet)."""

    def __init__(self, width: int = 4, most: int = 4) -> None:
        super().__init__()
        self.most, self.features = (
            most,
            nn.Sequential(conv(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU(), conv(width, width)),
        )
        self.regular = nn.Sequential(
            nn.Conv3d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv3d(width, 1, 3, padding=1)
        )

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w) each; disparities (b, h, w)."""
        one, other = self.features(left), self.features(right)
        b, c, h, w = one.shape
        volume = torch.zeros(b, 2 * c, self.most, h, w, dtype=one.dtype, device=one.device)
        for d in range(self.most):
            if d > 0:
                volume[:, :c, d, :, d:] = one[:, :, :, d:]
                volume[:, c:, d, :, d:] = other[:, :, :, :-d]
            else:
                volume[:, :c, d], volume[:, c:, d] = one, other
        cost = functional.interpolate(
            self.regular(volume.contiguous()),
            [2 * self.most, 2 * h, 2 * w],
            mode="trilinear",
            align_corners=False,
        )
        chance = functional.softmax(-cost.squeeze(1), dim=1)
        return torch.sum(chance * torch.arange(2 * self.most, dtype=one.dtype).view(1, -1, 1, 1), 1)


class SiamFc(nn.Module):
    """One image's features are the kernel over another's, by groups (Bertinetto et al. 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU(True), nn.Conv2d(width, width, 3)
        )
        self.scale = nn.Conv2d(1, 1, 1)

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """z (b, 3, small), x (b, 3, large); (b, 1, ...)."""
        z, x = self.features(z), self.features(x)
        n, c, h, w = x.size()
        made = functional.conv2d(x.view(1, n * c, h, w), z, groups=n)
        return self.scale(made.view(n, -1, made.size(-2), made.size(-1)) * 0.001)


class Simclr(nn.Module):
    """Two views through one encoder, and the contrastive loss inside (Chen et al. 2020)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            conv(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.project = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The loss."""
        z = functional.normalize(torch.cat([self.project(self.encoder(x)) for x in (one, other)], 0), dim=1)
        n = z.shape[0]
        likeness = (z @ z.T / 0.5).masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), float("-inf"))
        partner = (torch.arange(n, device=z.device) + n // 2) % n
        return functional.cross_entropy(likeness, partner)


class Transformer2d(nn.Module):
    """A spatial transformer before a small network (Jaderberg et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2, 2), nn.ReLU(True))
        self.theta = nn.Linear(4 * 36, 6)
        self.theta.weight.data.mul_(0.1)
        self.theta.bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0]).float())
        self.conv, self.drop, self.head = nn.Conv2d(1, 8, 5), nn.Dropout2d(), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, 16, 16); (b, 5)."""
        theta = self.theta(self.locate(x).view(-1, 4 * 36)).view(-1, 2, 3)
        x = functional.grid_sample(
            x, functional.affine_grid(theta, list(x.size()), align_corners=False), align_corners=False
        )
        x = functional.relu(functional.max_pool2d(self.drop(self.conv(x)), 2))
        return functional.log_softmax(self.head(x.amax((2, 3))), dim=1)


class DynamicFilters(nn.Module):
    """Kernels of each pixel, made by a network, on unfolded patches (Jia et al. 2016)."""

    def __init__(self, width: int = 8, kernel: int = 3) -> None:
        super().__init__()
        self.kernel, self.make = kernel, nn.Sequential(conv(3, width), nn.ReLU(), conv(width, kernel**2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w) of the same shape."""
        b, c, h, w = x.shape
        filters = self.make(x).softmax(1).view(b, 1, -1, h * w)
        patches = functional.unfold(x, self.kernel, padding=self.kernel // 2).view(b, c, -1, h * w)
        return (patches * filters).sum(2).view(b, c, h, w)


class Involution(nn.Module):
    """Kernels of each place and group, from one pixel (Li et al. 2021)."""

    def __init__(self, width: int = 8, groups: int = 2, kernel: int = 3) -> None:
        super().__init__()
        self.groups, self.kernel, self.stem = groups, kernel, conv(3, width, 3, 2)
        self.reduce = nn.Sequential(nn.Conv2d(width, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.span, self.unfold = (
            nn.Conv2d(4, kernel**2 * groups, 1),
            nn.Unfold(kernel, 1, (kernel - 1) // 2, 1),
        )
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w); (b, 3, h / 2, w / 2)."""
        x = self.stem(x)
        b, c, h, w = x.shape
        weight = self.span(self.reduce(x)).view(b, self.groups, self.kernel**2, h, w).unsqueeze(2)
        patches = self.unfold(x).view(b, self.groups, c // self.groups, self.kernel**2, h, w)
        return self.head((weight * patches).sum(dim=3).view(b, c, h, w))


class DynamicConv(nn.Module):
    """A mixture of kernels of each sample, by attention with a temperature (Chen et al. 2020)."""

    def __init__(self, width: int = 8, experts: int = 3) -> None:
        super().__init__()
        self.stem, self.attend = (
            conv(3, width),
            nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, experts)),
        )
        self.weight, self.bias = (
            nn.Parameter(torch.randn(experts, width, width, 3, 3) * 0.1),
            nn.Parameter(torch.zeros(experts, width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, width, h, w)"""
        x = self.stem(x)
        b, c, h, w = x.size()
        share = functional.softmax(self.attend(functional.adaptive_avg_pool2d(x, 1).view(b, -1)) / 30, 1)
        weight = torch.mm(share, self.weight.view(len(self.weight), -1)).view(-1, c, 3, 3)
        bias = torch.mm(share, self.bias).view(-1)
        made = functional.conv2d(x.view(1, -1, h, w), weight=weight, bias=bias, padding=1, groups=b)
        return made.view(b, c, made.size(-2), made.size(-1))


class Deformable(nn.Module):
    """Learned offsets of each tap, read bilinearly, with a modulation (DCNv2 by grid_sample)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem, self.offset, self.mix = conv(3, width), conv(width, 27), nn.Conv2d(9 * width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w); (b, width, h, w)."""
        x = self.stem(x)
        _b, _c, h, w = x.shape
        dy, dx, mask = self.offset(x).chunk(3, 1)
        rows, columns = torch.meshgrid(
            torch.arange(h, dtype=x.dtype), torch.arange(w, dtype=x.dtype), indexing="ij"
        )
        taps = []
        for n in range(9):
            y = rows + n // 3 - 1 + 0.3 * dy[:, n]
            z = columns + n % 3 - 1 + 0.3 * dx[:, n]
            grid = torch.stack([2 * z / (w - 1) - 1, 2 * y / (h - 1) - 1], -1)
            taps.append(functional.grid_sample(x, grid, align_corners=True) * mask[:, n : n + 1].sigmoid())
        return self.mix(torch.cat(taps, 1))


class Carafe(nn.Module):
    """Upsampling by kernels of the content (Wang et al. 2019)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.compress, self.encode = conv(3, width), nn.Conv2d(width, 4, 1), conv(4, 9 * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w); (b, width, 2 h, 2 w)."""
        x = self.stem(x)
        b, c, h, w = x.size()
        kernels = functional.softmax(functional.pixel_shuffle(self.encode(self.compress(x)), 2), dim=1)
        kernels = kernels.unfold(2, 2, 2).unfold(3, 2, 2).reshape(b, 9, h, w, 4).permute(0, 2, 3, 1, 4)
        patches = (
            functional.pad(x, (1, 1, 1, 1))
            .unfold(2, 3, 1)
            .unfold(3, 3, 1)
            .reshape(b, c, h, w, 9)
            .permute(0, 2, 3, 1, 4)
        )
        return functional.pixel_shuffle(
            torch.matmul(patches, kernels).reshape(b, h, w, 4 * c).permute(0, 3, 1, 2), 2
        )


class SegNet(nn.Module):
    """Unpooling with the places of the maxima (Badrinarayanan et al. 2017)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one = nn.Sequential(conv(3, width), nn.BatchNorm2d(width), nn.ReLU())
        self.two = nn.Sequential(conv(width, width), nn.BatchNorm2d(width), nn.ReLU())
        self.back, self.last = conv(width, width), conv(width, 4)
        self.pool, self.unpool = nn.MaxPool2d(2, 2, return_indices=True), nn.MaxUnpool2d(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4, h, w)"""
        x = self.one(x)
        size1 = x.size()
        x, places1 = self.pool(x)
        x = self.two(x)
        size2 = x.size()
        x, places2 = self.pool(x)
        x = functional.relu(self.back(self.unpool(x, places2, output_size=size2)))
        return self.last(self.unpool(x, places1, output_size=size1))


class CrissCross(nn.Module):
    """Attention along the row and the column of each pixel, twice (Huang et al. 2019)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.q, self.k, self.v = (
            conv(3, width, 3, 2),
            nn.Conv2d(width, 2, 1),
            nn.Conv2d(width, 2, 1),
            nn.Conv2d(width, width, 1),
        )
        self.gamma, self.head = nn.Parameter(torch.full((1,), 0.5)), nn.Conv2d(width, 3, 1)

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        """One round."""
        b, _, h, w = x.size()
        q, k, v = self.q(x), self.k(x), self.v(x)
        tall = [each.permute(0, 3, 1, 2).contiguous().view(b * w, -1, h) for each in (q, k, v)]
        wide = [each.permute(0, 2, 1, 3).contiguous().view(b * h, -1, w) for each in (q, k, v)]
        itself = -torch.diag(torch.full((h,), float("inf")), 0).unsqueeze(0).repeat(b * w, 1, 1)
        rows = (
            (torch.bmm(tall[0].transpose(1, 2), tall[1]) + itself.to(x.dtype))
            .view(b, w, h, h)
            .permute(0, 2, 1, 3)
        )
        columns = torch.bmm(wide[0].transpose(1, 2), wide[1]).view(b, h, w, w)
        share = torch.cat([rows, columns], 3).softmax(3)
        up = share[:, :, :, :h].permute(0, 2, 1, 3).contiguous().view(b * w, h, h)
        along = share[:, :, :, h:].contiguous().view(b * h, w, w)
        out = torch.bmm(tall[2], up.transpose(1, 2)).view(b, w, -1, h).permute(0, 2, 3, 1)
        return x + self.gamma * (
            out + torch.bmm(wide[2], along.transpose(1, 2)).view(b, h, -1, w).permute(0, 2, 1, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w); (b, 3, h / 2, w / 2)."""
        return self.head(self.attended(self.attended(self.stem(x))))


class OctConv(nn.Module):
    """Two resolutions that exchange (Chen et al. 2019), and an attention over places and channels (CBAM)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.hh, self.hl, self.lh, self.ll = (
            conv(3, width),
            conv(3, width),
            conv(width, width),
            conv(width, width),
        )
        self.mlp, self.place = (
            nn.Sequential(nn.Linear(width, 2), nn.ReLU(), nn.Linear(2, width)),
            conv(2, 1, 7),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, width, h, w)"""
        low = self.ll(functional.relu(self.hl(functional.avg_pool2d(x, 2, 2))))
        y = self.hh(x) + functional.interpolate(self.lh(low), scale_factor=2)
        mean, most = self.mlp(y.mean((2, 3))), self.mlp(torch.logsumexp(y.flatten(2), 2))
        y = y * torch.sigmoid(mean + most)[:, :, None, None].expand_as(y)
        return (
            y
            * self.place(
                torch.cat((torch.max(y, 1)[0].unsqueeze(1), torch.mean(y, 1).unsqueeze(1)), dim=1)
            ).sigmoid()
        )


class Liif(nn.Module):
    """A continuous image: features read at given places, and a perceptron (Chen et al. 2021)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.encoder, self.mlp = (
            nn.Sequential(conv(3, width), nn.ReLU(), conv(width, width)),
            nn.Sequential(nn.Linear(9 * width + 2, 16), nn.ReLU(), nn.Linear(16, 3)),
        )

    def forward(self, image: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """image (b, 3, h, w), places (b, n, 2); (b, n, 3)."""
        features = self.encoder(image)
        b, c, h, w = features.shape
        wide = functional.unfold(features, 3, padding=1).view(b, 9 * c, h, w)
        places = places.clamp(-1 + 1e-6, 1 - 1e-6)
        read = functional.grid_sample(
            wide, places.flip(-1).unsqueeze(1), mode="nearest", align_corners=False
        )[:, :, 0, :].permute(0, 2, 1)
        return self.mlp(torch.cat([read, places], -1))


class NetVlad(nn.Module):
    """Residuals to learned centers, weighted softly (Arandjelovic et al. 2016)."""

    def __init__(self, width: int = 8, clusters: int = 4) -> None:
        super().__init__()
        self.stem, self.assign = (
            nn.Sequential(conv(3, width, 3, 2), nn.ReLU(), conv(width, width)),
            nn.Conv2d(width, clusters, 1),
        )
        self.centroids = nn.Parameter(torch.rand(clusters, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, clusters * width)"""
        x = functional.normalize(self.stem(x), p=2, dim=1)
        n, c = x.shape[:2]
        soft = functional.softmax(self.assign(x).view(n, len(self.centroids), -1), dim=1)
        flat = x.view(n, c, -1)
        residual = flat.expand(len(self.centroids), -1, -1, -1).permute(1, 0, 2, 3) - self.centroids.expand(
            flat.size(-1), -1, -1
        ).permute(1, 2, 0).unsqueeze(0)
        vlad = functional.normalize((residual * soft.unsqueeze(2)).sum(dim=-1), p=2, dim=2)
        return functional.normalize(vlad.view(n, -1), p=2, dim=1)


def entries() -> list[Entry]:
    """All models."""
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        ("RCAN", Rcan, IMAGE),
        ("ESRGAN block", Rrdb, IMAGE),
        ("SwinIR", SwinIr, IMAGE),
        ("Restormer", Restormer, IMAGE),
        ("NAFNet", NafNet, (1, 3, 14, 18)),
        ("PWC-Net", PwcNet, (IMAGE, IMAGE)),
        ("PSMNet", Stereo, (IMAGE, IMAGE)),
        ("SiamFC", SiamFc, ((2, 3, 11, 11), (2, 3, 23, 23))),
        ("SimCLR", Simclr, (IMAGE, IMAGE)),
        ("spatial transformer", Transformer2d, (2, 1, 16, 16)),
        ("dynamic filters", DynamicFilters, IMAGE),
        ("involution", Involution, IMAGE),
        ("dynamic convolution", DynamicConv, IMAGE),
        ("deformable convolution", Deformable, IMAGE),
        ("CARAFE", Carafe, IMAGE),
        ("SegNet, unpooling", SegNet, IMAGE),
        ("CCNet", CrissCross, IMAGE),
        ("OctConv and CBAM", OctConv, IMAGE),
        ("LIIF", Liif, (IMAGE, (2, 10, 2))),
        ("NetVLAD", NetVlad, IMAGE),
    ]
    return [Entry("image", name, make, given) for name, make, given in made]
