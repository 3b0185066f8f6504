"""Generators, autoencoders, flows and networks that make weights, as papers and public code have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry


class Modulated(nn.Module):
    """A convolution whose weights are scaled for each sample, by groups (StyleGAN2, Karras et al. 2020)."""

    noise: torch.Tensor

    def __init__(self, ins: int, outs: int, style: int, size: int, up: bool) -> None:
        super().__init__()
        self.up, self.weight = up, nn.Parameter(torch.randn(1, outs, ins, 3, 3))
        self.style, self.strength = nn.Linear(style, ins), nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(outs))
        self.register_buffer("noise", torch.randn(size, size))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """(b, ins, h, w)"""
        b, c, h, width = x.shape
        weight = self.weight * (self.style(w) + 1).view(b, 1, c, 1, 1) / math.sqrt(9 * c)
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8).view(b, -1, 1, 1, 1)
        x = x.reshape(1, b * c, h, width)
        if self.up:
            weight = weight.transpose(1, 2).reshape(b * c, -1, 3, 3)
            x = functional.conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1, groups=b)
        else:
            x = functional.conv2d(x, weight.reshape(-1, c, 3, 3), padding=1, groups=b)
        x = x.reshape(b, -1, *x.shape[2:]) + self.noise * self.strength
        return functional.leaky_relu(x + self.bias.view(1, -1, 1, 1), 0.2) * math.sqrt(2)


class StyleGan(nn.Module):
    """A mapping, a constant that begins all images, and skips to RGB."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.LeakyReLU(0.2))
        self.constant = nn.Parameter(torch.randn(1, width, 4, 4))
        self.first = Modulated(width, width, 8, 4, False)
        self.ups = nn.ModuleList(Modulated(width, width, 8, 8 * 2**n, True) for n in range(2))
        self.rgb = nn.ModuleList(nn.Conv2d(width, 3, 1) for _ in range(3))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """(b, 8); (b, 3, 16, 16)."""
        w = self.mapping(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        x = self.first(self.constant.repeat(z.shape[0], 1, 1, 1), w)
        image = self.rgb[0](x)
        for up, rgb in zip(self.ups, list(self.rgb)[1:], strict=True):
            x = up(x, w)
            image = functional.interpolate(image, scale_factor=2, mode="bilinear") + rgb(x)
        return image


class StyleDiscriminator(nn.Module):
    """Blurred downsampling, and the deviation within groups of the batch as a channel."""

    kernel: torch.Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.register_buffer("kernel", (taps[None] * taps[:, None] / 64).view(1, 1, 4, 4))
        self.first, self.conv = nn.Conv2d(3, width, 1), nn.Conv2d(width, width, 3, 2)
        self.skip, self.last = nn.Conv2d(width, width, 1, 2), nn.Conv2d(width + 1, width, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(width * 64, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def blurred(self, x: torch.Tensor, pad: tuple[int, int]) -> torch.Tensor:
        """Each channel, blurred."""
        rows = functional.pad(x, pad * 2).flatten(0, 1).unsqueeze(1)
        made = functional.conv2d(rows, self.kernel)
        return made.view(x.shape[0], x.shape[1], *made.shape[2:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, 16, 16), b even; (b, 1)."""
        x = functional.leaky_relu(self.first(x), 0.2)
        x = (
            functional.leaky_relu(self.conv(self.blurred(x, (2, 2))), 0.2)
            + self.skip(self.blurred(x, (1, 1)))
        ) / math.sqrt(2)
        b, c, h, w = x.shape
        groups = x.view(2, -1, 1, c, h, w)
        deviation = torch.sqrt(groups.var(0, unbiased=False) + 1e-8).mean([2, 3, 4], keepdim=True).squeeze(2)
        x = torch.cat([x, deviation.repeat(2, 1, h, w)], 1)
        return self.head(functional.leaky_relu(self.last(x), 0.2).view(b, -1))


class BigGan(nn.Module):
    """Batch norms that a class conditions, spectral norms, self-attention (Brock et al. 2019)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.classes, self.first = nn.Embedding(5, 4), norm(nn.Linear(4, width * 16))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, affine=False) for _ in range(2))
        self.gains, self.shifts = (
            nn.ModuleList(norm(nn.Linear(8, width, bias=False)) for _ in range(2)) for _ in range(2)
        )
        self.convs = nn.ModuleList(norm(nn.Conv2d(width, width, 3, padding=1)) for _ in range(2))
        self.theta, self.phi, self.g, self.o = (
            norm(nn.Conv2d(i, o, 1, bias=False)) for i, o in ((8, 2), (8, 2), (8, 4), (4, 8))
        )
        self.gamma, self.rgb = nn.Parameter(torch.tensor(0.5)), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """z (b, 4), y (b); (b, 3, 16, 16)."""
        condition = torch.cat([z, self.classes(y)], 1)
        x = self.first(z).view(z.size(0), -1, 4, 4)
        for n, conv in enumerate(self.convs):
            gain, shift = (
                (1 + self.gains[n](condition))[:, :, None, None],
                self.shifts[n](condition)[:, :, None, None],
            )
            x = conv(functional.interpolate(functional.relu(self.norms[n](x) * gain + shift), scale_factor=2))
            if n == 0:
                b, c, h, w = x.shape
                theta = self.theta(x).view(b, -1, h * w)
                phi, g = (functional.max_pool2d(f(x), 2).view(b, -1, h * w // 4) for f in (self.phi, self.g))
                beta = functional.softmax(torch.bmm(theta.transpose(1, 2), phi), -1)
                x = self.gamma * self.o(torch.bmm(g, beta.transpose(1, 2)).view(b, c // 2, h, w)) + x
        return torch.tanh(self.rgb(functional.relu(x)))


class Equalized(nn.Module):
    """A generator of a progressive GAN: equalized rates, pixel norms, a faded last resolution."""

    alpha: torch.Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, width, 3, 3)) for _ in range(3))
        self.first, self.rgb = (
            nn.ConvTranspose2d(width, width, 4),
            nn.ModuleList(nn.Conv2d(width, 3, 1) for _ in range(2)),
        )
        self.register_buffer("alpha", torch.tensor(0.3))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """(b, width, 1, 1); (b, 3, 16, 16)."""
        x, old = self.first(z), torch.empty(0)
        for n, weight in enumerate(self.weights):
            if n:
                old, x = self.rgb[0](x), functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = functional.leaky_relu(
                functional.conv2d(x, weight * math.sqrt(2 / weight[0].numel()), padding=1), 0.2
            )
            x = x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8)
        up = functional.interpolate(old, scale_factor=2)
        return torch.lerp(up, self.rgb[1](x), self.alpha)


class CycleGan(nn.Module):
    """A generator with residual blocks and its patch discriminator, on both domains in one forward pass."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.ab, self.ba = self._generator(width), self._generator(width)
        self.judge = nn.Sequential(
            *(nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(width, width, 4, 1, 1)),
            *(nn.InstanceNorm2d(width), nn.LeakyReLU(0.2, True), nn.Conv2d(width, 1, 4, 1, 1)),
        )

    @staticmethod
    def _generator(width: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, width, 3, 2, 1), nn.InstanceNorm2d(width), nn.ReLU(True)),
            *(nn.ConvTranspose2d(width, width, 3, 2, 1, 1), nn.InstanceNorm2d(width), nn.ReLU(True)),
            *(nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh()),
        )

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        """Images of both domains; cycles, identities and judgements."""
        fake = self.ab(a)
        return {
            "cycle": self.ba(fake),
            "identity": self.ab(b),
            "judged": self.judge(fake),
            "real": self.judge(b),
        }


class VqVae(nn.Module):
    """The nearest code of each place, with a straight-through gradient (van den Oord et al. 2017)."""

    def __init__(self, width: int = 8, codes: int = 12) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)
        )
        self.codes = nn.Embedding(codes, width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
        )

    def forward(self, x: torch.Tensor) -> Any:
        """The loss of codes, the image again, and the perplexity."""
        inputs = self.encoder(x).permute(0, 2, 3, 1).contiguous()
        flat = inputs.view(-1, inputs.shape[-1])
        distances = (
            (flat**2).sum(1, keepdim=True) + (self.codes.weight**2).sum(1) - 2 * flat @ self.codes.weight.t()
        )
        where = torch.argmin(distances, dim=1).unsqueeze(1)
        hot = torch.zeros(where.shape[0], len(self.codes.weight), device=x.device, dtype=x.dtype).scatter_(
            1, where, 1
        )
        quantized = torch.matmul(hot, self.codes.weight).view(inputs.shape)
        loss = functional.mse_loss(quantized, inputs.detach()) + 0.25 * functional.mse_loss(
            quantized.detach(), inputs
        )
        quantized = inputs + (quantized - inputs).detach()
        used = hot.mean(0)
        return (
            loss,
            self.decoder(quantized.permute(0, 3, 1, 2).contiguous()),
            torch.exp(-(used * torch.log(used + 1e-10)).sum()),
        )


class LadderVae(nn.Module):
    """Two levels of latents with noise from inputs, and their divergence (Sonderby et al. 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.ModuleList([nn.Conv2d(1, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1)])
        self.top, self.low = nn.Conv2d(width, 4, 1), nn.Conv2d(2 * width, 4, 1)
        self.prior, self.down = nn.Conv2d(2, 4, 1), nn.ConvTranspose2d(2, width, 4, 2, 1)
        self.out = nn.ConvTranspose2d(width + 2, 1, 4, 2, 1)

    def forward(self, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> Any:
        """x (b, 1, 16, 16), noise (b, 2, 4, 4) and (b, 2, 8, 8); the image, and divergences."""
        fine = functional.elu(self.up[0](x))
        mu, logvar = self.top(functional.elu(self.up[1](fine))).chunk(2, 1)
        z = mu + torch.exp(0.5 * logvar) * high
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=(1, 2, 3))
        above = functional.elu(self.down(z))
        p_mu, p_logvar = functional.interpolate(self.prior(z), scale_factor=2).chunk(2, 1)
        q_mu, q_logvar = self.low(torch.cat([fine, above], 1)).chunk(2, 1)
        q_logvar = q_logvar.clamp(-5, 3)
        below = q_mu + (0.5 * q_logvar).exp() * low
        ratio = (q_logvar - p_logvar).exp() + (q_mu - p_mu) ** 2 / p_logvar.exp()
        return self.out(torch.cat([above, below], 1)).sigmoid(), kl + 0.5 * (
            p_logvar - q_logvar + ratio - 1
        ).sum((1, 2, 3))


class RealNvp(nn.Module):
    """Affine couplings by a checkerboard and by channels, with the log-determinant (Dinh et al. 2017)."""

    mask: torch.Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("mask", (torch.arange(8)[:, None] + torch.arange(8)[None]).remainder(2).float())
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, o, 3, padding=1))
            for c, o in ((2, 4), (2, 4), (4, 8))
        )
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        """(b, 2, 8, 8); latents (b, 8, 4, 4) and the log-determinant (b)."""
        x = torch.logit(0.05 + 0.9 * x.sigmoid())
        total = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        for n in range(2):
            mask = self.mask if n == 0 else 1 - self.mask
            s, t = self.nets[n](x * mask).chunk(2, 1)
            s = self.scales[n] * torch.tanh(s) * (1 - mask)
            x = x * mask + (1 - mask) * (x * torch.exp(s) + t)
            total += s.flatten(1).sum(-1)
        b, c, h, w = x.shape
        x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, 4 * c, h // 2, w // 2)
        change, kept = x.chunk(2, 1)
        s, t = self.nets[2](kept).chunk(2, 1)
        s = self.scales[2] * torch.tanh(s)
        return torch.cat((change * s.exp() + t, kept), 1), total + s.flatten(1).sum(-1)


