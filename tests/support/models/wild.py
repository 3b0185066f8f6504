"""Small models that do what real ones do outside of the layers of torch.nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from spheres import Healpix
from torch import nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from wild_weights import (
    FrozenBatchNorm,
    Functional,
    LayerScale,
    Normed,
    Tied,
    Twice,
    normed_by_hooks,
    parametrized,
)

Built = tuple[nn.Module, tuple[int, ...]]
IMAGES = 4, 4, 8, 8


class Tokens(nn.Module):
    """Class token, positions, and attention with a table of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 8, 2, 2)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 17, 8))
        self.table = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("index", torch.randint(9, (17, 17)))
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        q, k, v = self.qkv(x).reshape(x.shape[0], 17, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(17, 17, 2).permute(2, 0, 1).contiguous()
        scores = (q @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).reshape(x.shape))


class CausalConv3d(nn.Conv3d):
    """A convolution that reads earlier frames only, as in video autoencoders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        depth, height, width = self.padding
        self.around = (width, width, height, height, 2 * depth, 0)
        self.padding = (0, 0, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(fn.pad(x, self.around))


class Conv2dSame(nn.Conv2d):
    """A convolution that pads as TensorFlow does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pads = [max(0, (-(-n // s) - 1) * s + k - n) for n, s, k in zip(
            x.shape[2:], self.stride, self.kernel_size, strict=True)]  # fmt: skip
        x = fn.pad(x, [pads[1] // 2, pads[1] - pads[1] // 2, pads[0] // 2, pads[0] - pads[0] // 2])
        return fn.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class BatchNormAct2d(nn.BatchNorm2d):
    """timm's normalization with activation: it counts batches, and calls the function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
        trains = self.training or self.running_mean is None
        x = fn.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, trains, factor)
        return fn.silu(x, inplace=True)


class ConvLSTM(nn.Module):
    """A cell that is called for each frame, from a state of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(6, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(x.shape[0], 4, *x.shape[3:], dtype=x.dtype, device=x.device)
        cell = torch.zeros_like(hidden)
        for frame in x.unbind(2):
            i, f, o, g = self.gates(torch.cat([frame, hidden], 1)).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
        return hidden


class Coordinates(nn.Module):
    """Masks, coordinates and constants that forward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 4, 3, padding=1)
        self.frequencies = torch.tensor([1.0, 2.0], dtype=torch.float64)  # no buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.meshgrid(
            torch.linspace(-1, 1, x.shape[2], dtype=x.dtype, device=x.device),
            torch.arange(x.shape[3], dtype=x.dtype, device=x.device),
            indexing="ij",
        )
        grid = torch.stack([rows, columns / x.shape[3]]) * self.frequencies.view(2, 1, 1).to(x)
        x = self.conv(torch.cat([x, grid.expand(x.shape[0], -1, -1, -1)], 1))
        mask = torch.zeros(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
        mask[:, :, 2:-2, 1:] = 1
        return x * mask + torch.ones_like(x) * 0.5 + x.new_full((1,), 2)


class Reaches(nn.Module):
    """A transposed convolution with a size, a tensor beside itself, empty slices, layers on buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1)
        self.conv, self.mlp = nn.Conv2d(8, 4, 1), nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 4))
        self.register_buffer("table", torch.rand(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up(x, output_size=[16, 16])
        up = self.conv(torch.cat([up, up], 1))
        up = torch.cat([up[:, :0], up, up[:, 4:]], 1)
        return up + self.mlp(self.table).sum(0).view(1, 4, 1, 1)


class Checkpointed(nn.Module):
    """Computed weights and masks inside a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.normed, self.places = Normed(), Coordinates()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.places, x, use_reentrant=False)
        return checkpoint(self.normed, y, use_reentrant=False)  # type: ignore[no-any-return]


class StochasticDepth(nn.Module):
    """As in torchvision and timm: in training a branch is left out of some samples."""

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        kept = x.new_empty([x.shape[0], *[1] * (x.dim() - 1)]).bernoulli_(self.keep)
        return x * kept.div_(self.keep)


class Deep(nn.Module):
    """A branch that may be left out, and noise that is added in training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.depth = nn.Conv2d(4, 4, 3, padding=1), StochasticDepth(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.depth(self.conv(x))


class Noisy(nn.Module):
    """Noise in training, and attention, whose arguments differ by the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), BatchNormAct2d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        if self.training:
            x = x + torch.randn_like(x) * 0.1
        words = x.flatten(2).transpose(1, 2)
        for weights in (True, False):
            words = words + self.attention(words, words, words, need_weights=weights)[0]
        return words.transpose(1, 2).reshape(x.shape)


class Sharp(nn.Module):
    """An activation in evaluation only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return x if self.training else torch.sigmoid(x)


class Written(nn.Module):
    """Slices of results and of a new tensor are set, added to, and masked; also those of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y[:, 0] = y[:, 1] * 2
        y[:, 1:3, 2:-1] += x[:, :2, :5]
        y[y < -1] = 0.5
        wide = torch.zeros(len(x), 6, *x.shape[2:], dtype=x.dtype)
        wide[:, 1:5] = y
        wide[:, -1] = 1.0
        last = wide.permute(0, 2, 3, 1)
        for i in range(2):
            last[..., i] = last[..., i] / (i + 2) - 1
        made: torch.Tensor = self.last(last.permute(0, 3, 1, 2))
        return made


class Pointwise(nn.Module):
    """Functions of single words, numbers before the tensor, comparisons, and masks of other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.alpha = nn.Parameter(torch.rand(1, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (layer(x) for layer in self.layers[:2])
        gate = torch.sigmoid(first)
        mixed = gate * second + (1 - gate) * torch.sin(self.alpha * first).pow(2)
        mixed = mixed + 1 / (2 + mixed.abs()) + 2 ** torch.erf(mixed) + torch.addcmul(first, second, gate)
        mixed = mixed + torch.lgamma(gate + 1) + torch.special.i0e(torch.max(first, second))
        kept = ((first > -1) & (second <= 1)) | ~(mixed != 0)
        made: torch.Tensor = self.layers[2](mixed.masked_fill(second.lt(-0.5), 0.1))
        return torch.where(kept, made, torch.lerp(first, second, 0.3).clamp_min(-2.0).double())


class JoinedInTraining(nn.Module):
    """A concatenation that two layers read, one of them by way of a call that training alone makes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(4, 4, n, padding="same") for n in (1, 3))
        self.readers = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([part(x) for part in self.parts], 1)
        first: torch.Tensor = self.readers[0](joined)
        other = joined.mul(1.5) if self.training else joined
        return first + self.readers[1](other)


def wild() -> dict[str, Callable[[], Built]]:
    """Name -> model and shape of its input."""
    return {
        "layer scale": lambda: (LayerScale(), IMAGES),
        "normed weights": lambda: (Normed(), IMAGES),
        "parametrized": lambda: (parametrized(), IMAGES),
        "normed by hooks": lambda: (normed_by_hooks(), IMAGES),
        "frozen norm": lambda: (FrozenBatchNorm(), IMAGES),
        "tokens": lambda: (Tokens(), IMAGES),
        "causal": lambda: (
            nn.Sequential(CausalConv3d(2, 4, 3, padding=1), nn.SiLU(), CausalConv3d(4, 2, 3, padding=1)),
            (2, 2, 6, 8, 8),
        ),
        "same": lambda: (nn.Sequential(Conv2dSame(4, 8, 3, 2), nn.ReLU(), Conv2dSame(8, 4, 3)), IMAGES),
        "functional": lambda: (Functional(), IMAGES),
        "norm and act": lambda: (
            nn.Sequential(nn.Conv2d(4, 6, 3), BatchNormAct2d(6), nn.Conv2d(6, 4, 1), BatchNormAct2d(4)),
            IMAGES,
        ),
        "twice": lambda: (Twice(), IMAGES),
        "recurrent": lambda: (ConvLSTM(), (4, 2, 3, 8, 8)),
        "tied": lambda: (Tied(), IMAGES),
        "coordinates": lambda: (Coordinates(), IMAGES),
        "reaches": lambda: (Reaches(), (4, 4, 8, 8)),
        "checkpointed": lambda: (Checkpointed(), IMAGES),
        "pointwise": lambda: (Pointwise(), IMAGES),
        "written": lambda: (Written(), IMAGES),
        "healpix": lambda: (Healpix(), (12, 4, 6, 6)),
        "joined in training": lambda: (JoinedInTraining(), IMAGES),
    }
