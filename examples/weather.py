"""A weather U-Net, circular in longitude: two replicas, each with its own batch, each on several ranks.

torchrun --nproc-per-node=4 examples/weather.py       # a mesh of 2 x 2 ranks
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

import synth


class SphereConv(nn.Module):
    """A 3x3 convolution on (latitude, longitude): circular along longitude, zeros beyond the poles."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, padding=(1, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, before, lat, lon) to (b, after, lat / stride, lon / stride)."""
        return self.conv(functional.pad(x, (1, 1, 0, 0), mode="circular"))


def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """A convolution with group norm, whose statistics are those of a sample, and SiLU."""
    return nn.Sequential(SphereConv(before, after, stride), nn.GroupNorm(4, after), nn.SiLU())


class WeatherUNet(nn.Module):
    """Fields of the next time step from those of this one, (b, fields, lat, lon)."""

    def __init__(self, fields: int = 4, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Sequential(block(fields, width), block(width, width))
        self.down = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width))
        self.deep = nn.Sequential(block(2 * width, 4 * width, 2), block(4 * width, 4 * width))
        self.rise = nn.Upsample(scale_factor=2)
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.last = SphereConv(width, fields)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The fields, changed."""
        fine = self.first(x)
        middle = self.down(fine)
        y = self.up[0](torch.cat([middle, self.rise(self.deep(middle))], 1))
        y = self.up[1](torch.cat([fine, self.rise(y)], 1))
        return x + self.last(y)


def sample(shape: tuple[int, ...], number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth fields, and the same after the wind has moved them east by two cells, and a bit north."""
    generator = torch.Generator().manual_seed(number)
    coarse = torch.randn((*shape[:2], shape[2] // 4, shape[3] // 4), generator=generator)
    now = functional.interpolate(functional.pad(coarse, (1, 1, 0, 0), "circular"), scale_factor=4.0)
    now = functional.avg_pool2d(now, 5, 1, 2)[..., 4:-4]
    later = torch.roll(now, 2, -1)
    return now, torch.cat([later[:, :, :1], later[:, :, :-1]], 2)


def train(net: nn.Module, shape: tuple[int, ...], steps: int, replica: int, replicas: int) -> list[float]:
    """Losses of some steps of one replica; every step, each replica takes a batch of its own."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        now, later = sample(shape, step * replicas + replica)
        loss = functional.mse_loss(net(now), later)
        optimizer.zero_grad()
        loss.backward()  # gradients are averaged over the replicas
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train on a mesh of 2 x P/2 ranks."""
    synth.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "synth"))
    torch.manual_seed(0)
    shape = (2, 4, 32, 64)  # of each replica, at 5.6 degrees
    net = synth.parallelize(WeatherUNet(), shape, mesh)
    losses = train(net, shape, 60, mesh.get_local_rank("replicate"), 2)
    if dist.get_rank() == 0:
        now, later = sample(shape, 0)
        still = functional.mse_loss(now, later).item()
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; no change at all would have {still:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
