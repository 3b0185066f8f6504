"""An audio model of causal convolutions and selective scans, on packed documents whose positions ranks cut.

torchrun --nproc-per-node=4 examples/audio.py     # trains on packed clips
python examples/audio.py --plan 65536             # words of a training step on 8 ranks, without ranks
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import synth


class PackedConv(nn.Module):
    """A causal depthwise convolution along positions, no tap of which reads another document."""

    def __init__(self, channels: int, taps: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, taps) / taps)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """(b, channels, positions), documents (b, positions), to the shape of x."""
        taps, length = self.weight.shape[1], x.shape[-1]
        y = x * self.weight[:, -1:] + self.bias[:, None]
        for back in range(1, taps):
            rows = functional.pad(x, (back, 0))[..., :length]
            before = functional.pad(documents, (back, 0), value=-1)[..., :length]
            y = y + rows * self.weight[:, taps - 1 - back, None] * (before == documents).unsqueeze(1)
        return y


class PackedScan(nn.Module):
    """The selective scan of Mamba-2 in chunks: its states begin anew with every document."""

    def __init__(self, channels: int, heads: int, states: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.states, self.chunk = heads, states, chunk
        self.rates = nn.Parameter(torch.log(torch.linspace(1, 4, heads)))

    def forward(
        self, x: torch.Tensor, dt: torch.Tensor, B: torch.Tensor, C: torch.Tensor, documents: torch.Tensor
    ) -> torch.Tensor:
        """x (b, positions, heads, d), dt (b, positions, heads), B and C (b, positions, states)."""
        b, length, heads, d = x.shape
        cut = length // self.chunk
        x, dt = x.reshape(b, cut, self.chunk, heads, d), dt.reshape(b, cut, self.chunk, heads)
        B, C = B.reshape(b, cut, self.chunk, -1), C.reshape(b, cut, self.chunk, -1)
        names = documents.reshape(b, cut, self.chunk)
        sums = (-torch.exp(self.rates) * dt).cumsum(2)
        last, before = names[..., -1], functional.pad(names[..., -1], (1, 0), value=-1)[:, :-1]

        # within a chunk: positions of one document, later ones read earlier ones
        decay = (sums.unsqueeze(3) - sums.unsqueeze(2)).clamp(max=0).exp()  # b, chunks, reader, read, heads
        same = (names.unsqueeze(3) == names.unsqueeze(2)).tril()
        scores = torch.einsum("bzin,bzjn->bzij", C, B) * same
        inner = torch.einsum("bzij,bzijh,bzjh,bzjhd->bzihd", scores, decay, dt, x)

        # across chunks: the state that a chunk adds, and what is left of the one before
        ends = (sums[:, :, -1:] - sums).exp() * dt * (names == last.unsqueeze(-1)).unsqueeze(-1)
        added = torch.einsum("bzjn,bzjh,bzjhd->bzhnd", B, ends, x)
        left = sums[:, :, -1].exp() * (last == before).unsqueeze(-1)
        state, states = torch.zeros_like(added[:, 0]), []
        for z in range(cut):
            states.append(state)
            state = left[:, z, :, None, None] * state + added[:, z]
        reach = sums.exp() * (names == before.unsqueeze(-1)).unsqueeze(-1)
        outer = torch.einsum("bzin,bzih,bzhnd->bzihd", C, reach, torch.stack(states, 1))
        return (inner + outer).reshape(b, length, heads, d)


class Block(nn.Module):
    """A normalization, a convolution, a scan, a gate, and what came in."""

    def __init__(self, channels: int, heads: int, states: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.sizes = heads, [channels, channels, states, states, heads]
        self.norm, self.wide = nn.LayerNorm(channels), nn.Linear(channels, sum(self.sizes))
        self.conv, self.scan = PackedConv(channels), PackedScan(channels, heads, states, chunk)
        self.back = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """(b, positions, channels) to the same shape."""
        gate, y, B, C, dt = self.wide(self.norm(x)).split(self.sizes, -1)
        y = functional.silu(self.conv(y.transpose(1, 2), documents).transpose(1, 2))
        heads = y.reshape(*y.shape[:2], self.heads, -1)
        made = self.scan(heads, functional.softplus(dt), B, C, documents).reshape(y.shape)
        return x + self.back((made + y) * functional.silu(gate))


class AudioMamba(nn.Module):
    """Clean features of audio from noisy ones, (b, features, positions), with a document per position."""

    def __init__(
        self,
        features: int = 4,
        channels: int = 16,
        heads: int = 4,
        states: int = 4,
        chunk: int = 16,
        blocks: int = 2,
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(features, channels, 1), nn.Conv1d(channels, features, 1)
        self.blocks = nn.ModuleList(Block(channels, heads, states, chunk) for _ in range(blocks))

    def forward(self, x: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """The features without noise."""
        y = self.first(x).transpose(1, 2)
        for block in self.blocks:
            y = block(y, documents)
        return x + self.last(y.transpose(1, 2))


def packed(length: int, number: int, features: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noisy and clean clips of several lengths, one behind the other, and the document of each position."""
    generator = torch.Generator().manual_seed(number)
    ends = torch.randint(1, length, (max(1, length // 50),), generator=generator)
    documents = torch.zeros(length, dtype=torch.int64)
    documents[ends] = 1
    documents = documents.cumsum(0)
    pitch = torch.rand(int(documents[-1]) + 1, generator=generator)[documents] * 0.3 + 0.05
    phase = pitch.cumsum(0) + torch.arange(features).unsqueeze(1)
    clean = torch.sin(phase).unsqueeze(0)
    return clean + 0.3 * torch.randn(clean.shape, generator=generator), clean, documents.unsqueeze(0)


def train(net: nn.Module, length: int, steps: int) -> list[float]:
    """Losses of some steps, each on new clips."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        noisy, clean, documents = packed(length, step)
        dtype = next(net.parameters()).dtype
        loss = functional.mse_loss(net(noisy.to(dtype), documents), clean.to(dtype))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def planned(length: int, procs: int, chunk: int) -> synth.NetworkPlan:
    """The plan of a training step that cuts the positions."""
    noisy, _, documents = packed(length, 0)
    return synth.plan_model(AudioMamba(chunk=chunk), [noisy, documents], procs, axes="w")


def main() -> None:
    """Train on all ranks, or plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=int, metavar="POSITIONS", help="plan a step on 8 ranks and end")
    length = parser.parse_args().plan
    if length:
        print(planned(length, 8, 256).words)
        return
    synth.init_process_group("gloo")
    torch.manual_seed(0)
    noisy, clean, documents = packed(1024, 0)
    plan = synth.plan_model(AudioMamba(), [noisy, documents], dist.get_world_size(), axes="w")
    net = synth.parallelize(AudioMamba(), [noisy, documents], plan=plan)
    losses = train(net, 1024, 40)
    if dist.get_rank() == 0:
        print(
            f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; the noise has {(noisy - clean).square().mean():.3f}"
        )
        print(f"{plan.words.most:,} words received per rank and step, {net.received():,} in all")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
