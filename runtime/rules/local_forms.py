"""What calls that act along some dimensions need of the boxes of ranks.

A reshape keeps the words of a box together only if the box ends at certain rows. Ranks
whose boxes do not fit are cut anew, along another dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from synth.runtime.comm.layout import Layout, disjoint, even
from synth.runtime.grid.boxes import Box, Interval, cut, shape, volume, with_interval
from synth.runtime.rules.rule import (
    LocalCall,
    Operand,
    Rule,
    reshaped,
    type_of,
    where_words,
)

Units = Mapping[int, int]  # dimension -> rows that stay together where it is cut
Regroup = Callable[[Box], "Box | None"]  # box of the input -> of the result, if any


class LocalForm(NamedTuple):
    """What a call needs of a box, and what it makes of it.

    units: the dimensions that may be cut. regroup: see `Regroup`; None where a box does
    not fit. out: the shape of the result.
    """

    units: Units
    regroup: Regroup
    out: tuple[int, ...]


def within_boxes(
    source: Layout, form: LocalForm, call: LocalCall, typed: bool = False
) -> Rule:
    """A function of the own box, whose input is cut anew where boxes do not fit it.

    call: takes the box of the input; its words are those of the result in order.
    typed: whether the result may have another dtype than the input.
    """
    held = fitting(source, form)
    out = regrouped(held, form)
    assert out is not None, (source, form)
    own = shape(out.mine)
    least = [form.units.get(dim, extent) for dim, extent in enumerate(source.whole)]
    dtype = type_of(call, [least]) if typed else None
    local = where_words(lambda box: call(box).reshape(own), out, dtype)
    return Rule(out, (Operand(source, held),), local)


def flattened(source: Layout) -> Rule:
    """(b, c, *spatial) as (b, c·spatial). Cut spatial dimensions are joined before."""
    frame = tuple((0, extent) for extent in source.whole[2:])
    straight = all(box[2:] == frame for box in source.boxes)
    held, size = source if straight else even(source.whole, source.ranks), volume(frame)
    out = source.with_boxes(
        (source.whole[0], source.whole[1] * size),
        ((b[0], (b[1][0] * size, b[1][1] * size)) for b in held.boxes),
    )
    return reshaped(source, held, out)


def regrouped(layout: Layout, form: LocalForm) -> Layout | None:
    """The layout of the result of a call; None where a box does not fit the call."""
    boxes = [_empty(form, box) or form.regroup(box) for box in layout.boxes]
    if any(box is None for box in boxes):
        return None
    return layout.with_boxes(form.out, [box for box in boxes if box is not None])


def _empty(form: LocalForm, box: Box) -> Box | None:
    """The empty box of the result for an empty one; None for any other."""
    return None if all(shape(box)) else ((0, 0),) * len(form.out)


def fitting(source: Layout, form: LocalForm) -> Layout:
    """The layout itself where all boxes fit a call, else one with the fewest changes.

    Dimensions along which boxes do not fit become whole. Ranks that then have the same
    box cut it between units: along a dimension that was cut if that has enough of them,
    else along that with the most.
    """
    if all(_fits(form, box) for box in source.boxes):
        return source
    frame = [(0, extent) for extent in source.whole]
    whole = [
        dim
        for dim, each in enumerate(frame)
        if not all(
            _fits(form, (*frame[:dim], box[dim], *frame[dim + 1 :]))
            for box in source.boxes
        )
        or dim not in form.units
    ]
    joined = [_joined(box, frame, whole) for box in source.boxes]
    if not disjoint(joined) or not all(_fits(form, box) for box in joined):
        joined = [tuple(frame)] * len(joined)
    return source.with_boxes(source.whole, _shared(joined, source, form))


def _fits(form: LocalForm, box: Box) -> bool:
    return not all(shape(box)) or form.regroup(box) is not None


def _joined(box: Box, frame: Sequence[Interval], whole: Sequence[int]) -> Box:
    if not all(shape(box)):
        return box
    return tuple(frame[d] if d in whole else each for d, each in enumerate(box))


def _shared(joined: Sequence[Box], source: Layout, form: LocalForm) -> Iterator[Box]:
    """Equal boxes, cut along a dimension that was cut, or has the most units."""
    for rank, box in enumerate(joined):
        if not all(shape(box)):
            yield box
            continue
        peers = [peer for peer, other in enumerate(joined) if other == box]
        counts = {
            dim: (box[dim][1] - box[dim][0]) // unit
            for dim, unit in form.units.items()
            if box[dim][0] % unit == 0 == box[dim][1] % unit
        }
        if not counts:
            empty = with_interval(box, 0, (box[0][0], box[0][0]))
            yield box if rank == peers[0] else empty
            continue
        again = {  # cut as before, but between units
            each
            for each in counts
            if counts[each] >= len(peers)
            and source.boxes[rank][each] != (0, source.whole[each])
        }
        dim = max(counts, key=lambda each: (each in again, counts[each], -each))
        unit, low = form.units[dim], box[dim][0]
        first, last = cut((0, counts[dim]), len(peers), peers.index(rank))
        yield with_interval(box, dim, (low + first * unit, low + last * unit))


# -- reshapes --------------------------------------------------------------------------


def reshape_form(before: Sequence[int], after: Sequence[int]) -> LocalForm:
    """The local form of a reshape.

    Dimensions before and after fall into groups with the same product of extents, see
    `reshape_groups`. A box is reshaped group by group. It does not fit if the words of
    a group are no box of the result.
    """
    groups = list(reshape_groups(before, after))
    units = {}
    for mine, its in groups:
        mine_cut, its_cut = _from_first_cut(before, mine), _from_first_cut(after, its)
        if mine_cut:
            inner = math.prod(before[dim] for dim in mine_cut[1:])
            run = math.lcm(inner, math.prod(after[dim] for dim in its_cut[1:]))
            units[mine_cut[0]] = run // inner

    def regroup(box: Box) -> Box | None:
        made = [(0, 1)] * len(after)
        for mine, its in groups:
            extents = [before[dim] for dim in mine], [after[dim] for dim in its]
            found = _regrouped([box[dim] for dim in mine], *extents)
            if found is None:
                return None
            for dim, each in zip(its, found, strict=True):
                made[dim] = each
        return tuple(made)

    return LocalForm(units, regroup, tuple(after))


def _from_first_cut(extents: Sequence[int], dims: list[int]) -> list[int]:
    """The dimensions from the first that has more than one row."""
    some = (place for place, dim in enumerate(dims) if extents[dim] > 1)
    return dims[next(some, len(dims)) :]


def reshape_groups(
    before: Sequence[int], after: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest groups of neighbouring dimensions with equal products."""
    i = j = 0
    while i < len(before) or j < len(after):
        mine, its = list[int](), list[int]()
        one = other = 1
        if i < len(before):
            mine, one, i = [i], before[i], i + 1
        if j < len(after):
            its, other, j = [j], after[j], j + 1
        while one != other:
            if one < other:
                mine, one, i = [*mine, i], one * before[i], i + 1
            else:
                its, other, j = [*its, j], other * after[j], j + 1
        yield mine, its


