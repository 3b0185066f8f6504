"""Models in the style of physics and of signal processing, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry


class FourierLayer(nn.Module):
    """The lowest modes of a spectrum times weights, beside a 1 x 1 convolution (FNO, Li et al. 2021)."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes) / width)
        self.local = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, h, w) of the same shape."""
        spectrum = torch.fft.rfft2(x)[:, :, : self.modes, : self.modes]
        mixed = torch.einsum("bihw,iohw->bohw", spectrum, torch.complex(*self.weight))
        return functional.gelu(torch.fft.irfft2(mixed, s=x.shape[-2:]) + self.local(x))


class Fno(nn.Module):
    """A Fourier neural operator with two layers, on the field and its coordinates."""

    def __init__(self, width: int = 8, modes: int = 6) -> None:
        super().__init__()
        self.lift, self.drop = nn.Conv2d(3, width, 1), nn.Conv2d(width, 1, 1)
        self.layers = nn.Sequential(FourierLayer(width, modes), FourierLayer(width, modes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w) of the same shape."""
        b, _, h, w = x.shape
        rows = torch.linspace(0, 1, h, dtype=x.dtype, device=x.device).view(1, 1, h, 1).expand(b, 1, h, w)
        columns = torch.linspace(0, 1, w, dtype=x.dtype, device=x.device).view(1, 1, 1, w).expand(b, 1, h, w)
        made: torch.Tensor = self.drop(self.layers(self.lift(torch.cat([x, rows, columns], 1))))
        return made


class WeatherUnet(nn.Module):
    """A U-Net on a sphere's grid: circular in longitude, replicated at the poles."""

    def __init__(self, channels: int = 6, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Conv2d(channels, width, 3), nn.Conv2d(width, 2 * width, 3)])
        self.outer = nn.ModuleList([nn.Conv2d(3 * width, width, 3), nn.Conv2d(width, channels, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, latitude, longitude), both even; the state after one step."""
        fine = functional.silu(self.inner[0](_on_sphere(x)))
        coarse = functional.silu(self.inner[1](_on_sphere(functional.avg_pool2d(fine, 2))))
        up = functional.interpolate(coarse, scale_factor=2, mode="nearest")
        joined = functional.silu(self.outer[0](_on_sphere(torch.cat([up, fine], 1))))
        made: torch.Tensor = x + self.outer[1](_on_sphere(joined))
        return made


def _on_sphere(x: torch.Tensor) -> torch.Tensor:
    return functional.pad(functional.pad(x, (1, 1, 0, 0), "circular"), (0, 0, 1, 1), "replicate")


class ConvLstm(nn.Module):
    """A convolutional LSTM over the frames of (b, t, c, h, w) (Shi et al. 2015); gives the next frame."""

    def __init__(self, channels: int = 2, width: int = 8) -> None:
        super().__init__()
        self.gates = nn.Conv2d(channels + width, 4 * width, 3, padding=1)
        self.width, self.last = width, nn.Conv2d(width, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, h, w)"""
        b, _, _, h, w = x.shape
        hidden = cell = x.new_zeros(b, self.width, h, w)
        for frame in x.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, hidden], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        made: torch.Tensor = self.last(hidden)
        return made


class DeepOnet(nn.Module):
    """A DeepONet whose branch is a convolutional network and whose points are a buffer (Lu et al. 2021)."""

    points: torch.Tensor

    def __init__(self, points: int = 64, width: int = 16) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.LazyLinear(width),
        )
        self.trunk = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width))
        self.register_buffer("points", torch.rand(points, 2))
        self.branch(torch.zeros(1, 1, 32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, points)"""
        made: torch.Tensor = self.branch(x) @ self.trunk(self.points).T
        return made


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, on a signal (van den Oord et al. 2016)."""

    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 1, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2**number) for number in range(layers)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, t) of the same shape."""
        x, total = self.first(x), torch.zeros(())
        for number, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
            one, other = gate(functional.pad(x, (2**number, 0))).chunk(2, 1)
            skip = mix(torch.tanh(one) * torch.sigmoid(other))
            x, total = x + skip, skip if number == 0 else total + skip
        made: torch.Tensor = self.last(functional.relu(total))
        return made


class SuperResolution(nn.Module):
    """An EDSR with pixel shuffle (Lim et al. 2017)."""

    def __init__(self, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        conv = nn.Conv2d
        self.first = conv(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(width, width, 3, padding=1), nn.ReLU(), conv(width, width, 3, padding=1))
            for _ in range(blocks)
        )
        self.last = nn.Sequential(conv(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, 2h, 2w)"""
        x = self.first(x)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        made: torch.Tensor = self.last(x)
        return made


