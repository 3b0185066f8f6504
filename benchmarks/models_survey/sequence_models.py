"""Sequence models and models of sound: recurrences as scans, products and loops, after their papers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry

TOKENS, SOUND = (2, 32, 8), (2, 1, 128)


class Mixed(nn.Module):
    """A causal depthwise convolution, a mixer of positions, and a gate."""

    def __init__(self, mixer: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.inner, self.conv = nn.Linear(width, 2 * width), nn.Conv1d(width, width, 4, groups=width)
        self.mixer, self.out, self.norm = mixer, nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        y, gate = self.inner(self.norm(x)).chunk(2, -1)
        y = self.conv(functional.pad(y.transpose(1, 2), (3, 0))).transpose(1, 2)
        return x + self.out(self.mixer(functional.silu(y)) * functional.silu(gate))


class MinGru(nn.Module):
    """All states at once, by sums of logarithms (Feng et al. 2024)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        new, gate = self.both(x).chunk(2, -1)
        kept, added = -functional.softplus(gate), -functional.softplus(-gate)
        decay = kept.cumsum(1)
        states = torch.logcumsumexp(added + functional.softplus(new).log() - decay, 1)
        return torch.exp(decay + states)


class Mamba2(nn.Module):
    """State space duality by products of chunks (Dao and Gu 2024)."""

    def __init__(self, width: int = 8, states: int = 4, chunk: int = 8) -> None:
        super().__init__()
        self.rates, self.chunk = nn.Linear(width, 1), chunk
        self.b, self.c = nn.Linear(width, states), nn.Linear(width, states)

    @staticmethod
    def sums(x: torch.Tensor) -> torch.Tensor:
        """Sums of segments: (..., t, t), minus infinity above the diagonal."""
        t, total = x.size(-1), x.cumsum(-1)
        below = torch.tril(torch.ones(t, t, dtype=torch.bool, device=x.device))
        return (total[..., :, None] - total[..., None, :]).masked_fill(~below, -torch.inf)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        n, t, width = x.shape
        a = -functional.softplus(self.rates(x)).view(n, t // self.chunk, self.chunk)
        b, c, x = (each.view(n, t // self.chunk, self.chunk, -1) for each in (self.b(x), self.c(x), x))
        inside = torch.einsum("zcln,zcsn,zcls,zcsp->zclp", c, b, torch.exp(self.sums(a)), x)
        total = a.cumsum(-1)
        states = torch.einsum("zcln,zcl,zclp->zcpn", b, torch.exp(total[..., -1:] - total), x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        decay = torch.exp(self.sums(functional.pad(total[..., -1], (1, 0))))
        before = torch.einsum("zij,zjpn->zipn", decay, states)[:, :-1]
        return (inside + torch.einsum("zcln,zcpn,zcl->zclp", c, before, total.exp())).reshape(n, t, width)


class Attention(nn.Module):
    """What queries, keys and values of the kinds below have in common."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.gates, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, 2 * heads), heads

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values (b, heads, t, d), two gates (b, heads, t)."""
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return q, k, v, *self.gates(x).transpose(1, 2).chunk(2, 1)


class RetNet(Attention):
    """Retention in parallel: decays of distances (Sun et al. 2023)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        q, k, v, _, _ = self.split(x)
        places = torch.arange(x.size(1), device=x.device)
        apart = places[:, None] - places[None]
        rates = 1 - 2.0 ** (-5 - torch.arange(self.heads, device=x.device, dtype=x.dtype))
        decay = torch.where(apart >= 0, rates[:, None, None] ** apart.clamp_min(0), 0.0)
        made = (q @ k.transpose(-1, -2) * decay) @ v
        return functional.group_norm(made.transpose(1, 2).flatten(2).flatten(0, 1), self.heads).view_as(x)


class Mlstm(Attention):
    """The matrix memory of xLSTM in parallel, stabilized (Beck et al. 2024)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        q, k, v, i, f = self.split(x)
        total = functional.logsigmoid(f).cumsum(-1)
        logs = total[..., :, None] - total[..., None, :] + i[..., None, :]
        t = x.size(1)
        below = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        logs = torch.where(below, logs, -torch.inf)
        most = logs.amax(-1, keepdim=True)
        c = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) * torch.exp(logs - most)
        norm = torch.maximum(c.sum(-1, keepdim=True).abs(), torch.exp(-most))
        return (c @ v / norm).transpose(1, 2).flatten(2)


class GatedLinear(Attention):
    """Gated linear attention, chunk by chunk with a matrix state (Yang et al. 2023)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        q, k, v, f, _ = self.split(x)
        logs, made = functional.logsigmoid(f), []
        state = x.new_zeros(*q.shape[:2], q.size(-1), v.size(-1))
        for q_, k_, v_, f_ in zip(*(each.split(8, 2) for each in (q, k, v, logs)), strict=True):
            total = f_.cumsum(-1)[..., None]
            apart = (total - total.transpose(-1, -2)).tril().exp().tril()
            made.append(total.exp() * (q_ @ state) + (q_ @ k_.transpose(-1, -2) * apart) @ v_)
            last = total[..., -1:, :]
            state = last.exp() * state + (k_ * (last - total).exp()).transpose(-1, -2) @ v_
        return torch.cat(made, 2).transpose(1, 2).flatten(2)


class DeltaNet(Attention):
    """The gated delta rule, position by position, with a matrix state (Yang et al. 2024)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        q, k, v, f, b = self.split(x)
        k, made = functional.normalize(k, dim=-1), []
        state = x.new_zeros(*q.shape[:2], q.size(-1), v.size(-1))
        for t in range(x.size(1)):
            state = state * f[:, :, t].sigmoid()[..., None, None]
            key = k[:, :, t, :, None]
            error = (v[:, :, t] - (state * key).sum(-2)) * b[:, :, t].sigmoid()[..., None]
            state = state + key * error[..., None, :]
            made.append((state * q[:, :, t, :, None]).sum(-2))
        return torch.stack(made, 2).transpose(1, 2).flatten(2)


class Rwkv(nn.Module):
    """Time mixing with shifted tokens, a loop over positions (Peng et al. 2023)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, width))
        self.decay, self.first = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.k, self.v, self.r = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        before = functional.pad(x, (0, 0, 1, -1))
        k, v, r = (
            each(x * mix + before * (1 - mix))
            for each, mix in zip((self.k, self.v, self.r), self.mix, strict=True)
        )
        top, below, made, decay = (
            torch.zeros_like(k[:, 0]),
            torch.zeros_like(k[:, 0]),
            [],
            torch.exp(-self.decay.exp()),
        )
        for t in range(x.size(1)):
            now = torch.exp(self.first + k[:, t])
            made.append((top + now * v[:, t]) / (below + now))
            top, below = decay * top + k[:, t].exp() * v[:, t], decay * below + k[:, t].exp()
        return torch.sigmoid(r) * torch.stack(made, 1)


class Slstm(nn.Module):
    """A scalar memory with exponential gates and recurrent weights, a loop (Beck et al. 2024)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        c = n = h = most = torch.zeros_like(x[:, 0])
        made = []
        for each in self.x(x).unbind(1):
            z, i, f, o = (each + self.h(h)).chunk(4, -1)
            f = functional.logsigmoid(f)
            new = torch.maximum(f + most, i)
            i, f, most = torch.exp(i - new), torch.exp(f + most - new), new
            c, n = f * c + i * z.tanh(), f * n + i
            h = o.sigmoid() * c / n.clamp_min(1e-3)
            made.append(h)
        return torch.stack(made, 1)


class Hyena(nn.Module):
    """A long filter that a network computes from places, by FFT (Poli et al. 2023)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, width))
        self.short, self.bias = (
            nn.Conv1d(width, 3 * width, 3, padding=2, groups=width),
            nn.Parameter(torch.rand(width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        t = x.size(1)
        a, b, v = self.short(x.transpose(1, 2))[..., :t].chunk(3, 1)
        at = torch.linspace(0, 1, t, device=x.device, dtype=x.dtype)[:, None]
        h = self.filter(torch.cat([at, torch.cos(6 * at), torch.sin(6 * at)], -1)) * torch.exp(-3 * at)
        v = v * b
        spectrum = torch.fft.rfft(v, n=2 * t) * torch.fft.rfft(h.transpose(0, 1), n=2 * t)
        return ((torch.fft.irfft(spectrum, n=2 * t)[..., :t] + v * self.bias[:, None]) * a).transpose(1, 2)


class S4d(nn.Module):
    """A diagonal state space whose kernel is a Vandermonde product (Gu et al. 2022)."""

    def __init__(self, width: int = 8, states: int = 4) -> None:
        super().__init__()
        self.real, self.dt = nn.Parameter(torch.rand(width, states)), nn.Parameter(torch.rand(width) - 3)
        self.angle, self.c = (
            nn.Parameter(torch.rand(width, states) * 6),
            nn.Parameter(torch.randn(width, states, 2)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        t = x.size(1)
        a, dt = torch.complex(-self.real.exp(), self.angle), self.dt.exp()[:, None]
        powers = torch.exp((a * dt)[..., None] * torch.arange(t, device=x.device))
        c = torch.view_as_complex(self.c) * (torch.exp(a * dt) - 1) / a
        kernel = 2 * torch.einsum("wn,wnt->wt", c, powers).real
        spectrum = torch.fft.rfft(x.transpose(1, 2), n=2 * t) * torch.fft.rfft(kernel, n=2 * t)
        return torch.fft.irfft(spectrum, n=2 * t)[..., :t].transpose(1, 2)


class Lru(nn.Module):
    """A complex linear recurrence in log2(t) rounds of shifts (Orvieto et al. 2023)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.size, self.angle = nn.Parameter(torch.rand(width) - 1), nn.Parameter(torch.rand(width))
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        state = torch.complex(*self.inner(x).chunk(2, -1))
        rate = torch.exp(torch.complex(-self.size.exp(), self.angle))
        step = 1
        while step < x.size(1):
            state = state + rate**step * functional.pad(state, (0, 0, step, -step))
            step *= 2
        return self.outer(torch.cat([state.real, state.imag], -1))


class S5(nn.Module):
    """An associative scan of pairs by halving (Smith et al. 2023)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.rate, self.inner = nn.Linear(width, width), nn.Linear(width, width)

    def scan(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Products and states of all prefixes."""
        if a.size(1) == 1:
            return a, b
        a0, a1, b0, b1 = a[:, ::2], a[:, 1::2], b[:, ::2], b[:, 1::2]
        odd_a, odd_b = self.scan(a1 * a0, a1 * b0 + b1)
        even_a = torch.cat([a[:, :1], a0[:, 1:] * odd_a[:, :-1]], 1)
        even_b = torch.cat([b[:, :1], a0[:, 1:] * odd_b[:, :-1] + b0[:, 1:]], 1)
        return tuple(torch.stack(each, 2).flatten(1, 2) for each in ((even_a, odd_a), (even_b, odd_b)))  # type: ignore[return-value]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        return self.scan(self.rate(x).sigmoid(), self.inner(x))[1]


class Qrnn(nn.Module):
    """Gates by convolutions, and a pooling of forget gates (Bradbury et al. 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gates = nn.Conv1d(width, 3 * width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, width)"""
        z, f, o = self.gates(functional.pad(x.transpose(1, 2), (1, 0))).chunk(3, 1)
        z, f, c, made = z.tanh(), f.sigmoid(), torch.zeros_like(z[..., 0]), []
        for t in range(x.size(1)):
            c = f[..., t] * c + (1 - f[..., t]) * z[..., t]
            made.append(c)
        return (torch.stack(made, -1) * o.sigmoid()).transpose(1, 2)


class ConvRecurrent(nn.Module):
    """One sound through convolutions and a recurrent layer of torch."""

    def __init__(self, layer: Callable[..., nn.RNNBase], both: bool) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 5, 2, 2)
        self.recurrent = layer(8, 8, batch_first=True, bidirectional=both)
        self.last = nn.Conv1d(8 * (1 + both), 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, 1, t); (1, 4, t / 2)."""
        y, _ = self.recurrent(self.first(x).relu().transpose(1, 2))
        return self.last(y.transpose(1, 2))


class Snake(nn.Module):
    """A periodic function with a rate of each channel (Ziyin et al. 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, width, t)"""
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


class Dac(nn.Module):
    """Residual quantization by the nearest codes between strided convolutions (Kumar et al. 2023)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, width, 7, padding=3), Snake(width), nn.Conv1d(width, width, 4, 2, 1)
        )
        self.codes = nn.ModuleList(nn.Embedding(6, width) for _ in range(2))
        self.decoder = nn.Sequential(
            Snake(width), nn.ConvTranspose1d(width, width, 4, 2, 1), nn.Conv1d(width, 1, 7, padding=3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, t)"""
        z = self.encoder(x)
        rest, made = z, torch.zeros_like(z)
        for codes in self.codes:
            flat = functional.normalize(rest.transpose(1, 2), dim=-1)
            apart = 2 - 2 * flat @ functional.normalize(codes.weight, dim=-1).t()
            taken = codes(apart.argmin(-1)).transpose(1, 2)
            made, rest = made + taken, rest - taken
        return torch.tanh(self.decoder(z + (made - z).detach() + 0.1 * made))


class Encodec(nn.Module):
    """Causal strided convolutions, a residual LSTM, and transposed ones with a cut end (Défossez 2022)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down, self.lstm = nn.Conv1d(1, width, 8, 4), nn.LSTM(width, width, 2)
        self.up = nn.ConvTranspose1d(width, 1, 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, t)"""
        z = functional.elu(self.down(functional.pad(x, (4, 0), mode="reflect")))
        y, _ = self.lstm(z.permute(2, 0, 1))
        return self.up(functional.elu(z + y.permute(1, 2, 0)))[..., : x.size(-1)]


class Vocos(nn.Module):
    """ConvNeXt blocks, and a spectrum that is inverted (Siuzdak 2023)."""

    def __init__(self, width: int = 8, n: int = 16) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv1d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 16), nn.Linear(16, width)
        self.head, self.n, self.gamma = nn.Linear(width, n + 2), n, nn.Parameter(torch.full((width,), 0.1))
        self.register_buffer("window", torch.hann_window(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, width, frames)"""
        y = self.narrow(functional.gelu(self.wide(self.norm(self.depth(x).transpose(1, 2)))))
        x = x + (self.gamma * y).transpose(1, 2)
        size, phase = self.head(x.transpose(1, 2)).transpose(1, 2).chunk(2, 1)
        spectrum = size.exp().clamp(max=100) * torch.complex(phase.cos(), phase.sin())
        return torch.istft(spectrum, self.n, self.n // 4, self.n, self.window, center=True)


class Periods(nn.Module):
    """Discriminators that fold a sound by periods (Kong et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(1, 4, (5, 1), (3, 1), (2, 0)), nn.LeakyReLU(0.1), nn.Conv2d(4, 1, (3, 1), 1, (1, 0))
            )
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """(b, 1, t); scores of each period."""
        made = []
        for period, part in zip((3, 5), self.parts, strict=True):
            folded = functional.pad(x, (0, -x.size(-1) % period), "reflect").unflatten(-1, (-1, period))
            made.append(part(folded).flatten(1))
        return made


class WaveGlow(nn.Module):
    """Squeezed sound, invertible products of channels and affine couplings (Prenger et al. 2018)."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.eye(n) + torch.randn(n, n) / 10 for _ in range(2))
        self.nets = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(n // 2, 8, 3, padding=2, dilation=2), nn.Tanh(), nn.Conv1d(8, n, 3, padding=1)
            )
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(b, t); latent, and the logarithm of the determinant."""
        z, total = x.unfold(1, 8, 8).transpose(1, 2), torch.zeros(x.size(0), dtype=x.dtype, device=x.device)
        for matrix, net in zip(self.matrices, self.nets, strict=True):
            a, b = functional.conv1d(z, matrix[..., None]).chunk(2, 1)
            shift, log = net(a).chunk(2, 1)
            z = torch.cat([a, b * log.exp() + shift], 1)
            total = total + log.sum((1, 2)) + z.size(2) * torch.linalg.slogdet(matrix)[1]
        return z, total


def entries() -> list[Entry]:
    """All models."""
    mixers = {
        "minGRU": MinGru,
        "Mamba2, chunks": Mamba2,
        "RetNet": RetNet,
        "mLSTM": Mlstm,
        "gated linear attention": GatedLinear,
        "gated delta net": DeltaNet,
        "RWKV": Rwkv,
        "sLSTM": Slstm,
        "Hyena": Hyena,
        "S4D": S4d,
        "LRU": Lru,
        "S5": S5,
        "QRNN": Qrnn,
    }
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        *((name, lambda mixer=mixer: Mixed(mixer()), TOKENS) for name, mixer in mixers.items()),
        ("GRU of one sound", lambda: ConvRecurrent(nn.GRU, False), (1, 1, 128)),
        ("LSTM of one sound", lambda: ConvRecurrent(nn.LSTM, True), (1, 1, 128)),
        ("DAC", Dac, SOUND),
        ("Encodec", Encodec, SOUND),
        ("Vocos", Vocos, (2, 8, 24)),
        ("HiFi-GAN discriminators", Periods, SOUND),
        ("WaveGlow", WaveGlow, (2, 128)),
    ]
    return [Entry("sequence", name, make, given) for name, make, given in made]
