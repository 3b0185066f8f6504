"""What the ranks of the tests of networks parallelized by hand do."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.suite.models.by_hand import best_parts, block, spatial, tensor
from benchmarks.suite.models.contenders import ONE, limits
from examples.decoders import decoder
from examples.models import ResNet
from examples.unet3d import UNet3d


def drawn(model: nn.Module) -> Any:
    """A model in float64 whose running statistics are not those of a new one."""
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d | nn.BatchNorm3d):
            each.running_var.uniform_(0.5, 2)
    return model.double()


def rows(name: str) -> dict[str, float]:
    """Spatial parallelism beside one process, in evaluation: values, and gradients of the first weight."""
    torch.manual_seed(0)
    if name == "unet3d":
        model, shape = drawn(UNet3d(base=2, levels=3).eval()), (1, 1, 8, 8, 16)
    else:
        model, shape = decoder(2, widths=(4, 8, 8, 8), blocks=1).double(), (1, 4, 4, 4)
    batch = torch.randn(shape, dtype=torch.float64)
    parts = best_parts(shape[2:], 4 if name == "unet3d" else 1)
    cut = spatial(copy.deepcopy(model), parts, ("Attention",), norms=True)
    with torch.set_grad_enabled(name == "unet3d"):
        whole, mine = model(batch), cut(block(batch, parts))
    errors = {"value": float((mine - block(whole, parts)).detach().abs().max())}
    if name == "unet3d":
        whole.square().sum().backward()
        mine.square().sum().backward()
        ours = next(cut.parameters()).grad
        dist.all_reduce(ours)  # what DDP does
        expected = next(model.parameters()).grad
        errors["gradient"] = float((ours - expected).abs().max() / expected.abs().max())
    return errors


def alone(inference: bool) -> dict[str, float]:
    """One process with all cores: the loss on the first rank, beside the model; threads are put back."""
    torch.manual_seed(0)
    model = ResNet(depths=(1, 1), base=4, classes=6).double()
    batch = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    out = (copy.deepcopy(model).eval() if inference else copy.deepcopy(model))(batch)
    threads = torch.get_num_threads()
    (made,) = (each for each in limits("local", inference, model, batch, out.numel()) if each.name == ONE)
    ready = made.make()
    loss = float(ready.loss().detach())
    ready.step()
    assert torch.get_num_threads() == threads
    assert (ready.held() > 0) == (dist.get_rank() == 0)
    right = float(out.detach().square().mean()) if dist.get_rank() == 0 else 0.0
    return {"loss": abs(loss - right)}


def filters() -> dict[str, float]:
    """Tensor parallelism beside one process, in training: values, and gradients of the own filters."""
    torch.manual_seed(0)
    model = ResNet(depths=(1, 1), base=4, classes=6).double()
    batch = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    cut = tensor(copy.deepcopy(model), 3)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    whole, mine = model(batch), cut(batch)
    errors = {"value": float((mine - whole.chunk(ranks, 1)[rank]).detach().abs().max())}
    whole.square().sum().backward()
    mine.square().sum().backward()
    pairs = zip(cut.parameters(), model.parameters(), strict=True)
    errors["gradient"] = max(
        float((own.grad - all_.grad.chunk(ranks)[rank]).abs().max() / all_.grad.abs().max())
        for own, all_ in pairs
    )
    return errors
