"""Row maps as a network file has them.

    rows: [[2, 15, 1], [2, 0, 16], [2, 0, 1]]     # a circular padding of the 16 rows of dimension 2

Each entry is a run of output rows: dimension, first input row, number of rows, and the step (by default 1).
A first row of -1 is a run of rows that read nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from synth.base.yaml_positions import Listing, Scalar
from synth.base.yaml_positions import Node as YamlNode
from synth.layer.validate import both_ends_of
from synth.network.entries import Entry
from synth.network.graph import Node
from synth.network.row_maps import CONSTANT, RowMap, padded_rows

Run = tuple[int, int, int]  # first input row, number of rows, step; (CONSTANT, number, 0)
MAX_ROWS = 2**20
MODES = ("zeros", "circular", "reflect", "replicate")


def row_maps(entry: Entry, shape: Sequence[int]) -> tuple[RowMap, ...]:
    """The map of every dimension of the input. Raises `InputError` at the place of a wrong run."""
    given = entry.arguments["rows"]
    if not isinstance(given, Listing):
        raise given.fault(f"{entry.name}: rows is {given}; list runs as [dimension, first row, number, step]")
    found: list[list[Run]] = [[] for _ in shape]
    for item in given.items:
        dim, run = _run(entry, item, shape)
        found[dim].append(run)
        inside = [first for first, _, _ in found[dim][1:-1]]
        if CONSTANT in inside:
            raise item.fault(f"{entry.name}: only the ends of dimension {dim} may read nothing")
    return tuple(
        RowMap(size, list(itertools.chain.from_iterable(map(rows_of_run, each))) if each else range(size))
        for size, each in zip(shape, found, strict=True)
    )


def runs_of(maps: Sequence[RowMap]) -> Iterator[list[int]]:
    """The entries of `rows` for some maps."""
    for dim, each in enumerate(maps):
        if not each.plain:
            for first, count, step in runs(each.rows):
                usual = step == 1 or first == CONSTANT
                yield [dim, first, count] if usual else [dim, first, count, step]


def _run(entry: Entry, item: YamlNode, shape: Sequence[int]) -> tuple[int, Run]:
    numbers = [each.integer("an entry of rows") for each in _scalars(item)]
    if len(numbers) not in (3, 4):
        raise item.fault(f"{entry.name}: a run is {item}; write [dimension, first row, number, step]")
    dim, first, count, step = *numbers, *([1] * (4 - len(numbers)))
    if not 0 <= dim < len(shape):
        raise item.fault(f"{entry.name}: dimension {dim} is none of the input's {len(shape)}; count from 0")
    if not 1 <= count <= MAX_ROWS:
        raise item.fault(f"{entry.name}: a run has {count} rows; use 1 to {MAX_ROWS}")
    last = first + step * (count - 1)
    if first == CONSTANT:
        return dim, (CONSTANT, count, 0)
    if not (0 <= first < shape[dim] and 0 <= last < shape[dim]):
        raise item.fault(
            f"{entry.name}: rows {first} to {last} are not all in the {shape[dim]} rows of dimension {dim}; "
            f"use rows from 0 to {shape[dim] - 1}"
        )
    return dim, (first, count, step)


def _scalars(item: YamlNode) -> list[Scalar]:
    items = item.items if isinstance(item, Listing) else ()
    return [each for each in items if isinstance(each, Scalar)]


def padding_of(entry: Entry, shape: tuple[int, ...]) -> tuple[Node | None, Entry]:
    """The padding of a convolution that does not pad by zeros, and the convolution without it.

    None for padding by zeros, which is part of the convolution.

    shape: of the input. Raises `InputError` at the place of a wrong mode or number.
    """
    arguments = dict(entry.arguments)
    mode, given = arguments.pop("padding_mode"), arguments.pop("padding", None)
    word = mode.text if isinstance(mode, Scalar) else ""
    if word not in MODES:
        raise mode.fault(f"{entry.name}: padding_mode is {mode}; write one of {', '.join(MODES)}")
    if word == "zeros":
        return None, replace(entry, arguments=arguments | ({} if given is None else {"padding": given}))
    if "transposed" in arguments:
        raise mode.fault(f"{entry.name}: a transposed convolution pads by zeros only; leave padding_mode out")
    ends = _ends(entry, given, len(shape) - 2)
    maps = [RowMap(size, range(size)) for size in shape[:2]]
    for size, (before, after) in zip(shape[2:], ends, strict=True):
        most = {"circular": size, "reflect": size - 1}.get(word, MAX_ROWS)
        if max(before, after) > most:
            place = mode if given is None else given
            raise place.fault(
                f"{entry.name}: padding {max(before, after)} is more than {word} of {size} rows allows; "
                f"use at most {most}"
            )
        maps.append(RowMap(size, padded_rows(size, before, after, word)))
    padded = tuple(len(each.rows) for each in maps)
    name = f"{entry.name}.pad"
    pad = Node(name, "reindex", entry.inputs, padded, shape, maps=tuple(maps))
    return pad, replace(entry, arguments=arguments, inputs=(name,))


def _ends(entry: Entry, given: YamlNode | None, dims: int) -> list[tuple[int, int]]:
    """Rows before and after every spatial dimension."""
    items: Sequence[YamlNode | None] = given.items if isinstance(given, Listing) else [given] * dims
    if len(items) != dims and given is not None:
        pair = both_ends_of("padding", len(items), dims)
        raise given.fault(f"{entry.name}: padding has {len(items)} entries, needs {dims}{pair}")
    found = []
    for item in items:
        each = item.items if isinstance(item, Listing) else (item, item)
        numbers = [one.integer("padding") if isinstance(one, Scalar) else 0 for one in each]
        if len(numbers) != 2 or min(numbers) < 0:
            place = entry.place if item is None else item
            raise place.fault(f"{entry.name}: padding is {item}; write a number from 0, or [before, after]")
        found.append((numbers[0], numbers[1]))
    return found


def rows_of_run(run: Run) -> Iterable[int]:
    """The rows of a run."""
    first, count, step = run
    if first == CONSTANT or step == 0:
        return (first,) * count
    return range(first, first + count * step, step)


def runs(rows: Sequence[int]) -> Iterator[Run]:
    """Rows in the fewest runs of equal steps."""
    rows = tuple(rows)
    start = 0
    while start < len(rows):
        first, end = rows[start], start + 1
        step = 0 if first == CONSTANT else 1
        pair = rows[start : start + 2]
        if len(pair) == 2 and CONSTANT not in pair:
            rise = pair[1] - first
            alone = abs(rise) > 1 and rows[end + 1 : end + 2] != (pair[1] + rise,)
            step = 1 if alone else rise
        while end < len(rows) and rows[end] == rows[end - 1] + step and (rows[end] != CONSTANT or not step):
            end += 1
        yield first, end - start, step
        start = end
