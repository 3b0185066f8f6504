"""A layer of this project as one call of torch, on whole tensors."""

from __future__ import annotations

import torch

from synth.layer.layer import Layer


def torch_output(layer: Layer, inputs: torch.Tensor, ker: torch.Tensor) -> torch.Tensor:
    """Out of In and Ker, with groups and their channels as one dimension."""
    if layer.kind == "matmul":
        return inputs @ ker.T
    if layer.kind == "einsum":  # without a spatial dimension; its own equation is tested elsewhere
        equation = "bgc,gkc->bgk" if layer.groups > 1 else "bc,kc->bk"
        return torch.einsum(equation, inputs, ker)
    if layer.groups > 1:
        inputs, ker = inputs.flatten(1, 2), ker.flatten(0, 1)
    conv = getattr(torch.nn.functional, layer.kind)
    inputs = torch.nn.functional.pad(inputs, [n for ends in reversed(layer.zeros) for n in ends])
    made: torch.Tensor = conv(inputs, ker, None, layer.stride, 0, layer.dilation, layer.groups)
    return made
