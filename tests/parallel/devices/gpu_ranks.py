"""What the ranks of the GPU tests do: networks on a GPU beside one process on the same GPU.

Every function takes the device, so that it can be tried without a GPU, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import synth
from examples.decoders import decoder
from examples.models import CosmoFlow, ResNet
from examples.unet3d import UNet3d
from synth.runtime.model.network import Network

Made = tuple[Callable[[], nn.Module], tuple[int, ...]]
MODELS: dict[str, Made] = {
    "resnet": (lambda: ResNet((1, 1, 1, 1), 8, classes=10), (8, 3, 32, 32)),
    "cosmoflow": (lambda: CosmoFlow(32, base=4), (4, 4, 32, 32, 32)),
    "unet": (lambda: UNet3d(base=4, levels=3), (2, 1, 16, 16, 16)),
    "decoder": (lambda: decoder(2, (32, 32, 64)), (1, 4, 16, 16)),
}


def built(name: str, device: str, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """A model and a batch, the same on all ranks. float32 without TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().to(device, dtype), torch.randn(shape, dtype=dtype).to(device)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    wide = other.detach().double()
    return float((one.detach().double() - wide).abs().max() / wide.abs().max().clamp(min=1e-6))


def state_apart(net: Network, model: nn.Module) -> float:
    """The same of all parameters and buffers."""
    state = net.full_state_dict()
    return max(apart(state[key], values) for key, values in model.state_dict().items())


def train(
    name: str, device: str, plan: Any = None, dtype: str = "float64", norms: Any = "global"
) -> dict[str, float]:
    """Three steps of SGD with clipped gradients: how far loss, norm and state are from one process."""
    model, batch = built(name, device, getattr(torch, dtype))
    net = synth.parallelize(copy.deepcopy(model), batch.shape, plan=plan, batch_norm=norms)
    both: tuple[Any, ...] = net, model
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in both]
    worst = {"loss": 0.0, "norm": 0.0}
    for _ in range(3):
        found = []
        for each, optimizer in zip(both, optimizers, strict=True):
            optimizer.zero_grad()
            loss = each(batch).square().mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            optimizer.step()
            found.append([torch.tensor(float(each), dtype=torch.float64) for each in (loss, norm)])
        for key, ours, theirs in zip(worst, *found, strict=True):
            worst[key] = max(worst[key], apart(ours, theirs))
    return {**worst, "state": state_apart(net, model), "device": float(next(net.parameters()).is_cuda)}


def autocast(name: str, device: str, low: str) -> dict[str, float]:
    """Two steps under autocast with a gradient scaler.

    loss: how far it is from one process. errors: of the state beside float32, in errors of one process.
    """
    model, batch = built(name, device, torch.float32)
    first, exact = copy.deepcopy(model), copy.deepcopy(model)
    net = synth.parallelize(copy.deepcopy(model), batch.shape)
    losses = [scaled_steps(each, batch, low) for each in (net, model)]
    scaled_steps(exact, batch, "")
    states: list[dict[str, torch.Tensor]] = [net.full_state_dict(), model.state_dict(), exact.state_dict()]
    trained = [key for key, _ in first.named_parameters()]
    ours, theirs = (sum(float((each[k] - states[2][k]).norm()) for k in trained) for each in states[:2])
    return {"loss": apart(*losses), "errors": ours / theirs}


def scaled_steps(net: nn.Module, batch: torch.Tensor, low: str) -> torch.Tensor:
    """The loss of the second of two steps; low: the dtype of autocast, "" for none."""
    kind = batch.device.type
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**10)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(kind, getattr(torch, low or "bfloat16"), enabled=bool(low)):
            loss = net(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return torch.tensor(float(loss), dtype=torch.float64)


def decode(device: str) -> dict[str, float]:
    """A decoder's forward pass: how far the image is from one process."""
    model, batch = built("decoder", device, torch.float64)
    model.eval()
    net = synth.parallelize(copy.deepcopy(model), batch.shape, mode="inference")
    with torch.no_grad():
        made: Any = net(batch)
        return {"image": apart(made.full_tensor(), model(batch))}


def checkpoint(device: str, folder: str) -> dict[str, float]:
    """A checkpoint of all ranks and a whole state: how far both bring a network back."""
    model, batch = built("resnet", device, torch.float64)
    net, other = (synth.parallelize(copy.deepcopy(model), batch.shape) for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(batch).square().mean().backward()
    optimizer.step()
    dcp.save(net.state_dict(), checkpoint_id=folder)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    model.load_state_dict(net.full_state_dict())
    net.eval(), other.eval(), model.eval()
    with torch.no_grad():
        outs = [each(batch) for each in (net, other, model)]
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in outs]
    return {"read": apart(whole[1], whole[0]), "whole": apart(whole[2], whole[0])}


def as_ddp(name: str, device: str) -> dict[str, float]:
    """A step of DDP and of ours with local statistics: how far the parameters are apart."""
    model, batch = built(name, device, torch.float64)
    net = synth.parallelize(copy.deepcopy(model), batch.shape, plan="data", batch_norm="local")
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = nn.parallel.DistributedDataParallel(copy.deepcopy(model), broadcast_buffers=False)
    mine = batch.chunk(size)[rank]
    for each, given in ((net, batch), (ddp, mine)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each(given).square().mean().backward()
        optimizer.step()
    state = net.full_state_dict()
    return {"state": max(apart(state[key], values) for key, values in ddp.module.named_parameters())}


def memory_runs_out(device: str) -> str:
    """What the last rank says whose GPU has no memory left in a forward pass; it ends all ranks."""
    model, batch = built("resnet", device, torch.float32)
    net = synth.parallelize(model, batch.shape)
    net(batch).square().mean().backward()
    if dist.get_rank() == dist.get_world_size() - 1 and device == "cuda":
        torch.cuda.set_per_process_memory_fraction(1e-5)
        torch.cuda.empty_cache()
        torch.empty(2**28, device=device)
    net(batch).square().mean().backward()
    return "no rank failed"
