"""Data parallelism of torch: DistributedDataParallel, fully_shard, DTensor with sharded samples."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.suite.contenders.contender import Contender, Whole, copied_weight, frame, split
from benchmarks.suite.contenders.kernels import Kernel, shapes
from synth.layer.layer import Layer
from synth.runtime.grid.boxes import Box


def plain(layer: Layer, weight: torch.Tensor) -> nn.Module:
    """torch's own layer, without bias, on a weight that it does not copy."""
    made: nn.Module
    with torch.device("meta"):
        if layer.kind == "matmul":
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        else:
            kinds: Any = {"conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d}
            geometry = layer.kernel, layer.stride, layer.padding, layer.dilation
            rest = {"groups": layer.groups, "bias": False}
            made = kinds[layer.kind](layer.input[1], layer.out_channels, *geometry, **rest)
    made.weight = nn.Parameter(weight)
    return made


def samples(layer: Layer) -> dict[str, Box]:
    """Samples are split, weights are whole."""
    sizes, mine = shapes(layer), {0: (dist.get_world_size(), dist.get_rank())}
    return {"In": split(sizes["In"], mine), "Ker": frame(sizes["Ker"]), "Out": split(sizes["Out"], mine)}


def ddp(layer: Layer, whole: Whole, training: bool) -> Contender:
    """Whole weights on every rank; gradients are averaged by an all-reduce in their bucket."""
    module = DistributedDataParallel(plain(layer, copied_weight(whole)), gradient_as_bucket_view=True)
    return Contender("DDP", module, samples(layer), ("Ker",), mean=True)


def fsdp2(layer: Layer, whole: Whole, training: bool) -> Contender:
    """Weights sharded along their first dimension and gathered for use; gradients reduce-scattered.

    In training, the gathered weights are saved for the backward pass, which avoids a second gather.
    """
    module: Any = fully_shard(plain(layer, copied_weight(whole)), reshard_after_forward=not training)
    mine = {0: (dist.get_world_size(), dist.get_rank())}
    boxes = samples(layer) | {"Ker": split(tuple(whole["Ker"].shape), mine)}
    return Contender("FSDP2", module, boxes, mean=True)


class OnMesh(nn.Module):
    """torch's operation on DTensors; its input and output may be redistributed."""

    def __init__(self, layer: Layer, weight: DTensor, given: Any = None, made: Any = None) -> None:
        super().__init__()
        self.kernel, self.weight = Kernel(layer), nn.Parameter(weight)
        self.given, self.made = given, made

    def forward(self, inputs: DTensor) -> Any:
        """Out."""
        inputs = inputs if self.given is None else inputs.redistribute(placements=[self.given])
        out: Any = self.kernel.forward(inputs, self.weight)
        return out if self.made is None else out.redistribute(placements=[self.made])


def dtensor(layer: Layer, whole: Whole, training: bool) -> Contender:
    """In is sharded along samples, the weight is replicated; its gradient is summed at the end."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    boxes = samples(layer)
    module = OnMesh(layer, DTensor.from_local(copied_weight(whole), mesh, [Replicate()], run_check=False))

    def enter(share: torch.Tensor, _: str) -> Any:
        return DTensor.from_local(share, mesh, [Shard(0)], run_check=False)

    def finish(gradient: Any) -> Any:
        return gradient.redistribute(placements=[Replicate()])

    return Contender("DTensor batch", module, boxes, ("Ker",), enter=enter, finish=finish)
