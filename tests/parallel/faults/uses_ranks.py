"""Models that something has wrapped, and what torch does with whole networks, on real ranks."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_module
from torch.fx.experimental.proxy_tensor import make_fx

import synth

SHAPE = 4, 3, 8, 8


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 3, 3))


class Part(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x)


def net(made: Any = None, **options: Any) -> Any:
    return synth.parallelize(made or model(), SHAPE, objective="words", **options)


def sharded() -> nn.Module:
    made = model()
    fully_shard(made, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return made


MODELS: dict[str, Callable[[], Any]] = {
    "DistributedDataParallel": lambda: nn.parallel.DistributedDataParallel(model()),
    "DataParallel": lambda: nn.DataParallel(model()),
    "compiled part": lambda: Part(torch.compile(model())),
    "script": lambda: torch.jit.script(model()),
    "traced part": lambda: Part(torch.jit.trace(model().eval(), torch.zeros(SHAPE))),
    "network": net,
    "part of a network": lambda: net(Part(model())).body,
    "lazy": lambda: nn.Sequential(nn.LazyConv2d(4, 3)),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(model()),
    "DTensor": lambda: distribute_module(model(), init_device_mesh("cpu", (dist.get_world_size(),))),
    "fully_shard": sharded,
    "function": lambda: torch.relu,
    "class": lambda: nn.Conv2d,
}
CALLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "numpy": lambda net, x: net(x.numpy()),
    "list": lambda net, x: net(list(x)),
    "numbers": lambda net, x: net(x.tolist()),
    "None": lambda net, x: net(None),
    "jit.trace": torch.jit.trace,
    "jit.script": lambda net, x: torch.jit.script(net),
    "export": lambda net, x: torch.export.export(net, (x,)),
    "fx": lambda net, x: torch.fx.symbolic_trace(net),
    "vmap": lambda net, x: torch.vmap(net)(x[None]),
    "grad": lambda net, x: torch.func.grad(lambda x: net(x).full_tensor().sum())(x),
    "grad of parameters": lambda net, x: torch.func.grad(
        lambda p: torch.func.functional_call(net, p, (x,)).full_tensor().sum()
    )(dict(net.named_parameters())),
    "DistributedDataParallel": lambda net, x: nn.parallel.DistributedDataParallel(net),
    "fully_shard": lambda net, x: fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),))),
    "make_fx": lambda net, x: make_fx(net)(x),
    "linearize": lambda net, x: torch.func.linearize(net, x),
    "forward mode": lambda net, x: forward_mode(net, x),
    "pickle": lambda net, x: pickle.dumps(net),
    "copy": lambda net, x: copy.copy(net),
    "share_memory": lambda net, x: net.share_memory(),
}


def forward_mode(net: Any, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return net(forward_ad.make_dual(x, x))


def exported() -> tuple[str, float]:
    """What a strict `torch.export` says, and how far the network is from one process afterwards."""
    made, x, said = net(), torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)), "accepted"
    try:
        torch.export.export(made, (x,), strict=True)
    except Exception as error:  # Dynamo's own class
        said = str(error)
    return said, float((made(x).full_tensor() - model()(x)).detach().abs().max())


def refused_model(name: str) -> str:
    """What is said of a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = MODELS[name]()
    try:
        net(made)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return "accepted"


def refused_call(name: str) -> tuple[str, float]:
    """What is said of a use of a network, and how far the network is from one process afterwards."""
    made, x = net(), torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    said = "accepted"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            CALLS[name](made, x)
        except (ValueError, NotImplementedError) as error:
            said = str(error)
    return said, float((made(x).full_tensor() - model()(x)).detach().abs().max())


def accepted() -> dict[str, float]:
    """What works: distances from one process."""
    x, found = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)), dict[str, float]()
    right, plain = model()(x).detach(), model().eval()(x).detach()

    def far(out: Any, right: torch.Tensor) -> float:
        return float((out.full_tensor().detach() - right).abs().max())

    made = net()
    assert all(hasattr(made, name) or True for name in dir(made))
    assert inspect.getmembers(made)
    assert vars(made)
    found["walked"] = far(made(x), right)
    found["deepcopy"] = far(copy.deepcopy(net())(x), right)
    once = net()
    doubled = {name: 2 * values for name, values in once.named_parameters()}
    two = model()
    with torch.no_grad():
        for values in two.parameters():
            values.mul_(2)
    found["functional_call"] = far(torch.func.functional_call(once, doubled, (x,)), two(x).detach())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            one, watched = model(), net()
            one(x).square().sum().backward()
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*gathered on every rank")
                watched(x).square().sum().backward()
    grads = dict(watched.named_parameters())
    pairs = [(grads[name].grad, values.grad) for name, values in one.named_parameters()]
    found["detect_anomaly"] = max(far(mine, its) for mine, its in pairs if its is not None)
    for mode in ("inference", "training"):
        with torch.inference_mode():
            given = x.clone()
            served = net(model().eval(), mode=mode)
            found[f"inference_mode, {mode}"] = far(served(given), plain)
            found[f"fewer samples, {mode}"] = far(served(given[:2]), plain[:2])
        found[f"later, {mode}"] = far(served(x), plain)
    served.train()
    served(x).square().sum().backward()
    trained = dict(served.named_parameters())
    found["trained later"] = max(
        far(trained[n].grad, v.grad) for n, v in one.named_parameters() if v.grad is not None
    )
    return found
