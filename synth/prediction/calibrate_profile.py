"""`synth calibrate`: forward, backward and update times of every layer with weights, measured with torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from synth.layer.layer import Layer
from synth.network.graph import Network
from synth.prediction.profile import Times, write_profile


def calibrate(network: Network, batch: int, repeat: int, tell: Callable[[str], None]) -> str:
    """A profile CSV; the least of `repeat` runs counts. Layers of equal shape are measured once."""
    known: dict[Any, Times] = {}
    table: dict[str, Times] = {}
    nodes = [node for node in network.planned if node.weighted]
    for number, node in enumerate(nodes, 1):
        assert node.layer is not None
        layer = _resized(node.layer, batch)
        key = (
            layer.kind,
            layer.input,
            layer.out_channels,
            layer.kernel,
            layer.stride,
            layer.padding,
            layer.transposed,
        )
        if key not in known:
            tell(f"synth: measuring {node.name} ({number} of {len(nodes)})")
            known[key] = _measure(layer, batch, repeat)
        table[node.name] = known[key]
    return write_profile(table)


def _resized(layer: Layer, batch: int) -> Layer:
    from dataclasses import replace

    return replace(layer, input=(batch, *layer.input[1:]))


def _measure(layer: Layer, batch: int, repeat: int) -> Times:
    import torch
    from torch.nn import functional

    if layer.kind == "matmul":
        m, n, k = layer.input
        inputs = torch.randn(m, k, requires_grad=True)
        weight = torch.randn(n, k, requires_grad=True)

        def run() -> torch.Tensor:
            return functional.linear(inputs, weight)

    else:
        inputs = torch.randn(layer.input, requires_grad=True)
        whole = layer.conv
        shape = (whole.out_channels, whole.input[1] // layer.groups, *layer.kernel)
        weight = torch.randn(shape, requires_grad=True)
        conv: Any = getattr(functional, layer.kind)
        rest: tuple[Any, ...] = (layer.dilation, layer.groups)
        if layer.transposed:
            conv = getattr(functional, layer.kind.replace("conv", "conv_transpose"))
            rest = (layer.output_padding, layer.groups, layer.dilation)

        def run() -> torch.Tensor:
            out: torch.Tensor = conv(inputs, weight, None, layer.stride, layer.padding, *rest)
            return out

    forward, backward, update = [], [], []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        out = run()
        middle = time.perf_counter()
        gradients = torch.autograd.grad(out, (inputs, weight), torch.ones_like(out))
        end = time.perf_counter()
        with torch.no_grad():
            weight.sub_(gradients[1], alpha=1e-9)
        forward.append((middle - start) / batch)
        backward.append((end - middle) / batch)
        update.append(time.perf_counter() - end)
    return Times(min(forward[1:]), min(backward[1:]), min(update[1:]))
