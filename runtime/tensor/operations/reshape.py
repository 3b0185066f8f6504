"""`view` and `reshape` of a partitioned tensor.

Where boxes of ranks stay boxes, no words move. Else they are cut along others first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from synth.runtime.rules.local_forms import regrouped, reshape_form, within_boxes
from synth.runtime.tensor.operations.operands import NoParts, by_rule, wrap
from synth.runtime.tensor.partition import Partition


def view(func: Any, args: Any, kwargs: Any) -> Any:
    """`view` and `reshape`: dimensions are joined and divided, but cut ones."""
    given, wanted = args[0], args[1]
    if isinstance(wanted, torch.dtype):
        if wanted.itemsize != given.dtype.itemsize:
            raise NoParts
        return wrap(given._local.view(wanted), given._partition)
    wanted = list(wanted)
    if -1 in wanted:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = given.numel() // rest if rest else 0
    if tuple(wanted) == tuple(given.shape):
        return wrap(given._local.view_as(given._local), given._partition)
    partition = given._partition
    layout = partition.layout
    if partition.refined:
        if tuple(wanted) != layout.whole:
            raise NoParts
        return wrap(given._local.view_as(given._local), Partition(layout))
    form = reshape_form(given.shape, wanted)
    joins = _joins_positions(given.shape, wanted)
    if joins and regrouped(layout, form) is None:
        return wrap(given._local.view_as(given._local), Partition(layout, wanted))
    return by_rule(func, given, lambda held: within_boxes(held, form, lambda box: box))


def _joins_positions(before: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a view is that of torch's losses of classes, whose words stay in boxes.

    Scores (b, c, *spatial) become (b, c, 1, positions), targets (b, 1, positions).
    """
    kept = list(before[: len(wanted) - 2])
    return 3 <= len(wanted) <= 4 and [*kept, 1] == list(wanted[:-1])


RULES: dict[str, Callable[[Any, Any, Any], Any]] = dict.fromkeys(
    ("view", "_unsafe_view", "reshape", "_reshape_alias"), view
)
