"""`synth calibrate NET.yaml`: measures forward, backward and update times of layers with weights in torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from synth.layer.layer import Layer
from synth.network.graph import Network
from synth.prediction.profile import LayerTimes, write_profile


def calibrate(network: Network, batch: int, repeat: int, progress: Callable[[str], None]) -> str:
    """The text of a profile CSV. Each time is the least of `repeat` runs; equal layers are measured once.

    batch: samples per measurement. progress: called with a sentence before each measurement.
    """
    known: dict[Layer, LayerTimes] = {}
    table: dict[str, LayerTimes] = {}
    nodes = [node for node in network.planned if node.weighted]
    for number, node in enumerate(nodes, 1):
        assert node.layer is not None
        layer = replace(node.layer, input=(batch, *node.layer.input[1:]), name="")
        if layer not in known:
            progress(f"synth: measuring {node.name} ({number} of {len(nodes)})")
            known[layer] = _measure(layer, batch, repeat)
        table[node.name] = known[layer]
    return write_profile(table)


def _measure(layer: Layer, batch: int, repeat: int) -> LayerTimes:
    """The least times of a layer over `repeat` runs, after one run that does not count."""
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
            given, zeros = inputs, layer.padding
            if any(not isinstance(each, int) for each in zeros):
                ends = [n for pair in reversed(layer.zeros) for n in pair]
                given, zeros = functional.pad(inputs, ends), (0,) * len(zeros)
            out: torch.Tensor = conv(given, weight, None, layer.stride, zeros, *rest)
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
    return LayerTimes(min(forward[1:]), min(backward[1:]), min(update[1:]))
