"""Writes by an index, `x[:, 0] = y` or `x[rows] = y`, as a new tensor.

Slices are put together again by concatenation; words at computed places by `index_put`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx


class Span(NamedTuple):
    """The rows along one dimension.

    dropped: whether an integer chose a single one. places: the rows themselves, or a
    truth value for each.
    """

    low: int
    high: int
    step: int = 1
    dropped: bool = False
    places: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """How many; as many as there are for truth values."""
        if self.places is not None:
            return self.places.numel()
        return len(range(self.low, self.high, self.step))


def with_slices(values: torch.Tensor, index: Any, given: Any) -> torch.Tensor | None:
    """`values` after `values[index] = given`; `values` itself stays.

    index: integers, slices and `...`, and places or truth values along one dimension;
    or places or truth values alone, for the first dimensions. None for other indices.
    """
    parts = index if isinstance(index, tuple) else (index,)
    parts = tuple(_as_tensor(each, values) for each in parts)
    if not isinstance(given, torch.Tensor):
        given = torch.full((), given, dtype=values.dtype, device=values.device)
    if given.dtype != values.dtype:
        given = given.to(values.dtype)
    if all(isinstance(part, torch.Tensor) for part in parts):
        return _put(values, parts, given)
    spans = spans_of(parts, values.shape)
    if spans is None or (any(_is_picked(each) for each in spans) and given.dim()):
        return None
    return _replaced(values, spans, 0, given)


def _as_tensor(part: Any, values: torch.Tensor) -> Any:
    """A list of places or of truth values as a tensor; another part as it is."""
    if isinstance(part, list) and part and all(isinstance(each, int) for each in part):
        return torch.tensor(part, device=values.device)
    return part


def _is_picked(span: Span) -> bool:
    """Whether truth values choose the rows, of which the number is not known."""
    return span.places is not None and span.places.dtype == torch.bool


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
            found.append(Span(low, max(low, high), step))
        elif isinstance(part, int) and not isinstance(part, bool):
            low = part % extent
            found.append(Span(low, low + 1, dropped=True))
        elif isinstance(part, torch.Tensor) and part.dim() == 1:
            found.append(Span(0, extent, places=part))
        else:
            return None
    return found if sum(each.places is not None for each in found) < 2 else None


def _replaced(
    values: torch.Tensor, spans: Sequence[Span], dim: int, given: torch.Tensor
) -> torch.Tensor:
    """The spans from `dim` on replaced; before it, they have been cut out."""
    if dim == len(spans):
        return _at_places(values, spans, given)
    low, high, step, _, _ = spans[dim]
    extent = values.shape[dim]
    if (low, high, step) == (0, extent, 1):
        return _replaced(values, spans, dim + 1, given)
    if low == high:
        return values
    before = (slice(None),) * dim
    inner = _replaced(values[(*before, slice(low, high, step))], spans, dim + 1, given)
    if step > 1:
        return _by_turns(values, inner, dim, spans[dim])
    parts = [inner]
    if low:
        parts.insert(0, values[(*before, slice(low))])
    if high < extent:
        parts.append(values[(*before, slice(high, None))])
    return torch.cat(parts, dim)


def _at_places(
    values: torch.Tensor, spans: Sequence[Span], given: torch.Tensor
) -> torch.Tensor:
    """What is written, in the place of all words, or of some rows of one dimension."""
    dim = next((n for n, each in enumerate(spans) if each.places is not None), None)
    if dim is None:
        return _fitting(values, spans, given)
    places = spans[dim].places
    assert places is not None
    if places.dtype == torch.bool:
        shown = places.reshape([-1] + [1] * (values.dim() - dim - 1))
        return torch.where(shown, given, values)
    places = torch.where(places < 0, places + values.shape[dim], places)
    return values.index_copy(dim, places, _fitting(values, spans, given))


def _by_turns(
    values: torch.Tensor, rows: torch.Tensor, dim: int, span: Span
) -> torch.Tensor:
    """Every so many rows along a dimension replaced; the others stay."""
    before, extent = (slice(None),) * dim, values.shape[dim]
    spread = rows.repeat_interleave(span.step, dim)
    shown = spread[(*before, slice(extent - span.low))]  # the last may go beyond it
    end = span.low + shown.shape[dim]
    parts = [values[(*before, slice(span.low))], shown]
    parts.append(values[(*before, slice(end, None))])
    every = torch.cat([each for each in parts if each.shape[dim]], dim)
    rows_of_all = torch.arange(extent, device=values.device)
    taken = (rows_of_all >= span.low) & (rows_of_all < span.high)
    taken = taken & ((rows_of_all - span.low) % span.step == 0)
    shape = [-1] + [1] * (values.dim() - dim - 1)
    return torch.where(taken.reshape(shape), every, values)


def _put(
    values: torch.Tensor, places: Sequence[torch.Tensor], given: torch.Tensor
) -> torch.Tensor:
    """Words at places of the first dimensions replaced."""
    if len(places) == 1 and places[0].dtype == torch.bool and not given.dim():
        mask = places[0]
        shape = *mask.shape, *[1] * (values.dim() - mask.dim())
        return torch.where(mask.reshape(shape), given, values)
    return values.index_put(tuple(places), given)


def _fitting(
    values: torch.Tensor, spans: Sequence[Span], given: torch.Tensor
) -> torch.Tensor:
    """What is written, with the shape of the words that it replaces."""
    wanted = [span.rows for span in spans if not span.dropped]
    while given.dim() > len(wanted):
        given = given.squeeze(0)
    if list(given.shape) != wanted:
        given = given.expand(wanted)
    for dim, span in enumerate(spans):
        if span.dropped:
            given = given.unsqueeze(dim)
    return given


def is_added_in_place(values: fx.Node, index: Any, given: fx.Node) -> bool:
    """Whether a call has changed just `values[index]` in place, as `x[0] += y` does."""
    read: Any = given.args[0] if given.meta.get("changes") and given.args else None
    return (
        isinstance(read, fx.Node)
        and getattr(read.target, "__name__", "") == "__getitem__"
        and read.args[0] is values
        and repr(read.args[1]) == repr(index)
    )
