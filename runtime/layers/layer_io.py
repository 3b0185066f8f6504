"""The layouts of a planned layer's input and output, and their DTensors.

A convolution reads In and writes Out. A transposed convolution is planned as the
backward-data pass of a convolution: it reads Out and writes In, where the rows that no
kernel window reads are zero. Ranks beyond the grid own nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, Interval, Window, shape, source_rows
from synth.runtime.grid.dtensor_placements import placements_of, require_placements
from synth.runtime.grid.process_grid import (
    At,
    coordinates,
    grid_size,
    place_at,
    rank_of,
)
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.layer_program import LayerProgram


def boxes_by_rank(
    owned: Callable[[At], Box], grid: dict[str, int], ranks: int
) -> tuple[Box, ...]:
    """The boxes of all ranks; those beyond the grid own nothing."""
    used = grid_size(grid)
    boxes = [owned(coordinates(rank, grid)) for rank in range(used)]
    nothing = tuple((0, 0) for _ in boxes[0])
    return tuple(boxes) + (nothing,) * (ranks - used)


def layer_layouts(program: LayerProgram, ranks: Ranks) -> tuple[Layout, Layout]:
    """The layouts of a layer's input and output, as the user sees the layer."""
    ins, outs = (
        boxes_by_rank(owned, program.grid, ranks.size)
        for owned in (program.owned_in, program.owned_out)
    )
    rows = program.transposed_rows
    if rows is None:
        reads = Layout(program.in_shape, ins, ranks)
        return reads, Layout(program.out_shape, outs, ranks)
    plain = len(program.in_shape) - len(rows)
    windows = tuple(program.windows.values())
    wide = tuple(
        (*box[:plain], *with_unread_rows(box[plain:], windows, rows)) for box in ins
    )
    whole = (*program.in_shape[:plain], *rows)
    return Layout(program.out_shape, outs, ranks), Layout(whole, wide, ranks)


def with_unread_rows(box: Box, windows: Sequence[Window], rows: Sequence[int]) -> Box:
    """Intervals of rows that windows read, as intervals of all rows."""

    def end(row: int, window: Window, extent: int) -> int:
        if row in (0, window.size):
            return extent if row else 0
        return source_rows((row, row + 1), window)[0]

    trios = zip(box, windows, rows, strict=True)
    return tuple((end(low, w, n), end(high, w, n)) for (low, high), w, n in trios)


def insert_unread_rows(
    shard: torch.Tensor, read: Box, box: Box, windows: Sequence[Window]
) -> torch.Tensor:
    """The rows that windows read (`read`) among all rows of a box; the rest is 0."""
    plain = len(box) - len(windows)
    for dim, window in enumerate(windows, plain):
        rows: Interval = read[dim]
        low, high = box[dim]
        if high - low == rows[1] - rows[0]:
            continue
        sizes = (*shard.shape[:dim], high - low, *shard.shape[dim + 1 :])
        index = torch.tensor(source_rows(rows, window), dtype=torch.int64) - low
        index = index.to(shard.device)
        shard = shard.new_zeros(sizes).index_copy(dim, index, shard)
    return shard


def require_shard(layer: Any, shard: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise `ValueError` for a shard of another shape or dtype than the layer's.

    Also for a gradient that the plan does not make.
    """
    wanted = shape(layer.input.mine)
    if shard.shape != wanted or shard.dtype != weight.dtype:
        place = place_at(None if layer.idle else layer.at)
        cuts = "`layer.scatter(whole)` cuts it"
        lost = shard.is_complex() and not weight.is_complex()
        given = "torch.view_as_real(x)" if lost else f"x.to({weight.dtype})"
        converts = f"`{given}` converts it"
        raise ValueError(
            f"{layer.name}: rank {layer.context.ranks.rank} ({place}) owns In of"
            f" shape {wanted} and {weight.dtype}, but was given"
            f" {tuple(shard.shape)} of {shard.dtype};"
            f" {cuts if shard.shape != wanted else converts}"
        )
    made = layer.program.gradients
    for tensor, values in (("In", shard), ("Ker", layer.weight)):
        asks = values.requires_grad and torch.is_grad_enabled()
        if asks and tensor not in made:
            makes = f"makes that of {made[0]} alone" if made else "makes none"
            raise ValueError(
                f"{layer.name}: {tensor} asks for a gradient, but the plan {makes};"
                " plan gradients of both (`input_gradient=True` of a network)"
            )


# -- DTensors --------------------------------------------------------------------------


def forward_dtensor(layer: Any, whole: DTensor) -> torch.Tensor:
    """The output of a layer as a DTensor, from its input as a DTensor."""
    _refuse_classes(layer)
    owned = _owner(layer, "In")
    require_placements(layer.name, whole, owned, layer.program.grid)
    mesh, places = layer_placements(layer, "Out", whole.device.type)
    out = layer.forward(whole.to_local())
    extents = layer.output.whole
    return DTensor.from_local(
        out,
        mesh,
        places,
        run_check=False,
        shape=torch.Size(extents),
        stride=torch.empty(extents, device="meta").stride(),
    )


def layer_placements(layer: Any, tensor: str, device: str) -> tuple[Any, list[Any]]:
    """(mesh, placements) of a layer's "In" or "Out"; see `DistributedLayer`."""
    _refuse_classes(layer)
    whole = (layer.input if tensor == "In" else layer.output).whole
    owned, grid = _owner(layer, tensor), layer.program.grid
    return placements_of(layer.name, tensor, owned, whole, grid, device)


def _refuse_classes(layer: Any) -> None:
    """Raise `ValueError` for a layer with residue classes: its rows are strided."""
    if layer.program.classes:
        counts = ",".join(f"{a}=1" for a in layer.program.classes)
        raise ValueError(
            f"{layer.name}: ranks own residue classes, which no DTensor placement says;"
            f" give and take local shards, or plan with --classes {counts}"
        )


def _owner(layer: Any, tensor: str) -> Callable[[At], Box]:
    """Who owns what of "In" or "Out". A DTensor has no idle ranks."""
    grid = layer.program.grid
    if layer.context.ranks.group is not None:
        raise ValueError(
            f"{layer.name}: it runs on some ranks of the job, for which it makes no"
            " mesh; give and take local shards"
        )
    if layer.context.ranks.size > grid_size(grid):
        raise ValueError(
            f"{layer.name}: the plan leaves ranks idle, which no DTensor says;"
            " give and take local shards"
        )
    boxes: tuple[Box, ...] = (layer.input if tensor == "In" else layer.output).boxes
    return lambda at: boxes[rank_of(at, grid)]
