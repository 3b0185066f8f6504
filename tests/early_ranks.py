"""What one rank of the tests of early weights does. Every function runs on all ranks and asserts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from network_ranks import MODELS, PLANS
from torch import nn
from torch.utils.checkpoint import checkpoint

import synth
from runtime import early
from runtime.module import DistributedLayer
from runtime.network import Network


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
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def layers(net: Network) -> list[DistributedLayer]:
    """The planned ones, in their order."""
    return [each for each in net.modules() if isinstance(each, DistributedLayer)]


def values(case: str) -> None:
    """The same bits and words, however early Ker is brought and however a step is made."""
    name, *plans = case.split()
    for how in plans:
        print(name, how, flush=True)
        plain, share = made(name, how, 0)
        assert not plain.brings
        wanted = stepped(plain, share)
        for ahead in (1, 3, 100):
            net, _ = made(name, how, ahead)
            same(stepped(net, share), wanted)
            assert net.received() == plain.received()
            assert not any(each.waiting or each.early for each in layers(net))
        with torch.no_grad():
            same(net(share), plain(share))
        frozen, _ = made(name, how, 1)
        for each in layers(frozen)[1:]:
            each.weight.requires_grad_(False)
        out, found = stepped(frozen, share)
        trained = {key: wanted[1][key] for key in found}
        same((out, found), (wanted[0], trained))


def order(_: str) -> None:
    """Ker is on its way before the layer before computes; sums of dKer arrive after its passes back."""
    net, share = made("biases", "data", 1)
    events = list[str]()
    names = {id(each.waiting): place for place, each in enumerate(layers(net))}

    def noted(kind: Any, name: str, what: str) -> None:
        call = getattr(kind, name)

        def noting(self: Any, *rest: Any) -> Any:
            if what != "arrives" or self.finish:
                events.append(f"{what} {names[id(self.waiting)]}")
            return call(self, *rest)

        setattr(kind, name, noting)

    noted(DistributedLayer, "bring", "brings")
    noted(DistributedLayer, "_computed", "computes")
    noted(early.Early, "later", "starts")
    noted(early.Early, "arrive", "arrives")
    stepped(net, share)
    there, back = events[:8], events[8:]
    assert there == [
        *("brings 0", "brings 1", "computes 0", "brings 2", "computes 1"),
        *("brings 3", "computes 2", "computes 3"),
    ]
    assert back == [
        *("starts 3", "starts 2", "arrives 3", "starts 1", "arrives 2"),
        *("starts 0", "arrives 1", "arrives 0"),
    ]


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

    weights = [each.weight for each in layers(net)]
    some = torch.autograd.grad(net(share).square().sum(), weights[2:3])
    key = next(name for name, each in net.named_parameters() if each is weights[2])
    same(some[0], alone[1][key])
    assert not any(each.waiting for each in layers(net))
    same(stepped(net, share), alone)


class Broken(Exception):
    """What a step breaks off with."""


def broken(_: str) -> None:
    """After steps that break off, forward or back, on all ranks alike, the next one is right."""
    plain, share = made("biases", "data", 0)
    net, _ = made("biases", "data", 2)
    wanted = stepped(plain, share)

    def breaks(*_: Any) -> None:
        raise Broken

    for step in ("1", "3"):
        layer: nn.Module = dict(net.steps)[list(net.steps)[int(step)]]
        handle = layer.register_forward_hook(breaks)
        expect(lambda: net(share))
        handle.remove()
        same(stepped(net, share), wanted)
    for place in (1, 2):
        handle = layers(net)[place].weight.register_hook(breaks)
        expect(lambda: stepped(net, share))
        handle.remove()
        net.zero_grad()
        with torch.no_grad():  # what waits holds the sums of the step before
            layers(net)[0].weight.add_(1)
            layers(plain)[0].weight.add_(1)
        same(stepped(net, share), stepped(plain, share))
        assert not any(each.waiting for each in layers(net))


def expect(call: Callable[[], Any]) -> None:
    """A step breaks off."""
    try:
        call()
    except Broken:
        return
    raise AssertionError("the step did not break off")


def main() -> None:
    """Run a function of this file on this rank."""
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](sys.argv[2])
    dist.barrier()
    dist.destroy_process_group()
