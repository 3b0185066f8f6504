"""The exact choice of one label per variable, by elimination: all that nothing beats in words and in work.

A factor has words and work for some combinations of labels of its variables. Variables are eliminated one
after another; what is left of a variable is, for every combination of its neighbours' labels, a front of
(words, work). On a chain of layers a state is one label, on a U-Net of any depth two.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from synth.base.collector import without_collector

Label = tuple[int, ...]
_WORDS_AND_WORK = itemgetter(0, 1)
MOST_POINTS = 96  # of a front; of longer ones, the cheapest and points spread over the others are kept


Point = tuple[float, float, Any]  # a choice: its words and work, and what was chosen, as a tree of choices
Front = list[Point]


@dataclass(frozen=True, eq=False)
class Factor:
    """scope: variables. rows: a label of each -> the points that are possible with these."""

    scope: tuple[Hashable, ...]
    rows: dict[Label, Front]

    @cached_property
    def counts(self) -> dict[Hashable, int]:
        """Variable -> how many labels it has."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.scope)
        return {v: len(set(column)) for v, column in zip(self.scope, columns, strict=True)}


class Fronts:
    """Eliminates variables. limit: work that no point may exceed.

    cut: whether some front was longer than `MOST_POINTS`, so that the result may not be the best one.
    """

    def __init__(self, limit: float) -> None:
        self.limit, self.cut = limit, False

    @without_collector()
    def best(self, factors: Iterable[Factor]) -> Front:
        """The front of all choices, the fewest words first; empty where no choice fits the limit."""
        left = list(factors)
        variables = sorted({v for factor in left for v in factor.scope}, key=str)
        sizes = {v: _size_without(v, left) for v in variables}
        while sizes:
            chosen = min(sizes, key=sizes.__getitem__)
            near = sorted((f for f in left if chosen in f.scope), key=lambda f: len(f.rows))
            joint = near[0]
            for each in near[1:]:
                joint = self._joined(joint, each)
            rest = self._without(chosen, joint)
            left = [f for f in left if chosen not in f.scope] + [rest]
            del sizes[chosen]
            sizes.update({v: _size_without(v, left) for v in rest.scope})
        result = Factor((), {(): [(0.0, 0.0, None)]})
        for factor in left:
            result = self._joined(result, factor)
        return result.rows.get((), [])

    def _without(self, variable: Hashable, factor: Factor) -> Factor:
        at = factor.scope.index(variable)
        rows: dict[Label, Front] = {}
        for key, front in factor.rows.items():
            rows.setdefault(key[:at] + key[at + 1 :], []).extend(front)
        scope = factor.scope[:at] + factor.scope[at + 1 :]
        return Factor(scope, {key: self.pruned(front) for key, front in rows.items()})

    def _joined(self, one: Factor, other: Factor) -> Factor:
        shared = [v for v in one.scope if v in other.scope]
        there = [other.scope.index(v) for v in shared]
        more = [at for at, v in enumerate(other.scope) if v not in one.scope]
        index: dict[Label, list[tuple[Label, Front]]] = {}
        for key, front in other.rows.items():
            place = tuple(key[at] for at in there)
            index.setdefault(place, []).append((tuple(key[at] for at in more), front))
        here, rows = [one.scope.index(v) for v in shared], dict[Label, Front]()
        limit = self.limit
        for key, front in one.rows.items():
            for tail, second in index.get(tuple([key[at] for at in here]), ()):
                found = [(a + c, b + d, (p, q)) for a, b, p in front for c, d, q in second if b + d <= limit]
                if len(front) > 1 and len(second) > 1:  # one point keeps a front
                    found = self.pruned(found)
                if found:
                    rows[key + tail] = found
        return Factor((*one.scope, *(other.scope[at] for at in more)), rows)

    def pruned(self, points: Front) -> Front:
        """The points that no other beats in both, the fewest words first."""
        if len(points) == 1 and points[0][1] <= self.limit:
            return points
        kept: Front = []
        least = math.inf
        for point in sorted(points, key=_WORDS_AND_WORK):
            if point[1] <= self.limit and (not kept or point[1] < least):
                kept.append(point)
                least = point[1]
        if len(kept) <= MOST_POINTS:
            return kept
        self.cut = True
        step = (len(kept) - 1) / (MOST_POINTS - 1)
        return [kept[round(place * step)] for place in range(MOST_POINTS)]


def choices(point: Point) -> list[Leaf]:
    """What a point's tree of choices has at its leaves, in any order."""
    found, open_ = list[Leaf](), [point[2]]
    while open_:
        each = open_.pop()
        if isinstance(each, Leaf):
            found.append(each)
        elif each is not None:
            open_.extend(each)
    return found


class Leaf(NamedTuple):
    """A choice: of which variable, and what."""

    variable: Hashable
    value: Any


def _size_without(variable: Hashable, factors: Sequence[Factor]) -> float:
    """The largest table that eliminating a variable may make."""
    near = [f for f in factors if variable in f.scope]
    labels: dict[Hashable, int] = {}
    for factor in near:
        for v, count in factor.counts.items():
            labels[v] = min(labels.get(v, count), count)
    return math.prod(labels.values())
