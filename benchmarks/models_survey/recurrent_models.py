"""Recurrent models, and models of signals, written out as their papers and public code have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models_survey.entry import Entry

FILM, SIGNAL = (2, 3, 2, 16, 16), (2, 1, 128)


class ConvGru(nn.Module):
    """A convolutional GRU that encodes frames, and rolls two of them out (Ballas et al. 2016)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 + width, 2 * width, 3, padding=1)
        self.new = nn.Conv2d(2 + width, width, 3, padding=1)
        self.out, self.width = nn.Conv2d(width, 2, 1), width

    def cell(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """The next state."""
        reset, update = torch.split(torch.sigmoid(self.gates(torch.cat([x, h], 1))), self.width, 1)
        return (1 - update) * h + update * torch.tanh(self.new(torch.cat([x, reset * h], 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, t, 2, h, w); (b, 2, 2, h, w)."""
        state = torch.zeros(x.size(0), self.width, x.size(3), x.size(4), device=x.device, dtype=x.dtype)
        for t in range(x.size(1)):
            state = self.cell(x[:, t], state)
        frame, made = self.out(state), []
        for _ in range(2):
            state = self.cell(frame, state)
            frame = self.out(state)
            made.append(frame)
        return torch.stack(made, 1)


class PredRnn(nn.Module):
    """Two layers of spatiotemporal LSTM that share one memory (Wang et al. 2017)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.x = nn.ModuleList(nn.Conv2d(c, 7 * width, 3, padding=1) for c in (2, width))
        self.h = nn.ModuleList(nn.Conv2d(width, 4 * width, 3, padding=1) for _ in range(2))
        self.m = nn.ModuleList(nn.Conv2d(width, 3 * width, 3, padding=1) for _ in range(2))
        self.o = nn.ModuleList(nn.Conv2d(2 * width, width, 3, padding=1) for _ in range(2))
        self.mix = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for _ in range(2))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, film: torch.Tensor) -> torch.Tensor:
        """(b, t, 2, h, w); the next frame of each."""
        b, t, _, rows, columns = film.shape
        zeros = film.new_zeros(b, self.width, rows, columns)
        hidden, cells, memory, made = [zeros, zeros], [zeros, zeros], zeros, []
        for step in range(t):
            x = film[:, step]
            for n in range(2):
                ix, fx, gx, i2, f2, g2, ox = self.x[n](x).chunk(7, 1)
                ih, fh, gh, oh = self.h[n](hidden[n]).chunk(4, 1)
                im, fm, gm = self.m[n](memory).chunk(3, 1)
                cells[n] = torch.sigmoid(fx + fh + 1) * cells[n] + torch.sigmoid(ix + ih) * torch.tanh(
                    gx + gh
                )
                memory = torch.sigmoid(f2 + fm + 1) * memory + torch.sigmoid(i2 + im) * torch.tanh(g2 + gm)
                both = torch.cat([cells[n], memory], 1)
                hidden[n] = torch.sigmoid(ox + oh + self.o[n](both)) * torch.tanh(self.mix[n](both))
                x = hidden[n]
            made.append(self.last(x))
        return torch.stack(made, 1)


class PeepholeLstm(nn.Module):
    """A convolutional LSTM whose gates see the cell, by weights of each place (Shi et al. 2015)."""

    def __init__(self, width: int = 4, size: int = 16) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 + width, 4 * width, 3, padding=1)
        self.ci, self.cf, self.co = (nn.Parameter(torch.zeros(1, width, size, size)) for _ in range(3))
        self.start = nn.Parameter(torch.zeros(1, width, 1, 1))

    def forward(self, film: torch.Tensor) -> torch.Tensor:
        """(b, t, 2, h, w); all states (b, t, width, h, w)."""
        h = c = self.start.expand(film.size(0), -1, *film.shape[3:])
        states = []
        for x in torch.unbind(film, 1):
            i, f, g, o = torch.chunk(self.gates(torch.cat((x, h), 1)), 4, 1)
            c_next = torch.sigmoid(f + self.cf * c) * c + torch.sigmoid(i + self.ci * c) * torch.tanh(g)
            h, c = torch.sigmoid(o + self.co * c_next) * torch.tanh(c_next), c_next
            states.append(h)
        return torch.stack(states, dim=1)


class Crnn(nn.Module):
    """Columns of a picture through a bidirectional LSTM, for CTC (Shi et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d((2, 1), (2, 1))),
            nn.Conv2d(16, 16, (4, 1)),
        )
        self.lstm = nn.LSTM(16, 8, 2, bidirectional=True)
        self.head = nn.Linear(16, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, 16, w); log-probabilities (w / 2, b, 11)."""
        columns = self.features(x).squeeze(2).permute(2, 0, 1)
        made, _ = self.lstm(columns)
        return functional.log_softmax(self.head(made), dim=2)


