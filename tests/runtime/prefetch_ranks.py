"""What one rank of the tests of early weights does. Every function runs on all ranks and asserts."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from network_ranks import MODELS, PLANS, some_idle
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import synth
from synth.runtime.comm import collectives
from synth.runtime.comm import prefetch as prefetching
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network
from synth.runtime.tensor.partitioned import PartitionedTensor


def made(name: str, how: str, ahead: int) -> tuple[Network, torch.Tensor]:
    """A network in doubles, the same on every call, and this rank's share of its batch."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    net = synth.parallelize(make().double(), shape, plan=PLANS[how], ahead=ahead)
    return net, net.scatter(torch.randn(shape, dtype=torch.float64))


def gradients(net: Network) -> dict[str, torch.Tensor]:
    """Those of all parameters, and none afterwards."""
    found = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    return found


def stepped(net: Network, share: torch.Tensor, forward: Callable[..., Any] | None = None) -> Any:
    """Output and gradients of one step."""
    out = (forward or net)(share)
    torch.autograd.backward(out.square().sum())
    return out.detach(), gradients(net)


def same(one: Any, other: Any) -> None:
    """The same bits."""
    torch.testing.assert_close(*map(gathered, (one, other)), rtol=0, atol=0)


def gathered(values: Any) -> Any:
    """Partitioned tensors as wholes."""
    return tree_map(lambda each: each.full_tensor() if isinstance(each, PartitionedTensor) else each, values)


def weight(net: Network, layer: DistributedLayer) -> torch.Tensor:
    """The parameter that a planned layer uses as its weight."""
    pairs = (pair for held in net.program.held.values() for pair in held)
    key = next(key for key, place in pairs if place.module is layer and place.name == "weight")
    return net.get_parameter(key)


def layers(net: Network) -> list[DistributedLayer]:
    """The planned ones, in their order."""
    return [each for each in net.program.modules() if isinstance(each, DistributedLayer)]


def values(case: str) -> None:
    """The same bits and words, however early Ker is brought and however a step is made."""
    name, *plans = case.split()
    for how in plans:
        print(name, how, flush=True)
        plain, share = made(name, how, 0)
        assert not plain.program.brings
        wanted = stepped(plain, share)
        for ahead in (1, 3, 100):
            net, _ = made(name, how, ahead)
            same(stepped(net, share), wanted)
            assert net.received() == plain.received()
            assert not net.program.context.pending
            assert not any(each.prefetched for each in layers(net))
        with torch.no_grad():
            same(net(share), plain(share))
        frozen, _ = made(name, how, 1)
        for each in layers(frozen)[1:]:
            weight(frozen, each).requires_grad_(False)
        out, found = stepped(frozen, share)
        assert {key for key in wanted[1] if key not in found} == {
            name for name, p in frozen.named_parameters() if not p.requires_grad
        }
        trained = {key: wanted[1][key] for key in found}
        same((out, found), (wanted[0], trained))


def order(_: str) -> None:
    """Ker is on its way before layers before compute; sums of dKer arrive after those layers' passes back."""
    assert happens(1) == [
        *("prefetches 0", "prefetches 1", "computes 0", "prefetches 2", "computes 1"),
        *("prefetches 3", "computes 2", "computes 3"),
        *("sends 3", "sends 2", "arrives 3", "sends 1", "arrives 2"),
        *("sends 0", "arrives 1", "arrives 0"),
    ]
    assert happens(2) == [
        *("prefetches 0", "prefetches 1", "prefetches 2", "computes 0", "prefetches 3", "computes 1"),
        *("computes 2", "computes 3"),
        *("sends 3", "sends 2", "sends 1", "arrives 3", "sends 0", "arrives 2"),
        *("arrives 1", "arrives 0"),
    ]


