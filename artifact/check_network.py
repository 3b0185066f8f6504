"""Checks certificates of the bounds of networks on their own: one file, the standard library, whole numbers.

    python artifact/check_network.py bound.json ...

`synth plan NET.yaml --procs P --certify -o bound.json` writes a certificate. Nothing of synth is imported,
and nothing is searched: every grid of every layer is listed, and its words are counted by definition, rank by
rank. A certificate splits the words of a redistribution between the layers at its ends (potentials): a number
for each listed choice of either, and one for all others. The bound is the sum of what each layer costs at
least with its share. docs/networks.md has the argument.

A certificate also has a bound of any schedule of the layers. It follows from the surface of
regions, which docs/bounds.md derives. Here positions are gone through one by one.

The exit code is 0 if every certificate is right, 1 if one is wrong, 2 if a file cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations, product
from typing import Any

FIELDS = {"schema", "claim", "network", "procs", "balance", "mode", "layers", "edges"}
FIELDS |= {"classes", "potentials", "words", "any_schedule", "digest"}
AXES = "bgdhwck"
SPATIAL = "dhw"
TAPS = {"d": "t", "h": "r", "w": "s"}
DIMS = {"In": "bgcdhw", "Ker": "gkctrs", "Out": "bgkdhw"}
LACKS = {"In": "k", "Ker": "bdhw", "Out": "c"}
WANTED = {"In": "cgbhwd", "Ker": "ckgrst", "Out": "kgbhwd"}  # dimensions of shards, in order of preference
ORDERS = ("bgdhwck", "bgdhwkc")  # how axes run over the ranks, the last one fastest
MOST_STEPS = 2**22  # pairs of one dimension that are gone through
SHORT = 16  # extents up to which an axis may be cut into any number of parts
Interval = tuple[int, int]
Grid = tuple[int, ...]  # processes along each of AXES


class Wrong(Exception):
    """A step of the proof is false."""


def need(true: bool, step: str) -> None:
    """Raises `Wrong` with the name of a step that is false."""
    if not true:
        raise Wrong(step)


def whole(value: object, least: int = 0) -> int:
    """A whole number."""
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a whole number from {least}")
    return value


def cut(low: int, high: int, parts: int, part: int) -> Interval:
    """An even part of an interval; the first ones are longer by one."""
    size, longer = divmod(high - low, parts)
    low += part * size + min(part, longer)
    return low, low + size + (part < longer)


def length(one: Interval) -> int:
    """Positions of an interval."""
    return max(0, one[1] - one[0])


def common(one: Interval, other: Interval) -> int:
    """Positions in both."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


# --- layers --------------------------------------------------------------------------------------------


