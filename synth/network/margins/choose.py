"""Which margins a network has: the fewest words, or seconds, for some extra work of the busiest process."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np

from synth.network.grids.box_rows import Array
from synth.network.margins.boxes import SPATIAL_PLACES, hull, reads
from synth.network.margins.fronts import Factor, Front, Fronts, Label, Leaf, choices
from synth.network.margins.prices import Prices, WordPrices, by_choice
from synth.network.margins.row_graph import RowGraph, RowTensor, of_different_ranks
from synth.network.margins.walk import (
    NOTHING,
    Rows,
    Walked,
    computed_box,
    extra_work,
    readers,
    walk,
)

TURNED = "by input rows"
Item = TypeVar("Item")
FREE: Front = [(0.0, 0.0, None)]
MOST_COLUMNS = 2**17  # boxes of ranks that are computed at once
MOST_PAIRS = 2**12  # what is needed of a tensor, times the margins that are tried for it
MOST_KEYS = 2**14  # combinations of what the readers of a tensor compute
CHOICES = (*range(13), 14, 16, 20, 24, 32, 48)  # rows beyond the own block that are tried


@dataclass(frozen=True)
class Chosen:
    """Margins of a graph, and what they cost.

    words: tensor -> words that the most-receiving rank fetches, with those of `back`: of its gradient, of the
    rank that receives most. exact: whether no margins among those that
    were tried need fewer words.
    """

    rows: dict[str, Rows]
    walked: Walked = field(repr=False)
    words: dict[str, int]
    exact: bool
    back: dict[str, int] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """Words, summed over tensors."""
        return sum(self.words.values())


def evaluated(
    graph: RowGraph, rows: dict[str, Rows], exact: bool = True, graded: Container[str] = ()
) -> Chosen:
    """What some margins cost. graded: the tensors whose gradients return to the owners."""
    walked = walk(graph, rows)
    words = {name: int(walked.fetched(name).max()) for name in graph}
    back = {name: int(walked.returned(name).max()) for name in graph if words[name] and name in graded}
    moved = {name: each + back.get(name, 0) for name, each in words.items() if each}
    return Chosen(rows, walked, moved, exact, back)


class Choice(NamedTuple):
    """The least cost: the margins, and the layers that are cut by input rows in their place.

    exact: see `Chosen`.
    """

    rows: dict[str, Rows]
    turned: frozenset[str]
    exact: bool


def choose(graph: RowGraph, limit: float, tried: Sequence[int] = CHOICES) -> Chosen:
    """The margins with the fewest words.

    limit: of extra multiply-adds, summed over tensors, each of the rank that computes most of it.
    """
    found = choose_cuts(graph, limit, {}, tried)
    return evaluated(graph, found.rows, found.exact)


def choose_cuts(
    graph: RowGraph,
    limit: float,
    turned: Mapping[str, float],
    tried: Sequence[int] = CHOICES,
    prices: Prices | None = None,
) -> Choice:
    """The margins of the least cost, where some layers may be cut by input rows in place of a margin.

    turned: covered layer -> what it costs more then, the redistribution of its input with it. It reads no row
    of others, and computes its own. prices: of rows; those of words without any.
    """
    fronts, graph = Fronts(limit), of_different_ranks(graph)
    factors = _Factors(graph, tried, turned, prices or WordPrices(), limit < math.inf)
    best = fronts.best(factors.all())[0]  # no margins always fit
    rows = {str(leaf.variable): leaf.value for leaf in choices(best)}
    others = frozenset(name for name, value in rows.items() if value == TURNED)
    made = {
        name: rows.get(name, NOTHING)
        for name, tensor in graph.items()
        if tensor.covered and not tensor.joined and name not in others
    }
    return Choice(made, others, not (fronts.cut or factors.cut))


class _Factors:
    """The factors of a graph. A tensor has two variables: what is needed of it, and what is computed.

    Boxes are numbered as they come, so that labels are numbers. cut: whether fewer margins than those that
    are asked for were tried of some tensor, so that labels stay few.
    """

    def __init__(
        self,
        graph: RowGraph,
        tried: Sequence[int],
        turned: Mapping[str, float],
        prices: Prices,
        limited: bool,
    ) -> None:
        self.graph, self.tried, self.turned, self.prices, self.limited = graph, tried, turned, prices, limited
        self.cut = False
        self.by_input_rows: dict[str, int] = {}  # its label, of a layer that may be cut so
        self.readers = readers(graph)
        self.boxes: dict[str, list[Array]] = {name: [] for name in graph}
        self.numbers: dict[tuple[str, bytes], int] = {}
        self.computed: dict[str, list[int]] = {}  # the labels of what is computed

    def all(self) -> list[Factor]:
        """The factors of all tensors that somebody reads; those of others have one label."""
        found = list[Factor]()
        for name in reversed(self.graph):
            tensor = self.graph[name]
            needs = self._needs(tensor)
            found += [needs] if self.readers[name] else []
            found.append(self._margins(tensor, list(dict.fromkeys(int(key[0]) for key in needs.rows))))
        return found

    def _numbered(self, name: str, stack: Array) -> list[int]:
        """The numbers of the boxes of a stack."""
        procs, found = self.graph[name].own.shape[2], list[int]()
        for start in range(0, stack.shape[2], procs):
            boxes = np.ascontiguousarray(stack[:, :, start : start + procs], np.int64)
            key = name, boxes.tobytes()
            if key not in self.numbers:
                self.numbers[key] = len(self.boxes[name])
                self.boxes[name].append(boxes)
            found.append(self.numbers[key])
        return found

    def _stack(self, name: str, numbers: Iterable[int]) -> Array:
        return np.concatenate([self.boxes[name][number] for number in numbers], axis=2)

    def _needs(self, tensor: RowTensor) -> Factor:
        """What is needed of a tensor, from what its readers compute: no words and no work."""
        name, by = tensor.name, self.readers[tensor.name]
        parts = [self._read(each, tensor) for each in by]
        keys = list(itertools.product(*parts))
        needed = [
            tuple(sorted({part[label] for part, label in zip(parts, key, strict=True)})) for key in keys
        ]
        hulls: dict[tuple[int, ...], int] = {numbers: numbers[0] for numbers in needed if len(numbers) == 1}
        several = [numbers for numbers in dict.fromkeys(needed) if len(numbers) > 1]
        for some in _chunks(several, tensor.own.shape[2]):
            most = max(map(len, some))
            columns = zip(*(numbers + numbers[-1:] * (most - len(numbers)) for numbers in some), strict=True)
            joined = reduce(hull, (self._stack(name, each) for each in columns))
            hulls |= zip(some, self._numbered(name, joined), strict=True)
        if not by:
            return Factor((f"need {name}",), {(self._numbered(name, np.zeros_like(tensor.own))[0],): FREE})
        rows: dict[Label, Front] = {
            (hulls[numbers], *key): FREE for numbers, key in zip(needed, keys, strict=True)
        }
        return Factor((f"need {name}", *(each.name for each in by)), rows)

    def _read(self, reader: RowTensor, tensor: RowTensor) -> dict[int, int]:
        """What a reader with a label -> the number of what it then needs of a tensor."""
        found, labels = dict[int, int](), self.computed[reader.name]
        for some in _chunks(labels, tensor.own.shape[2]):
            stack = reads(self._stack(reader.name, some), reader.windows, tensor.shape)
            found |= zip(some, self._numbered(tensor.name, stack), strict=True)
        if reader.name in self.by_input_rows:
            nothing = np.zeros_like(tensor.own)
            found[self.by_input_rows[reader.name]] = self._numbered(tensor.name, nothing)[0]
        return found

    def _pairs(self, tensor: RowTensor, needs: Sequence[int], tried: Sequence[int]) -> list[tuple[int, int]]:
        """(what is needed, the margin that is tried): up to the first one that has all of it."""
        if not tensor.covered or tensor.free:
            return [(need, 0) for need in needs]
        found = []
        for need in needs:
            box, own = self.boxes[tensor.name][need], tensor.own
            beyond = np.stack([own[:, 0] - box[:, 0], box[:, 1] - own[:, 1]])
            wanted = int(beyond[:, SPATIAL_PLACES].max())
            found += [(need, more) for more in tried[: 1 + bisect_left(tried, wanted)]]
        return found

    def _computed(self, tensor: RowTensor, needs: Sequence[int]) -> dict[tuple[int, int], int]:
        """(what is needed, the margin that is tried) -> the number of what is computed.

        Of a tensor with too many boxes every other margin is tried, then every fourth one.
        """
        ranks, tried = tensor.own.shape[2], self.tried
        readers = max((len(self.readers[name]) for name in tensor.sources), default=1)
        most = MOST_KEYS ** (1 / max(2, readers))
        while True:
            found, pairs = dict[tuple[int, int], int](), self._pairs(tensor, needs, tried)
            last = tensor.free or not tensor.covered or len(tried) == 1
            if last or len(pairs) <= MOST_PAIRS:
                for some in _chunks(pairs, ranks):
                    more = np.repeat([margin for _, margin in some], ranks)
                    stack = self._stack(tensor.name, [need for need, _ in some])
                    made = computed_box(tensor, stack, (more,) * len(NOTHING))
                    found |= zip(some, self._numbered(tensor.name, made), strict=True)
                if last or len(set(found.values())) <= most:
                    return found
            tried, self.cut = tried[::2], True

    def _margins(self, tensor: RowTensor, needs: Sequence[int]) -> Factor:
        """What is computed of a tensor for what is needed, with its cost and work."""
        name, rows = tensor.name, dict[Label, Front]()
        labels = dict[int, tuple[float, float]]()  # what is computed -> cost and work of computing
        if name in self.turned:
            self.by_input_rows[name] = label = len(self.boxes[name])
            self.boxes[name].append(tensor.own)
            labels[label] = self.turned[name], 0.0
            for some in _chunks(needs, tensor.own.shape[2]):
                own = np.tile(tensor.own, len(some))
                costs = self.prices.fetching(tensor, self._stack(name, some), own).tolist()
                for need, cost in zip(some, costs, strict=True):
                    rows[label, need] = [(cost + self.turned[name], 0.0, Leaf(name, TURNED))]
        computed = self._computed(tensor, needs)
        self._price(tensor, [each for each in dict.fromkeys(computed.values()) if each not in labels], labels)
        for pairs in _chunks(list(computed), tensor.own.shape[2]):
            stack = self._stack(name, [need for need, _ in pairs])
            made = self._stack(name, [computed[pair] for pair in pairs])
            fetched = self.prices.fetching(tensor, stack, made).tolist()
            for (need, most), words in zip(pairs, fetched, strict=True):
                cost, work = labels[label := computed[need, most]]
                point = cost + words, work, Leaf(name, (most,) * len(NOTHING))
                rows.setdefault((label, need), [point])
        self.computed[name] = list(labels)
        if self.readers[name]:
            return Factor((name, f"need {name}"), rows)
        return Factor((name,), {(label,): front for (label, _), front in rows.items()})

    def _price(self, tensor: RowTensor, new: Sequence[int], labels: dict[int, tuple[float, float]]) -> None:
        """Note what computing some boxes costs, and its work."""
        for some in _chunks(new, tensor.own.shape[2]):
            stack = self._stack(tensor.name, some)
            costs, works = self.prices.computing(tensor, stack).tolist(), [0.0] * len(some)
            if self.limited:
                works = by_choice(extra_work(tensor, stack), tensor).tolist()
            labels |= zip(some, zip(costs, works, strict=True), strict=True)


def _chunks(items: Sequence[Item], procs: int) -> Iterator[Sequence[Item]]:
    """The items in parts, of whose boxes a stack is not too large."""
    each = max(1, MOST_COLUMNS // procs)
    return (items[start : start + each] for start in range(0, len(items), each))