def several_groups(
    before: Sequence[int], after: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Those in which a reshape joins or divides dimensions; others only stay.

    Dimensions of extent 1 do not count, but between others that are joined.
    """
    found = []
    for mine, its in reshape_groups(before, after):
        kept = _without_ones(mine, before), _without_ones(its, after)
        if max(map(len, kept)) > 1:
            found.append(kept)
    return found


def _without_ones(dims: Sequence[int], extents: Sequence[int]) -> list[int]:
    """A run of dimensions, without those of extent 1 at its ends."""
    long = [dim for dim in dims if extents[dim] != 1]
    return list(range(long[0], long[-1] + 1)) if long else []


def _regrouped(
    box: Sequence[Interval], before: Sequence[int], after: Sequence[int]
) -> list[Interval] | None:
    """A box of one group with other dimensions; None where its words are no box."""
    if list(before) == list(after):
        return list(box)
    sizes = shape(tuple(box))
    some = next((dim for dim, size in enumerate(sizes) if size > 1), len(sizes))
    if list(sizes[some + 1 :]) != list(before[some + 1 :]):
        return None
    low, count = 0, math.prod(sizes)
    for (first, _), extent in zip(box, before, strict=True):
        low = low * extent + first
    made: list[Interval] = []
    for dim in range(len(after)):
        step = math.prod(after[dim + 1 :])
        row, rest = divmod(low, step)
        if rest + count <= step and count < step:
            made.append((row, row + 1))
            low = rest
            continue
        if rest or count % step or row + count // step > after[dim]:
            return None
        made.append((row, row + count // step))
        made += [(0, extent) for extent in after[dim + 1 :]]
        return made
    return made


def whole_along(
    before: Sequence[int],
    dims: Sequence[int],
    after: Sequence[int],
    kept: Sequence[int],
) -> LocalForm:
    """A call along some dimensions, of which every box must have all rows.

    kept: the dimension of the input that each of the result is; its extent may be
    another one, if it is one of `dims`.
    """

    def regroup(box: Box) -> Box | None:
        if any(box[dim] != (0, before[dim]) for dim in dims):
            return None
        pairs = zip(kept, after, strict=True)
        return tuple((0, n) if dim in dims else box[dim] for dim, n in pairs)

    units = {dim: 1 for dim in range(len(before)) if dim not in dims}
    return LocalForm(units, regroup, tuple(after))
