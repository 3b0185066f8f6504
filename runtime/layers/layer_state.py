"""The parameters of one planned layer as torch's own layer has them, and back."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.grid.boxes import Box, within
from synth.runtime.grid.scatter_gather import gather_shares


def whole_parameters(layer: Any) -> dict[str, torch.Tensor]:
    """Weight and bias whole, on every rank."""
    ranks = {"rank": dist.get_world_size()}
    kernels, outs = layer.kernels, layer.result
    weight = gather_shares(
        layer.weight.detach(),
        lambda at: kernels[at["rank"]],
        layer.program.KER_SHAPE,
        ranks,
    )
    state = {"weight": weight.flatten(0, 1) if layer.grouped else weight}
    if layer.bias is not None:
        state["bias"] = gather_shares(
            layer.bias.detach(),
            lambda at: layer.channels_of(outs.box(at)),
            outs.whole[1 : len(outs.whole) - layer.kernel_dims],
            ranks,
        ).flatten()
    return state


def take_parameters(layer: Any, state: dict[str, torch.Tensor]) -> None:
    """Copy the own shares. Raises `ValueError` for the state of another layer."""
    boxes: dict[str, Box] = {"weight": layer.kernels[dist.get_rank()]}
    whole = {"weight": tuple(layer.program.KER_SHAPE)}
    if layer.bias is not None:
        boxes["bias"] = layer.channels_of(layer.result.mine)
        whole["bias"] = layer.result.whole[1 : 1 + len(boxes["bias"])]
    flat = {
        name: (math.prod(sizes[:2]), *sizes[2:]) if layer.grouped else sizes
        for name, sizes in whole.items()
    }
    given = {name: tuple(values.shape) for name, values in state.items()}
    if given != flat:
        raise ValueError(
            f"the state is not of layer {layer.name}: it has {given}, the layer {flat}"
        )
    own = {"weight": layer.weight, "bias": layer.bias}
    with torch.no_grad():
        for name, box in boxes.items():
            values = state[name].reshape(whole[name])
            frame = tuple((0, extent) for extent in whole[name])
            own[name].copy_(values[within(box, frame)])
