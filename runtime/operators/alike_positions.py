"""Calls that treat all positions alike, between a reshape that joins them and one back.

There, positions may stand in any order: see `rules.position_blocks`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import fx, nn

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.step import Step
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.one_tensor import RESHAPES
from synth.runtime.operators.table import Operators
from synth.runtime.rules.local_forms import reshape_groups, several_groups
from synth.runtime.rules.position_blocks import (
    Blocks,
    blocks_of,
    divided_blocks,
    joined_blocks,
)
from synth.runtime.rules.row_calls import MovedRows
from synth.runtime.tracing.expressions import is_expression

ATTENTION = "scaled_dot_product_attention"


class PositionBlocks:
    """Makes the steps that join positions block by block, and divide them again."""

    def __init__(self, graph: fx.Graph, operators: Operators) -> None:
        self.joined = joined_positions(graph, operators)
        self.blocks: dict[str, Blocks] = {}  # by the call that joins positions

    def step(
        self, call: Call, source: Layout, straight: Step | None, count: Count
    ) -> Step | None:
        """The step of a reshape; `straight` where that moves no words."""
        name = call.node.name
        for start, dims, ends in self.joined:
            if name == start and straight is not None and straight.exchanges():
                found = blocks_of(source, dims)
                if found is None:
                    return straight
                self.blocks[start] = found
                return Pulled(joined_blocks(source, dims, found, call.out), count)
            if name in ends and start in self.blocks:
                at = ends[name], self.blocks[start]
                return Pulled(divided_blocks(source, *at, call.out), count)
        return straight


class Joined(NamedTuple):
    """Positions that are joined, and divided again.

    start: the call that joins them. dims: of its input, as an interval.
    ends: the calls that divide them -> the dimension of their input.
    """

    start: str
    dims: tuple[int, int]
    ends: dict[str, int]


def joined_positions(graph: fx.Graph, operators: Operators) -> list[Joined]:
    """All such positions of a graph of which nothing else is made."""
    found, nodes = list[Joined](), list(graph.nodes)
    inside = set[str]()
    for number, node in enumerate(nodes):
        group = _joins(node, operators)
        if group is None or node.name in inside:
            continue
        reader = _Reader(operators, node, *group)
        if all(reader.read(each) for each in nodes[number + 1 :]) and reader.ends:
            low, high = group[0][0], group[0][-1] + 1
            found.append(Joined(node.name, (low, high), reader.ends))
            inside |= {each.name for each in reader.places}
    return found


def _joins(node: fx.Node, operators: Operators) -> tuple[list[int], int] | None:
    """The dimensions that a reshape joins, and which of the result they are."""
    if not node.op.startswith("call") or is_expression(node):
        return None
    call = operators.call(node)
    if not _is_reshape(call, operators):
        return None
    groups = several_groups(call.shapes[0], call.out)
    if len(groups) != 1 or len(groups[0][1]) != 1:
        return None
    ((mine, (place,)),) = groups
    return mine, place


def _is_reshape(call: Call, operators: Operators) -> bool:
    kind = isinstance(call.module, nn.Flatten | nn.Unflatten)
    return (kind or call.word in RESHAPES) and operators.operator(call).kind == "local"


class _Reader:
    """Follows joined positions through the calls of a graph.

    places: value -> its dimension that has the positions. ends: see `Joined`.
    """

    def __init__(
        self, operators: Operators, start: fx.Node, dims: list[int], place: int
    ) -> None:
        self.operators, self.places = operators, {start: place}
        before = operators.call(start).shapes[0]
        self.extents = [before[dim] for dim in dims]
        self.ends: dict[str, int] = {}

    def read(self, node: fx.Node) -> bool:
        """Whether a call treats positions alike; notes where its result has them."""
        given = [each for each in node.all_input_nodes if each in self.places]
        if not given:
            return True
        if not node.op.startswith("call") or is_expression(node) or "only" in node.meta:
            return False
        call = self.operators.call(node)
        kind, dim = self.operators.operator(call).kind, self.places[given[0]]
        place: int | None = None
        match kind:
            case "same":
                place = dim
            case "elementwise":
                place = self._pointwise(call, dim)
            case "dropout":
                each = isinstance(self.operators.operator(call).module, nn.Dropout)
                place = dim if each else None
            case "permute":
                place = call.order().index(dim)
            case "layer":
                linear = isinstance(self.operators.operator(call).module, nn.Linear)
                place = dim if linear and 0 < dim < len(call.out) - 1 else None
            case "layernorm":
                place = dim if dim < len(call.out) - 1 else None
            case "groupnorm" | "instancenorm" | "batchnorm":
                place = dim if dim > 1 else None
            case "reindex":
                place = self._moved(self.operators.operator(call).form, dim)
            case "local":
                return self._reshaped(call, dim)
            case "product":
                return self._attends(call)
        if place is not None:
            self.places[node] = place
        return place is not None

    def _pointwise(self, call: Call, dim: int) -> int | None:
        """All operands have the same positions, or one value for all of them."""
        for node in call.inputs:
            extents = node_shape(node)
            same = len(extents) == len(call.out) and self.places.get(node) == dim
            if not same and not self._broadcasts(extents, call, dim):
                return None
        params = [tuple(values.shape) for _, values in call.parameters.values()]
        fits = call.word != "prelu" or dim > 1
        fits = fits and all(self._broadcasts(each, call, dim) for each in params)
        return dim if fits else None

    def _broadcasts(self, extents: tuple[int, ...], call: Call, dim: int) -> bool:
        place = dim - (len(call.out) - len(extents))
        return place < 0 or (extents[place] == 1 and call.out[dim] > 1)

    @staticmethod
    def _moved(moved: MovedRows, dim: int) -> int | None:
        """Where positions are if their rows stay."""
        if not moved.maps[dim].plain:
            return None
        return dim if moved.dims is None else moved.dims.index(dim)

    def _reshaped(self, call: Call, dim: int) -> bool:
        """Whether a reshape keeps positions as a dimension, or divides them again."""
        if not _is_reshape(call, self.operators):
            return False
        before, after = call.shapes[0], call.out
        several = several_groups(before, after)
        for mine, its in several:
            if dim in mine:
                self.ends[call.node.name] = dim
                extents = [after[each] for each in its]
                return len(several) == len(mine) == 1 and extents == self.extents
        (its,) = (its for mine, its in reshape_groups(before, after) if dim in mine)
        self.places[call.node] = next(d for d in its if after[d] == before[dim])
        return True

    def _attends(self, call: Call) -> bool:
        """Attention sums over all keys, without a mask that tells them apart."""
        nodes = list(call.node.args[:3])
        plain = call.word == ATTENTION and len(nodes) == 3 and not call.parameters
        options = [*call.node.args[3:], *call.node.kwargs.values()]
        if not plain or any(options) or len(call.inputs) > 3:
            return False
        rows = len(call.out) - 2
        query, *others = (self.places.get(each) for each in nodes)  # type: ignore[arg-type]
        if query not in (None, rows) or others not in ([None] * 2, [rows] * 2):
            return False
        if query is not None:
            self.places[call.node] = rows
        return True
