"""Neural operators, complex networks and networks on graphs, as their papers and public code have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry


class Spectral1d(nn.Module):
    """Complex weights on the lowest modes, written into a spectrum of zeros (Li et al. 2021)."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights = nn.Parameter(torch.rand(width, width, modes, dtype=torch.cfloat) / width**2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, n) of the same shape."""
        x_ft = torch.fft.rfft(x)
        out_ft = torch.zeros(x.size(0), x.size(1), x.size(-1) // 2 + 1, device=x.device, dtype=x_ft.dtype)
        out_ft[:, :, : self.modes] = torch.einsum(
            "bix,iox->box", x_ft[:, :, : self.modes], self.weights.to(x_ft.dtype)
        )
        return torch.fft.irfft(out_ft, n=x.size(-1))


class Spectral2d(nn.Module):
    """Both corners of the spectrum in two dimensions."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (width, width, modes, modes)
        self.weights1 = nn.Parameter(torch.rand(*shape, dtype=torch.cfloat) / width**2)
        self.weights2 = nn.Parameter(torch.rand(*shape, dtype=torch.cfloat) / width**2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, h, w) of the same shape."""
        x_ft, m = torch.fft.rfft2(x), self.modes
        out_ft = torch.zeros(*x.shape[:2], x.size(-2), x.size(-1) // 2 + 1, dtype=x_ft.dtype, device=x.device)
        out_ft[:, :, :m, :m] = torch.einsum(
            "bixy,ioxy->boxy", x_ft[:, :, :m, :m], self.weights1.to(x_ft.dtype)
        )
        out_ft[:, :, -m:, :m] = torch.einsum(
            "bixy,ioxy->boxy", x_ft[:, :, -m:, :m], self.weights2.to(x_ft.dtype)
        )
        return torch.fft.irfft2(out_ft, s=(x.size(-2), x.size(-1)))


class Fno(nn.Module):
    """Spectral layers beside convolutions of kernel 1; with dims 2 a U-FNO, which adds a U-Net to each."""

    def __init__(self, dims: int, width: int = 6, modes: int = 4, unet: bool = False) -> None:
        super().__init__()
        conv: Any = nn.Conv1d if dims == 1 else nn.Conv2d
        spectral: Any = Spectral1d if dims == 1 else Spectral2d
        self.lift, self.head = (
            nn.Linear(1 + dims, width),
            nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, 1)),
        )
        self.spectral = nn.ModuleList(spectral(width, modes) for _ in range(2))
        self.local = nn.ModuleList(conv(width, width, 1) for _ in range(2))
        self.down = nn.ModuleList(conv(width, width, 3, 2, 1) for _ in range(2 if unet else 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, n.., 1) of the same shape."""
        axes = [torch.linspace(0, 1, n, device=x.device, dtype=x.dtype) for n in x.shape[1:-1]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).expand(
            x.shape[0], *x.shape[1:-1], len(axes)
        )
        x = self.lift(torch.cat((x, grid), dim=-1)).movedim(-1, 1)
        for n, (spectral, local) in enumerate(zip(self.spectral, self.local, strict=True)):
            y = spectral(x) + local(x)
            if self.down:
                y = y + functional.interpolate(self.down[n](x), scale_factor=2)
            x = functional.gelu(y)
        return self.head(x.movedim(1, -1))


class TuckerFno(nn.Module):
    """Spectral weights as a Tucker product, padded domain, instance norm (TFNO)."""

    def __init__(self, width: int = 6, modes: int = 4, rank: int = 3) -> None:
        super().__init__()
        self.modes, self.lift, self.head = modes, nn.Conv2d(1, width, 1), nn.Conv2d(width, 1, 1)
        self.core = nn.Parameter(torch.randn(rank, rank, rank, rank, dtype=torch.cfloat) * 0.3)
        self.factors = nn.ParameterList(
            nn.Parameter(torch.randn(n, rank, dtype=torch.cfloat) * 0.3)
            for n in (width, width, 2 * modes, modes)
        )
        self.norm, self.skip = nn.InstanceNorm2d(width, affine=True), nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w) of the same shape."""
        x = functional.pad(self.lift(x), (0, 4, 0, 4))
        h, w, m = x.shape[-2], x.shape[-1], self.modes
        spectrum = torch.fft.fftshift(torch.fft.rfft2(x, norm="ortho"), dim=-2)
        weight = torch.einsum("abcd,ia,ob,xc,yd->ioxy", self.core, *self.factors).to(spectrum.dtype)
        kept = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, h // 2 - m : h // 2 + m, :m], weight)
        kept = functional.pad(kept, (0, w // 2 + 1 - m, h // 2 - m, h - h // 2 - m))
        y = torch.fft.irfft2(torch.fft.ifftshift(kept, dim=-2), s=(h, w), norm="ortho")
        return self.head(functional.gelu(self.norm(y) + self.skip(x))[..., :-4, :-4])


class Afno(nn.Module):
    """Tokens mixed in their spectrum by blocks of a real perceptron, softly thresholded (FourCastNet)."""

    def __init__(self, width: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.blocks, self.size = blocks, width // blocks
        self.patches, self.norm = nn.Conv2d(2, width, 2, 2), nn.LayerNorm(width)
        self.pos = nn.Parameter(torch.zeros(1, 8, 8, width))
        self.w1, self.w2 = (
            nn.Parameter(0.1 * torch.randn(2, blocks, self.size, self.size)) for _ in range(2)
        )
        self.head = nn.Linear(width, 2 * 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, 16, 16) of the same shape."""
        x = self.patches(x).permute(0, 2, 3, 1) + self.pos
        b, h, w, c = x.shape
        y = torch.fft.rfft2(self.norm(x), dim=(1, 2), norm="ortho").reshape(
            b, h, w // 2 + 1, self.blocks, self.size
        )
        product = "...bi,bio->...bo"
        real = functional.relu(
            torch.einsum(product, y.real, self.w1[0]) - torch.einsum(product, y.imag, self.w1[1])
        )
        imag = functional.relu(
            torch.einsum(product, y.imag, self.w1[0]) + torch.einsum(product, y.real, self.w1[1])
        )
        both = torch.stack(
            [
                torch.einsum(product, real, self.w2[0]) - torch.einsum(product, imag, self.w2[1]),
                torch.einsum(product, imag, self.w2[0]) + torch.einsum(product, real, self.w2[1]),
            ],
            dim=-1,
        )
        made = torch.view_as_complex(functional.softshrink(both, lambd=0.01)).reshape(b, h, w // 2 + 1, c)
        x = x + torch.fft.irfft2(made, s=(h, w), dim=(1, 2), norm="ortho")
        y = self.head(x).view(b, h, w, 2, 2, 2)
        return y.permute(0, 5, 1, 3, 2, 4).reshape(b, 2, 2 * h, 2 * w)


class ComplexUnet(nn.Module):
    """Convolutions with complex weights in two real layers each, and modReLU (Trabelsi et al. 2018)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.real = nn.ModuleList(
            [
                nn.Conv2d(1, width, 3, padding=1),
                nn.Conv2d(width, width, 3, 2, 1),
                nn.Conv2d(2 * width, 1, 3, padding=1),
            ]
        )
        self.imag = nn.ModuleList(
            [
                nn.Conv2d(1, width, 3, padding=1),
                nn.Conv2d(width, width, 3, 2, 1),
                nn.Conv2d(2 * width, 1, 3, padding=1),
            ]
        )
        self.bias = nn.Parameter(torch.full((width,), -0.1))

    def product(self, n: int, x: torch.Tensor) -> torch.Tensor:
        """A complex convolution."""
        a, b = self.real[n], self.imag[n]
        return torch.complex(a(x.real) - b(x.imag), a(x.imag) + b(x.real))

    def modrelu(self, x: torch.Tensor) -> torch.Tensor:
        """Shorter by a bias, at least zero."""
        size = x.abs() + 1e-6
        return x * (functional.relu(size + self.bias.view(1, -1, 1, 1)) / size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, h, w), real and imaginary; (b, h, w), the size of an image."""
        z = torch.complex(x[:, :1], x[:, 1:])
        fine = self.modrelu(self.product(0, z))
        coarse = self.modrelu(self.product(1, fine))
        up = torch.complex(
            *(functional.interpolate(each, scale_factor=2) for each in (coarse.real, coarse.imag))
        )
        return torch.fft.ifft2(self.product(2, torch.cat([fine, up], 1)).squeeze(1)).abs()


class Mri(nn.Module):
    """Unrolled reconstruction: k-space consistency by a mask, a network between (Schlemper et al. 2018)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2, 3, padding=1))
            for _ in range(2)
        )
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, kspace: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """kspace (b, h, w, 2), mask (w) of what is measured; (b, h, w)."""
        measured = torch.view_as_complex(kspace.contiguous()) * mask
        image = torch.fft.ifft2(measured, norm="ortho")
        for net, weight in zip(self.nets, self.weight, strict=True):
            refined = net(torch.view_as_real(image).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
            k = torch.fft.fft2(image + torch.view_as_complex(refined), norm="ortho")
            image = torch.fft.ifft2(
                torch.where(mask, (k + weight * measured) / (1 + weight), k), norm="ortho"
            )
        return image.abs()


class Galerkin(nn.Module):
    """Attention without softmax, with layer norms of keys and values by head (Cao 2021)."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.lift, self.head = (
            heads,
            nn.Conv2d(1, width, 3, padding=1),
            nn.Conv2d(width, 1, 3, padding=1),
        )
        self.qkv, self.norms = (
            nn.Linear(width, 3 * width),
            nn.ModuleList(nn.LayerNorm(width // heads) for _ in range(2)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w) of the same shape."""
        x = self.lift(x)
        b, c, h, w = x.shape
        q, k, v = (
            self.qkv(x.flatten(2).transpose(1, 2))
            .view(b, h * w, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        scores = torch.matmul(self.norms[0](k).transpose(-2, -1), self.norms[1](v)) / (h * w)
        y = torch.matmul(q, scores).permute(0, 2, 1, 3).reshape(b, h, w, c).permute(0, 3, 1, 2)
        return self.head(functional.silu(x + y))


class MultigridWavelet(nn.Module):
    """Haar wavelets down and up, with convolutions on the details of each level."""

    def __init__(self, levels: int = 2) -> None:
        super().__init__()
        self.details = nn.ModuleList(
            nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular", groups=2) for _ in range(levels)
        )
        self.coarse = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, h, w) of the same shape."""
        kept = []
        for layer in self.details:
            a, b, c, d = x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]
            kept.append(torch.tanh(layer(torch.cat([a - b + c - d, a + b - c - d, a - b - c + d], 1) / 2)))
            x = (a + b + c + d) / 2
        x = self.coarse(x)
        for detail in reversed(kept):
            u, v, w = detail.chunk(3, 1)
            up = torch.zeros(*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3], dtype=x.dtype, device=x.device)
            up[..., ::2, ::2], up[..., ::2, 1::2] = (x + u + v + w) / 2, (x - u + v - w) / 2
            up[..., 1::2, ::2], up[..., 1::2, 1::2] = (x + u - v - w) / 2, (x - u - v + w) / 2
            x = up
        return x


class GridGraph(nn.Module):
    """A convolutional encoder, messages along given edges, and a decoder (as GraphCast, Lam et al. 2023)."""

    edges: torch.Tensor

    def __init__(self, width: int = 8, cells: int = 64) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv2d(2, width, 2, 2), nn.ConvTranspose2d(width, 2, 2, 2)
        self.register_buffer(
            "edges", torch.randint(cells, (2, 3 * cells), generator=torch.Generator().manual_seed(0))
        )
        self.edge = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.LayerNorm(width))
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, 16, 16), one step later."""
        maps = self.encoder(x)
        nodes = maps.flatten(2).transpose(1, 2)
        source, target = self.edges
        messages = self.edge(torch.cat([nodes[:, source], nodes[:, target]], -1))
        gathered = torch.zeros_like(nodes).index_add(1, target, messages)
        nodes = nodes + self.node(torch.cat([nodes, gathered], -1))
        return x + self.decoder(nodes.transpose(1, 2).reshape(maps.shape))


class GraphAttention(nn.Module):
    """Attention along the edges of a dense adjacency, of cells of a map (GAT, Velickovic et al. 2018)."""

    adjacency: torch.Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.lin = nn.Conv2d(1, width, 3, 2, 1), nn.Linear(width, width, bias=False)
        self.source, self.target = (
            nn.Parameter(torch.randn(width, 1) * 0.3),
            nn.Parameter(torch.randn(width, 1) * 0.3),
        )
        self.register_buffer(
            "adjacency",
            (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.1) | torch.eye(64).bool(),
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, 16, 16); (b, 3)."""
        h = self.lin(self.stem(x).flatten(2).transpose(1, 2))
        scores = functional.leaky_relu(h @ self.source + (h @ self.target).transpose(1, 2), 0.2)
        scores = torch.where(self.adjacency, scores, -9e15 * torch.ones_like(scores))
        return self.head(functional.elu(functional.softmax(scores, dim=2) @ h).mean(1))


class StGcn(nn.Module):
    """Joints of a skeleton: products with adjacencies, then convolutions over time (Yan et al. 2018)."""

    A: torch.Tensor

    def __init__(self, width: int = 8, joints: int = 7, parts: int = 3) -> None:
        super().__init__()
        self.register_buffer(
            "A", torch.rand(parts, joints, joints, generator=torch.Generator().manual_seed(0))
        )
        self.importance, self.parts = nn.Parameter(torch.ones_like(self.A)), parts
        self.norm, self.gcn = nn.BatchNorm1d(3 * joints), nn.Conv2d(3, width * parts, 1)
        self.tcn = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, (5, 1), (2, 1), (2, 0)),
            nn.BatchNorm2d(width),
        )
        self.residual, self.head = nn.Conv2d(3, width, 1, (2, 1)), nn.Conv2d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, t, joints, people); (b, 4)."""
        n, c, t, v, m = x.size()
        x = self.norm(x.permute(0, 4, 3, 1, 2).contiguous().view(n * m, v * c, t))
        x = x.view(n, m, v, c, t).permute(0, 1, 3, 4, 2).contiguous().view(n * m, c, t, v)
        y = self.gcn(x)
        y = y.view(n * m, self.parts, -1, t, v)
        y = torch.einsum("nkctv,kvw->nctw", (y, self.A * self.importance)).contiguous()
        x = functional.relu(self.tcn(y) + self.residual(x))
        x = functional.avg_pool2d(x, x.size()[2:]).view(n, m, -1, 1, 1).mean(dim=1)
        return self.head(x).view(n, -1)


class EdgeConv(nn.Module):
    """Nearest neighbours in the features themselves (DGCNN, Wang et al. 2019)."""

    def __init__(self, width: int = 8, k: int = 3) -> None:
        super().__init__()
        self.k = k
        self.conv1 = nn.Sequential(
            nn.Conv2d(6, width, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)
        )
        self.conv2 = nn.Sequential(
            nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)
        )
        self.head = nn.Linear(2 * width, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2 c, points, k)"""
        b, c, n = x.shape
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        xx = torch.sum(x**2, dim=1, keepdim=True)
        idx = (-xx - inner - xx.transpose(2, 1)).topk(k=self.k, dim=-1)[1]
        idx = (idx + torch.arange(0, b, device=x.device).view(-1, 1, 1) * n).view(-1)
        x = x.transpose(2, 1).contiguous()
        near = x.view(b * n, -1)[idx, :].view(b, n, self.k, c)
        x = x.view(b, n, 1, c).repeat(1, 1, self.k, 1)
        return torch.cat((near - x, x), dim=3).permute(0, 3, 1, 2).contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, points); (b, 3)."""
        one = self.conv1(self.features(x)).max(dim=-1, keepdim=False)[0]
        two = self.conv2(self.features(one)).max(dim=-1, keepdim=False)[0]
        return self.head(torch.cat((one, two), 1).max(dim=-1)[0])


class PointNet(nn.Module):
    """A learned transform of the points, and a maximum over them (Qi et al. 2017)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.t1, self.t2 = (
            nn.Sequential(nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU()),
            nn.Linear(width, 9),
        )
        self.conv = nn.Sequential(
            nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, width, 1)
        )
        self.segment = nn.Conv1d(2 * width, 4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        """(b, 3, n); the class of each point (b, n, 4), and the transform."""
        n = x.size()[2]
        transform = self.t2(torch.max(self.t1(x), 2)[0])
        transform = (
            transform + torch.eye(3, dtype=x.dtype, device=x.device).view(1, 9).repeat(x.size(0), 1)
        ).view(-1, 3, 3)
        points = self.conv(torch.bmm(x.transpose(2, 1), transform).transpose(2, 1))
        whole = torch.max(points, 2, keepdim=True)[0].repeat(1, 1, n)
        return functional.log_softmax(
            self.segment(torch.cat([points, whole], 1)).transpose(2, 1).contiguous(), dim=-1
        ), transform


class NeuralOde(nn.Module):
    """Four steps of Runge-Kutta, with the time as a channel (Chen et al. 2018)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.one, self.other = (
            nn.Conv2d(width + 1, width, 3, padding=1),
            nn.Conv2d(width + 1, width, 3, padding=1),
        )
        self.first, self.head = nn.Conv2d(1, width, 3, 2, 1), nn.Linear(width, 3)

    def change(self, t: float, x: torch.Tensor) -> torch.Tensor:
        """The derivative at a time."""
        tt = torch.ones_like(x[:, :1, :, :]) * t
        y = torch.cat([tt, functional.softplus(self.one(torch.cat([tt, x], 1)))], 1)
        return self.other(y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w); (b, 3)."""
        x, dt = self.first(x), 0.5
        for n in range(2):
            k1 = self.change(n * dt, x)
            k2 = self.change((n + 0.5) * dt, x + dt * k1 / 2)
            k3 = self.change((n + 0.5) * dt, x + dt * k2 / 2)
            k4 = self.change((n + 1) * dt, x + dt * k3)
            x = x + dt * (k1 + 2 * k2 + 2 * k3 + k4) / 6
        return self.head(x.mean((2, 3)))


class RotationGroup(nn.Module):
    """Weights turned by quarter turns: a lifting and a group convolution (Cohen and Welling 2016)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.lift, self.group = (
            nn.Parameter(torch.randn(width, 1, 3, 3) * 0.3),
            nn.Parameter(torch.randn(width, width, 4, 3, 3) * 0.1),
        )
        self.norm, self.head = nn.BatchNorm3d(width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w); (b, 3), unchanged by quarter turns."""
        width = self.lift.shape[0]
        filters = torch.stack([torch.rot90(self.lift, n, (2, 3)) for n in range(4)], 1).flatten(0, 1)
        x = functional.relu(functional.conv2d(x, filters, padding=1))
        turned = [torch.rot90(self.group.roll(n, 2), n, (3, 4)) for n in range(4)]
        x = functional.conv2d(x, torch.stack(turned, 1).reshape(4 * width, 4 * width, 3, 3), padding=1)
        x = functional.relu(self.norm(x.view(x.shape[0], width, 4, *x.shape[2:])))
        return self.head(x.amax(2).mean((2, 3)))


def entries() -> list[Entry]:
    """All models."""
    measured = torch.tensor([True, False, True, True] * 4)
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        ("FNO, 1-D, complex weights", lambda: Fno(1), (2, 32, 1)),
        ("FNO, 2-D, complex weights", lambda: Fno(2), (2, 16, 16, 1)),
        ("U-FNO", lambda: Fno(2, unet=True), (1, 16, 16, 1)),
        ("TFNO", TuckerFno, (2, 1, 12, 12)),
        ("AFNO", Afno, (2, 2, 16, 16)),
        ("complex U-Net", ComplexUnet, (2, 2, 16, 16)),
        ("MRI, unrolled", Mri, ((2, 16, 16, 2), measured)),
        ("Galerkin transformer", Galerkin, (2, 1, 12, 12)),
        ("wavelets", MultigridWavelet, (1, 2, 16, 16)),
        ("messages on a grid", GridGraph, (2, 2, 16, 16)),
        ("graph attention", GraphAttention, (2, 1, 16, 16)),
        ("ST-GCN", StGcn, (2, 3, 8, 7, 2)),
        ("DGCNN", EdgeConv, (2, 3, 24)),
        ("PointNet", PointNet, (2, 3, 24)),
        ("neural ODE", NeuralOde, (2, 1, 16, 16)),
        ("rotation group", RotationGroup, (2, 1, 12, 12)),
    ]
    return [Entry("operators", name, make, given) for name, make, given in made]
