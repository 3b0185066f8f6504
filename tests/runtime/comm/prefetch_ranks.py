"""What the ranks of the prefetch tests do: functions that run on all ranks and return what a test looks at.

`ahead` is the number of layers before its turn at which a layer's Ker is gathered; 0 is no prefetch.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from small_networks import MODELS, PLANS, some_idle
from torch.utils.checkpoint import checkpoint

import synth
from synth.network.plan.plan import NetworkPlan
from synth.runtime.comm import collectives
from synth.runtime.comm import prefetch as prefetching
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network
from synth.runtime.tensor.partitioned import PartitionedTensor

Values = dict[str, Any]  # name -> the whole tensor, as an array: gradients by parameter, and "output"


def made(model: str, plan: str, ahead: int) -> tuple[Network, torch.Tensor]:
    """A network in float64, the same on every call, and this rank's part of its batch."""
    make, shape = MODELS[model]
    torch.manual_seed(0)
    net = synth.parallelize(make().double(), shape, plan=PLANS[plan], ahead=ahead)
    return net, net.scatter(torch.randn(shape, dtype=torch.float64))


def array(values: torch.Tensor) -> Any:
    """A whole tensor as an array, which a pipe takes."""
    whole = values.full_tensor() if isinstance(values, PartitionedTensor) else values
    return whole.detach().numpy()


def gradients(net: Network) -> Values:
    """The gradients that the parameters have; afterwards they have none."""
    found = {name: array(p.grad) for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    return found


def stepped(net: Network, batch: torch.Tensor, forward: Callable[..., Any] | None = None) -> Values:
    """Output and gradients of one step."""
    out = (forward or net)(batch)
    torch.autograd.backward(out.square().sum())
    return {"output": array(out), **gradients(net)}


def layers(net: Network) -> list[DistributedLayer]:
    """The planned layers, in their order."""
    return [each for each in net.program.modules() if isinstance(each, DistributedLayer)]


def weight(net: Network, layer: DistributedLayer) -> torch.Tensor:
    """The parameter that a planned layer uses as its weight."""
    pairs = (pair for held in net.program.held.values() for pair in held)
    key = next(key for key, place in pairs if place.module is layer and place.name == "weight")
    return net.get_parameter(key)


# -- one step --------------------------------------------------------------------------------------------


def step(model: str, plan: str, ahead: int) -> dict[str, Any]:
    """values: of one step. words: that this rank received.

    prefetches: whether any layer is prefetched. unfinished: prefetches that nothing has waited for.
    """
    net, batch = made(model, plan, ahead)
    values = stepped(net, batch)
    unfinished = len(net.program.context.pending) + sum(bool(each.prefetched) for each in layers(net))
    return {
        "values": values,
        "words": net.received(),
        "prefetches": bool(net.program.prefetches),
        "unfinished": unfinished,
    }


def output_without_gradients(model: str, plan: str, ahead: int) -> Values:
    """The output of a network that has made a training step, under `torch.no_grad`."""
    net, batch = made(model, plan, ahead)
    stepped(net, batch)
    with torch.no_grad():
        return {"output": array(net(batch))}


def step_with_frozen_weights(model: str, plan: str, ahead: int) -> tuple[Values, list[str]]:
    """A step in which only the first planned layer trains its weight; and the names of the frozen weights."""
    net, batch = made(model, plan, ahead)
    for each in layers(net)[1:]:
        weight(net, each).requires_grad_(False)
    values = stepped(net, batch)
    return values, [name for name, p in net.named_parameters() if not p.requires_grad]


@cache
def plan_with_idle_ranks() -> NetworkPlan:
    """A plan that leaves ranks idle in some layers."""
    make, shape = MODELS["residual"]
    return some_idle(make().double(), shape)


def step_with_idle_ranks(ahead: int) -> Values:
    """A step of a plan that leaves ranks idle in some layers, with the check for NaN that all ranks make."""
    make, shape = MODELS["residual"]
    torch.manual_seed(0)
    net = synth.parallelize(
        make().double(), shape, plan=plan_with_idle_ranks(), check_finite=True, ahead=ahead
    )
    return stepped(net, net.scatter(torch.ones(shape, dtype=torch.float64)))


# -- unusual steps ---------------------------------------------------------------------------------------


def two_batches_in_one_backward_pass(ahead: int) -> Values:
    """Gradients of a loss of two forward passes."""
    net, batch = made("biases", "hybrid", ahead)
    torch.autograd.backward(net(batch).square().sum() + net(batch + 1).square().sum())
    return gradients(net)


def recomputed_step(ahead: int) -> Values:
    """A step in which `torch.utils.checkpoint` computes the forward pass again."""
    net, batch = made("biases", "hybrid", ahead)
    return stepped(net, batch, partial(checkpoint, net, use_reentrant=False))


def two_backward_passes_of_one_graph(ahead: int) -> Values:
    """Gradients after two backward passes of one forward pass."""
    net, batch = made("biases", "hybrid", ahead)
    loss = net(batch).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return gradients(net)


def gradient_of_one_weight(ahead: int) -> tuple[str, Any, Values]:
    """`torch.autograd.grad` for the third weight alone: its name, its gradient, and a whole step after it."""
    net, batch = made("biases", "hybrid", ahead)
    asked = weight(net, layers(net)[2])
    (found,) = torch.autograd.grad(net(batch).square().sum(), [asked])
    assert not net.program.context.pending
    name = next(name for name, each in net.named_parameters() if each is asked)
    return name, array(found), stepped(net, batch)


# -- the order of messages -------------------------------------------------------------------------------


def events(ahead: int) -> list[str]:
    """What the four layers of a network do in a step, in order.

    prefetches, computes: a layer, in the forward pass. sends, arrives: the sum of its dKer.
    """
    net, batch = made("biases", "data", ahead)
    found, numbers = list[str](), dict[prefetching.Prefetch, int]()
    start, defer = DistributedLayer.prefetch, prefetching.Prefetch.defer
    computed = DistributedLayer._without_bias

    def prefetches(self: DistributedLayer, own: torch.Tensor) -> None:
        start(self, own)
        assert self.prefetched
        assert self.prefetched[1].gather
        assert self.prefetched[1].gather.requests
        numbers[self.prefetched[1]] = layers(net).index(self)
        found.append(f"prefetches {layers(net).index(self)}")

    def computes(self: DistributedLayer, *given: Any) -> torch.Tensor:
        found.append(f"computes {layers(net).index(self)}")
        return computed(self, *given)

    def sends(self: prefetching.Prefetch, finish: Callable[[], torch.Tensor]) -> torch.Tensor:
        def arrives() -> torch.Tensor:
            found.append(f"arrives {numbers[self]}")
            return finish()

        found.append(f"sends {numbers[self]}")
        return defer(self, arrives)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DistributedLayer, "prefetch", prefetches)
        patched.setattr(DistributedLayer, "_without_bias", computes)
        patched.setattr(prefetching.Prefetch, "defer", sends)
        stepped(net, batch)
    return found


