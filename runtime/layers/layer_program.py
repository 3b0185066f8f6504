"""The protocol between an emitted layer and the runtime: typed and versioned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from synth.runtime.grid.boxes import Box, Interval, Window
from synth.runtime.grid.process_grid import At
from synth.runtime.grid.residue_classes import Classes

PROTOCOL = 1  # the version that this runtime reads
OPTIONAL = ("classes", "undivided", "carried_in", "work")  # fields of some modules
ANEW = "it was emitted by another version of synth; emit it anew"


@dataclass(frozen=True, kw_only=True)
class LayerProgram:
    """What an emitted module declares about its layer.

    name, plan: the layer's name and the plan's id, for messages and saved states.
    dtype: of the plan, and of the parameters when the layer is made. The passes
        compute in the dtype of their operands.
    grid: axis -> parts. procs: ranks that may run; those beyond the grid are idle.
    group_axes: group -> the axes along which its ranks differ.
    in_shape, ker_shape, out_shape: of the whole tensors, in the layer's own numbers.
    windows: spatial axis -> how output rows read input rows; empty for a matrix
        product.
    transposed_rows: of a transposed convolution, the rows of its output per spatial
        axis. It runs as backward-data, so Out is its input and In its output.
    classes, undivided: of a plan whose residue classes are samples, spatial axis -> its
        classes, and "In" and "Out" -> the shape of the user's tensor. All other shapes
        and boxes are those of the tensors with classes.
    gradients: tensors of which a training step makes the gradient, of "In" and "Ker".
    owned_in, owned_ker, owned_out: coordinates of a rank -> the box that it owns.
    carried_in: coordinates of a rank -> its box of In with the halo that the forward
        pass fetches; None where it fetches none, or shares In in a group.
    work: coordinates of a rank -> its block of the nest; None where the forward pass
        fetches no halo, or takes tiles of rows, between which no zeros may lie.
    function: the layer for autograd, called as `function.apply(shard of the input,
        shard of Ker, at, groups, context, prefetch)`.
    prefetch_ker: starts to gather Ker before the layer's turn, called with (shard of
        Ker, at, groups, context); None if Ker is not gathered whole.
    """

    name: str
    plan: str
    dtype: torch.dtype
    grid: dict[str, int]
    procs: int
    group_axes: dict[str, tuple[str, ...]]
    in_shape: tuple[int, ...]
    ker_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    windows: dict[str, Window]
    transposed_rows: tuple[int, ...] | None
    gradients: tuple[str, ...]
    owned_in: Callable[[At], Box]
    owned_ker: Callable[[At], Box]
    owned_out: Callable[[At], Box]
    function: type[torch.autograd.Function]
    prefetch_ker: Callable[..., Any] | None
    classes: dict[str, Classes] = field(default_factory=dict)
    undivided: dict[str, tuple[int, ...]] = field(default_factory=dict)
    carried_in: Callable[[At], Box] | None = None
    work: Callable[[At], dict[str, Interval]] | None = None


def layer_program(protocol: int, **declared: Any) -> LayerProgram:
    """The declaration of an emitted module, checked.

    Raises `ValueError` if the module was emitted for another version of the protocol,
    or declares other fields than those of `LayerProgram`.
    """
    name = declared.get("name", "a layer")
    if protocol != PROTOCOL:
        raise ValueError(
            f"{name} has protocol {protocol}, this runtime reads {PROTOCOL}: {ANEW}"
        )
    wanted = [each.name for each in fields(LayerProgram)]
    lacks = [each for each in wanted if each not in (*declared, *OPTIONAL)]
    unknown = [each for each in declared if each not in wanted]
    if lacks:
        raise ValueError(f"{name} does not declare {', '.join(lacks)}: {ANEW}")
    if unknown:
        raise ValueError(f"{name} declares {', '.join(unknown)}: {ANEW}")
    return LayerProgram(**declared)


def require_program(program: object) -> None:
    """Raise `ValueError` unless `program` is a declared layer.

    Modules emitted before the protocol passed themselves instead of a declaration.
    """
    if not isinstance(program, LayerProgram):
        name = getattr(program, "NAME", type(program).__name__)
        raise ValueError(f"{name} does not declare a LayerProgram: {ANEW}")