class Glow(nn.Module):
    """Activation norms, invertible 1 x 1 convolutions with slogdet, couplings (Kingma and Dhariwal 2018)."""

    def __init__(self, channels: int = 4, width: int = 8) -> None:
        super().__init__()
        self.loc, self.log_scale = (
            nn.ParameterList(nn.Parameter(torch.zeros(1, channels, 1, 1)) for _ in range(2)) for _ in range(2)
        )
        self.mixes = nn.ParameterList(
            nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0]) for _ in range(2)
        )
        self.nets = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels // 2, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, channels, 3, padding=1),
            )
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> Any:
        """(b, 4, h, w); latents and the log-determinant (b)."""
        b, c, h, w = x.shape
        logdet: Any = 0
        for loc, scale, mix, net in zip(self.loc, self.log_scale, self.mixes, self.nets, strict=True):
            x = (x + loc) * scale.exp()
            x = functional.conv2d(x, mix.view(c, c, 1, 1))
            logdet = logdet + h * w * (scale.sum() + torch.linalg.slogdet(mix)[1])
            one, other = x.chunk(2, 1)
            s, t = net(one).chunk(2, 1)
            s = torch.sigmoid(s + 2)
            x = torch.cat([one, (other + t) * s], 1)
            logdet = logdet + torch.log(s).view(b, -1).sum(1)
        return x, logdet