def happens(ahead: int) -> list[str]:
    """What the layers of a network do in a step, and when."""
    net, share = made("biases", "data", ahead)
    events, names = list[str](), dict[prefetching.Prefetch, int]()
    start, defer = DistributedLayer.prefetch, prefetching.Prefetch.defer
    computed = DistributedLayer._without_bias

    def prefetches(self: DistributedLayer, own: torch.Tensor) -> None:
        start(self, own)
        assert self.prefetched
        assert self.prefetched[1].gather
        assert self.prefetched[1].gather.requests
        names[self.prefetched[1]] = layers(net).index(self)
        events.append(f"prefetches {layers(net).index(self)}")

    def computes(self: DistributedLayer, *given: Any) -> torch.Tensor:
        events.append(f"computes {layers(net).index(self)}")
        return computed(self, *given)

    def sends(self: prefetching.Prefetch, finish: Callable[[], torch.Tensor]) -> torch.Tensor:
        def arrives() -> torch.Tensor:
            events.append(f"arrives {names[self]}")
            return finish()

        events.append(f"sends {names[self]}")
        return defer(self, arrives)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DistributedLayer, "prefetch", prefetches)
        patched.setattr(DistributedLayer, "_without_bias", computes)
        patched.setattr(prefetching.Prefetch, "defer", sends)
        stepped(net, share)
    return events


def together(_: str) -> None:
    """Two batches at once, recomputation, gradients of some tensors only, a graph used twice."""
    plain, share = made("biases", "hybrid", 0)
    net, _ = made("biases", "hybrid", 1)
    other = share + 1
    for each in (plain, net):
        torch.autograd.backward(each(share).square().sum() + each(other).sum())
    wanted = gradients(plain)
    same(gradients(net), wanted)

    alone = stepped(plain, share)
    same(stepped(net, share, partial(checkpoint, net, use_reentrant=False)), alone)
    out = net(share).square().sum()
    out.backward(retain_graph=True)
    out.backward()
    twice = {key: 2 * each for key, each in alone[1].items()}
    same(gradients(net), twice)

    weights = [weight(net, each) for each in layers(net)]
    some = torch.autograd.grad(net(share).square().sum(), weights[2:3])
    key = next(name for name, each in net.named_parameters() if each is weights[2])
    same(some[0], alone[1][key])
    assert not net.program.context.pending
    same(stepped(net, share), alone)


class Broken(Exception):
    """What a step breaks off with."""


def broken(_: str) -> None:
    """After steps that break off, forward or back, on all ranks alike, the next one is right."""
    plain, share = made("biases", "data", 0)
    wanted = stepped(plain, share)
    for large in (collectives.LARGE, 0):  # small pieces go at once, large ones each by itself
        collectives.LARGE = large
        for place in (1, 2):
            for gone in (False, True):
                net, _ = made("biases", "data", 2)
                layer = layers(net)[place]
                expect(net, share, layer.register_forward_hook(breaks))
                net = made("biases", "data", 2)[0] if gone else net
                same(stepped(net, share), wanted)
                expect(net, share, weight(net, layers(net)[place]).register_hook(breaks))
                net = made("biases", "data", 2)[0] if gone else net
                same(stepped(net, share), wanted)
                assert not net.program.context.pending


def breaks(*_: Any) -> None:
    """A step breaks off; one rank is late, so that what the others sent is not there yet."""
    if dist.get_rank() == 0:
        time.sleep(0.3)
    raise Broken


def expect(net: Network, share: torch.Tensor, hook: Any) -> None:
    """A step breaks off."""
    try:
        stepped(net, share)
    except Broken:
        hook.remove()
        net.zero_grad()
        return
    raise AssertionError("the step did not break off")


def hooked(_: str) -> None:
    """A module with a hook that could change its weight is refused."""
    net, share = made("biases", "data", 2)
    module = next(each for each in net.children() if any(True for _ in each.parameters()))
    hook = module.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(ValueError, match="has hooks"):
        net(share)
    hook.remove()
    net(share)


def idle(_: str) -> None:
    """Where ranks are idle in a layer, all look for NaN in the same order."""
    make, shape = MODELS["residual"]
    whole = make().double()
    plan = some_idle(whole, shape)
    found = []
    for ahead in (0, 1, 2):
        torch.manual_seed(0)
        net = synth.parallelize(make().double(), shape, plan=plan, check_finite=True, ahead=ahead)
        found.append(stepped(net, net.scatter(torch.ones(shape, dtype=torch.float64))))
    same(found[1:], found[:1] * 2)


def slices(_: str) -> None:
    """A slice of Ker that no later pass needs is gone before Out is summed, as plans count on."""
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

    emitted["wait_gather"], emitted["reduce"] = waits, reduces
    with torch.no_grad():
        net(net.scatter(torch.ones(shape, dtype=torch.float64)))
    assert gone == [True]


def main() -> None:
    """Run a function of this file on this rank."""
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](sys.argv[2])
    dist.barrier()
    dist.destroy_process_group()