class Rows:
    """One spatial dimension: the input rows that some output reads, numbered from 0, and who reads which."""

    def __init__(self, size: int, taps: int, stride: int, before: int, after: int, dilation: int) -> None:
        self.taps, self.stride, self.before = taps, stride, before
        self.dilation = 1 if taps == 1 else dilation
        self.span = self.dilation * (taps - 1) + 1
        self.out = (size + before + after - self.span) // stride + 1
        if self.dilation > 1 and stride > 1:
            raise ValueError("a layer has stride and dilation above 1; such networks have no certificate")
        if taps >= stride:
            self.read = list(range(min(size, stride * (self.out - 1) + self.span - before)))
        else:
            tops = range(-before, stride * self.out - before, stride)
            self.read = [row for top in tops for row in range(top, top + taps) if 0 <= row < size]
        self.size = len(self.read)
        last = self.read[-1] if self.read else -1
        self.mapped = (taps > 1 and stride > 1) or last != self.size - 1  # rows of others are renumbered
        self.turnable = self.span > stride and self.out > 1 and taps >= stride

    def touched(self, block: Interval, turned: bool) -> tuple[Interval, Interval]:
        """The first and last rows of In and of Out that a block touches.

        A block has output rows; turned: input rows.
        """
        low, high = block
        if high <= low:
            return (0, 0), (0, 0)
        if turned:
            first = max(0, -((self.span - 1 - self.before - low) // self.stride))
            end = min(self.out, (high - 1 + self.before) // self.stride + 1)
            return block, (first, end) if first < end else (0, 0)
        first, end = self.stride * low - self.before, self.stride * (high - 1) - self.before + self.span
        rows = self.number(max(0, first)), self.number(max(0, end))
        return rows if rows[0] < rows[1] else (0, 0), block

    def number(self, row: int) -> int:
        """How many of the rows that are read come before a row of the tensor."""
        return bisect_left(self.read, row)

    @cache  # noqa: B019
    def most_pairs(self, parts: int) -> int:
        """The most pairs of an input row and a tap that adds it to an output, over blocks of input rows."""
        reach = range(0, self.span, self.dilation)
        taps = [sum(self._adds(row + self.before - tap) for tap in reach) for row in range(self.size)]
        return max(sum(taps[slice(*cut(0, self.size, parts, part))]) for part in range(parts))

    def _adds(self, place: int) -> bool:
        return place % self.stride == 0 and 0 <= place // self.stride < self.out


class Layer:
    """The loop nest of a layer. A transposed layer has that of the convolution whose input it makes."""

    def __init__(self, data: dict[str, Any], training: bool) -> None:
        problem = data["problem"]
        keys = {"kind", "input", "out_channels", "groups", "kernel", "stride", "padding", "dilation"}
        keys |= {"transposed", "output_padding"} if "transposed" in problem else set()
        need(problem.keys() == keys, "1: the fields of a layer")
        need(
            data.keys() == {"problem", "weighted", "gradient", "options", "least"}, "1: the fields of a class"
        )
        self.weighted, self.transposed = bool(data["weighted"]), bool(problem.get("transposed"))
        self.rows = dict.fromkeys(SPATIAL, Rows(1, 1, 1, 0, 0, 1))
        self.dims = list[tuple[int, ...]]()  # rows, taps, stride, zeros before, dilation, outputs
        if problem["kind"] == "matmul":
            b, k, c = problem["input"]
            g = 1
        else:
            b, c, *sizes = problem["input"]
            k, g = problem["out_channels"], problem["groups"]
            for i, size in enumerate(sizes):
                numbers = (problem[key][i] for key in ("kernel", "stride", "padding", "dilation"))
                taps, stride, pad, dilation = numbers
                before, after = pad if isinstance(pad, list) else (pad, pad)
                if self.transposed:
                    more = problem["output_padding"][i]
                    size = (size - 1) * stride - before - after + dilation * (taps - 1) + more + 1
                axis = SPATIAL[3 - len(sizes) + i]
                self.rows[axis] = Rows(size, taps, stride, before, after, dilation)
                self.dims.append((size, taps, stride, before, dilation, self.rows[axis].out))
                if self.transposed and self.rows[axis].read != list(range(size)):
                    raise ValueError("a transposed layer makes rows of which no input row is a part")
            if self.transposed:
                c, k = k, c
            c, k = c // g, k // g
        self.extents = dict(zip(AXES, (b, g, *(self.rows[a].out for a in SPATIAL), c, k), strict=True))
        self.taps = math.prod(self.rows[axis].taps for axis in SPATIAL)
        shapes = {a: self.extents[a] for a in "bgck"} | {TAPS[a]: self.rows[a].taps for a in SPATIAL}
        rows = {"In": {a: self.rows[a].size for a in SPATIAL}, "Out": {a: self.rows[a].out for a in SPATIAL}}
        self.sizes = {t: {d: (shapes | rows.get(t, {}))[d] for d in DIMS[t]} for t in DIMS}
        self.input, self.output = ("Out", "In") if self.transposed else ("In", "Out")
        writes = ["In" if self.transposed else "Out"]
        if training:
            writes += ["Out" if self.transposed else "In"] * bool(data["gradient"]) + ["Ker"] * self.weighted
        # a pass writes one tensor and gathers the other two; a training step keeps what it gathered once
        self.sums = {tensor: writes.count(tensor) for tensor in DIMS}
        self.gathers = {tensor: min(1, len(writes) - writes.count(tensor)) for tensor in DIMS}

    @cached_property
    def turns(self) -> list[str]:
        """The axes that may be cut by input rows, in all selections."""
        axes = [axis for axis in SPATIAL if self.weighted and self.rows[axis].turnable]
        return ["".join(some) for n in range(len(axes) + 1) for some in combinations(axes, n)]

    def load(self, grid: Grid, turned: str) -> int:
        """Iterations of the most loaded process."""
        found = 1
        for axis, parts in zip(AXES, grid, strict=True):
            if axis in turned:
                found *= self.rows[axis].most_pairs(parts)
            else:
                found *= -(-self.extents[axis] // parts)
        return -(-found // math.prod(self.rows[axis].taps for axis in turned))

    def cuts(self, grid: Grid) -> list[str]:
        """The axes of a grid that are cut by input rows, where no process has more work then."""
        most, found = self.load(grid, ""), [""]
        for turned in self.turns[1:]:
            parts = [(grid[AXES.index(axis)], self.rows[axis].size) for axis in turned]
            if all(1 < n <= size for n, size in parts) and self.load(grid, turned) <= most:
                found.append(turned)
        return found


# --- who owns what -------------------------------------------------------------------------------------


def factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered factors of a number; each is at least 2 where there are several."""
    if count == 1:
        yield (number,)
        return
    for factor in range(2, number):
        if number % factor == 0:
            for rest in factorizations(number // factor, count - 1):
                yield (factor, *rest)


@cache
def shard_cut(members: int, extents: tuple[tuple[str, int, int], ...]) -> tuple[tuple[str, int], ...]:
    """How the members of a group cut a slice: the smallest shard is largest, then the largest one smallest.

    extents: dimension, its extent in the largest and in the smallest slice.
    """
    if members == 1:
        return ()
    for dim, most, least in extents:
        if most % members == 0 == least % members:
            return ((dim, members),)
    flat = [dim for dim, most, _ in extents if most == 1][1:]
    extents = tuple(each for each in extents if each[0] not in flat)
    best: tuple[tuple[str, int], ...] = ()
    fewest: tuple[int, int, int] | None = None
    for count in (1, 2, 3):
        for dims in combinations(extents, min(count, len(extents))):
            others = [each for each in extents if each not in dims]
            for parts in factorizations(members, len(dims)):
                pairs = list(zip(dims, parts, strict=True))
                small = math.prod(most for _, most, _ in others)
                large, least = small, math.prod(each for _, _, each in others)
                for (_, most, fewer), n in pairs:
                    small, large, least = small * (most // n), large * -(-most // n), least * (fewer // n)
                shares = -small, large, -least
                if fewest is None or shares < fewest:
                    best, fewest = tuple((dim, n) for (dim, _, _), n in pairs), shares
        if count == 2 and fewest is not None and fewest[2] < 0:
            break
    return best


class Placed:
    """What the ranks of a grid own and touch. order: of the axes over the ranks, the last one fastest."""

    def __init__(self, layer: Layer, grid: Grid, resident: bool, order: str = AXES) -> None:
        self.layer, self.grid, self.resident = layer, dict(zip(AXES, grid, strict=True)), resident
        self.size = math.prod(grid)
        step, self.steps = 1, dict[str, int]()
        for axis in reversed(order):
            self.steps[axis] = step
            step *= self.grid[axis]
        self.shares = {tensor: self._shares(tensor) for tensor in DIMS}

    def _shares(self, tensor: str) -> dict[str, Interval]:
        """Dimension -> parts of a slice, and members between two of them."""
        members = math.prod(self.grid[axis] for axis in LACKS[tensor])
        if tensor == "Ker" and self.resident:
            return {}
        extents, whole_dims = [], []
        for dim in WANTED[tensor]:
            size, parts = self.layer.sizes[tensor][dim], self.grid.get(dim, 1)
            extents.append((dim, -(-size // parts), size // parts))
            if parts == 1 or dim not in SPATIAL:
                whole_dims.append(extents[-1])
        found = shard_cut(members, tuple(whole_dims))
        if any(least < dict(found).get(dim, 1) for dim, _, least in whole_dims):
            found = shard_cut(members, tuple(extents))
        step, shares = 1, dict[str, Interval]()
        for dim, parts in reversed(found):
            shares[dim] = parts, step
            step *= parts
        return shares

    def at(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank."""
        return {axis: rank // self.steps[axis] % self.grid[axis] for axis in AXES}

    def share(self, tensor: str, dim: str, at: dict[str, int]) -> Interval:
        """Parts of a slice along a dimension, and which of them a rank owns."""
        member = 0
        for axis in LACKS[tensor]:
            member = member * self.grid[axis] + at[axis]
        parts, step = self.shares[tensor].get(dim, (1, 1))
        return parts, member // step % parts

    def slice(self, tensor: str, dim: str, at: dict[str, int]) -> Interval:
        """What the group of a rank owns together."""
        return cut(0, self.layer.sizes[tensor][dim], self.grid.get(dim, 1), at.get(dim, 0))

    def shard(self, tensor: str, dim: str, at: dict[str, int]) -> Interval:
        """What a rank owns."""
        return cut(*self.slice(tensor, dim, at), *self.share(tensor, dim, at))

    # -- words of the layer

    def words(self, rank: int, turned: str) -> int:
        """Words that a rank receives in all passes. turned: axes that are cut by input rows."""
        at, total, layer = self.at(rank), 0, self.layer
        for tensor in DIMS:
            gathers, sums = layer.gathers[tensor], layer.sums[tensor]
            stays = tensor == "Ker" and (self.resident or not layer.weighted)
            if stays or not gathers + sums:
                continue
            read = both = carried = wanted = 1
            for dim in DIMS[tensor]:
                mine = self.shard(tensor, dim, at)
                framed = dim in SPATIAL and tensor != "Ker" and (dim in turned) == (tensor == "Out")
                if not framed:
                    n = length(mine)
                    read *= length(self.slice(tensor, dim, at))
                    both, carried, wanted = both * n, carried * n, wanted * n
                    continue
                touched = self._touched(tensor, dim, at[dim], turned)
                parts, part = self.share(tensor, dim, at)
                low = touched[0] if part == 0 else mine[0]
                high = touched[1] if part == parts - 1 else mine[1]
                read, both = read * length(touched), both * common(touched, mine)
                carried *= common((low, max(low, high)), touched)
                every = range(self.grid[dim])
                wanted *= sum(common(self._touched(tensor, dim, each, turned), mine) for each in every)
            members = math.prod(self.grid[axis] for axis in LACKS[tensor])
            total += gathers * (read - both) + sums * (carried * (members - 1) + wanted - both)
        return total

    def _touched(self, tensor: str, axis: str, place: int, turned: str) -> Interval:
        rows = self.layer.rows[axis]
        block = cut(0, rows.size if axis in turned else rows.out, self.grid[axis], place)
        return rows.touched(block, axis in turned)[tensor == "Out"]

    def moves(self, least: int) -> bool:
        """Whether some rank receives so many words at least, however the rows are cut."""
        cuts = self.layer.cuts(tuple(self.grid.values())) if least > 0 else []
        return all(any(self.words(rank, turned) >= least for rank in range(self.size)) for turned in cuts)

    # -- boxes of redistributions

    @cache  # noqa: B019
    def box(self, tensor: str, rank: int) -> tuple[Interval, ...]:
        """What a rank owns along samples, channels of all groups, and positions."""
        at = self.at(rank)
        if rank >= self.size:
            return ((0, 0),) * 5
        inner = "c" if tensor == "In" else "k"
        width = self.layer.sizes[tensor][inner]
        (first, last), (low, high) = (self.shard(tensor, dim, at) for dim in ("g", inner))
        if last - first == 1:
            channels = first * width + low, first * width + high
        else:
            channels = first * width + low, last * width if last > first else first * width + low
        return self.shard(tensor, "b", at), channels, *(self.shard(tensor, dim, at) for dim in SPATIAL)


# --- the family ----------------------------------------------------------------------------------------


def counts(extent: int, procs: int) -> list[int]:
    """Numbers of parts of an axis: those with shorter blocks than fewer parts have, and divisors of P."""
    every = range(1, min(extent, procs) + 1)
    if extent <= SHORT:
        return list(every)
    return [n for n in every if procs % n == 0 or n == 1 or -(-extent // n) < -(-extent // (n - 1))]


def family(layer: Layer, procs: int, balance: Fraction) -> list[Grid]:
    """All grids of at most P processes whose busiest one has at most (1 + balance) times the least work."""
    options = [[(n, -(-layer.extents[a] // n)) for n in counts(layer.extents[a], procs)] for a in AXES]
    least = {1: 1}  # processes -> iterations of the most loaded process
    for some in options:
        grown = dict[int, int]()
        for size, work in least.items():
            for n, block in some:
                if size * n <= procs:
                    grown[size * n] = min(work * block, grown.get(size * n, work * block))
        least = grown
    most = min(least.values())
    most += int(balance * most)
    grids: list[tuple[Grid, int, int]] = [((), 1, 1)]
    rest = math.prod(layer.extents.values())
    for axis, some in zip(AXES, options, strict=True):
        rest //= layer.extents[axis]
        grids = [
            ((*grid, n), size * n, work * block)
            for grid, size, work in grids
            for n, block in some
            if size * n <= procs and work * block * rest <= most * (procs // (size * n))
        ]
    found = [grid for grid, _, work in grids if work <= most]
    n = layer.extents
    single = [x for x in found if x[1] == n["g"] or x[5] == x[6] == 1 or n["c"] == n["k"] == 1]
    return found if n["g"] == 1 else single or found


# --- the proof -----------------------------------------------------------------------------------------


class Certificate:
    """The numbers of a certificate, with what they are about."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.procs = whole(data["procs"], 1)
        self.training = {"training": True, "inference": False}[data["mode"]]
        self.classes = [Layer(each, self.training) for each in data["classes"]]
        self.of = [whole(each["class"]) for each in data["layers"]]
        self.placed = [
            [
                Placed(kind, grid, not self.training, order)
                for grid, order in self._options(kind, each["options"])
            ]
            for kind, each in zip(self.classes, data["classes"], strict=True)
        ]
        self.edges = data["edges"]

    def _options(self, kind: Layer, options: list[list[Any]]) -> list[tuple[Grid, str]]:
        found = [(tuple(whole(n, 1) for n in grid), ORDERS[whole(order)]) for *grid, order, _ in options]
        need(len(set(found)) == len(found), "1: an option is listed once")
        return found

    def check_class(self, number: int, data: dict[str, Any], balance: Fraction) -> None:
        """The words of listed grids, and that all others of the family move as many as is said."""
        kind, words = self.classes[number], dict[Grid, int]()
        listed = dict[Grid, set[tuple[int, ...]]]()
        for placed, option in zip(self.placed[number], data["options"], strict=True):
            grid = tuple(placed.grid.values())
            words[grid] = max(whole(option[-1]), words.get(grid, 0))
            steps = tuple(placed.steps[axis] for axis in AXES if placed.grid[axis] > 1)
            listed.setdefault(grid, set()).add(steps)
        least = whole(data["least"])
        every = family(kind, self.procs, balance)
        for grid in every:
            other = Placed(kind, grid, not self.training)
            orders = {
                tuple(each.steps[axis] for axis in AXES if each.grid[axis] > 1)
                for each in (Placed(kind, grid, True, order) for order in ORDERS)
            }
            if not orders <= listed.get(grid, set()):
                need(other.moves(least), f"2: class {number}, grid {grid} moves at least {least} words")
            if grid in words:
                need(other.moves(words[grid]), f"2: class {number}, grid {grid} moves {words[grid]} words")
        need(words.keys() <= set(every), f"2: the listed grids of class {number} are of the family")

    def edge_words(self, edge: dict[str, Any], one: Placed, other: Placed) -> Iterator[int]:
        """Numbers, of which the last one is what an edge moves, and which never fall: lower bounds."""
        source, target = one.layer, other.layer
        tensor = target.input if edge["role"] == "in" else target.output
        parts = [tuple(map(whole, each)) for each in edge["channels"]] or [(0, 0, 2**62)]
        most = [[0, 0] for _ in parts]
        maps = [None, None, *(target.rows[axis] for axis in SPATIAL)]
        for rank in range(self.procs):
            before, after = list(one.box(source.output, rank)), other.box(tensor, rank)
            if edge["role"] == "in" and tensor == "In":
                for at, rows in enumerate(maps):
                    if rows is not None and rows.mapped:
                        before[at] = rows.number(before[at][0]), rows.number(before[at][1])
            for (first, second, count), found in zip(parts, most, strict=True):
                have = [*before[:1], clipped(before[1], first, count), *before[2:]]
                want = [*after[:1], clipped(after[1], second, count), *after[2:]]
                both = math.prod(map(common, have, want))
                found[0] = max(found[0], math.prod(map(length, want)) - both)
                found[1] = max(found[1], math.prod(map(length, have)) - both) if edge["back"] else 0
            yield sum(map(sum, most))

    def check_edges(self, number: int, potentials: dict[str, Any]) -> None:
        """The potentials of a pair of layers are together at most the words of its edges."""
        source, target = (whole(potentials[end]) for end in ("source", "target"))
        edges = [each for each in self.edges if (each["source"], each["target"]) == (source, target)]
        one, other = self.placed[self.of[source]], self.placed[self.of[target]]
        ends = potentials["of_source"], potentials["of_target"]
        need(
            [len(one) + 1, len(other) + 1] == list(map(len, ends)),
            f"3: {number} has a number for each option",
        )
        need(all(type(n) is int for end in ends for n in end), "3: potentials are whole numbers")
        need(
            ends[0][-1] + max(ends[1]) <= 0 >= ends[1][-1] + max(ends[0]), f"3: {number} gives others nothing"
        )
        for mine, share in zip(one, ends[0], strict=False):
            for theirs, rest in zip(other, ends[1], strict=False):
                if share + rest > 0:
                    need(self._moves(edges, mine, theirs, share + rest), f"3: potentials of {number}")

    def _moves(self, edges: list[dict[str, Any]], mine: Placed, theirs: Placed, least: int) -> bool:
        for edge in edges:
            most = 0
            for most in self.edge_words(edge, mine, theirs):
                if most >= least:
                    return True
            least -= most
        return least <= 0


def clipped(bounds: Interval, first: int, count: int) -> Interval:
    """Channels from a first one on, numbered from 0."""
    low, high = (min(max(bound - first, 0), count) for bound in bounds)
    return low, high


# --- any schedule: the surface of regions --------------------------------------------------------------


class Pairs:
    """Positions of one dimension and their partners: outputs and the inputs that they read, or turned.

    dim: (rows, taps, stride, zeros before, dilation, outputs). turned: positions are inputs.
    """

    def __init__(self, dim: tuple[int, ...], turned: bool) -> None:
        size, taps, stride, before, dilation, outputs = dim
        need(outputs * taps <= MOST_STEPS, "5: a dimension is too large to go through")
        self.real = range(outputs if turned else size)
        self.partners = [
            [stride * x + dilation * tap - before for tap in range(taps)] for x in range(outputs)
        ]
        classes = Counter(dilation * tap % stride for tap in range(taps))
        self.groups = list(classes.values())  # how many outputs share an input that is far from the ends
        self.group = {place: classes[(place + before) % stride] for each in self.partners for place in each}
        if turned:
            need(self.groups == [taps], "5: turned dimensions have no stride")
            read = sorted(place for place in self.group if 0 <= place < size)
            self.partners = [[place + before - dilation * tap for tap in range(taps)] for place in read]
            self.group = {x: taps for each in self.partners for x in each}
        self.shared = Counter(place for each in self.partners for place in each)
        self.taps, self.most = taps, max(self.groups)

    @cached_property
    def degrees(self) -> list[int]:
        """Partners that exist, of each position."""
        return [sum(place in self.real for place in each) for each in self.partners]

    @property
    def others(self) -> Counter[int]:
        """How many partners have so many positions."""
        return Counter(number for place, number in self.shared.items() if place in self.real)

    @property
    def weight(self) -> int:
        """Partners that some position has, each as often as it would be shared far from the ends."""
        return sum(self.group[place] for place in self.shared if place in self.real)

    def lines(self, ratio: Fraction) -> tuple[Fraction, Fraction, Counter[tuple[int, Fraction]]]:
        """(cost of the ends of a line, positions from which on a line has it, how many (degree, charge))."""

        def cost(inside: int, group: int) -> Fraction:
            return min(ratio * (group - inside), Fraction(inside))

        def block(n: int) -> Fraction:  # n neighbours far from the ends
            met = [(min(i, n) - max(i - group, 0), group) for group in self.groups for i in range(n + group)]
            return sum((cost(*each) for each in met), Fraction(0))

        ends = block(self.most)
        shorter = [n * ends / block(n) for n in range(1, self.most) if block(n) < ends]
        lost = dict[tuple[int, int, bool], Fraction]()
        kinds = Counter[tuple[int, Fraction]]()
        for degree, partners in zip(self.degrees, self.partners, strict=True):
            charge = Fraction(0)
            for place in partners:
                group, there, real = key = self.group[place], self.shared[place], place in self.real
                if key not in lost:
                    less = ((cost(i, group) - real * cost(i, there)) / i for i in range(1, there + 1))
                    lost[key] = max(less)
                charge += lost[key]
            kinds[degree, charge] += 1
        return ends, max([Fraction(1), *shorter]), kinds


Charged = list[tuple[int, Fraction, int]]  # degree, charge, number of positions


def line_regions(axes: list[Pairs], ratio: Fraction, short: Fraction) -> tuple[Fraction, Charged, Charged]:
    """Of regions that lines cut: (w, charges of outputs, of inputs)."""
    lines, taps = [axis.lines(ratio) for axis in axes], math.prod(axis.taps for axis in axes)
    need(all(short >= least for _, least, _ in lines), "5: lines of that many positions have both ends")
    scale = min(taps // axis.taps * ends for axis, (ends, _, _) in zip(axes, lines, strict=True)) / len(axes)
    found = []
    for corner in product(*(kinds.items() for _, _, kinds in lines)):
        degree = math.prod(own for (own, _), _ in corner)
        charge = Fraction(0)
        for axis, (ends, _, _), ((own, mine), _) in zip(axes, lines, corner, strict=True):
            across = taps // axis.taps
            charge += across * mine + (across - degree // own) * ends / short
        found.append((degree, charge / len(axes), math.prod(number for _, number in corner)))
    return scale, found, []


def square_regions(axes: list[Pairs], ratio: Fraction, short: Fraction) -> tuple[Fraction, Charged, Charged]:
    """Of regions that reflections make octagons: (w, charges of outputs, of inputs)."""
    n = len(axes)
    need(n in (2, 3) and ratio >= 1 and all(axis.groups == [3] for axis in axes), "5: windows are 3 by 3")
    root = Fraction(2116601, 100_000)
    need(root**2 <= 448, "5: the root of 448")
    part, side = min(Fraction(1), (ratio - 1) / 7), short * (2 if n == 2 else 1)
    steep, less, flat = (1 - part) * root + part * 36, (1 - part) * 24 + part * 36, 12 + 6 * part
    scale = steep - less / side
    thin = scale > 0 and flat * side >= 4 * scale and flat * side * (steep - flat) >= less * scale
    need(thin, "5: thin regions cost as much")

    def lost(there: int) -> Fraction:
        costs = ((1 - part) * min(9 - i, i) + (part * i if i < 9 else 0) for i in range(there + 1))
        return max(each - ratio * (there - i) for i, each in enumerate(costs))

    def planes(degrees: tuple[int, ...]) -> list[tuple[int, int]]:
        both = list(combinations(range(n), 2))
        return [(degrees[i] * degrees[j], math.prod(degrees) // (degrees[i] * degrees[j])) for i, j in both]

    charged: list[Charged] = [[], []]
    for which, counts in enumerate(([Counter(a.degrees) for a in axes], [a.others for a in axes])):
        for corner in product(*(each.items() for each in counts)):
            charge = Fraction(0)
            for own, across in planes(tuple(degree for degree, _ in corner)):
                missing = (3 ** (n - 2) - across) * scale / side
                charge += across * lost(own) / ratio if which else across * (9 - own) + missing
            number = math.prod(number for _, number in corner)
            degree = math.prod(degree for degree, _ in corner)
            charged[which].append((degree, charge / math.comb(n, 2), number))
    return scale / (2 if n == 2 else 1), charged[0], charged[1]


def exceeded(layer: Layer, procs: int, cap: int, cut: dict[str, Any], words: int) -> bool:
    """Whether all processes access more words of In and Out beyond one copy of each than these.

    The inequality C·t·Δ + β·Γ(Δ) >= ... of docs/bounds.md is false for them, and its left side grows.
    """
    need(cut.keys() == {"turned", "squares", "side", "weight"}, "5: the fields of a cut")
    turned, squares = cut["turned"], cut["squares"]
    need(type(turned) is type(squares) is bool, "5: a cut is turned or not, of squares or of lines")
    side, weight = positive(cut["side"]), positive(cut["weight"])
    g = layer.extents
    c, k, samples, axes = g["c"], g["k"], g["b"] * g["g"], []
    work = c * k * samples
    for dim in layer.dims:
        pairs = Pairs(dim, False)
        work *= sum(pairs.degrees)
        if pairs.most == 1:  # nothing is shared: taps are like channels, if none reads a zero
            need(set(pairs.degrees) == {pairs.taps}, "5: outputs that share no input read no zeros")
            c, samples = c * pairs.taps, samples * len(pairs.degrees)
        else:
            axes.append(Pairs(dim, turned))
    need(axes != [] and procs * cap >= work, "5: inputs are shared, and the processes can do the work")
    if turned:
        c, k = k, c
    n, taps = len(axes), math.prod(axis.taps for axis in axes)
    ratio = Fraction(c * taps, k * math.prod(axis.most for axis in axes))
    need(all(min(axis.degrees) > 0 for axis in axes) and weight >= taps, "5: all positions have partners")
    shapes = square_regions if squares else line_regions
    scale, charged, others = shapes(axes, ratio, side / (n + 1))
    slope, curve = (n + 1) * scale / side, scale / side ** (n + 1)

    charges = Fraction(0)
    for per_word, each in ((samples * c * k, charged), (samples * c * k * ratio, others)):
        for degree, charge, number in each:
            charges += per_word * number * (charge + (procs - 1) * max(Fraction(0), degree + charge - weight))
    one_in = Fraction(samples * c * math.prod(axis.weight for axis in axes), taps)
    one_out = samples * k * math.prod(len(axis.degrees) for axis in axes)
    # I_p = f_p/(T·K) + u_p and O_p = f_p/(T·C) + v_p, with f_p <= cap, and u, v that add up to these
    u, v = one_in - Fraction(work, taps * k), one_out - Fraction(work, taps * c)
    squared = Fraction(cap * work, taps * taps * c * k) + cap * (u / (taps * c) + v / (taps * k))
    squared += Fraction(cap * words, taps * min(c, k)) + (u + v + words) ** 2 / 4
    return bool(c * weight * words + curve * squared < slope * work / taps - charges)


def positive(text: object) -> Fraction:
    """A fraction above 0 in lowest terms, as text."""
    need(isinstance(text, str) and len(text) < 99 and text == str(abs(Fraction(text))) != "0", "a fraction")
    return Fraction(str(text))


def check_any(
    data: dict[str, Any], network: str, layers: list[Layer], procs: int, training: bool = False
) -> str:
    """The claim about any schedule of these layers."""
    need(data.keys() == {"words", "claim", "layers"}, "5: the fields of any_schedule")
    total = 0
    known = dict[str, bool]()
    for layer, each in zip(layers, data["layers"], strict=True):
        need(each.keys() == {"most_work", "cut", "words"}, "5: the fields of a layer")
        words, cap, cut = whole(each["words"]), whole(each["most_work"], 1), each["cut"]
        key = f"{id(layer)} {json.dumps(each)}"
        need(isinstance(cut, dict) if words else cut is None, "5: words and what proves them")
        times = layer.sums["In"] + layer.sums["Out"] if layer.weighted else 1  # passes with such halos
        need(words % times == 0, "5: every pass between layers moves as many words")
        if words and key not in known:
            known[key] = exceeded(layer, procs, cap, cut, words // times - 1)
        need(words == 0 or known[key], f"5: a layer moves at least {words} words")
        total += words
    words_ = str(Fraction(total, procs))
    need(data["words"] == words_, f"5: the layers move {words_} words of a process, on average")
    said = (
        f"any schedule of {'a training step of ' * training}the layers of {network} receives at least"
        f" {words_} words, on average over the processes, given: {procs} processes; classical"
        " multiply-adds, each on a real input element done once, in one process; one owner of every word"
        " of In and Out, at the start and at the end (weights may be everywhere); one owner of every"
        " activation between layers, no copies kept from one layer to the next; words that travel whole,"
        " from process to process, and are not added on the way; in any process at most the multiply-adds"
        f" of each layer that the certificate has{', in each pass' * training}; any memory"
    )
    need(data["claim"] == said, "5: the claim about any schedule is what is proved")
    return said


def claim(data: dict[str, Any]) -> str:
    """What is proved, with all that it assumes."""
    passes = "the forward pass with weights that stay"
    if data["mode"] == "training":
        passes = "a training step that keeps what it gathers"
    return (
        f"no plan of {data['network']} of this family receives fewer than {data['words']} words, of the"
        " process that receives most in each layer and each redistribution, given: "
        f"{data['procs']} processes; {passes}; grids whose most loaded process has at most"
        f" {1 + Fraction(data['balance'])} times the least work; blocks by output rows or, of layers with"
        " weights, by input rows; ranks in row-major order, or with c and k exchanged; shards as even as they"
        " can be; every row computed once; statistics of normalizations, poolings of all positions and calls"
        " that the planner does not cut are not counted"
    )


def check(data: dict[str, Any]) -> str:
    """The claim of a right certificate. Raises `Wrong` at the first false step."""
    need(data.keys() == FIELDS and data["schema"] == "synth.network-certificate/2", "the fields")
    balance = Fraction(data["balance"])
    made = Certificate(data)
    for number, each in enumerate(data["classes"]):
        made.check_class(number, each, balance)
    more = [[[0] * (len(made.placed[k]) + 1)] for k in made.of]
    pairs = [(each["source"], each["target"]) for each in data["potentials"]]
    need(len(set(pairs)) == len(pairs), "3: a pair of layers has potentials once")
    for number, each in enumerate(data["potentials"]):
        made.check_edges(number, each)
        more[each["source"]].append(each["of_source"])
        more[each["target"]].append(each["of_target"])
    total = 0
    for k, shares in zip(made.of, more, strict=True):
        own = [*(option[-1] for option in data["classes"][k]["options"]), data["classes"][k]["least"]]
        total += min(map(sum, zip(own, *shares, strict=True)))
    need(whole(data["words"]) <= total, f"4: the shares add up to {total} words, {data['words']} are claimed")
    need(data["claim"] == claim(data), "the claim is what is proved")
    of_any, layers = data["any_schedule"], [made.classes[k] for k in made.of]
    need(of_any is not None or made.training, "5: a bound of any schedule")  # of training in later versions
    if of_any is not None:
        check_any(of_any, data["network"], layers, made.procs, made.training)
    rest = {key: value for key, value in data.items() if key != "digest"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]
    need(data["digest"] == digest, "the digest is that of the other fields")
    return str(data["claim"])


def main(paths: list[str]) -> int:
    """Checks files, and prints a line for each."""
    if not paths:
        print("name certificates: python check_network.py bound.json ...", file=sys.stderr)
        return 2
    code = 0
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
            print(f"{path}: proved: {check(data)}")
        except Wrong as fault:
            print(f"{path}: WRONG: it is not true: {fault}")
            code = max(code, 1)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as fault:
            print(f"{path}: not a certificate ({fault!r})", file=sys.stderr)
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
