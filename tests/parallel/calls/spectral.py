"""Models with complex parameters and complex maps, as Fourier neural operators have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from called import Called
from torch import nn


def weights(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.complex128))


class Spectral(nn.Module):
    """The lowest frequencies of a map, mixed by complex weights."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.low = weights(channels, channels, modes, modes)
        self.high = weights(channels, channels, modes, modes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        found = torch.fft.rfft2(x)
        out = torch.zeros_like(found)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", found[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", found[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class Blocks(nn.Module):
    """Two blocks of a Fourier neural operator: a spectral layer and a convolution each."""

    def __init__(self) -> None:
        super().__init__()
        self.spectral = nn.ModuleList(Spectral(8, 2) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for spectral, conv in zip(self.spectral, self.convs, strict=True):
            h = nn.functional.gelu(spectral(h) + conv(h))
        return h


def of(call: Any, dims: int = 1, **parts: Any) -> Callable[[], Called]:
    return lambda: Called(call, dims, **{name: make() for name, make in parts.items()})


fft = torch.fft
SPECTRAL: dict[str, Callable[[], Called]] = {
    "Fourier neural operator": of(lambda m, h, g: m.b(h), 2, b=Blocks),
    "a complex factor": of(lambda m, h, g: (h * m.w).abs(), w=lambda: weights(8, 1)),
    "a complex map as output": of(lambda m, h, g: h * m.w, w=lambda: weights(8, 1)),
    "a complex number": of(lambda m, h, g: (h * m.w).imag, w=lambda: weights()),
    "two real parameters as one complex": of(
        lambda m, h, g: (h * torch.view_as_complex(m.w)).real, w=lambda: nn.Parameter(torch.randn(8, 1, 2))
    ),
    "an expression of complex parameters": of(
        lambda m, h, g: (h * (m.w.conj() * m.w + m.w)).real, w=lambda: weights(8, 1)
    ),
    "a large complex parameter in expressions alone": of(
        lambda m, h, g: (h * (m.w * 2).sum((0, 1)) / 9000).real, w=lambda: weights(100, 100, 8)
    ),
    "complex product": of(lambda m, h, g: (h.to(m.w.dtype) @ m.w).real, w=lambda: weights(8, 5)),
    "a complex buffer": of(
        lambda m, h, g: (h * m.w).real, w=lambda: torch.randn(8, 1, dtype=torch.complex128)
    ),
    "fft and back": of(lambda m, h, g: fft.ifft(fft.fft(h) * fft.fft(g)).real),
    "fft along channels": of(
        lambda m, h, g: fft.ifft(fft.fft(h, dim=1), dim=1).imag + fft.fft(g, dim=1).real
    ),
    "conjugates": of(lambda m, h, g: (fft.fft(h).conj() * fft.fft(g)).real),
    "resolve_conj": of(lambda m, h, g: fft.fft(h).conj().resolve_conj().abs()),
    "resolve_conj of a parameter": of(
        lambda m, h, g: (h * m.w.conj().resolve_conj()).real, w=lambda: weights(8, 1)
    ),
    "resolve_neg": of(lambda m, h, g: fft.fft(h).conj().imag.resolve_neg() + g.resolve_neg()),
    "conjugate as output": of(lambda m, h, g: fft.fft(h).conj()),
    "imaginary part of a conjugate as output": of(lambda m, h, g: fft.fft(h).conj().imag),
    "angle, polar, parts": of(
        lambda m, h, g: torch.polar(h.abs() + 1, g).angle() + torch.complex(h, g).abs()
    ),
    "view_as_real": of(lambda m, h, g: torch.view_as_real(fft.rfft(h)).flatten(2)),
    "sum of a complex map": of(lambda m, h, g: fft.fft(h).sum(1).abs()),
    "fftshift": of(lambda m, h, g: fft.fftshift(fft.fft(h), dim=-1).abs()),
    "stft": of(
        lambda m, h, g: torch.stft(h.flatten(0, 1), 4, return_complex=True, window=m.w).abs(),
        w=lambda: torch.ones(4),
    ),
}
