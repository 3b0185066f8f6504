"""The layer in one process, by torch.nn.functional, on the sample values that emitted programs use."""

from __future__ import annotations

from typing import Any

from synth.layer import Layer
from synth.plan import Plan


def shapes(layer: Layer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of In and Ker as a program holds them: groups are a dimension of their own."""
    nest = layer.nest.extents
    if layer.kind == "matmul":
        return (nest.b, nest.c), (nest.k, nest.c)
    grouped = (nest.g,) if layer.groups > 1 else ()
    rows = layer.input[2:]
    return (nest.b, *grouped, nest.c, *rows), (*grouped, nest.k, nest.c, *layer.kernel)


def expected(plan: Plan) -> Any:
    """Out of the whole layer, a torch tensor in the shape in which programs hold it.

    Half types are computed in float32.
    """
    import torch
    from torch.nn import functional

    from runtime.data import sample

    layer = plan.layer
    dtype: torch.dtype = getattr(torch, layer.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    device = torch.device("cpu")
    in_shape, ker_shape = shapes(layer)
    inputs = sample("In", in_shape, [range(n) for n in in_shape], dtype, device).to(wide)
    ker = sample("Ker", ker_shape, [range(n) for n in ker_shape], dtype, device).to(wide)
    if layer.kind == "matmul":
        return inputs @ ker.T
    conv = getattr(functional, layer.kind)
    if layer.groups > 1:
        inputs, ker = inputs.flatten(1, 2), ker.flatten(0, 1)
    out = conv(inputs, ker, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    return out.unflatten(1, (layer.groups, -1)) if layer.groups > 1 else out
