"""NaN and infinity in training: all ranks check together and raise alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.grid.process_grid import coordinates, grid_size, place_at
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.spans import waiting


def require_finite(
    where: str, values: torch.Tensor, place: Callable[[int], str], ranks: Ranks
) -> None:
    """Raise `FloatingPointError` on every rank if any rank has NaN or infinity.

    All ranks must call this. `where` names the layer and the tensor, `place` returns
    the text that follows the number of the rank with an index.
    """
    bad = torch.zeros(ranks.size, dtype=torch.int32, device=values.device)
    bad[ranks.me] = int(not bool(torch.isfinite(values).all()))
    with waiting("wait for a check"):
        dist.all_reduce(bad, group=ranks.group)
    if bad.any():
        found = [int(index) for index in bad.nonzero().flatten()]
        named = ", ".join(f"rank {ranks.members[i]}{place(i)}" for i in found)
        raise FloatingPointError(f"layer {where} is not finite on {named}")


def check_gradient(
    where: str,
    tensor: torch.Tensor | None,
    place: Callable[[int], str],
    ranks: Ranks,
) -> None:
    """Call `require_finite` with the gradient of a tensor, if it gets one."""
    if tensor is not None and tensor.requires_grad:
        tensor.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: require_finite(where, gradient, place, ranks)
        )


def check_layer_inputs(layer: Any, shard: torch.Tensor) -> torch.Tensor:
    """Check Ker, before a gather spreads it, bias and In of a planned layer.

    The shard, of which the gradient is checked, too.
    """
    _check_values(layer, "Ker", layer.weight)
    if layer.bias is not None:
        _check_values(layer, "Bias", layer.bias)
    _check_values(layer, "In", shard)
    if shard.requires_grad:
        shard = shard.view_as(shard)
        _check_gradient(layer, "dIn", shard)
    return shard


def check_layer_output(layer: Any, out: torch.Tensor) -> None:
    """Check the output of a planned layer, and its gradient."""
    _check_values(layer, "Out", out)
    _check_gradient(layer, "dOut", out)


def check_layer_parameters(layer: Any) -> None:
    """Check the next gradients of a planned layer's weight and bias."""
    _check_gradient(layer, "dKer", layer.weight)
    _check_gradient(layer, "dBias", layer.bias)


def _check_values(layer: Any, role: str, values: torch.Tensor) -> None:
    place, ranks = partial(_shown_place, layer), layer.context.ranks
    require_finite(f"{layer.name}: {role}", values, place, ranks)


def _check_gradient(layer: Any, role: str, tensor: torch.Tensor | None) -> None:
    place, ranks = partial(_shown_place, layer), layer.context.ranks
    check_gradient(f"{layer.name}: {role}", tensor, place, ranks)


def _shown_place(layer: Any, index: int) -> str:
    grid = layer.program.grid
    at = coordinates(index, grid) if index < grid_size(grid) else None
    return f" ({place_at(at)})"