class AttendAndTell(nn.Module):
    """An LSTM cell that looks at a map before each word (Xu et al. 2015)."""

    def __init__(self, width: int = 8, words: int = 12) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1)
        )
        self.words, self.cell = nn.Embedding(words, width), nn.LSTMCell(2 * width, width)
        self.first = nn.Linear(width, 2 * width)
        self.key, self.query, self.score = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
        )
        self.head = nn.Linear(width, words)

    def forward(self, image: torch.Tensor, caption: torch.Tensor) -> Any:
        """Words (b, t, words), and what was looked at."""
        places = self.encoder(image).flatten(2).permute(0, 2, 1)
        h, c = self.first(places.mean(dim=1)).chunk(2, 1)
        embedded, made, looked = self.words(caption), [], []
        for t in range(caption.size(1)):
            alpha = (
                self.score(torch.tanh(self.key(places) + self.query(h).unsqueeze(1))).squeeze(2).softmax(1)
            )
            context = (places * alpha.unsqueeze(2)).sum(dim=1)
            h, c = self.cell(torch.cat([embedded[:, t], context], dim=1), (h, c))
            made.append(self.head(h))
            looked.append(alpha)
        return torch.stack(made, 1), torch.stack(looked, 1)


class Impala(nn.Module):
    """A residual policy with an LSTM whose state episodes reset, and two heads (Espeholt et al. 2018)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, width, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        self.block = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        self.fc, self.cell = nn.Linear(width * 64, 16), nn.LSTMCell(16 + 4 + 1, 16)
        self.policy, self.value = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(
        self, frame: torch.Tensor, reward: torch.Tensor, action: torch.Tensor, done: torch.Tensor
    ) -> Any:
        """frame (t, b, 3, 16, 16), the others (t, b); logits and values."""
        t, b = frame.shape[:2]
        x = self.pool(self.stem(torch.flatten(frame, 0, 1)))
        x = functional.relu(self.fc(functional.relu(x + self.block(x)).view(t * b, -1)))
        hot = functional.one_hot(action.view(t * b), 4).to(x.dtype)
        core = torch.cat([x, torch.clamp(reward, -1, 1).view(t * b, 1), hot], -1).view(t, b, -1)
        h = c = x.new_zeros(b, 16)
        made = []
        for step, alive in zip(core.unbind(), (~done).to(x.dtype).unbind(), strict=True):
            h, c = self.cell(step, (alive.view(-1, 1) * h, alive.view(-1, 1) * c))
            made.append(h)
        flat = torch.flatten(torch.stack(made), 0, 1)
        return self.policy(flat).view(t, b, -1), self.value(flat).view(t, b)


class ConvTasNet(nn.Module):
    """Masks of a learned basis by dilated depthwise blocks (Luo and Mesgarani 2019)."""

    def __init__(self, basis: int = 8, width: int = 8, speakers: int = 2) -> None:
        super().__init__()
        self.speakers, self.encoder = speakers, nn.Conv1d(1, basis, 16, 8, bias=False)
        self.norm, self.bottle = nn.GroupNorm(1, basis, eps=1e-8), nn.Conv1d(basis, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv1d(width, 2 * width, 1), nn.PReLU(), nn.GroupNorm(1, 2 * width)),
                nn.Conv1d(2 * width, 2 * width, 3, padding=2**n, dilation=2**n, groups=2 * width),
                *(nn.PReLU(), nn.GroupNorm(1, 2 * width)),
            )
            for n in range(3)
        )
        self.residual = nn.ModuleList(nn.Conv1d(2 * width, width, 1) for _ in range(3))
        self.skip = nn.ModuleList(nn.Conv1d(2 * width, width, 1) for _ in range(3))
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(width, speakers * basis, 1))
        self.decoder = nn.ConvTranspose1d(basis, 1, 16, 8, bias=False)

    def forward(self, mixture: torch.Tensor) -> torch.Tensor:
        """(b, 1, t); (b, speakers, t)."""
        b, _, t = mixture.shape
        spectrum = functional.relu(self.encoder(mixture))
        y, total = self.bottle(self.norm(spectrum)), 0.0
        for block, residual, skip in zip(self.blocks, self.residual, self.skip, strict=True):
            inner = block(y)
            y, total = y + residual(inner), total + skip(inner)
        masks = torch.relu(self.masks(total)).view(b, self.speakers, -1, spectrum.size(-1))
        made = (spectrum.unsqueeze(1) * masks).view(b * self.speakers, -1, spectrum.size(-1))
        made = self.decoder(made).view(b, self.speakers, -1)
        return functional.pad(made, (0, t - made.size(-1)))


class Demucs(nn.Module):
    """Gated strided convolutions, an LSTM between, and trimmed skips (Defossez et al. 2019)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(
            nn.Sequential(nn.Conv1d(i, o, 8, 4), nn.ReLU(), nn.Conv1d(o, 2 * o, 1), nn.GLU(dim=1))
            for i, o in ((2, width), (width, 2 * width))
        )
        self.decoder = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(i, 2 * i, 3, padding=1), nn.GLU(dim=1), nn.ConvTranspose1d(i, o, 8, 4), *last
            )
            for i, o, last in ((2 * width, width, [nn.ReLU()]), (width, 8, []))
        )
        self.lstm, self.linear = (
            nn.LSTM(2 * width, 2 * width, 1, bidirectional=True),
            nn.Linear(4 * width, 2 * width),
        )

    def forward(self, mix: torch.Tensor) -> torch.Tensor:
        """(b, 2, t); (b, 4, 2, .), four sources."""
        mono = mix.mean(dim=1, keepdim=True)
        mean, std = mono.mean(dim=-1, keepdim=True), mono.std(dim=-1, keepdim=True)
        x, saved = (mix - mean) / (1e-5 + std), []
        for encode in self.encoder:
            x = encode(x)
            saved.append(x)
        x = self.linear(self.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for decode in self.decoder:
            skip = saved.pop(-1)
            extra = skip.size(-1) - x.size(-1)
            x = decode(x + skip[..., extra // 2 : skip.size(-1) - (extra - extra // 2)])
        x = x * std + mean
        return x.view(x.size(0), 4, 2, x.size(-1))


class HifiGan(nn.Module):
    """Upsampled spectra, and the mean of residual blocks of several dilations (Kong et al. 2020)."""

    def __init__(self, mels: int = 8, width: int = 16) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.pre = norm(nn.Conv1d(mels, width, 7, 1, 3))
        self.ups = nn.ModuleList(
            norm(nn.ConvTranspose1d(width >> n, width >> n + 1, 8, 4, 2)) for n in range(2)
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                norm(nn.Conv1d(width >> n + 1, width >> n + 1, k, padding=k // 2 * d, dilation=d))
                for k, d in ((3, 1), (5, 3))
            )
            for n in range(2)
        )
        self.post = norm(nn.Conv1d(width >> 2, 1, 7, 1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, mels, t); (b, 1, 16 t)."""
        x = self.pre(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(x + block(functional.leaky_relu(x, 0.1)) for block in blocks) / len(blocks)
        return torch.tanh(self.post(functional.leaky_relu(x)))


class Tcn(nn.Module):
    """Causal convolutions: padding on both sides, and the right end chomped (Bai et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(c, 8, 3, padding=2 * 2**n, dilation=2**n))
            for n, c in enumerate((1, 8, 8))
        )
        self.down, self.head = nn.Conv1d(1, 8, 1), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, t); (b, 3)."""
        for n, layer in enumerate(self.convs):
            residual = self.down(x) if n == 0 else x
            x = functional.relu(functional.relu(layer(x)[:, :, : -2 * 2**n].contiguous()) + residual)
        return self.head(x[:, :, -1])


class SincNet(nn.Module):
    """Band-pass filters made of two learned frequencies each (Ravanelli and Bengio 2018)."""

    window: torch.Tensor
    times: torch.Tensor

    def __init__(self, filters: int = 8, taps: int = 17) -> None:
        super().__init__()
        self.low, self.band = (
            nn.Parameter(torch.linspace(0.02, 0.3, filters)[:, None]),
            nn.Parameter(torch.full((filters, 1), 0.05)),
        )
        half = torch.arange(-(taps // 2), 0).float()
        self.register_buffer("times", 2 * math.pi * half)
        self.register_buffer("window", 0.54 - 0.46 * torch.cos(2 * math.pi * torch.arange(taps // 2) / taps))
        self.next = nn.Sequential(
            nn.BatchNorm1d(filters), nn.LeakyReLU(), nn.Conv1d(filters, 8, 5), nn.MaxPool1d(3)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, t); (b, 4)."""
        low = 0.01 + self.low.abs()
        high = torch.clamp(low + self.band.abs(), 0.01, 0.5)
        left = (torch.sin(high * self.times) - torch.sin(low * self.times)) / (self.times / 2) * self.window
        middle = 2 * (high - low)
        filters = torch.cat([left, middle, left.flip(1)], 1) / (2 * (high - low))
        y = functional.conv1d(x, filters.unsqueeze(1), stride=2, padding=8).abs()
        return self.head(self.next(y).mean(-1))


class OpenUnmix(nn.Module):
    """Spectra of a short-time Fourier transform, masked after an LSTM (Stoter et al. 2019)."""

    window: torch.Tensor

    def __init__(self, bins: int = 16) -> None:
        super().__init__()
        self.bins = bins
        self.register_buffer("window", torch.hann_window(2 * bins))
        self.mean, self.scale = nn.Parameter(torch.zeros(bins + 1)), nn.Parameter(torch.ones(bins + 1))
        self.conv = nn.Sequential(nn.Conv1d(bins + 1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Tanh())
        self.lstm, self.out = nn.LSTM(8, 4, batch_first=True, bidirectional=True), nn.Linear(8, bins + 1)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """(b, 1, t); the spectrum of one source (b, bins + 1, frames)."""
        spectrum = torch.stft(
            signal.squeeze(1), 2 * self.bins, self.bins, window=self.window, return_complex=True
        ).abs()
        x = (spectrum + self.mean[:, None]) * self.scale[:, None]
        x = self.lstm(self.conv(x).transpose(1, 2))[0]
        return functional.relu(self.out(x)).transpose(1, 2) * spectrum


class DualPath(nn.Module):
    """Chunks of a signal, with one GRU inside of them and one across them (Luo et al. 2020)."""

    def __init__(self, width: int = 8, chunk: int = 8) -> None:
        super().__init__()
        self.chunk, self.encoder = chunk, nn.Conv1d(1, width, 8, 4)
        self.inside, self.across = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(2))
        self.decoder = nn.ConvTranspose1d(width, 1, 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1, t), with (t - 8) / 4 + 1 a multiple of the chunk; the same shape."""
        y = functional.relu(self.encoder(x))
        b, n, length = y.shape
        z = y.view(b, n, -1, self.chunk)
        for norm, rnn, order in zip(
            self.norms, (self.inside, self.across), ((0, 2, 3, 1), (0, 3, 2, 1)), strict=True
        ):
            rows = z.permute(*order)
            made = rnn(rows.reshape(-1, rows.size(2), n))[0].view(rows.shape)
            z = z + norm(made.permute(*(order.index(axis) for axis in range(4))))
        return self.decoder(y * torch.sigmoid(z.reshape(b, n, length)))


class ConvS2s(nn.Module):
    """Words through gated convolutions, and a decoder that attends to them (Gehring et al. 2017)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, width), nn.Embedding(16, width)
        self.encoder, self.decoder = nn.Conv1d(width, 2 * width, 3, padding=1), nn.Conv1d(width, 2 * width, 3)
        self.query, self.head = nn.Linear(width, width), nn.Linear(width, 20)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """(b, width, t)"""
        places = torch.arange(ids.size(1), device=ids.device).unsqueeze(0).repeat(ids.size(0), 1)
        return (self.words(ids) + self.places(places)).permute(0, 2, 1)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(b, t, 20)"""
        x = self.embedded(source)
        memory = (functional.glu(self.encoder(x), dim=1) + x) * math.sqrt(0.5)
        y = self.embedded(target)
        made = functional.glu(self.decoder(functional.pad(y, (2, 0))), dim=1)
        energy = torch.bmm(self.query(made.transpose(1, 2)), memory)
        energy = energy.masked_fill((source == 0).unsqueeze(1), float("-inf"))
        context = torch.bmm(energy.softmax(-1), (memory + x).transpose(1, 2))
        return self.head((made.transpose(1, 2) + context) * math.sqrt(0.5) + y.transpose(1, 2))


def entries() -> list[Entry]:
    """All models."""
    ids = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 3, 2, 1, 0, 0]])
    action, done = (
        torch.tensor([[0, 1], [3, 2], [1, 1]]),
        torch.tensor([[False, True], [False, False], [True, False]]),
    )
    steps = {"frame": (3, 2, 3, 16, 16), "reward": (3, 2), "action": action, "done": done}
    made: list[tuple[str, Callable[[], nn.Module], Any]] = [
        ("ConvGRU", ConvGru, FILM),
        ("PredRNN", PredRnn, FILM),
        ("ConvLSTM with peepholes", PeepholeLstm, FILM),
        ("CRNN", Crnn, (2, 1, 16, 24)),
        ("show, attend and tell", AttendAndTell, ((2, 3, 32, 32), ids)),
        ("IMPALA", Impala, steps),
        ("Conv-TasNet", ConvTasNet, (2, 1, 128)),
        ("Demucs", Demucs, (2, 2, 180)),
        ("HiFi-GAN generator", HifiGan, (2, 8, 12)),
        ("TCN", Tcn, SIGNAL),
        ("SincNet", SincNet, SIGNAL),
        ("Open-Unmix", OpenUnmix, SIGNAL),
        ("dual-path GRU", DualPath, (2, 1, 132)),
        ("ConvS2S", ConvS2s, (ids, ids)),
    ]
    return [Entry("recurrent", name, make, given) for name, make, given in made]
