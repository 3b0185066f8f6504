"""Lower bounds of the words that the most-receiving rank of a grid receives, for many grids at once.

The mean over any set of ranks is such a bound. The sets here are products of coordinates: along every axis
all of them (even), or those with the largest blocks (loaded). The best of a few such sets is taken.

    mean of   words that blocks read     a product over axes, as coordinates are independent
              words that ranks own       at most the slice of a group, over those of its members in the set
              words that ranks sum       at least those of the other members' blocks on the own shard
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, DIMS, LACKS, SPATIAL, TENSORS, X_AXES, Axis, Tensor
from synth.layer.interval_arrays import covered, cut, lengths, meet
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, gathers
from synth.layer.window import Window
from synth.network.grids.layer_class import LayerClass
from synth.network.request import NetworkRequest
from synth.schedule.reread_rows import reached
from synth.search.grid_ranges import shared_rows

Array = NDArray[Any]
BELOW = 1 - 1e-9  # floating-point bounds are lowered by this factor
LOADED: tuple[tuple[Axis, ...], ...] = (X_AXES, ("c",), ("k",))  # loaded together, or not at all


def mean_words(layer_class: LayerClass, request: NetworkRequest, parts: Any, free: Array) -> Array:
    """Lower bounds of the words of some grids: those of an average rank, in closed form.

    parts: see `grid_table.parts_of`. free: grids whose halo is not counted: they may be cut by input rows.
    """
    nest = layer_class.nest
    words, size = nest.words, parts.size
    inputs = words["In"] * (1 / (parts.x * parts.g * parts.c) - 1 / size)
    gathered = inputs
    if not layer_class.transposed:
        gathered = np.where(free, inputs, inputs + _halo(nest, parts))
    moved = layer_class.weighted and not request.resident_weights
    ker = words["Ker"] * (1 / (parts.g * parts.c * parts.k) - 1 / size) if moved else 0.0
    out = words["Out"] * (1 / (parts.x * parts.g * parts.k) - 1 / size)
    passes = layer_class.passes(request.training)
    times = gathers(passes, request.saves)
    sums = {tensor: sum(WRITES[pass_] == tensor for pass_ in passes) for tensor in TENSORS}
    received = times["In"] * gathered + sums["In"] * inputs
    received = received + ((times["Ker"] + sums["Ker"]) * ker + (times["Out"] + sums["Out"]) * out)
    bounds: Array = received * BELOW
    return bounds


def _halo(nest: Nest, parts: Any) -> Array:
    """Lower bounds of the words of In that an average rank reads beyond its even part, by grid."""
    n, rows, read = nest.extents, 1, np.ones(np.shape(parts.b), np.int64)
    for axis in SPATIAL:
        window = nest.windows[axis]
        counts, kind = parts.kinds(axis)
        shared = np.array([shared_rows(window, count) for count in counts.tolist()], np.int64)
        rows, read = rows * window.size, read * (window.size + shared[kind])
    beyond: Array = n.b * n.g * n.c * np.maximum(0, read - rows) / (parts.x * parts.g * parts.c)
    return beyond


def least_words(nest: Nest, layer_class: LayerClass, request: NetworkRequest, parts: Any) -> Array:
    """Lower bounds of the words of some grids of a nest, which may be turned: the best of all sets of ranks.

    Words are whole numbers, and so are the bounds. parts: see `grid_table.parts_of`. Of axes that have no
    window, extents may be arrays by grid.
    """
    even, loaded = ({axis: _along(nest, axis, parts, each) for axis in AXES} for each in (False, True))
    uneven = [
        axes
        for axes in LOADED
        if any(bool((even[axis].places != loaded[axis].places).any()) for axis in axes)
    ]
    best: Array = np.zeros(np.shape(parts.b))
    volumes = _Volumes(nest)
    for chosen in product((False, True), repeat=len(uneven)):
        at = {"g"}.union(*(axes for axes, each in zip(uneven, chosen, strict=True) if each))
        along: dict[str, _Along] = {axis: loaded[axis] if axis in at else even[axis] for axis in AXES}
        best = np.maximum(best, _mean_of(volumes, layer_class, request, parts, along))
    found: Array = np.ceil(best * BELOW).astype(np.int64)
    return found


class _Along(NamedTuple):
    """Means over some coordinates of an axis, by grid.

    places: the number of these coordinates. block: positions of the loop. read: rows of the framed tensor
    that a block reads. owned: such rows of a slice. both: rows of a slice that its block reads. added: rows
    of a slice, each once for every block that reads it. Along b, g, c and k all of them are the block.
    """

    places: Array
    block: Array
    read: Array
    owned: Array
    both: Array
    added: Array


def _along(nest: Nest, axis: Axis, parts: Any, loaded: bool) -> _Along:
    if axis in SPATIAL:
        counts, kind = parts.kinds(axis)
        table = np.array([_rows(nest.windows[axis], count)[loaded] for count in counts.tolist()]).T
        return _Along(*(table if len(counts) == 1 else table[:, kind]))
    extent, counts = getattr(nest.extents, axis), getattr(parts, axis)
    if (counts == counts[0]).all():
        counts = counts[:1]
    longer = extent % counts if loaded else 0
    block = np.ceil(extent / counts) if loaded else extent / counts
    return _Along(np.where(longer, longer, counts).astype(float), block, block, block, block, block)


@cache
def _rows(window: Window, parts: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The fields of `_Along` for a spatial axis: over all coordinates, and over the most loaded ones."""
    every = np.arange(parts)
    block, owned = cut((0, window.out), parts, every), cut((0, window.size), parts, every)
    read = reached(window, block)
    added = covered(read, owned)
    rows = np.stack([*map(lengths, (block, read, owned, meet(read, owned))), added])
    score = rows[0] * rows[1].sum() + rows[1] * rows[0].sum()
    most = score == score.max()
    return (float(parts), *rows.mean(axis=1).tolist()), (
        float(most.sum()),
        *rows[:, most].mean(axis=1).tolist(),
    )


