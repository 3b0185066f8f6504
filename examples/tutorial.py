"""Trains a small network: `torchrun --nproc-per-node=4 examples/tutorial.py`, see docs/tutorial.md."""

import torch
import torch.distributed as dist
from torch import nn

import synth


def build() -> nn.Module:
    """A network for images of 32 x 32 in ten classes."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 256, 3, stride=2, padding=1),
        nn.BatchNorm2d(256),
        nn.ReLU(),
        nn.Conv2d(256, 512, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def train(net: nn.Module) -> list[float]:
    """The losses of ten steps on one batch, which is the same on all ranks."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    losses = []
    for _ in range(10):
        loss = nn.functional.cross_entropy(net(images), labels)  # of the whole batch, on every rank
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    synth.init_process_group("gloo")
    torch.manual_seed(0)  # all ranks build the same model and draw the same batch
    net = synth.parallelize(build(), (8, 3, 32, 32), objective="words")
    losses = train(net)
    state = net.full_state_dict()  # what the plain model would save; every rank has it
    if dist.get_rank() == 0:
        print("losses", *(f"{loss:.3f}" for loss in losses))
        torch.save(state, "trained.pt")
    dist.destroy_process_group()