class CapsNet(nn.Module):
    """Capsules that route by agreement (Sabour et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 8, 5), nn.ModuleList(nn.Conv2d(8, 4, 5, 2) for _ in range(2))
        self.weight = nn.Parameter(0.1 * torch.randn(1, 64, 3, 4, 2))

    @staticmethod
    def squash(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The same directions, shorter than one."""
        square = (x**2).sum(dim, keepdim=True)
        return square / (1 + square) * x / (torch.sqrt(square) + 1e-8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, 16, 16); the length of each of three capsules."""
        x = functional.relu(self.conv(x))
        u = torch.stack([capsule(x).view(x.size(0), -1) for capsule in self.primary], -1)
        u_hat = torch.matmul(self.weight, self.squash(u)[:, :, None, :, None]).squeeze(-1)
        still, logits = u_hat.detach(), torch.zeros(x.size(0), 64, 3, 1, dtype=x.dtype, device=x.device)
        for _ in range(2):
            made = self.squash((logits.softmax(2) * still).sum(1))
            logits = logits + torch.matmul(still.unsqueeze(3), made[:, None, :, :, None]).squeeze(-1)
        return self.squash((logits.softmax(2) * u_hat).sum(1)).norm(dim=-1)


class HyperNetwork(nn.Module):
    """A small network makes the weights of a convolution from a learned embedding (Ha et al. 2017)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width, self.stem = width, nn.Conv2d(3, width, 3, padding=1)
        self.z = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(2))
        self.inner, self.outer = nn.Linear(4, width * 4), nn.Linear(4, width * 9)
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w); (b, 5)."""
        x = self.stem(x)
        for z in self.z:
            kernel = self.outer(self.inner(z).view(self.width, 4)).view(self.width, self.width, 3, 3)
            x = x + functional.relu(functional.conv2d(x, kernel, padding=1))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class PixelCnn(nn.Module):
    """Masked convolutions, of vertical and horizontal stacks with gates (van den Oord et al. 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = _Masked("A", 1, width, 7, padding=3)
        self.vertical = nn.Conv2d(width, 2 * width, (2, 3), padding=(2, 1))
        self.link, self.horizontal = (
            nn.Conv2d(2 * width, 2 * width, 1),
            _Masked("B", width, 2 * width, (1, 3), padding=(0, 1)),
        )
        self.last = nn.Conv2d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, h, w); (b, 4, h, w)."""
        x = self.first(x)
        down = self.vertical(x)[:, :, : x.size(2), :]
        one, other = (self.horizontal(x) + self.link(functional.pad(down, (0, 0, 1, 0))[:, :, :-1])).chunk(
            2, 1
        )
        return self.last(functional.relu(x + torch.tanh(one) * torch.sigmoid(other)))


class _Masked(nn.Conv2d):
    """A convolution that sees only what comes before."""

    mask: torch.Tensor

    def __init__(self, kind: str, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.register_buffer("mask", torch.ones_like(self.weight.data))
        h, w = self.weight.shape[2:]
        self.mask[:, :, h // 2, w // 2 + (kind == "B") :] = 0
        self.mask[:, :, h // 2 + 1 :] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As `nn.Conv2d`."""
        self.weight.data *= self.mask
        return super().forward(x)


