"""What the ranks of the precision tests do: functions that return what a test looks at."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from precision_models import Read, Regions, built
from torch import fx, nn

import synth
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.comm.host_memory import Channel, host_memory
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network
from synth.runtime.tensor.partition import Partition

Measured = dict[str, Any]
ROUNDING = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-20,
    torch.float64: 2.0**-40,
}


class Values(fx.Interpreter):
    """Runs a traced graph in one process and keeps what every node makes."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, garbage_collect_values=False, graph=graph)
        self.made: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        with torch.set_grad_enabled(n.meta.get("grad", True)):
            result = super().run_node(n)
        if isinstance(result, torch.Tensor) and n.op.startswith("call"):
            self.made[n.name] = result.detach().clone()  # the model may change it in place
        return result

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.module.get_submodule(str(target))(*args, **kwargs)


def rms(values: torch.Tensor) -> float:
    """The root of the mean square."""
    return float(values.double().square().mean().sqrt())


def autocast(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Autocast to a dtype; None for none."""
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def one_process(
    model: nn.Module,
    shape: tuple[int, ...],
    batch: torch.Tensor,
    low: torch.dtype | None,
    inside: bool = False,
) -> dict[str, torch.Tensor]:
    """Results of all calls, and all gradients, in one process."""
    run = Values(model, trace_model(model, shape).graph)
    with autocast(low):
        (out,) = run.run(batch)
    with autocast(low if inside else None):
        loss_of(out).backward()
    grads = {f"d {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**run.made, **grads}


def loss_of(out: torch.Tensor) -> torch.Tensor:
    """A mean that is no symmetric function of the words."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    return (out.double() * weights).sum() + out.double().square().mean()


def on_ranks(
    net: Network, batch: torch.Tensor, low: torch.dtype | None, inside: bool
) -> dict[str, torch.Tensor]:
    """The same of a network: whole results of all steps, whole gradients."""
    made: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook(step: Any, given: Any, result: torch.Tensor) -> None:
            made[name] = Partition(step.layout).gather(result.detach())

        return hook

    hooks = [step.register_forward_hook(keep(name)) for name, step in net.program.steps.items()]
    with autocast(low):
        out = net.gather(net(net.scatter(batch, "input")))
    for hook in hooks:
        hook.remove()
    with autocast(low if inside else None):
        loss_of(out).backward()
    trained = [p for p in net.parameters() if p.grad is not None]
    with torch.no_grad():
        for parameter in trained:
            parameter.zero_()
    torch.optim.SGD(trained, lr=1.0, maximize=True).step()  # the parameters are now the gradients
    return {**made, **{f"d {name}": values for name, values in net.full_state_dict().items()}}


def compare(name: str, plan: Any, low: str | None, stored: str = "float32", how: str = "") -> Measured:
    """Result or gradient -> (dtypes differ, error beside float64, the same of one process, allowed rounding).

    low: of autocast. stored: the dtype of model and input.
    how: "channels-last": model and input are. "after": the network is converted, not the model.
        "inside": the backward pass runs under autocast, too.
    """
    torch.manual_seed(3)
    whole, shape = built(name)
    batch = torch.randn(shape)
    dist.broadcast(batch, 0)
    low_dtype, dtype = None if low is None else getattr(torch, low), getattr(torch, stored)
    right = one_process(copy.deepcopy(whole).double(), shape, batch.double(), None)
    given = batch.to(dtype)
    if how == "channels-last" or (how == "channels-last here" and dist.get_rank() == 0):
        order = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        whole, given = whole.to(memory_format=order), given.to(memory_format=order)
    whole = whole if how == "after" else whole.to(dtype)
    expected = one_process(copy.deepcopy(whole).to(dtype), shape, given, low_dtype, how == "inside")
    net = synth.parallelize(whole, shape, plan=plan).to(dtype)
    found = on_ranks(net, given, low_dtype, how == "inside")
    rounding = ROUNDING[low_dtype or dtype]
    sizes = {key: rms(values) for key, values in right.items()}
    floor = 0.05 * max(size for key, size in sizes.items() if key.startswith("d "))  # some gradients are 0
    return {
        key: (
            found[key].dtype != values.dtype,
            rms(found[key].double() - right[key]),
            rms(values.double() - right[key]),
            rounding * (max(sizes[key], floor) if key.startswith("d ") else sizes[key]),
        )
        for key, values in expected.items()
    }


DTYPES = [  # of the parameters, of the input, of autocast
    (torch.float32, torch.float64, None),
    (torch.bfloat16, torch.float32, None),
    (torch.float32, torch.bfloat16, None),
    (torch.float32, torch.int64, None),
    (torch.float32, torch.float64, torch.bfloat16),
    (torch.float64, torch.float32, torch.bfloat16),
    (torch.float32, torch.uint8, torch.bfloat16),
]


def refused() -> dict[str, tuple[bool, str]]:
    """Case -> whether one process refuses the input's dtype, and what the network says."""
    layers: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "convolution": (nn.Conv2d(4, 4, 3, padding=1), (4, 4, 8, 8)),
        "linear": (nn.Linear(8, 8), (4, 8)),
        "batch normalization": (nn.BatchNorm2d(4), (4, 4, 8, 8)),
        "group normalization": (nn.GroupNorm(2, 4), (4, 4, 8, 8)),
        "layer normalization": (nn.LayerNorm(8), (4, 4, 8)),
        "pooling": (nn.AvgPool2d(2), (4, 4, 8, 8)),
    }
    found = {}
    for name, (layer, shape) in layers.items():
        for stored, given, low in DTYPES:
            model, batch = copy.deepcopy(layer).to(stored), torch.ones(shape).to(given)
            net = synth.parallelize(model, shape)
            texts = [_refusal(model, batch, low), _refusal(net, net.scatter(batch, "input"), low)]
            found[f"{name} {stored} {given} {low}"] = texts[0] != "", texts[1]
    return found