class WaveEquation(nn.Module):
    """Leapfrog steps of a wave with a learned speed and a fixed five-point stencil."""

    stencil: torch.Tensor

    def __init__(self, size: int = 32, steps: int = 4) -> None:
        super().__init__()
        five = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        self.register_buffer("stencil", five.view(1, 1, 3, 3))
        self.speed, self.steps = nn.Parameter(torch.rand(1, 1, size, size) * 0.1), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w) of the same shape."""
        before = x
        for _ in range(self.steps):
            change = self.speed * functional.conv2d(functional.pad(x, (1, 1, 1, 1)), self.stencil)
            before, x = x, 2 * x - before + change
        return x


class Periodic(nn.Module):
    """A residual network of periodic convolutions in three dimensions, as for turbulence."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        given: Any = {"padding": 1, "padding_mode": "circular"}
        self.layers = nn.ModuleList(
            [
                nn.Conv3d(3, width, 3, **given),
                nn.Conv3d(width, width, 3, **given),
                nn.Conv3d(width, 3, 3, **given),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, d, h, w) of the same shape."""
        hidden = functional.gelu(self.layers[0](x))
        hidden = hidden + functional.gelu(self.layers[1](hidden))
        made: torch.Tensor = x + self.layers[2](hidden)
        return made


class Reflected(nn.Module):
    """A style-transfer network: reflected padding, instance norm, upsampling (Johnson et al. 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(4),
            nn.Conv2d(3, width, 9),
            nn.InstanceNorm2d(width, affine=True),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, 2, 1, padding_mode="reflect"),
            nn.InstanceNorm2d(2 * width, affine=True),
            nn.ReLU(inplace=True),
            nn.Upsample(scale_factor=2),
            nn.ReflectionPad2d(4),
            nn.Conv2d(2 * width, 3, 9),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w) of the same shape."""
        made: torch.Tensor = self.layers(x)
        return made


class Autoregressive(nn.Module):
    """One surrogate applied three times, as in rollouts: the same weights in every step."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.step = nn.Sequential(
            nn.Conv2d(2, width, 5, padding=2), nn.GELU(), nn.Conv2d(width, 2, 5, padding=2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, h, w) of the same shape."""
        for _ in range(3):
            x = x + self.step(x)
        return x


class Conditioned(nn.Module):
    """A surrogate with a vector of parameters that scales and shifts channels (FiLM, Perez et al. 2018)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.film = nn.Linear(3, 2 * width)

    def forward(self, field: torch.Tensor, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        """(b, 1, h, w) and (b, 3); the field and its energy."""
        scale, shift = self.film(numbers)[:, :, None, None].chunk(2, 1)
        made = self.last(functional.silu(self.first(field) * (1 + scale) + shift))
        return {"field": made, "energy": made.square().mean((1, 2, 3))}


def _dcgan() -> nn.Module:
    """The generator of a DCGAN (Radford et al. 2016)."""
    up = nn.ConvTranspose2d
    return nn.Sequential(
        *(up(16, 32, 4, 1, 0), nn.BatchNorm2d(32), nn.ReLU(True)),
        *(up(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(True)),
        *(up(16, 3, 4, 2, 1), nn.Tanh()),
    )


def _weight_norm() -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(
        norm(nn.Conv1d(1, 8, 7, padding=3)), nn.LeakyReLU(0.1), norm(nn.Conv1d(8, 1, 7, padding=3)), nn.Tanh()
    )


def _spectral_norm() -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.1), norm(nn.Conv2d(8, 1, 4, 2, 1)))


def _cosmoflow() -> nn.Module:
    from examples.models import CosmoFlow

    return CosmoFlow(32, norms=4)


def entries() -> list[Entry]:
    """All models."""
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        ("FNO", Fno, (2, 1, 32, 32)),
        ("weather U-Net, circular", WeatherUnet, (1, 6, 32, 64)),
        ("ConvLSTM", ConvLstm, (2, 3, 2, 32, 32)),
        ("CosmoFlow", _cosmoflow, (1, 4, 32, 32, 32)),
        ("DeepONet", DeepOnet, (4, 1, 32, 32)),
        ("WaveNet", WaveNet, (2, 1, 256)),
        ("EDSR", SuperResolution, (1, 3, 32, 32)),
        ("wave equation", WaveEquation, (1, 1, 32, 32)),
        ("periodic 3-D ResNet", Periodic, (1, 3, 16, 16, 16)),
        ("style transfer, reflect", Reflected, (1, 3, 32, 32)),
        ("rollout", Autoregressive, (1, 2, 32, 32)),
        ("FiLM surrogate", Conditioned, {"field": (2, 1, 32, 32), "numbers": (2, 3)}),
        ("DCGAN generator", _dcgan, (4, 16, 1, 1)),
        ("vocoder, weight norm", _weight_norm, (2, 1, 256)),
        ("discriminator, spectral norm", _spectral_norm, (2, 3, 32, 32)),
    ]
    return [Entry("physics", name, make, given) for name, make, given in made]
