"""Convolutional sequence models as users write them: scans, selective scans, FFT convolutions, documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Call = Callable[[torch.Tensor], torch.Tensor]


class Between(nn.Module):
    """A call between two convolutions along positions, on (b, 8, positions)."""

    def __init__(self, call: Any, made: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(made, 4, 3, padding=1)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.call(self.first(x)))


class CausalConv(nn.Module):
    """Depthwise, with zeros before the positions alone."""

    def __init__(self, channels: int = 8, taps: int = 4) -> None:
        super().__init__()
        self.taps, self.conv = taps, nn.Conv1d(channels, channels, taps, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.conv(functional.pad(x, (self.taps - 1, 0))))


class CroppedConv(nn.Module):
    """Depthwise and causal, as Mamba writes it: zeros on both sides, and the end cut off."""

    def __init__(self, channels: int = 8, taps: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.conv(x)[..., : x.shape[-1]])


class SelectiveScan(nn.Module):
    """The selective scan of Mamba, as a loop over positions."""

    def __init__(self, channels: int = 8, states: int = 4, rank: int = 2) -> None:
        super().__init__()
        self.states, self.rank = states, rank
        self.x_proj = nn.Linear(channels, rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(rank, channels)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(channels, 1))
        self.D = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x.transpose(1, 2)  # b, l, d
        dt, B, C = self.x_proj(u).split([self.rank, self.states, self.states], -1)
        dt = functional.softplus(self.dt_proj(dt))
        A = -torch.exp(self.A_log)
        dA = torch.exp(torch.einsum("bld,dn->bldn", dt, A))
        dBu = torch.einsum("bld,bln,bld->bldn", dt, B, u)
        y = self.scanned(dA, dBu, C) + u * self.D
        return y.transpose(1, 2)

    def scanned(self, dA: torch.Tensor, dBu: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(dA.shape[0], dA.shape[2], self.states, device=dA.device, dtype=dA.dtype)
        made = []
        for i in range(dA.shape[1]):
            state = dA[:, i] * state + dBu[:, i]
            made.append(torch.einsum("bdn,bn->bd", state, C[:, i, :]))
        return torch.stack(made, 1)


class AssociativeScan(SelectiveScan):
    """The same by torch's associative scan."""

    def scanned(self, dA: torch.Tensor, dBu: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.associative_scan import associative_scan

        def combine(one: Any, other: Any) -> Any:
            return one[0] * other[0], other[0] * one[1] + other[1]

        _, states = associative_scan(combine, (dA, dBu), dim=1, combine_mode="generic")
        return torch.einsum("bldn,bln->bld", states, C)


class Hard(nn.Module):
    """Scans of rows with zeros, -∞, equal rows and what is no number; a channel for each."""

    ROWS = (
        (1, 2, 0, 3, 1, 2, 0.5, 0, 2, 1, 1, 1),
        (*[-torch.inf] * 5, 1, 2, 3, -torch.inf, 1, 2, 3),
        (1, 2, 2, 1, 2, 2, 3, 3, 3, 1, 3, 3),
        (1, 2, 2, 1, 2, torch.nan, 3, 3, 3, 1, torch.nan, 3),
        (1, 2, 2, 1, 2, torch.inf, 3, 3, 3, 1, 3, 3),
    )

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 5, 1, groups=5, bias=False)
        nn.init.ones_(self.conv.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three, four, five = self.conv(x).chunk(5, 1)
        extrema = torch.cummax(three, -1).values, torch.cummin(four, -1).values
        made = one.cumprod(-1), torch.logcumsumexp(two, -1), *extrema, five.cumsum(-1)
        given = three, four, three.to(torch.int64), three > 1, two
        rows = [each for one in given for call in (torch.cummax, torch.cummin) for each in call(one, -1)]
        return torch.nan_to_num(torch.cat([*made, *rows], 1), 7.0, 8.0, 9.0)


class Summed(nn.Module):
    """Associative scans of single words, one of them from the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.associative_scan import associative_scan

        sums = associative_scan(lambda one, other: one + other, x, 2, combine_mode="generic")
        most = associative_scan(torch.maximum, x, dim=-1, reverse=True, combine_mode="generic")
        return sums + most


def segsum(x: torch.Tensor) -> torch.Tensor:
    """Sums of x from j + 1 to i, below the diagonal (mamba2-minimal)."""
    t = x.size(-1)
    x = x[..., None].expand(*x.shape, t)
    mask = torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool), -1)
    x = x.masked_fill(~mask, 0)
    sums = torch.cumsum(x, -2)
    mask = torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool), 0)
    return sums.masked_fill(~mask, -torch.inf)


class ChunkedScan(nn.Module):
    """The chunked scan of Mamba-2 (SSD), with products over chunks or a loop over them."""

    def __init__(self, loop: bool, chunk: int = 4, heads: int = 2, states: int = 4) -> None:
        super().__init__()
        channels = 8
        self.heads, self.states, self.chunk, self.loop = heads, states, chunk, loop
        self.proj = nn.Linear(channels, heads + 2 * states)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, heads + 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x.transpose(1, 2)
        b, length, d = u.shape
        dt, B, C = self.proj(u).split([self.heads, self.states, self.states], -1)
        dt = functional.softplus(dt)
        values = u.reshape(b, length, self.heads, d // self.heads) * dt[..., None]
        A = -torch.exp(self.A_log) * dt
        B, C = B[:, :, None].expand(-1, -1, self.heads, -1), C[:, :, None].expand(-1, -1, self.heads, -1)
        y = self.scanned(values, A, B, C)
        return y.reshape(b, length, d).transpose(1, 2)

    def scanned(self, X: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
        b, length = X.shape[:2]
        cut = length // self.chunk
        X, A, B, C = (each.reshape(b, cut, self.chunk, *each.shape[2:]) for each in (X, A, B, C))
        A = A.permute(0, 3, 1, 2)  # b h c l
        sums = torch.cumsum(A, -1)
        L = torch.exp(segsum(A))
        within = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, L, X)
        decay = torch.exp(sums[..., -1:] - sums)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, decay, X)
        if self.loop:
            state = torch.zeros_like(states[:, 0])
            before = []
            for i in range(cut):
                before.append(state)
                state = torch.exp(sums[:, :, i, -1])[..., None, None] * state + states[:, i]
            states = torch.stack(before, 1)
        else:
            states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
            over = torch.exp(segsum(functional.pad(sums[..., -1], (1, 0))))
            states = torch.einsum("bhzc,bchpn->bzhpn", over, states)[:, :-1]
        across = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, states, torch.exp(sums))
        return (within + across).reshape(b, length, self.heads, -1)


class GatedDelta(nn.Module):
    """The gated delta rule in chunks, as Qwen3-Next writes it."""

    def __init__(self, channels: int = 8, heads: int = 2, chunk: int = 4) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.qkv, self.gates = nn.Linear(channels, 3 * channels), nn.Linear(channels, 2 * heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x.transpose(1, 2)
        b, length, d = u.shape
        q, k, v = (each.reshape(b, length, self.heads, -1) for each in self.qkv(u).chunk(3, -1))
        beta, g = self.gates(u).chunk(2, -1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        y = self.scanned(q, k, v, functional.logsigmoid(g), beta.sigmoid())
        return y.reshape(b, length, d).transpose(1, 2)

    def scanned(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        q, k, v, beta, g = (each.transpose(1, 2).contiguous() for each in (q, k, v, beta, g))
        b, heads, length, size = k.shape
        q = q * size**-0.5
        v_beta, k_beta = v * beta.unsqueeze(-1), k * beta.unsqueeze(-1)
        q, k, v, k_beta, v_beta = (
            each.reshape(b, heads, -1, self.chunk, each.shape[-1]) for each in (q, k, v, k_beta, v_beta)
        )
        g = g.reshape(b, heads, -1, self.chunk).cumsum(-1)
        mask = torch.triu(torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=q.device), 0)
        decay = ((g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp()).tril()
        attn = -((k_beta @ k.transpose(-1, -2)) * decay).masked_fill(mask, 0)
        for i in range(1, self.chunk):
            row, sub = attn[..., i, :i].clone(), attn[..., :i, :i].clone()
            attn[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)
        attn = attn + torch.eye(self.chunk, dtype=attn.dtype, device=attn.device)
        v = attn @ v_beta
        k_decay = attn @ (k_beta * g.exp().unsqueeze(-1))
        state = torch.zeros(b, heads, size, v.shape[-1], dtype=v.dtype, device=v.device)
        out = torch.zeros_like(v)
        later = torch.triu(torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=q.device), 1)
        for i in range(length // self.chunk):
            q_i, k_i, v_i = q[:, :, i], k[:, :, i], v[:, :, i]
            own = (q_i @ k_i.transpose(-1, -2) * decay[:, :, i]).masked_fill(later, 0)
            new = v_i - k_decay[:, :, i] @ state
            out[:, :, i] = (q_i * g[:, :, i, :, None].exp()) @ state + own @ new
            state = (
                state * g[:, :, i, -1, None, None].exp()
                + (k_i * (g[:, :, i, -1, None] - g[:, :, i]).exp()[..., None]).transpose(-1, -2) @ new
            )
        return out.reshape(b, heads, length, -1).transpose(1, 2)


class LongConv(nn.Module):
    """A convolution over all positions by FFT, with a filter of its own per channel (Hyena, S4)."""

    def __init__(self, channels: int = 8, length: int = 32) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(channels, length) / length)
        self.D = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        size = 2 * length
        k = torch.fft.rfft(self.filter, n=size) / size
        y = torch.fft.irfft(torch.fft.rfft(x, n=size) * k, n=size, norm="forward")[..., :length]
        return y + x * self.D.unsqueeze(-1)


class Spectral(nn.Module):
    """A Fourier layer of a neural operator: some modes times a matrix of channels."""

    def __init__(self, channels: int = 8, modes: int = 5) -> None:
        super().__init__()
        self.modes, self.weight = modes, nn.Parameter(torch.randn(channels, channels, modes, 2) / channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.rfft(x)
        low = torch.einsum("bix,iox->box", found[..., : self.modes], torch.view_as_complex(self.weight))
        low = functional.pad(low, (0, found.shape[-1] - self.modes))
        return torch.fft.irfft(low, n=x.shape[-1])


class Recurrent(nn.Module):
    """A recurrent layer along positions."""

    def __init__(self, kind: Any, channels: int = 8) -> None:
        super().__init__()
        self.layer = kind(channels, channels, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(1, 2))[0].transpose(1, 2)


class Documents(nn.Module):
    """A causal depthwise convolution of packed documents: no tap reads another document."""

    def __init__(self, channels: int = 8, taps: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, channels, 1), nn.Conv1d(channels, 4, 1)
        self.weight = nn.Parameter(torch.randn(channels, taps) / taps)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        taps, length = self.weight.shape[1], x.shape[-1]
        y = self.bias[:, None].expand_as(x)
        for tap in range(taps):
            back = taps - 1 - tap
            rows = functional.pad(x, (back, 0))[..., :length]
            same = functional.pad(documents, (back, 0), value=-1)[..., :length] == documents
            y = y + self.weight[:, tap, None] * rows * same.unsqueeze(1)
        return self.last(functional.silu(y))


def scans(x: torch.Tensor) -> torch.Tensor:
    """All scans along the positions, from both ends."""
    products = torch.cumprod(1 + 0.1 * x, 2) + torch.logcumsumexp(x, -1)
    extrema = torch.cummax(x, 2).values * x.cummin(dim=2)[0]
    ends = x.flip(-1).cumsum(-1).flip(-1)
    channels = x.cumsum(1) + torch.cummax(x, 2).indices / x.shape[-1]
    return x.cumsum(-1) * 0.1 + products + extrema + ends + channels


BETWEEN: dict[str, Callable[[int], Any]] = {
    "scans": lambda _: scans,
    "cumsum": lambda _: lambda x: x.cumsum(-1),
    "cumprod": lambda _: lambda x: torch.cumprod(1 + 0.1 * x, 2),
    "logcumsumexp": lambda _: lambda x: torch.logcumsumexp(x, -1),
    "cummax": lambda _: lambda x: torch.cummax(x, 2).values,
    "cummin": lambda _: lambda x: x.cummin(dim=2)[0],
    "indices": lambda _: lambda x: x + torch.cummax(x, 2).indices,
    "from the end": lambda _: lambda x: x.flip(-1).cumsum(-1).flip(-1),
    "causal": lambda _: CausalConv(),
    "cropped": lambda _: CroppedConv(),
    "mamba": lambda _: SelectiveScan(),
    "associative": lambda _: AssociativeScan(),
    "associative sums": lambda _: Summed(),
    "ssd": lambda _: ChunkedScan(False),
    "ssd loop": lambda _: ChunkedScan(True),
    "delta": lambda _: GatedDelta(),
    "hyena": lambda length: LongConv(length=length),
    "fno": lambda _: Spectral(),
    "lstm": lambda _: Recurrent(nn.LSTM),
    "gru": lambda _: Recurrent(nn.GRU),
}