class _Volumes:
    """Products of a field of `_Along` over the dimensions of a tensor, each of the same factors once."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self._known: dict[tuple[Any, ...], Array] = {}

    def of(self, tensor: Tensor, along: Mapping[str, _Along], field: str) -> Array:
        """The product of a field, where a dimension has no window of the block."""
        framed = self.nest.framed(tensor)
        factors = [
            getattr(along[dim], field if dim in framed else "block") for dim in DIMS[tensor] if dim in along
        ]
        return self._product(np.array(self.nest.taps if tensor == "Ker" else 1.0), factors)

    def members(self, tensor: Tensor, along: Mapping[str, _Along]) -> Array:
        """The coordinates of members of the tensor's group."""
        return self._product(np.ones(()), [along[axis].places for axis in LACKS[tensor]])

    def _product(self, first: Array, factors: Sequence[Array]) -> Array:
        """`least_words` keeps the factors, so each is known by its place in memory."""
        key = float(first), *map(id, factors)
        if key not in self._known:
            words = first
            for each in factors:
                words = words * each
            self._known[key] = words
        return self._known[key]


def _mean_of(
    volumes: _Volumes,
    layer_class: LayerClass,
    request: NetworkRequest,
    parts: Any,
    along: Mapping[str, _Along],
) -> Array:
    """At most the mean words of the ranks at some coordinates, by grid."""
    passes = layer_class.passes(request.training)
    times = gathers(passes, request.saves)
    total: Array = np.zeros(np.shape(parts.b))
    for tensor in TENSORS:
        if tensor == "Ker" and (not layer_class.weighted or request.resident_weights):
            continue
        sums = sum(WRITES[pass_] == tensor for pass_ in passes)
        group, members = parts.of(LACKS[tensor]), volumes.members(tensor, along)
        read, both = (volumes.of(tensor, along, field) for field in ("read", "both"))
        if times[tensor]:
            total = total + times[tensor] * (read - both / members)
        if sums:
            owned, added = (volumes.of(tensor, along, field) for field in ("owned", "added"))
            of_all = (read * (group - 1) + added - both) / group
            of_some = (group - 1) * np.maximum(0.0, owned / group - (owned - both) / members)
            if tensor == "Ker":  # members of several axes: those in the set may own less than others
                of_some = np.zeros(())
            total = total + sums * np.where(members == group, of_all, of_some)
    return total
