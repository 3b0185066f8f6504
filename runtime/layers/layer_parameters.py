"""Weight and bias of a planned layer: initial values, whole states, the bias's sum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from synth.runtime.comm.messages import all_reduce
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.grid.boxes import Box, shape, within
from synth.runtime.grid.scatter_gather import gather_shards
from synth.runtime.grid.spans import waiting


def make_parameters(layer: Any, bias: bool, device: torch.device | str | None) -> None:
    """Weight and bias of a layer's own, with their initial values."""
    options: dict[str, Any] = {"dtype": layer.program.dtype, "device": device}
    own = layer.ker_boxes[layer.context.ranks.me]
    trained = "Ker" in layer.program.gradients
    weight = torch.empty(shape(own), **options)
    layer.weight = nn.Parameter(weight, requires_grad=trained)
    if bias:
        channels = layer.channels_of(layer.output.mine)
        layer.bias = nn.Parameter(torch.empty(shape(channels), **options))
        layer.bias_group = layer.context.process_groups.of(layer.bias_ranks)
    layer.reset_parameters()
    layer.check_parameters()


def ranks_of_bias(layer: Any) -> tuple[int, ...]:
    """The indices of the ranks that own the same output channels."""
    mine = layer.channels_of(layer.output.mine)
    boxes = enumerate(layer.output.boxes)
    return tuple(rank for rank, box in boxes if layer.channels_of(box) == mine)


def draw_parameters(layer: Any) -> None:
    """Initial values as in torch's layers: uniform, from the first rank's generator."""
    ranks = layer.context.ranks
    seed = ranks.from_first(int(torch.randint(2**31, ())))
    fan_in = math.prod(layer.program.ker_shape[-layer.kernel_dims - 1 :])
    bound = 1 / math.sqrt(fan_in)
    own = layer.channels_of(layer.output.mine)
    first = sum(low * 2**i for i, (low, _) in enumerate(own))
    seeds = (layer.weight, ranks.me), (layer.bias, 2**20 + first)
    for parameter, offset in seeds:
        if parameter is not None:
            generator = torch.Generator().manual_seed(seed + offset)
            values = torch.rand(parameter.shape, generator=generator) * 2 - 1
            with torch.no_grad():
                parameter.copy_(values * bound)


def whole_parameters(layer: Any) -> dict[str, torch.Tensor]:
    """Weight and bias whole, on every rank, with the shapes of torch's layer."""
    ranks, outs = layer.context.ranks, layer.output
    weight = gather_shards(
        layer.weight.detach(),
        layer.ker_boxes,
        layer.program.ker_shape,
        ranks,
    )
    state = {"weight": weight.flatten(0, 1) if layer.grouped else weight}
    if layer.bias is not None:
        state["bias"] = gather_shards(
            layer.bias.detach(),
            list(map(layer.channels_of, outs.boxes)),
            outs.whole[1 : len(outs.whole) - layer.kernel_dims],
            ranks,
        ).flatten()
    return state


def load_parameters(layer: Any, state: dict[str, torch.Tensor]) -> None:
    """Copy the own shards of a whole state.

    Raises `ValueError` for the state of another layer.
    """
    boxes: dict[str, Box] = {"weight": layer.ker_boxes[layer.context.ranks.me]}
    whole = {"weight": tuple(layer.program.ker_shape)}
    if layer.bias is not None:
        boxes["bias"] = layer.channels_of(layer.output.mine)
        whole["bias"] = layer.output.whole[1 : 1 + len(boxes["bias"])]
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


class AddBias(torch.autograd.Function):
    """Add the bias of each channel; all-reduce its gradient over the ranks of a group.

    Without a group the gradient is only this rank's part of the sum. The bias is
    rounded to the dtype of Out. Its gradient is summed in the wider dtype of the two,
    in float32 where both are of half precision.
    """

    @staticmethod
    def forward(
        ctx: Any, out: torch.Tensor, bias: torch.Tensor, dims: int, group: Any
    ) -> torch.Tensor:
        """Out plus bias; in place, as nothing else reads Out without it."""
        ctx.dims, ctx.group, ctx.dtype = dims, group, bias.dtype
        each = bias.to(out.dtype).reshape(*bias.shape, *[1] * dims)
        if any(ctx.needs_input_grad) and out._is_view():  # autograd forbids it
            return out + each
        ctx.mark_dirty(out)
        return out.add_(each)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        """dOut as it is, and the sum of each channel."""
        if not ctx.needs_input_grad[1]:  # the bias is frozen
            return dout, None, None, None
        dims = [0, *range(dout.dim() - ctx.dims, dout.dim())]
        dbias = dout.sum(dims, dtype=sum_dtype(ctx.dtype)).contiguous()
        if ctx.group is not None:
            with waiting("wait for a sum"):
                all_reduce(dbias, ctx.group).wait()
        return dout, dbias.to(ctx.dtype), None, None
