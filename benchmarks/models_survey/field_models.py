"""Models of spheres, fields, films and pictures that the other files have not, after their papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry

PICTURE, FILM = (2, 3, 16, 16), (1, 3, 4, 16, 16)


def _pair(channels: int, width: int, last: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, last, 3, padding=1)
    )


class CubedSphere(nn.Module):
    """Convolutions of six faces, whose margins are rows of their neighbours (Weyn et al. 2020)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.belt = nn.ModuleList(nn.Conv2d(c, d, 3) for c, d in ((2, width), (width, 2)))
        self.poles = nn.ModuleList(nn.Conv2d(c, d, 3) for c, d in ((2, width), (width, 2)))

    @staticmethod
    def padded(x: torch.Tensor) -> torch.Tensor:
        """(b, c, 6, n, n); with margins of one."""
        belt, (north, south) = x[:, :, :4], x[:, :, 4:].unbind(2)
        wide = torch.cat([belt.roll(1, 2)[..., -1:], belt, belt.roll(-1, 2)[..., :1]], -1)
        above = torch.stack([torch.rot90(north, k, (-2, -1))[..., -1:, :] for k in range(4)], 2)
        below = torch.stack([torch.rot90(south, -k, (-2, -1))[..., :1, :] for k in range(4)], 2)
        wide = torch.cat([functional.pad(above, (1, 1)), wide, functional.pad(below, (1, 1))], -2)
        first, second = belt[..., :1, :], belt[..., -1:, :]
        caps = []
        for face, edge, sign in ((north, first.flip(-1), 1), (south, second.flip(-1), -1)):
            face = functional.pad(face, (1, 1, 1, 1))
            for k in range(4):
                strip = functional.pad(edge[:, :, k], (1, 1, 0, face.size(-2) - 1))
                face = face + torch.rot90(strip, sign * k, (-2, -1))
            caps.append(face)
        return torch.cat([wide, torch.stack(caps, 2)], 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, 6, n, n)"""
        for belt, poles in zip(self.belt, self.poles, strict=True):
            faces = self.padded(x).unbind(2)
            south = poles(faces[5].flip(-1)).flip(-1)
            x = torch.stack([*(belt(face) for face in faces[:4]), poles(faces[4]), south], 2).tanh()
        return x


class Globe(nn.Module):
    """A U-Net on latitudes and longitudes, folded at the poles (Pathak et al. 2022; Ruhe et al. 2023)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(2, width, 5), nn.Conv2d(width, width, 5)
        self.last = nn.Conv2d(2 * width, 2, 5)

    @staticmethod
    def padded(x: torch.Tensor, n: int = 2) -> torch.Tensor:
        """Across a pole, the other side of the globe."""
        other = x.roll(x.size(-1) // 2, -1)
        x = torch.cat([other[..., :n, :].flip(-2), x, other[..., -n:, :].flip(-2)], -2)
        return functional.pad(x, (n, n, 0, 0), mode="circular")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, h, w)"""
        x = functional.gelu(self.first(self.padded(x)))
        small = functional.gelu(self.inner(self.padded(functional.avg_pool2d(x, 2))))
        small = functional.interpolate(small, scale_factor=2, mode="bilinear")
        return self.last(self.padded(torch.cat([x, small], 1)))


class Sfno(nn.Module):
    """Products of spherical harmonics: FFT along longitude, a matrix along latitude (Bonev et al. 2023)."""

    def __init__(self, width: int = 4, rows: int = 16, orders: int = 6) -> None:
        super().__init__()
        self.inner, self.outer, self.orders = nn.Conv2d(2, width, 1), nn.Conv2d(width, 2, 1), orders
        place = torch.linspace(-1, 1, rows, dtype=torch.float64)
        self.register_buffer("basis", torch.stack([torch.cos(n * place.acos()) for n in range(orders)]))
        self.weight = nn.Parameter(torch.randn(width, width, orders, 2) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, h, w)"""
        y = self.inner(x)
        modes = torch.fft.rfft(y, dim=-1, norm="forward")[..., : self.orders]
        basis = self.basis.to(modes.dtype)
        made = torch.einsum("bchm,lh->bclm", modes, basis)
        made = torch.einsum("bclm,dcl->bdlm", made, torch.view_as_complex(self.weight))
        made = torch.einsum("bdlm,lh->bdhm", made, basis)
        return self.outer(functional.gelu(torch.fft.irfft(made, n=x.size(-1), dim=-1, norm="forward") + y))


