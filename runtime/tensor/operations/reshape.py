"""`view` and `reshape` of a partitioned tensor, where boxes of ranks stay boxes.

No words move: where the cut dimensions do not allow that, the operation is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from synth.runtime.grid.boxes import Box, Interval, volume
from synth.runtime.tensor.operations.operands import wrap
from synth.runtime.tensor.operations.views import refuse_view
from synth.runtime.tensor.partition import Partition


def view(func: Any, args: Any, kwargs: Any) -> Any:
    """`view` and `reshape`: dimensions are joined and divided, but cut ones."""
    given, wanted = args[0], list(args[1])
    if -1 in wanted:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = given.numel() // rest if rest else 0
    if tuple(wanted) == tuple(given.shape):
        return wrap(given._local.view_as(given._local), given._partition)
    partition = given._partition
    layout = partition.layout
    if partition.refined:
        if tuple(wanted) != layout.whole:
            refuse_view(given, wanted)
        return wrap(given._local.view_as(given._local), Partition(layout))
    boxes = []
    for box in layout.boxes:
        made = reshaped_box(box, given.shape, wanted)
        if made is None and _joins_positions(given.shape, wanted):
            return wrap(given._local.view_as(given._local), Partition(layout, wanted))
        if made is None:
            refuse_view(given, wanted)
        boxes.append(made)
    placed = partition.with_boxes(wanted, boxes)
    return wrap(given._local.reshape(placed.local_shape), placed)


def _joins_positions(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a view is that of torch's losses of classes, whose words stay in boxes.

    Scores (b, c, *spatial) become (b, c, 1, positions), targets (b, 1, positions).
    """
    kept = list(shape[: len(wanted) - 2])
    return 3 <= len(wanted) <= 4 and [*kept, 1] == list(wanted[:-1])


def reshaped_box(box: Box, shape: Sequence[int], wanted: Sequence[int]) -> Box | None:
    """A box in another shape of the same words; None if it is no box there."""
    if not volume(box):
        return ((0, 0),) * len(wanted)
    made: list[Interval] = []
    for before, after in _factors(shape, wanted):
        part = _factor_box(
            [box[dim] for dim in before],
            [shape[dim] for dim in before],
            [wanted[dim] for dim in after],
        )
        if part is None:
            return None
        made += part
    return tuple(made)


def _factors(
    shape: Sequence[int], wanted: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Groups of dimensions before and after with the same product, as small as can be.

    Both shapes have the same number of words, which is not 0.
    """
    groups = []
    i = j = 0
    while i < len(shape) or j < len(wanted):
        before, after, one, other = [], [], 1, 1
        if i < len(shape):
            before.append(i)
            one, i = shape[i], i + 1
        if j < len(wanted):
            after.append(j)
            other, j = wanted[j], j + 1
        while one != other:
            if one < other:
                before.append(i)
                one, i = one * shape[i], i + 1
            else:
                after.append(j)
                other, j = other * wanted[j], j + 1
        groups.append((before, after))
    return groups


def _factor_box(
    box: Sequence[Interval], shape: Sequence[int], wanted: Sequence[int]
) -> list[Interval] | None:
    """The intervals of one group of dimensions in its other shape; None for none."""
    if all(interval == (0, n) for interval, n in zip(box, shape, strict=True)):
        return [(0, extent) for extent in wanted]
    lead = next((d for d, n in enumerate(shape) if n != 1), 0)
    if any(box[d] != (0, shape[d]) for d in range(len(shape)) if d != lead):
        return None
    unit = math.prod(shape[lead + 1 :])
    low, high = box[lead][0] * unit, box[lead][1] * unit
    first = next((d for d, n in enumerate(wanted) if n != 1), 0)
    step = math.prod(wanted[first + 1 :])
    if not wanted or low % step or high % step:
        return None
    rest = [(0, extent) for extent in wanted[first + 1 :]]
    return [*((0, 1) for _ in range(first)), (low // step, high // step), *rest]


RULES: dict[str, Callable[[Any, Any, Any], Any]] = dict.fromkeys(
    ("view", "_unsafe_view", "reshape", "_reshape_alias"), view
)
