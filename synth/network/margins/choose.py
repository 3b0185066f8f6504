"""Which margins a network has: the fewest words for some extra work of the busiest process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np

from synth.network.grids.box_rows import Array
from synth.network.margins.boxes import hull, reads
from synth.network.margins.fronts import Factor, Front, Fronts, Label, Leaf, Point, choices
from synth.network.margins.row_graph import RowGraph, RowTensor
from synth.network.margins.walk import (
    NOTHING,
    Rows,
    Walked,
    computed_box,
    extra_work,
    fetched_words,
    readers,
    walk,
)

TURNED = "by input rows"
CHOICES = (*range(13), 14, 16, 20, 24, 32, 48)  # rows beyond the own block that are tried


@dataclass(frozen=True)
class Chosen:
    """Margins of a graph, and what they cost.

    words: tensor -> words that the most-receiving rank fetches. exact: whether no margins among those that
    were tried need fewer words.
    """

    rows: dict[str, Rows]
    walked: Walked = field(repr=False)
    words: dict[str, int]
    exact: bool

    @property
    def cost(self) -> int:
        """Words, summed over tensors."""
        return sum(self.words.values())


def evaluated(graph: RowGraph, rows: dict[str, Rows], exact: bool = True) -> Chosen:
    """What some margins cost."""
    walked = walk(graph, rows)
    words = {name: int(walked.fetched(name).max()) for name in graph}
    return Chosen(rows, walked, {name: each for name, each in words.items() if each}, exact)


class Choice(NamedTuple):
    """The fewest words: the margins, the layers that are cut by input rows in their place, and the words.

    words: of all tensors and of these layers, each of the rank that receives most. exact: see `Chosen`.
    """

    rows: dict[str, Rows]
    turned: frozenset[str]
    words: int
    exact: bool


def choose(graph: RowGraph, limit: float, tried: Sequence[int] = CHOICES) -> Chosen:
    """The margins with the fewest words.

    limit: of extra multiply-adds, summed over tensors, each of the rank that computes most of it.
    """
    found = choose_cuts(graph, limit, {}, tried)
    return evaluated(graph, found.rows, found.exact)


def choose_cuts(
    graph: RowGraph, limit: float, turned: Mapping[str, int], tried: Sequence[int] = CHOICES
) -> Choice:
    """The margins with the fewest words, where some layers may be cut by input rows in place of a margin.

    turned: covered layer -> the words that it receives then, those that its input is redistributed with
    among them. It reads no row of others, and computes its own.
    """
    fronts = Fronts(limit)
    best = fronts.best(_Factors(graph, tried, turned).all())[0]  # no margins always fit
    rows = {str(leaf.variable): leaf.value for leaf in choices(best)}
    others = frozenset(name for name, value in rows.items() if value == TURNED)
    made = {
        name: rows.get(name, NOTHING)
        for name, tensor in graph.items()
        if tensor.covered and not tensor.joined and name not in others
    }
    return Choice(made, others, int(best.words), not fronts.cut)


class _Factors:
    """The factors of a graph. A tensor has two variables: what is needed of it, and what is computed.

    Boxes are numbered as they come, so that labels are numbers.
    """

    def __init__(self, graph: RowGraph, tried: Sequence[int], turned: Mapping[str, int]) -> None:
        self.graph, self.tried, self.turned = graph, tried, turned
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

    def _number(self, name: str, boxes: Array) -> int:
        boxes = np.ascontiguousarray(boxes, np.int64)
        key = name, boxes.tobytes()
        if key not in self.numbers:
            self.numbers[key] = len(self.boxes[name])
            self.boxes[name].append(boxes)
        return self.numbers[key]

    def _needs(self, tensor: RowTensor) -> Factor:
        """What is needed of a tensor, from what its readers compute: no words and no work."""
        name, by = tensor.name, self.readers[tensor.name]
        parts = [
            {label: self._number(name, self._read(each, label, tensor)) for label in self.computed[each.name]}
            for each in by
        ]
        hulls: dict[tuple[int, ...], int] = {}
        rows: dict[Label, Front] = {}
        nothing = np.zeros_like(tensor.own)
        for labels in itertools.product(*parts):
            needed = tuple(sorted({part[label] for part, label in zip(parts, labels, strict=True)}))
            if needed not in hulls:
                each = [self.boxes[name][number] for number in needed]
                hulls[needed] = self._number(name, reduce(hull, each, nothing))
            rows[hulls[needed], *labels] = [Point(0, 0)]
        return Factor((f"need {name}", *(each.name for each in by)), rows)

    def _read(self, reader: RowTensor, label: int, tensor: RowTensor) -> Array:
        """What a reader with a label needs of a tensor."""
        if self.by_input_rows.get(reader.name) == label:
            return np.zeros_like(tensor.own)
        return reads(self.boxes[reader.name][label], reader.windows, tensor.shape)

    def _margins(self, tensor: RowTensor, needs: Sequence[int]) -> Factor:
        """What is computed of a tensor for what is needed, with words and work."""
        name, rows = tensor.name, dict[Label, Front]()
        labels = dict[int, None]()
        if name in self.turned:
            self.by_input_rows[name] = label = len(self.boxes[name])
            self.boxes[name].append(tensor.own)
            labels[label] = None
            for need in needs:
                words = int(fetched_words(self.boxes[name][need], tensor.own).max()) + self.turned[name]
                rows[label, need] = [Point(words, 0.0, Leaf(name, TURNED))]
        for need in needs:
            box = self.boxes[name][need]
            for more in self.tried if tensor.covered and not tensor.free else (0,):
                margin = (more,) * len(NOTHING)
                made = computed_box(tensor, box, margin)
                label = self._number(name, made)
                if (label, need) in rows:
                    continue
                labels[label] = None
                words = int(fetched_words(box, made).max())
                work = float(extra_work(tensor, made).max())
                rows[label, need] = [Point(words, work, Leaf(name, margin))]
        self.computed[name] = list(labels)
        scope = (name, f"need {name}")
        if self.readers[name]:
            return Factor(scope, rows)
        return Factor((name,), {(label,): front for (label, _), front in rows.items()})
