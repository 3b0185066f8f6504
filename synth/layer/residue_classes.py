"""Residue classes of a dilation: a dilated layer as several layers with a smaller dilation, or none.

With stride 1 and dilation δ, output rows of one residue class modulo δ read input rows of one class only. So
the layer is δ independent layers without dilation, and the class is an index like the sample:
`Nest.by_classes` makes samples of them (the space-to-batch transform of TensorFlow's atrous convolutions). A
divisor q of δ gives q classes with dilation δ/q.

    output row x  =  q·x' + class               sample b' = (b·q_d + class_d)·q_h + class_h ...
    input row y   =  q·y' + class - skipped     skipped = π mod q: so every class has the padding ⌊π/q⌋

All classes are as long as the longest. Rows that are in no layer are *filler*: In and dOut are 0 there, and
what Out and dIn have there is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

from synth.base.arithmetic import divisors
from synth.layer.axes import DIMS, SPATIAL, Axis, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from synth.layer.nest import Nest
    from synth.layer.window import Window

Classes = tuple[tuple[Axis, int], ...]  # (axis, number of classes, at least 2), in the order of SPATIAL


def possible_counts(window: Window) -> list[int]:
    """Numbers of classes that a dimension can have: divisors of the dilation; only 1 with a stride."""
    if window.stride > 1 or window.dilation == 1:
        return [1]
    return [count for count in divisors(window.dilation) if count <= window.out]


def class_choices(nest: Nest, asked: Mapping[str, int], balance: float) -> Iterator[Classes]:
    """The choices of classes that may move the fewest words, those with the most classes first, `()` last.

    asked: axis -> the number of classes that the user wants, 1 for none.
    balance: extra work that filler may make, as a fraction.
    """
    counts = [
        [asked[axis]] if axis in asked else _useful_counts(window, balance)
        for axis, window in nest.windows.items()
    ]
    for chosen in product(*counts):
        yield tuple((axis, n) for axis, n in zip(SPATIAL, chosen, strict=True) if n > 1)


def _useful_counts(window: Window, balance: float) -> list[int]:
    """Falling numbers of classes, and 1: those of which no multiple has as little filler.

    A multiple of a number cuts its classes into smaller ones, so blocks of samples can be as even, and blocks
    of rows have the same halo.
    """
    filled = {n: n * -(-window.out // n) for n in possible_counts(window)}
    most = window.out + int(Fraction(str(balance)) * window.out)
    fair = [n for n, rows in filled.items() if n > 1 and rows <= most]
    best = [n for n in fair if not any(m > n and m % n == 0 and filled[m] <= filled[n] for m in fair)]
    return [*best[::-1], 1]


# -- values -----------------------------------------------------------------------------------------------


def class_rows(nest: Nest, tensor: Tensor, axis: Axis) -> list[list[int]]:
    """By class: the rows of the undivided nest along an axis; -1 for filler. `nest` has the classes."""
    count, window = dict(nest.classes)[axis], nest.windows[axis]
    undivided = nest.undivided.windows[axis]
    if tensor == "Out":
        rows, most, first = window.out, undivided.out, 0
    else:
        rows, most, first = window.size, undivided.size, -(undivided.padding % count)
    places = [[first + count * row + each for row in range(rows)] for each in range(count)]
    return [[place if 0 <= place < most else -1 for place in each] for each in places]


def into_classes(nest: Nest, tensor: Tensor, values: NDArray[Any]) -> NDArray[Any]:
    """A tensor of the undivided nest, in `DIMS` order, as one of the nest with classes; filler is 0."""
    import numpy as np  # planning does without it

    if tensor == "Ker":
        return values
    for number, (axis, count) in enumerate(nest.classes):
        dim = DIMS[tensor].index(axis) + number
        rows = np.array(class_rows(nest, tensor, axis))
        taken = np.take(values, np.maximum(rows, 0).ravel(), dim)
        filler = np.expand_dims(rows.ravel() < 0, tuple(range(1, values.ndim - dim)))
        split = np.where(filler, 0, taken).reshape(*values.shape[:dim], count, -1, *values.shape[dim + 1 :])
        values = np.moveaxis(split, dim, number + 1)
    return values.reshape(-1, *values.shape[len(nest.classes) + 1 :])


def described(classes: Iterable[tuple[Axis, int]]) -> str:
    """`h=4, w=4`; empty without classes."""
    return ", ".join(f"{axis}={count}" for axis, count in classes)
