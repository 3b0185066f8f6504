"""A 3-D U-Net that segments volumes: trained on some ranks, and planned for many.

torchrun --nproc-per-node=4 examples/unet3d.py        # trains on 4 ranks
python examples/unet3d.py --plan 2048 --procs 512     # plans without ranks, and compares with spatial cuts
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth


def block(before: int, middle: int, after: int) -> nn.Sequential:
    """Two convolutions, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((before, middle), (middle, after)):
        layers += [nn.Conv3d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm3d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet3d(nn.Module):
    """The 3-D U-Net of Çiçek et al. (MICCAI 2016), with padding: 19 M parameters at base 32.

    It maps (b, 1, d, h, w) to (b, classes, d, h, w). With `checkpoints`, each block is computed again in the
    backward pass, so that only its input is kept.
    """

    def __init__(self, base: int = 32, levels: int = 4, classes: int = 3, checkpoints: bool = False) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        widths = [base * 2**level for level in range(levels + 1)]
        self.down, self.rise, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level in range(levels):
            self.down.append(block(widths[level] if level else 1, widths[level], widths[level + 1]))
        for level in range(levels - 1, 0, -1):
            here, below = widths[level], widths[level + 1]
            self.rise.append(nn.ConvTranspose3d(below, below, 2, 2))
            self.up.append(block(here + below, here, here))
        self.pool, self.head = nn.MaxPool3d(2), nn.Conv3d(widths[1], classes, 1)

    def run(self, part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """A block; in training it may be computed again in the backward pass."""
        return checkpoint(part, x, use_reentrant=False) if self.checkpoints else part(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of all classes."""
        skips = list[torch.Tensor]()
        for down in self.down:
            x = self.run(down, self.pool(x) if skips else x)
            skips.append(x)
        skips.pop()
        for rise, up in zip(self.rise, self.up, strict=True):
            x = self.run(up, torch.cat([skips.pop(), rise(x)], 1))
        return self.head(x)


def sample(shape: tuple[int, ...], step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Volumes with noise on them, and the class of every voxel: smooth shapes. The same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    coarse = torch.randn((*shape[:2], *(n // 4 for n in shape[2:])), generator=generator)
    smooth = functional.interpolate(coarse, shape[2:], mode="trilinear")
    labels = (smooth > -0.2).long() + (smooth > 0.2).long()
    return labels + 0.5 * torch.randn(shape, generator=generator), labels[:, 0]


def train(net: nn.Module, shape: tuple[int, ...], steps: int) -> list[float]:
    """The losses of some steps. `net` is the model in one process, or its network on the ranks."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        volumes, labels = sample(shape, step)
        loss = functional.cross_entropy(net(volumes), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(extent: int, procs: int, checkpoints: bool = False) -> list[synth.NetworkPlan]:
    """Two plans of a training step on one volume: free, and one that cuts space alone."""
    with torch.device("meta"):  # weights without values
        model = UNet3d(checkpoints=checkpoints)
    shape = (1, 1, extent, extent, extent)
    return [synth.plan_model(model, shape, procs, axes=axes) for axes in ("", "dhw")]


def main() -> None:
    """Train, or plan."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=int, metavar="EXTENT", help="of the volume")
    parser.add_argument("--procs", type=int, default=512)
    parser.add_argument("--checkpoints", action="store_true", help="compute blocks again")
    given = parser.parse_args()
    if given.plan:
        plan, space = compare(given.plan, given.procs, given.checkpoints)
        for name, each in (("plan", plan), ("space", space)):
            held = each.held_bytes / 2**30
            words = (each.cost + each.recomputed_words) / 1e6
            print(f"{name:6}{words:10.1f} million words received per process, {held:8.2f} GiB held")
        return
    synth.init_process_group("gloo")
    torch.manual_seed(0)
    shape = (2, 1, 32, 32, 32)
    net = synth.parallelize(UNet3d(base=8), shape, objective="words")  # the only line that ranks add
    losses = train(net, shape, steps=20)
    if dist.get_rank() == 0:
        words = net.received() // len(losses)
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {words} words received per step by rank 0")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