class YinYang(nn.Module):
    """Two grids that cover a sphere, each of which samples its margin from the other (Kageyama 2004)."""

    def __init__(self, width: int = 4, n: int = 16) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(width, 2, 1)
        y, x = torch.meshgrid(torch.linspace(-1, 1, n), torch.linspace(-1, 1, n), indexing="ij")
        self.register_buffer("grid", torch.stack([y.mul(0.8), -x.mul(0.8)], -1)[None])
        self.register_buffer("margin", ((x.abs() > 0.8) | (y.abs() > 0.8)).float())

    def forward(self, yin: torch.Tensor, yang: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(b, 2, n, n) each."""
        yin, yang = self.conv(yin).relu(), self.conv(yang).relu()
        grid = self.grid.to(yin.dtype).expand(yin.size(0), -1, -1, -1)
        taken = [functional.grid_sample(each, grid, align_corners=True) for each in (yang, yin)]
        made = [torch.lerp(a, b, self.margin.to(a.dtype)) for a, b in zip((yin, yang), taken, strict=True)]
        return self.last(made[0]), self.last(made[1])


class FactorizedFno(nn.Module):
    """Modes of each axis by themselves (Tran et al. 2023)."""

    def __init__(self, width: int = 4, modes: int = 4) -> None:
        super().__init__()
        self.inner, self.modes = nn.Conv2d(1, width, 1), modes
        self.weights = nn.ParameterList(torch.randn(width, width, modes, 2) / width for _ in range(2))
        self.mlp = nn.Sequential(nn.Conv2d(width, 8, 1), nn.GELU(), nn.Conv2d(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w)"""
        y = self.inner(x)
        made = torch.zeros_like(y)
        for axis, weight in zip((2, 3), self.weights, strict=True):
            modes = torch.fft.rfft(y, dim=axis, norm="ortho").narrow(axis, 0, self.modes)
            rule = ("bchw,cdh->bdhw", "bchw,cdw->bdhw")[axis - 2]
            mixed = torch.einsum(rule, modes, torch.view_as_complex(weight))
            made = made + torch.fft.irfft(mixed, n=y.size(axis), dim=axis, norm="ortho")
        return x + self.mlp(made)


class UFno(nn.Module):
    """A Fourier layer of three axes beside a small U-Net (Wen et al. 2022)."""

    def __init__(self, width: int = 4, modes: int = 2) -> None:
        super().__init__()
        self.inner, self.last, self.modes = nn.Conv3d(1, width, 1), nn.Conv3d(width, 1, 1), modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, modes, 2) / width)
        self.down, self.up = nn.Conv3d(width, width, 3, 2, 1), nn.ConvTranspose3d(width, width, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, d, h, w)"""
        y, m = self.inner(x), self.modes
        spectrum, weight = torch.fft.rfftn(y, dim=(-3, -2, -1)), torch.view_as_complex(self.weight)
        out = torch.zeros_like(spectrum)
        for part, rows in zip(weight, (slice(m), slice(-m, None)), strict=True):
            out[:, :, rows, :m, :m] = torch.einsum("bcxyz,cdxyz->bdxyz", spectrum[:, :, rows, :m, :m], part)
        made = torch.fft.irfftn(out, s=y.shape[-3:], dim=(-3, -2, -1))
        return self.last(functional.gelu(made + self.up(self.down(y).relu())))


class Automaton(nn.Module):
    """A neural cellular automaton: fixed filters, a small network, and cells that die (Mordvintsev 2020)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        dot = functional.pad(torch.ones(1, 1), (1, 1, 1, 1))
        self.register_buffer("filters", torch.stack([dot, sobel, sobel.t()]).repeat(width, 1, 1)[:, None])
        self.rule = nn.Sequential(nn.Conv2d(3 * width, 16, 1), nn.ReLU(), nn.Conv2d(16, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, width, h, w)"""
        for _ in range(3):
            before = functional.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1
            seen = functional.conv2d(
                functional.pad(x, (1, 1, 1, 1), mode="circular"), self.filters, groups=x.size(1)
            )
            x = x + self.rule(seen)
            x = x * (before & (functional.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1)).to(x.dtype)
        return x


class Lattice(nn.Module):
    """A lattice Boltzmann step, whose collisions are learned: nine rolls (Corbetta et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.collide = nn.Sequential(nn.Conv2d(9, 16, 1), nn.ReLU(), nn.Conv2d(16, 9, 1), nn.Softmax(1))

    def forward(self, f: torch.Tensor) -> torch.Tensor:
        """(b, 9, h, w)"""
        for _ in range(2):
            f = self.collide(f) * f.sum(1, keepdim=True)
            moves = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            f = torch.stack([f[:, n].roll(move, (1, 2)) for n, move in enumerate(moves)], 1)
        return f


class CondConv(nn.Module):
    """Kernels that are mixed for each sample, as groups (Yang et al. 2019)."""

    def __init__(self, channels: int = 3, width: int = 8, experts: int = 3) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(experts, width, channels, 3, 3) / 5)
        self.route, self.last = nn.Linear(channels, experts), nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, h, w)"""
        b, c, h, w = x.shape
        routes = torch.sigmoid(self.route(functional.adaptive_avg_pool2d(x, 1).flatten(1)))
        kernels = (routes @ self.experts.flatten(1)).view(-1, c, 3, 3)
        made = functional.conv2d(x.reshape(1, b * c, h, w), kernels, padding=1, groups=b)
        return self.last(made.view(b, -1, h, w).relu())


class Transformed(nn.Module):
    """A spatial transformer before a classifier (Jaderberg et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(
            nn.Conv2d(3, 4, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 6)
        )
        self.net = nn.Sequential(_pair(3, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w); (b, 5)."""
        one = torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=x.dtype, device=x.device)
        grid = functional.affine_grid(
            one + 0.1 * self.where(x).view(-1, 2, 3).tanh(), x.shape, align_corners=False
        )
        return self.net(functional.grid_sample(x, grid, padding_mode="border", align_corners=False))


class Leapfrog(nn.Module):
    """Places and momenta in symplectic steps of an ordinary differential equation (Chen et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.force, self.speed = _pair(2, 8, 2), _pair(2, 8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4, h, w)"""
        q, p = x.split(2, 1)
        p = p + 0.05 * self.force(q)
        for step in range(3):
            q = q + 0.1 * self.speed(p)
            p = p + (0.1 if step < 2 else 0.05) * self.force(q)
        return torch.cat((q, p), 1)


class IRevNet(nn.Module):
    """Invertible blocks between rearranged pixels (Jacobsen et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _pair(6, 8, 6), _pair(24, 8, 24)
        self.norm = nn.BatchNorm2d(48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w)"""
        a, b = functional.pixel_unshuffle(x, 2).chunk(2, 1)
        a, b = b, a + self.first(b)
        a, b = functional.pixel_unshuffle(a, 2), functional.pixel_unshuffle(b, 2)
        a, b = b, a + self.second(b)
        return functional.pixel_shuffle(self.norm(torch.cat((a, b), 1)), 4)


class WaveletUnet(nn.Module):
    """Haar wavelets in place of pooling (Liu et al. 2018)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.inner, self.last = (
            _pair(3, width, width),
            _pair(4 * width, 8, 4 * width),
            _pair(width, width, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w)"""
        y = self.first(x)
        even, odd = y[:, :, 0::2] / 2, y[:, :, 1::2] / 2
        a, b, c, d = even[..., 0::2], odd[..., 0::2], even[..., 1::2], odd[..., 1::2]
        bands = self.inner(torch.cat([a + b + c + d, -a - b + c + d, -a + b - c + d, a - b - c + d], 1))
        ll, hl, lh, hh = (bands / 2).chunk(4, 1)
        z = torch.zeros_like(y)
        z[:, :, 0::2, 0::2], z[:, :, 1::2, 0::2] = ll - hl - lh + hh, ll - hl + lh - hh
        z[:, :, 0::2, 1::2], z[:, :, 1::2, 1::2] = ll + hl - lh - hh, ll + hl + lh + hh
        return x - self.last(z + y)


class NestedUnet(nn.Module):
    """U-Net++: nodes that read all nodes before them, with an output of each (Zhou et al. 2018)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.nodes = nn.ModuleDict()
        for j in range(3):
            for i in range(3 - j):
                inputs = width * (j + 1) if j else width if i else 3
                self.nodes[f"{i}_{j}"] = nn.Sequential(
                    nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
                )
        self.heads = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """(b, 3, h, w); two masks."""
        made: dict[tuple[int, int], torch.Tensor] = {}
        for j in range(3):
            for i in range(3 - j):
                if j:
                    up = functional.interpolate(
                        made[i + 1, j - 1], scale_factor=2, mode="bilinear", align_corners=True
                    )
                    read = torch.cat([*(made[i, k] for k in range(j)), up], 1)
                else:
                    read = functional.max_pool2d(made[i - 1, 0], 2) if i else x
                made[i, j] = self.nodes[f"{i}_{j}"](read)
        return [head(made[0, j + 1]) for j, head in enumerate(self.heads)]


class AttentionUnet(nn.Module):
    """Skips that a coarser signal gates, in volumes of odd sides (Oktay et al. 2018)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.down = nn.Conv3d(1, width, 3, padding=1), nn.Conv3d(width, 2 * width, 3, 2, 1)
        self.theta, self.phi = nn.Conv3d(width, width, 2, 2, bias=False), nn.Conv3d(2 * width, width, 1)
        self.psi, self.last = nn.Conv3d(width, 1, 1), nn.Conv3d(3 * width, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, d, h, w)"""
        skip = self.first(x).relu()
        deep = self.down(skip).relu()
        gate = self.theta(skip)
        gate = gate + functional.interpolate(self.phi(deep), size=gate.shape[2:], mode="trilinear")
        mask = functional.interpolate(self.psi(gate.relu()).sigmoid(), size=x.shape[2:], mode="trilinear")
        up = functional.interpolate(deep, size=x.shape[2:], mode="nearest")
        return self.last(torch.cat([skip * mask, up], 1))


class HrNet(nn.Module):
    """Two resolutions that exchange sums, and joints by a soft maximum (Sun et al. 2019)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.high, self.low = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(3, 2 * width, 3, 2, 1)
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width))
        self.up, self.head = (
            nn.Sequential(nn.Conv2d(2 * width, width, 1), nn.BatchNorm2d(width)),
            nn.Conv2d(width, 5, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w); joints (b, 5, 2)."""
        high, low = self.high(x), self.low(x)
        high, low = (
            (high + functional.interpolate(self.up(low), scale_factor=2.0)).relu(),
            (low + self.down(high)).relu(),
        )
        heat = self.head(high + functional.interpolate(self.up(low), size=high.shape[-2:]))
        heat = heat.flatten(2).softmax(-1).view_as(heat)
        at = (torch.arange(n, device=x.device, dtype=x.dtype) for n in heat.shape[-2:])
        rows, columns = at
        return torch.stack([(heat.sum(2) * columns).sum(-1), (heat.sum(3) * rows).sum(-1)], -1)


class Spade(nn.Module):
    """A generator whose normalizations read a map of classes (Park et al. 2019)."""

    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(classes, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.norm, self.shared = nn.InstanceNorm2d(width), nn.Conv2d(classes, 8, 3, padding=1)
        self.gamma, self.beta, self.classes = *(nn.Conv2d(8, width, 3, padding=1) for _ in range(2)), classes

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        """Classes (b, h, w); (b, 3, h, w)."""
        maps = functional.one_hot(labels, self.classes).permute(0, 3, 1, 2).to(self.first.weight.dtype)
        y = self.first(functional.interpolate(maps, size=(8, 8), mode="nearest"))
        for size in (8, 16):
            y = functional.interpolate(y, size=(size, size))
            shared = self.shared(functional.interpolate(maps, size=(size, size))).relu()
            y = functional.leaky_relu(self.norm(y) * (1 + self.gamma(shared)) + self.beta(shared), 0.2)
        return torch.tanh(self.last(y))


class CausalFilm(nn.Module):
    """A film coder in chunks, whose convolutions keep the last frames of the chunk before (Wan 2025)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv3d(c, d, 3, padding=(0, 1, 1)) for c, d in ((3, width), (width, width))
        )
        self.spatial, self.last = nn.Conv2d(width, width, 3, 2), nn.Conv2d(width, 12, 3, padding=1)

    def forward(self, film: torch.Tensor) -> torch.Tensor:
        """(b, 3, t, h, w)"""
        kept: list[torch.Tensor | None] = [None, None]
        made = []
        for chunk in film.split(2, 2):
            x = chunk
            for n, layer in enumerate(self.layers):
                before = kept[n] if kept[n] is not None else x[:, :, :1].repeat(1, 1, 2, 1, 1)
                x = torch.cat([before, x], 2)
                kept[n] = x[:, :, -2:].clone()
                x = functional.silu(layer(x))
            frames = x.transpose(1, 2).flatten(0, 1)
            frames = self.spatial(functional.pad(frames, (0, 1, 0, 1)))
            frames = functional.pixel_shuffle(self.last(frames), 2)
            made.append(frames.unflatten(0, (film.size(0), -1)).transpose(1, 2))
        return torch.cat(made, 2)


class TinyFilm(nn.Module):
    """A decoder of films whose blocks read the frame before, and grow in time (TAEHV, Boer Bohan 2025)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.memory = nn.Conv2d(4, width, 3, padding=1), _pair(2 * width, width, width)
        self.grow, self.last = nn.Conv2d(width, 2 * width, 1, bias=False), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """(b, t, 4, h, w); (b, 2 t, 3, 2 h, 2 w)."""
        b, t, c, h, w = latent.shape
        x = self.first(torch.tanh(latent.reshape(b * t, c, h, w) / 3) * 3).relu()
        past = functional.pad(x.view(b, t, -1, h, w), (0, 0, 0, 0, 0, 0, 1, 0))[:, :t].reshape(x.shape)
        x = (self.memory(torch.cat([x, past], 1)) + x).relu()
        x = functional.interpolate(self.grow(x).reshape(b * t * 2, -1, h, w), scale_factor=2)
        return self.last(x).clamp(-1, 1).view(b, 2 * t, 3, 2 * h, 2 * w)


class Shifted(nn.Module):
    """A video classifier that shifts channels in time (Lin et al. 2019)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv2d(3, width, 3, 2, 1),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.Linear(width, 5),
        )

    def forward(self, film: torch.Tensor) -> torch.Tensor:
        """(b, t, 3, h, w); (b, 5)."""
        b, t = film.shape[:2]
        x = self.first(film.flatten(0, 1)).relu().unflatten(0, (b, t))
        out = torch.zeros_like(x)
        out[:, :-1, :2] = x[:, 1:, :2]
        out[:, 1:, 2:4] = x[:, :-1, 2:4]
        out[:, :, 4:] = x[:, :, 4:]
        y = self.second(out.flatten(0, 1)).relu().mean((2, 3))
        return self.head(y).view(b, t, -1).mean(1)


class FiniteScalars(nn.Module):
    """A coder of pictures whose latents are rounded to a few levels (Mentzer et al. 2023)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.GroupNorm(2, width), nn.SiLU(), nn.Conv2d(width, 3, 1)
        )
        self.decoder = nn.Sequential(nn.Conv2d(3, width, 1), nn.SiLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1))
        self.register_buffer("levels", torch.tensor([8.0, 5.0, 5.0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(b, 3, h, w); the picture, and codes (b, h / 2, w / 2)."""
        levels = self.levels.to(x.dtype).view(1, -1, 1, 1)
        half = (levels - 1) * (1 - 1e-3) / 2
        shift = torch.where(levels % 2 == 1, 0.0, 0.5)
        z = (self.encoder(x) + torch.atanh(shift / half)).tanh() * half - shift
        z = z + (z.round() - z).detach()
        codes = ((z + levels // 2) * levels.cumprod(1) / levels).sum(1).round()
        return self.decoder(z / (levels // 2)), codes.detach()


class DeepCompression(nn.Module):
    """Shortcuts that average channels, linear attention of several scales (Chen et al. 2025; Cai 2023)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width // 2, 3, padding=1)
        self.qkv = nn.Conv2d(2 * width, 3 * width, 1, bias=False)
        self.scale = nn.Conv2d(3 * width, 3 * width, 5, padding=2, groups=3 * width, bias=False)
        self.out, self.up = nn.Conv2d(2 * width, 2 * width, 1), nn.Conv2d(2 * width, 12, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w)"""
        x = self.first(x)
        wide = functional.pixel_unshuffle(x, 2)
        x = functional.pixel_unshuffle(self.down(x), 2) + wide.unflatten(1, (-1, 2)).mean(2)
        qkv = self.qkv(x)
        qkv = torch.stack([qkv, self.scale(qkv)], 1).flatten(-2).unflatten(2, (3, -1))
        q, k, v = (
            qkv[:, :, 0].relu(),
            qkv[:, :, 1].relu(),
            functional.pad(qkv[:, :, 2], (0, 0, 0, 1), value=1.0),
        )
        made = (v @ k.transpose(-1, -2)) @ q
        made = (made[:, :, :-1] / (made[:, :, -1:] + 1e-6)).flatten(1, 2).unflatten(-1, x.shape[-2:])
        return functional.pixel_shuffle(self.up(x + self.out(made)), 2)


def entries() -> list[Entry]:
    """All models."""
    labels = torch.arange(2 * 16 * 16).view(2, 16, 16) // 7 % 4
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        ("cubed sphere", CubedSphere, (2, 2, 6, 8, 8)),
        ("latitudes and longitudes", Globe, (2, 2, 16, 32)),
        ("SFNO", Sfno, (2, 2, 16, 32)),
        ("yin-yang grid", YinYang, ((2, 2, 16, 16), (2, 2, 16, 16))),
        ("F-FNO", FactorizedFno, (2, 1, 16, 16)),
        ("U-FNO", UFno, (1, 1, 8, 8, 8)),
        ("cellular automaton", Automaton, (2, 6, 16, 16)),
        ("lattice Boltzmann", Lattice, (2, 9, 16, 16)),
        ("CondConv", CondConv, PICTURE),
        ("spatial transformer", Transformed, PICTURE),
        ("symplectic steps", Leapfrog, (2, 4, 16, 16)),
        ("i-RevNet", IRevNet, PICTURE),
        ("wavelet U-Net", WaveletUnet, PICTURE),
        ("U-Net++", NestedUnet, PICTURE),
        ("attention U-Net", AttentionUnet, (1, 1, 10, 12, 14)),
        ("HRNet, joints", HrNet, PICTURE),
        ("SPADE", Spade, labels),
        ("causal film coder, chunks", CausalFilm, FILM),
        ("TAEHV", TinyFilm, (2, 3, 4, 8, 8)),
        ("TSM", Shifted, (2, 4, 3, 16, 16)),
        ("FSQ", FiniteScalars, PICTURE),
        ("DC-AE", DeepCompression, PICTURE),
    ]
    return [Entry("field", name, make, given) for name, make, given in made]
