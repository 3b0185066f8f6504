"""What ranks do with a model and the plan of a network file: they train it and count the words that move."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch
import zoo
from torch import nn

import synth
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.planned_layer import PlannedLayer
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.model.network import Network

Words = dict[str, int]


def preload() -> None:
    """Import MONAI before the ranks are forked."""
    if find_spec("monai"):
        zoo.small_unet()


def run(factory: str, shape: tuple[int, ...], plan: str) -> dict[str, Any]:
    """Three steps of the model that `module:name` makes, by the plan of a file.

    error: of losses and weights. forward, backward: words moved between layers, by what they are moved for.
    inside: words received in a layer, by its name. joins: what the parts of a concatenation are moved for
    -> (the layer that a part comes from, the layer that reads it).
    """
    module, _, name = factory.partition(":")
    torch.manual_seed(0)
    whole: nn.Module = getattr(importlib.import_module(module), name)().double()
    net = synth.parallelize(whole, shape, plan=plan)
    error = _train(net, whole, shape)
    layers = [m for m in net.program.modules() if isinstance(m, DistributedLayer)]
    for traffic in (net.program.context.traffic, *(layer.traffic for layer in layers)):
        traffic.steps.clear()
    out = net(net.scatter(torch.randn(shape, dtype=net.program.dtype), "input"))
    forward = _counted(net, "move")
    out.square().sum().backward()
    both = _counted(net, "move")
    inside = {layer.name: layer.traffic.received()["total"] for layer in layers}
    return {
        "error": error,
        "forward": forward,
        "backward": {name: both[name] - forward.get(name, 0) for name in both},
        "inside": inside | _counted(net, "halo"),
        "joins": _joins(net),
    }


def _train(net: Network, whole: nn.Module, shape: tuple[int, ...]) -> float:
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (net, whole)]
    errors = []
    for _ in range(3):
        batch = torch.randn(shape, dtype=net.program.dtype)
        right = whole(batch)
        losses = [out.square().mean() for out in (net.gather(net(net.scatter(batch, "input"))), right)]
        errors.append(float((losses[0] - losses[1]).abs().detach()))
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state = net.full_state_dict()
    return max(errors + [float((state[k] - v).abs().max()) for k, v in whole.state_dict().items()])


def _counted(net: Network, phase: str) -> Words:
    return {
        name: words
        for (each, _, name), words in net.program.context.traffic.steps.items()
        if each.strip() == phase
    }


def _joins(net: Network) -> dict[str, tuple[str, str]]:
    sources = dict(net.program.calls)
    users = {source: node for node, read in net.program.calls for source in read}

    def layer(node: str) -> str:
        return net.program.names.get(node, node)

    def planned(node: str) -> bool:
        step = net.program.steps[node]
        return isinstance(step, PlannedLayer) or (isinstance(step, Pulled) and step.before is not None)

    found = {}
    for node, parts in net.program.calls:
        if not node.startswith("cat"):
            continue
        reader = users[node]
        while not planned(reader):
            reader = users[reader]
        for part in parts:
            home = part
            while not planned(home):
                home = sources[home][0]
            found[f"{node} <- {part}"] = layer(home), layer(reader)
    return found