class Edm(nn.Module):
    """A denoiser, preconditioned by the noise of each sample, with labels (Karras et al. 2022)."""

    frequencies: torch.Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(4) * 2)
        self.embed, self.labels = (
            nn.Sequential(nn.Linear(8, width), nn.SiLU()),
            nn.Linear(3, width, bias=False),
        )
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.norm, self.mid, self.affine = (
            nn.GroupNorm(2, width),
            nn.Conv2d(width, width, 3, padding=1),
            nn.Linear(width, 2 * width),
        )

    def forward(self, x: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """x (b, 1, h, w), sigma (b), labels (b); the image without noise."""
        sigma = (sigma.square() + 0.1).reshape(-1, 1, 1, 1)
        skip, scale = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / (sigma**2 + 0.25).sqrt()
        phase = (sigma.log() / 4).flatten().outer(self.frequencies * 2 * math.pi)
        emb = self.embed(torch.cat([phase.cos(), phase.sin()], 1))
        emb = emb + self.labels(functional.one_hot(labels, 3).to(x.dtype) * math.sqrt(3))
        h = self.first(x / (0.25 + sigma**2).sqrt())
        gain, shift = self.affine(emb).unsqueeze(2).unsqueeze(3).chunk(2, 1)
        h = h + self.mid(functional.silu(torch.addcmul(shift, self.norm(h), gain + 1)))
        return skip * x + scale * self.last(functional.silu(h))


def entries() -> list[Entry]:
    """All models."""
    labels = torch.tensor([0, 2])
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        ("StyleGAN2 generator", StyleGan, (2, 8)),
        ("StyleGAN2 discriminator", StyleDiscriminator, (4, 3, 16, 16)),
        ("BigGAN generator", BigGan, ((2, 4), labels)),
        ("progressive GAN generator", Equalized, (2, 8, 1, 1)),
        ("CycleGAN", CycleGan, ((1, 3, 16, 16), (1, 3, 16, 16))),
        ("VQ-VAE, straight through", VqVae, (2, 3, 16, 16)),
        ("ladder VAE", LadderVae, ((2, 1, 16, 16), (2, 2, 4, 4), (2, 2, 8, 8))),
        ("RealNVP", RealNvp, (2, 2, 8, 8)),
        ("Glow", Glow, (2, 4, 8, 8)),
        ("CapsNet", CapsNet, (2, 1, 16, 16)),
        ("hypernetwork", HyperNetwork, (2, 3, 16, 16)),
        ("gated PixelCNN", PixelCnn, (2, 1, 12, 12)),
        ("EDM denoiser", Edm, ((2, 1, 16, 16), (2,), labels)),
    ]
    return [Entry("generation", name, make, given) for name, make, given in made]
