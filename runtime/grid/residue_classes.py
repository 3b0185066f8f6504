"""Residue classes of a dilation: how a tensor with classes as samples is the user's.

With stride 1 and a dilation, output rows of one residue class read input rows of one
class only. A program may count classes as samples: sample `b` of the user's tensor
becomes samples `b * count, ..., b * count + count - 1`, and with several dimensions the
class along the last one varies fastest (space-to-batch). All classes have as many rows
as the longest; what is no row of the user's tensor is filler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Classes(NamedTuple):
    """The classes along one dimension; `parts` is their number, 1 for none.

    Row `i` of class `j` is row `first + step * (parts * i + j)` of the user's In, and
    row `parts * i + j` of the user's Out.
    """

    parts: int = 1
    first: int = 0
    step: int = 1

    @property
    def of_out(self) -> Classes:
        """The classes of Out."""
        return Classes(self.parts)

    def rows(self, each: int, low: int, high: int) -> list[int]:
        """The user's rows, or filler, for rows `low` to `high` of class `each`."""
        places = range(each + self.parts * low, each + self.parts * high, self.parts)
        return [self.first + self.step * place for place in places]


def class_counts(classes: Sequence[Classes]) -> int:
    """Number of classes of one sample."""
    return math.prod(each.parts for each in classes)


def divide(
    whole: torch.Tensor,
    classes: Sequence[Classes],
    rows: Sequence[int],
    filler: float = 0.0,
) -> torch.Tensor:
    """A tensor of the user with its classes as samples; the inverse of `unite`.

    classes: of the last dimensions. rows: rows of each class there, and all rows of a
    dimension that has no classes.
    """
    plain, samples = whole.dim() - len(classes), whole.shape[0]
    for number, (each, size) in enumerate(zip(classes, rows, strict=True)):
        if each.parts == 1:
            continue
        dim = plain + 2 * number - sum(c.parts == 1 for c in classes[:number])
        places = [place for c in range(each.parts) for place in each.rows(c, 0, size)]
        index = torch.tensor(places, device=whole.device)
        inside = (index >= 0) & (index < whole.shape[dim])
        taken = whole.index_select(dim, index.clamp(0, whole.shape[dim] - 1))
        after = [1] * (whole.dim() - dim - 1)
        taken = taken.masked_fill(~inside.view(-1, *after), filler)
        shape = whole.shape
        whole = taken.reshape(*shape[:dim], each.parts, size, *shape[dim + 1 :])
    dims = _class_dims(classes, plain)
    return whole.movedim(dims, [*range(1, 1 + len(dims))]).reshape(
        samples * class_counts(classes), *whole.shape[1:plain], *rows
    )


def unite(
    divided: torch.Tensor, classes: Sequence[Classes], rows: Sequence[int]
) -> torch.Tensor:
    """A tensor of the user from one with classes as samples; rows in no class are 0.

    rows: the user's rows along the last dimensions.
    """
    plain, count = divided.dim() - len(classes), class_counts(classes)
    sizes = divided.shape[plain:]
    dims = _class_dims(classes, plain)
    counts = [each.parts for each in classes if each.parts > 1]
    samples = divided.shape[0] // count
    split = divided.reshape(samples, *counts, *divided.shape[1:])
    split = split.movedim([*range(1, 1 + len(dims))], dims)
    for number, (each, size) in enumerate(zip(classes, sizes, strict=True)):
        if each.parts == 1:
            continue
        dim = plain + number
        split = split.flatten(dim, dim + 1)
        places = [place for c in range(each.parts) for place in each.rows(c, 0, size)]
        real = [at for at, place in enumerate(places) if 0 <= place < rows[number]]
        index = torch.tensor([places[at] for at in real], device=split.device)
        kept = split.index_select(dim, torch.tensor(real, device=split.device))
        shape = (*split.shape[:dim], rows[number], *split.shape[dim + 1 :])
        split = split.new_zeros(shape).index_copy(dim, index, kept)
    return split


def _class_dims(classes: Sequence[Classes], plain: int) -> list[int]:
    """Where the dimensions of classes are, each before the rows of its dimension."""
    dims, at = [], plain
    for each in classes:
        if each.parts > 1:
            dims.append(at)
            at += 1
        at += 1
    return dims
