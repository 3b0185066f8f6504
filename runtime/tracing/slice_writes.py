"""Writes into slices, `x[:, 0] = y`, as a new tensor: of slices and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx


class Span(NamedTuple):
    """The rows along one dimension. dropped: whether an integer chose a single one."""

    low: int
    high: int
    dropped: bool


def with_slices(values: torch.Tensor, index: Any, given: Any) -> torch.Tensor | None:
    """`values` after `values[index] = given`; `values` itself stays.

    index: integers, slices of step 1 and `...`, or a mask for a single value. None for
    other indices.
    """
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
        number = not isinstance(given, torch.Tensor) or not given.dim()
        if not number or index.shape != values.shape:
            return None
        return torch.where(index, given, values)
    spans = spans_of(index, values.shape)
    if spans is None:
        return None
    return _replaced(values, spans, 0, given)


def spans_of(index: Any, shape: Sequence[int]) -> list[Span] | None:
    """What an index chooses along each dimension; None where it is more than that."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1 or len(parts) - len(dots) > len(shape):
        return None
    place = dots[0] if dots else len(parts)
    parts[place : place + 1] = [slice(None)] * (len(shape) - len(parts) + len(dots))
    found = []
    for part, extent in zip(parts, shape, strict=True):
        if isinstance(part, slice):
            low, high, step = part.indices(extent)
            if step != 1:
                return None
            found.append(Span(low, max(low, high), dropped=False))
        elif isinstance(part, int) and not isinstance(part, bool):
            low = part % extent
            found.append(Span(low, low + 1, dropped=True))
        else:
            return None
    return found


def _replaced(
    values: torch.Tensor, spans: Sequence[Span], dim: int, given: Any
) -> torch.Tensor:
    """The spans from `dim` on replaced; before it, they have been cut out."""
    if dim == len(spans):
        return _fitting(values, spans, given)
    low, high, _ = spans[dim]
    extent = values.shape[dim]
    if (low, high) == (0, extent):
        return _replaced(values, spans, dim + 1, given)
    if low == high:
        return values
    before = (slice(None),) * dim
    inner = _replaced(values[(*before, slice(low, high))], spans, dim + 1, given)
    parts = [inner]
    if low:
        parts.insert(0, values[(*before, slice(low))])
    if high < extent:
        parts.append(values[(*before, slice(high, None))])
    return torch.cat(parts, dim)


def _fitting(values: torch.Tensor, spans: Sequence[Span], given: Any) -> torch.Tensor:
    """What is written, with the shape and dtype of the words that it replaces."""
    if not isinstance(given, torch.Tensor):
        return torch.full_like(values, given)
    wanted = [span.high - span.low for span in spans if not span.dropped]
    while given.dim() > len(wanted):
        given = given.squeeze(0)
    if list(given.shape) != wanted:
        given = given.expand(wanted)
    for dim, span in enumerate(spans):
        if span.dropped:
            given = given.unsqueeze(dim)
    fitting: torch.Tensor = given
    return fitting if fitting.dtype == values.dtype else fitting.to(values.dtype)


def is_added_in_place(values: fx.Node, index: Any, given: fx.Node) -> bool:
    """Whether a call has changed just `values[index]` in place, as `x[0] += y` does."""
    read: Any = given.args[0] if given.meta.get("changes") and given.args else None
    return (
        isinstance(read, fx.Node)
        and getattr(read.target, "__name__", "") == "__getitem__"
        and read.args[0] is values
        and repr(read.args[1]) == repr(index)
    )
