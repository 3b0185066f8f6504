"""Calls that move or select rows, as one row map per dimension.

Along each dimension the result reads one input row per row, or a constant: padding of
all modes, slices, `narrow`, `select`, one part of `chunk`, `split` or `unbind`, `roll`,
`flip`, `expand`, `repeat`, and dimensions of extent 1 that are added or left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from synth.runtime.grid.row_maps import RowMap, padded_rows

Dims = list["int | None"]


class MovedRows(NamedTuple):
    """What a call does with rows.

    maps: of every dimension of the input. value: of the rows that read nothing.
    dims: the dimension of the input that each of the result is; None for a new one.
    """

    maps: tuple[RowMap, ...]
    value: float = 0.0
    dims: tuple[int | None, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        extents = [len(each.rows) for each in self.maps]
        dims = range(len(extents)) if self.dims is None else self.dims
        return tuple(1 if dim is None else extents[dim] for dim in dims)


def rows_of(
    name: str, shape: Sequence[int], args: Sequence[Any], kwargs: Any, part: int = 0
) -> MovedRows | None:
    """The row maps of a function of torch; None for one that does anything else.

    args, kwargs: those behind the input, which has this shape. part: which of several
    results.
    """
    found = FUNCTIONS.get(name)
    if found is None:
        return None
    try:
        return found(_Arguments(args, kwargs), tuple(shape), part)
    except (TypeError, ValueError, IndexError, KeyError):  # arguments of another kind
        return None


class _Arguments:
    """The arguments of a call after its input."""

    def __init__(self, args: Sequence[Any], kwargs: Any) -> None:
        self.args, self.kwargs = tuple(args), kwargs

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """One argument. Raises `TypeError` for one that is computed."""
        given = self.kwargs.get(name, default)
        given = self.args[place] if len(self.args) > place else given
        if isinstance(given, fx.Node | torch.Tensor):
            raise TypeError(name)
        return given

    def numbers(self, name: str) -> tuple[int, ...]:
        """Integers that are given one by one, or as a list."""
        given: Any = self.kwargs.get(name, self.args)
        if len(given) == 1 and isinstance(given[0], Sequence):
            given = given[0]
        return tuple(_whole(each) for each in given)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return int(value)


# -- padding ---------------------------------------------------------------------------


def pad_rows(
    shape: Sequence[int], padding: Sequence[int], mode: str, value: Any
) -> MovedRows:
    """Padding as `torch.nn.functional.pad` takes it, of the last dimension first."""
    maps = [identity(size) for size in shape]
    pairs = zip(padding[::2], padding[1::2], strict=True)
    for dim, (before, after) in zip(reversed(range(len(shape))), pairs, strict=False):
        maps[dim] = RowMap(shape[dim], padded_rows(shape[dim], before, after, mode))
    return MovedRows(tuple(maps), float(value or 0.0))


def _pad(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    mode, value = given.get(1, "mode", "constant"), given.get(2, "value")
    if not isinstance(mode, str):  # `constant_pad_nd` has its value here
        mode, value = "constant", mode
    return pad_rows(shape, given.get(0, "pad"), mode, value)


# -- selections ------------------------------------------------------------------------


def identity(size: int) -> RowMap:
    """Every row reads itself."""
    return RowMap(size, range(size))


def along(
    shape: Sequence[int], dim: int, rows: Sequence[int], dims: Any = None
) -> MovedRows:
    """Some rows of one dimension."""
    maps = [identity(size) for size in shape]
    maps[dim] = RowMap(shape[dim], rows)
    return MovedRows(tuple(maps), 0.0, dims)


def _getitem(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    (index,) = given.args
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(each is not None and each is not Ellipsis for each in items)
    rest = [slice(None)] * (len(shape) - taken)
    place = next((i for i, each in enumerate(items) if each is Ellipsis), len(items))
    items[place : place + 1] = rest
    kept = sum(isinstance(each, slice) for each in items)
    maps, dims = list[RowMap](), Dims()
    for each in items:
        if each is None:
            dims.append(None)
            continue
        size = shape[len(maps)]
        if isinstance(each, slice):
            dims.append(len(maps))
            maps.append(RowMap(size, range(size)[each]))
        elif isinstance(each, list) and len(items) == len(shape) == kept + 1:
            dims.append(len(maps))
            maps.append(RowMap(size, [range(size)[_whole(row)] for row in each]))
        else:
            maps.append(RowMap(size, [range(size)[_whole(each)]]))
    plain = dims == list(range(len(shape)))
    return MovedRows(tuple(maps), 0.0, None if plain else tuple(dims))


def _narrow(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    dim, start = _whole(given.get(0, "dim")), _whole(given.get(1, "start"))
    size = shape[dim]
    start = start % size if start < 0 else start
    stop = start + _whole(given.get(2, "length"))
    return along(shape, dim % len(shape), range(start, stop))


def _slice(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    dim = given.get(0, "dim", 0) % len(shape)
    ends = given.get(1, "start"), given.get(2, "end"), given.get(3, "step", 1)
    return along(shape, dim, range(shape[dim])[slice(*ends)])


def _select(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    dim, index = _whole(given.get(0, "dim")), _whole(given.get(1, "index"))
    return _one(shape, dim % len(shape), index)


def _one(shape: tuple[int, ...], dim: int, index: int) -> MovedRows:
    kept = tuple(each for each in range(len(shape)) if each != dim)
    return along(shape, dim, [range(shape[dim])[index]], kept)


def _unbind(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    return _one(shape, _whole(given.get(0, "dim", 0)) % len(shape), part)


def _pieces(name: str, *words: str) -> Callable[..., MovedRows]:
    """One part of a tensor that a function of torch cuts along a dimension."""

    def piece(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
        known = [given.get(0, each) for each in words]
        sizes = next((each for each in known if each is not None), None)
        if sizes is None:
            raise TypeError(name)  # another argument
        dim = _whole(given.get(1, "dim", 0)) % len(shape)
        rows = getattr(torch, name)(torch.arange(shape[dim]), sizes)[part]
        first = int(rows[0]) if len(rows) else 0
        return along(shape, dim, range(first, first + len(rows)))

    return piece


# -- shifts and repetitions ------------------------------------------------------------


def _roll(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows | None:
    shifts, dims = given.get(0, "shifts"), given.get(1, "dims")
    if dims is None or dims == ():
        return None
    pairs = zip(_listed(shifts), _listed(dims), strict=True)
    maps = [identity(size) for size in shape]
    for shift, dim in pairs:
        size = shape[dim]
        rows = [maps[dim].rows[(row - shift) % size] for row in range(size)]
        maps[dim] = RowMap(size, rows)
    return MovedRows(tuple(maps))


def _listed(value: Any) -> tuple[int, ...]:
    many = isinstance(value, Sequence)
    return tuple(_whole(each) for each in (value if many else (value,)))


def _flip(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    dims = {dim % len(shape) for dim in given.numbers("dims")}
    orders = [range(n)[::-1] if d in dims else range(n) for d, n in enumerate(shape)]
    return MovedRows(tuple(map(RowMap, shape, orders)))


def _expand(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    sizes = given.numbers("size")
    new = len(sizes) - len(shape)
    pairs = list(zip(shape, sizes[new:], strict=True))
    if any(size not in (1, -1) for size in sizes[:new]):
        raise ValueError(sizes)
    if any(wanted not in (-1, size) and size != 1 for size, wanted in pairs):
        raise ValueError(sizes)
    rows = [range(n) if m in (-1, n) else (0,) * m for n, m in pairs]
    maps = tuple(map(RowMap, shape, rows))
    return MovedRows(maps, 0.0, (*[None] * new, *range(len(shape))))


def _repeat(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    times = given.numbers("repeats")
    new = len(times) - len(shape)
    if any(each != 1 for each in times[:new]):
        raise ValueError(times)
    rows = [
        list(itertools.chain.from_iterable([range(n)] * m))
        for n, m in zip(shape, times[new:], strict=True)
    ]
    return MovedRows(
        tuple(map(RowMap, shape, rows)), 0.0, (*[None] * new, *range(len(shape)))
    )


def _interleave(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    times, dim = _whole(given.get(0, "repeats")), _whole(given.get(1, "dim"))
    dim %= len(shape)
    return along(shape, dim, [row // times for row in range(times * shape[dim])])


def _channel_shuffle(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    groups = _whole(given.get(0, "groups"))
    return along(shape, 1, parts_in_order((groups, shape[1] // groups), (1, 0)))


def _reordered(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    return along(shape, 1, parts_in_order(*given.args))


def parts_in_order(extents: Sequence[int], order: Sequence[int]) -> list[int]:
    """The rows of a dimension that is split into some extents, which are permuted."""
    rows = torch.arange(math.prod(extents)).reshape(tuple(extents))
    found: list[int] = rows.permute(tuple(order)).flatten().tolist()
    return found


def _unsqueeze(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    dims: Dims = list(range(len(shape)))
    dims.insert(_whole(given.get(0, "dim")) % (len(shape) + 1), None)
    return MovedRows(tuple(map(identity, shape)), 0.0, tuple(dims))


def _squeeze(given: _Arguments, shape: tuple[int, ...], part: int) -> MovedRows:
    wanted = given.get(0, "dim")
    all_dims = range(len(shape))
    some = all_dims if wanted is None else {d % len(shape) for d in _listed(wanted)}
    dims = tuple(dim for dim in all_dims if dim not in some or shape[dim] != 1)
    return MovedRows(tuple(map(identity, shape)), 0.0, dims)


FUNCTIONS: dict[str, Callable[..., MovedRows | None]] = {
    "pad": _pad,
    "constant_pad_nd": _pad,
    "__getitem__": _getitem,
    "slice": _slice,
    "narrow": _narrow,
    "select": _select,
    "unbind": _unbind,
    "chunk": _pieces("chunk", "chunks"),
    "split": _pieces("split", "split_size_or_sections", "split_size"),
    "split_with_sizes": _pieces("split", "split_sizes"),
    "tensor_split": _pieces(
        "tensor_split", "indices_or_sections", "sections", "indices"
    ),
    "roll": _roll,
    "flip": _flip,
    "expand": _expand,
    "repeat": _repeat,
    "repeat_interleave": _interleave,
    "channel_shuffle": _channel_shuffle,
    "reordered": _reordered,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
}
