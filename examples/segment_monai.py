"""A whole volume segmented at once by a network of monai, without windows and their seams.

pip install monai
torchrun --nproc-per-node=4 examples/segment_monai.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from monai.inferers import sliding_window_inference
from monai.networks.nets import SegResNet
from torch import nn

import synth


def model_of(width: int = 8) -> nn.Module:
    """A network of monai in evaluation; a trained one would load its state here."""
    return SegResNet(spatial_dims=3, in_channels=1, out_channels=3, init_filters=width).eval()


def segment(model: nn.Module, volume: torch.Tensor) -> torch.Tensor:
    """The class of every voxel of (b, 1, d, h, w), computed by all ranks together."""
    net = synth.parallelize(model, volume.shape, mode="inference")
    with torch.no_grad():
        scores = net(volume)  # each rank computes, and holds, a part
    return scores.full_tensor().argmax(1)


def main() -> None:
    """Segment a volume, and compare with windows that overlap by a quarter."""
    synth.init_process_group("gloo")
    torch.manual_seed(0)
    model, volume = model_of(), torch.randn(1, 1, 96, 80, 72)  # no power of two
    labels = segment(model, volume)
    if dist.get_rank() == 0:
        with torch.no_grad():
            whole = model(volume).argmax(1)
            windows = sliding_window_inference(volume, (48, 48, 48), 1, model, overlap=0.25).argmax(1)
        for name, other in (("one process", whole), ("windows", windows)):
            print(f"{(labels != other).float().mean():.2%} of the voxels differ from {name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
