"""Sample values and expected results of programs that count residue classes as samples.

Values are those of the user's tensors. Filler is 0 in sample values; in expected
results it is NaN, which is compared with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from synth.runtime.grid.boxes import (
    Box,
    Window,
    shape,
    source_rows,
    tile_indices,
    volume,
)
from synth.runtime.grid.residue_classes import Classes, class_counts, divide
from synth.runtime.program.check import gradient, reference
from synth.runtime.program.sample_data import sample


def sample_classes(
    tensor: str,
    whole: Sequence[int],
    box: Box,
    dtype: torch.dtype,
    device: torch.device,
    classes: dict[str, Classes],
    windows: dict[str, Window],
    dims: int = 0,
) -> torch.Tensor:
    """Sample values of a box of "In" or "dOut" whose samples are classes.

    whole: the shape of the user's tensor. dims: as in `sample`.
    """
    plain, count = len(box) - len(windows), class_counts([*classes.values()])
    made = [torch.zeros(0, *shape(box)[1:], dtype=dtype, device=device)]
    for index in range(*box[0]):
        b, rest = divmod(index, count)
        numbers = tile_indices(rest, {a: each.parts for a, each in classes.items()})
        positions: list[Any] = [[b], *(range(*each) for each in box[1:plain])]
        inside = torch.ones((), dtype=torch.bool, device=device)
        for dim, (axis, window) in enumerate(windows.items(), plain):
            low, high = box[dim]
            rows: list[int] = list(range(low, high))
            if axis in classes:
                own = classes[axis] if tensor == "In" else classes[axis].of_out
                rows = own.rows(numbers[axis], low, high)
            elif tensor == "In":
                rows = source_rows(box[dim], window)
            real = [0 <= row < whole[dim] for row in rows]
            inside = inside.unsqueeze(-1) & torch.tensor(real, device=device)
            positions.append([max(0, min(row, whole[dim] - 1)) for row in rows])
        values = sample(tensor, whole, positions, dtype, device, dims)
        made.append(values.masked_fill(~inside, 0))
    return torch.cat(made)


def class_reference(
    classes: dict[str, Classes],
    windows: dict[str, Window],
    conv: Callable[..., torch.Tensor],
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    box: Box,
    dtype: torch.dtype,
    device: torch.device,
    *numbers: Sequence[int],
) -> torch.Tensor:
    """A box of Out by one torch call for the user's rows; see `check.reference`.

    shapes: of the user's In, Ker and Out. numbers: stride, padding, dilation.
    """
    own = [classes[axis].of_out if axis in classes else Classes() for axis in windows]
    plain, count = len(box) - len(own), class_counts(own)
    rows = [
        (min(n, each.parts * low), min(n, each.parts * high))
        for each, (low, high), n in zip(
            own, box[plain:], shapes[2][plain:], strict=True
        )
    ]
    samples = box[0][0] // count, -(-box[0][1] // count)
    user: Box = (samples, *box[1:plain], *rows)
    made = reference(conv, shapes[0], shapes[1], user, dtype, device, *numbers)
    return _class_samples(made, own, box, samples[0] * count)


def class_gradient(
    classes: dict[str, Classes],
    windows: dict[str, Window],
    of: str,
    conv: Callable[..., torch.Tensor],
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    box: Box,
    dtype: torch.dtype,
    device: torch.device,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """A box of dIn by torch's autograd on the user's tensors; see `check.gradient`."""
    own = [classes.get(axis, Classes()) for axis in windows]
    plain, count = len(box) - len(own), class_counts(own)
    samples = box[0][0] // count, -(-box[0][1] // count)
    user: Box = (samples, *box[1:])
    numbers = stride, padding, dilation
    made = gradient(of, conv, shapes, user, dtype, device, *numbers)
    for dim, (axis, window) in enumerate(windows.items(), plain):
        if axis not in classes:
            rows = torch.tensor(source_rows(box[dim], window), dtype=torch.int64)
            index = rows.to(device)
            made = made.index_select(dim, index)
    own = [
        each._replace(first=each.first + each.step * each.parts * low)
        for each, (low, _) in zip(own, box[plain:], strict=True)
    ]
    return _class_samples(made, own, box, samples[0] * count)


def _class_samples(
    made: torch.Tensor, classes: Sequence[Classes], box: Box, first: int
) -> torch.Tensor:
    """The samples of a box, from the user's rows; `first` is the first sample."""
    if not volume(box):
        return made.new_zeros(shape(box))
    plain = len(box) - len(classes)
    rows = shape(box[plain:])
    divided = divide(made, classes, rows, float("nan"))
    return divided[box[0][0] - first : box[0][1] - first]