def kernels_freed_before_the_sum_of_out() -> list[bool]:
    """By slice of Ker that a layer gathers in inference: whether it is gone when Out is summed."""
    make, shape = MODELS["biases"]
    net = synth.parallelize(make().double(), shape, plan={"b": 2, "c": 2}, ahead=1)
    emitted = layers(net)[0].program.function.forward.__globals__  # names of the emitted module
    wait_gather, reduce = emitted["wait_gather"], emitted["reduce"]
    kernels, gone = list[Any](), list[bool]()

    def waits(pending: Any) -> torch.Tensor:
        whole: torch.Tensor = wait_gather(pending)
        if whole.shape[-2:] == (3, 3):
            kernels.append(weakref.ref(whole))
        return whole

    def reduces(*given: Any) -> Any:
        gone.extend(kernel() is None for kernel in kernels)
        return reduce(*given)

    with pytest.MonkeyPatch.context() as patched, torch.no_grad():
        patched.setitem(emitted, "wait_gather", waits)
        patched.setitem(emitted, "reduce", reduces)
        net(net.scatter(torch.ones(shape, dtype=torch.float64)))
    return gone


# -- steps that fail -------------------------------------------------------------------------------------


class StepFailed(Exception):
    """What a hook of these tests raises in the middle of a step."""


def fail_late(*_: Any) -> None:
    """A hook that ends a step; rank 0 is late, so that what the others wait for is not there yet."""
    if dist.get_rank() == 0:
        time.sleep(0.3)
    raise StepFailed


def step_after_failed_steps(large: int | None, place: int, rebuilt: bool) -> tuple[Values, Values]:
    """Values of the steps that follow a step that failed in a layer's forward, then in its backward pass.

    large: bytes from which a piece is a message of its own; None for the usual number.
    place: the number of the layer. rebuilt: whether a new network makes the next step.
    """
    found = []
    with pytest.MonkeyPatch.context() as patched:
        if large is not None:
            patched.setattr(collectives, "LARGE", large)
        net, batch = made("biases", "data", 2)
        for hook in ("forward", "backward"):
            layer = layers(net)[place]
            if hook == "forward":
                handle = layer.register_forward_hook(fail_late)
            else:
                handle = weight(net, layer).register_hook(fail_late)
            with pytest.raises(StepFailed):
                stepped(net, batch)
            handle.remove()
            net.zero_grad()
            net = made("biases", "data", 2)[0] if rebuilt else net
            found.append(stepped(net, batch))
        assert not net.program.context.pending
    return found[0], found[1]


def step_with_a_hook() -> tuple[str, bool]:
    """How a module with a forward hook is refused; and whether a step works once the hook is gone."""
    net, batch = made("biases", "data", 2)
    module = next(each for each in net.children() if any(True for _ in each.parameters()))
    hook = module.register_forward_pre_hook(lambda *_: None)
    said = ""
    try:
        net(batch)
    except ValueError as error:
        said = str(error)
    hook.remove()
    return said, net(batch) is not None
