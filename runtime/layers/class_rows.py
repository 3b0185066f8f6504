"""Layers of plans whose residue classes are samples: whole tensors, and rows of filler.

The user's whole tensors have no classes; shards are boxes of the tensors with classes.
Filler is 0 in the shards that a layer reads and in those that it returns, and so are
its gradients, so a loss may sum whole shards.
"""

from __future__ import annotations

import torch

from synth.runtime.grid.boxes import Box
from synth.runtime.grid.residue_classes import Classes, class_counts, divide, unite
from synth.runtime.layers.layer_program import LayerProgram


def divided_input(program: LayerProgram, whole: torch.Tensor) -> torch.Tensor:
    """A whole input of torch's layer with its residue classes as samples."""
    if not program.classes:
        return whole
    tensor = "In" if program.transposed_rows is None else "Out"
    classes = _classes(program, tensor)
    whole = whole.reshape(program.undivided[tensor])
    return divide(whole, classes, _rows(program, tensor))


def united_output(program: LayerProgram, whole: torch.Tensor) -> torch.Tensor:
    """A whole output of torch's layer from one with residue classes as samples."""
    if not program.classes:
        return whole
    tensor = "Out" if program.transposed_rows is None else "In"
    classes = _classes(program, tensor)
    return unite(whole, classes, program.undivided[tensor][-len(classes) :])


def filler_masks(
    program: LayerProgram, given: Box, made: Box
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Where a shard of a layer's input and one of its output are filler; None: nowhere.

    given, made: the boxes of the two shards.
    """
    if not program.classes:
        return None, None
    reads, writes = ("In", "Out") if program.transposed_rows is None else ("Out", "In")
    return _filler(program, reads, given), _filler(program, writes, made)


def _filler(program: LayerProgram, tensor: str, box: Box) -> torch.Tensor | None:
    classes = _classes(program, tensor)
    plain, count = len(box) - len(classes), class_counts(classes)
    rows = program.undivided[tensor][-len(classes) :]
    real = divide(torch.ones(*[1] * plain, *rows), classes, _rows(program, tensor))
    mask = real[[b % count for b in range(*box[0])]] == 0
    for dim, (low, high) in enumerate(box[plain:], plain):
        mask = mask.narrow(dim, low, high - low)
    return mask if bool(mask.any()) else None


def _classes(program: LayerProgram, tensor: str) -> list[Classes]:
    """The classes of In or Out along each spatial dimension."""
    found = [program.classes.get(axis, Classes()) for axis in program.windows]
    return found if tensor == "In" else [each.of_out for each in found]


def _rows(program: LayerProgram, tensor: str) -> tuple[int, ...]:
    """Rows of each class of In or Out."""
    whole = program.in_shape if tensor == "In" else program.out_shape
    return tuple(whole[len(whole) - len(program.windows) :])