def _refusal(model: nn.Module, batch: torch.Tensor, low: torch.dtype | None) -> str:
    """What a model says to an input; "" where it takes it."""
    try:
        with autocast(low):
            model(batch)
    except (RuntimeError, ValueError) as fault:
        return f"{type(fault).__name__}: {fault}"
    return ""


def regions(low: str | None) -> tuple[str, str, float, list[str], list[str]]:
    """The dtype of the output in one process and here, the error, and the dtypes of all steps in both."""
    torch.manual_seed(0)
    model, batch = Regions(), torch.randn(4, 4, 8, 8)
    made: list[list[str]] = [[], []]

    def keep(kind: int) -> Any:
        return lambda step, given, result: made[kind].append(str(result.dtype))

    net = synth.parallelize(copy.deepcopy(model), (4, 4, 8, 8), plan={"h": 2, "c": 2})
    for kind, parts in enumerate(
        (model.children(), (net.program.steps[name] for name in ("one", "two", "three")))
    ):
        for part in parts:
            part.register_forward_hook(keep(kind))
    with autocast(None if low is None else getattr(torch, low)):
        right, out = model(batch), net.gather(net(net.scatter(batch, "input")))
    return str(right.dtype), str(out.dtype), rms(out - right) / rms(right), *made


def moved(plan: Any, low: str | None) -> dict[str, Any]:
    """What a step moves by messages, by dtype in words; and the dtype of the prefetched weights."""
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(3)))
    net, words, weights = synth.parallelize(model, (4, 8, 8, 8), plan=plan), {}, []
    prefetch = DistributedLayer.prefetch

    def noted(self: DistributedLayer, own: torch.Tensor) -> None:
        prefetch(self, own)
        assert bool(self.prefetched) == self.shares_ker
        if self.prefetched:
            shard, pending = self.prefetched
            weights.append((str(shard.dtype), pending.gather is None or str(pending.gather.pieces[0].dtype)))

    agreement = net.ranks.agreement.group  # which moves no words
    aside = list(host_memory(agreement).channels.values())

    def counted(where: Any, name: str) -> Any:
        original = getattr(where, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            values = next(each for each in args if isinstance(each, torch.Tensor))
            loss = values.numel() == 1  # which is summed in float32
            if kwargs.get("group") is not agreement and args[0] not in aside and not loss:
                words[str(values.dtype)] = words.get(str(values.dtype), 0) + values.numel()
            return original(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DistributedLayer, "prefetch", noted)
        for name in ("isend", "irecv", "all_to_all_single", "broadcast"):
            patched.setattr(dist, name, counted(dist, name))
        for name in ("send", "receive"):
            patched.setattr(Channel, name, counted(Channel, name))
        with autocast(None if low is None else getattr(torch, low)):
            out = net(net.scatter(torch.randn(4, 8, 8, 8), "input"))
        out.float().square().sum().backward()
    return {"words": words, "received": net.received(), "weights": weights}


def reductions(grid: dict[str, int], low: str, memory: int | None = None) -> dict[str, tuple[float, float]]:
    """Tensor of a layer by itself -> the errors here and in one process, both beside float64, relative.

    grid: cuts along c sum Out over ranks, cuts along k sum dIn, cuts of samples or rows sum dKer.
    memory: of the plan, in bytes; a small one makes the passes stream.
    """
    torch.manual_seed(0)
    shape, dtype = (4, 64, 16, 16), getattr(torch, low)
    layer = synth.Layer.conv2d(shape, 64, 3, padding=1)
    plan = synth.plan(layer, 4, memory, grid=grid, exact_procs=True, pass_="training")
    mine, whole = synth.distributed_conv(plan), nn.Conv2d(64, 64, 3, padding=1)
    mine.load_full_state_dict(whole.state_dict())
    batch, dout = torch.randn(shape), torch.randn(shape)
    runs = []
    for model, low_dtype in ((copy.deepcopy(whole).double(), None), (whole, dtype)):
        given = batch.to(next(model.parameters()).dtype, copy=True).requires_grad_()
        with autocast(low_dtype):
            out = model(given)
        out.backward(dout.to(out.dtype))
        runs.append([out, given.grad, model.weight.grad, model.bias.grad])
    given = mine.scatter(batch).clone().requires_grad_()
    with autocast(dtype):
        out = mine(given)
    box = tuple(slice(*interval) for interval in mine.output.mine)
    out.backward(dout[box].to(out.dtype))
    assert out.dtype == dtype
    found, place = [], {name: i for i, name in enumerate(("Out", "dIn", "dKer", "dBias"))}
    ker = tuple(slice(*interval) for interval in mine.ker_boxes[mine.context.ranks.rank])
    boxes = box, tuple(slice(*each) for each in mine.input.mine), ker, box[1:2]
    parts = out, given.grad, mine.weight.grad, mine.bias.grad
    for part, own, right, alone in zip(parts, boxes, *runs, strict=True):
        pair = [
            rms(each.detach() - right.detach()[own]) / rms(right.detach()[own]) for each in (part, alone[own])
        ]
        found.append((pair[0], pair[1]))
    return {name: found[i] for name, i in place.items()}


def dtypes_read() -> list[tuple[str, str, float]]:
    """Of each output of calls with and without autocast: both dtypes, and how far it is from one process."""
    torch.manual_seed(0)
    model, batch = Read(), torch.randn(4, 4, 8, 8)
    net = synth.parallelize(copy.deepcopy(model), (4, 4, 8, 8), plan={"h": 2, "w": 2})
    calls = [(None, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)]
    calls += [(torch.float16, torch.float32), (None, torch.float32)]
    found = []
    for low, dtype in calls:
        with autocast(low):
            pairs = zip(model(batch.to(dtype)), net(batch.to(dtype)), strict=True)
        for own, far in pairs:
            whole = far.full_tensor()
            off = float((whole.double() - own.double()).abs().max() / own.double().abs().max())
            found.append((str(own.dtype), str(whole.dtype), off / ROUNDING[low or dtype]))
    return found


def dtypes_read_on_one_rank() -> str:
    """What ranks say if one of them alone is under autocast; "" if they say nothing."""
    net = synth.parallelize(Read(), (4, 4, 8, 8), check=False)
    try:
        with autocast(torch.bfloat16 if dist.get_rank() == 0 else None):
            net(torch.ones(4, 4, 8, 8))
    except RuntimeError as fault:
        return str(fault)
    return ""
