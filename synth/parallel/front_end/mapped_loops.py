"""Rewrites parts that a model stacks, each computed from rows of its own, as one call.

A traced model has the calls of every turn of a loop. Where those of all parts are the same, on rows that
follow each other, ranks divide the turns: see `synth.runtime.rules.mapped_rows`. What is not of this form
stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from synth.parallel.front_end.rewrite import redirect_users

if TYPE_CHECKING:
    import torch
    from torch import fx

    from synth.runtime.operators.table import Operators
    from synth.runtime.rules.mapped_rows import RowRead
    from synth.runtime.rules.row_calls import MovedRows

TURNS = 4  # of the shortest loop that is rewritten
OTHERWISE = ("only", "arguments", "passes", "differs", "changes")  # of calls that are not always alike
PLACES = ("autocast", "regions", "region", "grad")  # metadata that all calls of a loop share
Nodes = tuple["fx.Node", ...]
Step = Callable[[Sequence["torch.Tensor"], Sequence["torch.Tensor"]], Any]  # of values so far, of operands


def map_loops(graph: fx.Graph, operators: Operators) -> None:
    """Replace the stacks of a graph whose parts are made alike."""
    import torch

    from synth.runtime.operators.call import joined_by

    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (torch.stack, torch.cat) or not uniform([node]):
            continue
        joined = None if "out" in node.kwargs or node.meta.get("expression") else joined_by(node)
        if joined is None or len(joined[0]) < TURNS or not uniform([node, *joined[0]]):
            continue
        parts, dim = joined
        writer = LoopWriter(graph, operators, node.prev, node)
        value, new = node.meta["value"], node.target is torch.stack
        if not new and len({part.meta["value"].shape for part in parts}) > 1:
            continue
        made = writer.mapped(tuple(parts), dim, new, value)
        if made is None and new:
            made = writer.joined(tuple(parts), dim, value)
        if made is not None:
            redirect_users(node, made)
            writer.erase(node)


def uniform(nodes: Sequence[Any]) -> bool:
    """Whether some calls stand in the same regions, and are alike in every mode."""
    first = nodes[0].meta
    return all(
        not any(node.meta.get(key) for key in OTHERWISE)
        and "only" not in node.meta
        and all(node.meta.get(key) == first.get(key) for key in PLACES)
        for node in nodes
    )


class Rows(NamedTuple):
    """Calls that select rows of one tensor, each the block behind that of the one before.

    first, size: of the blocks along a dimension. moved: what a call makes of its block.
    """

    source: fx.Node
    dim: int
    first: int
    size: int
    moved: MovedRows


class _Unlike(Exception):
    """Turns of a loop are not made by the same calls."""


class LoopWriter:
    """Writes calls behind a node of a graph. like: a call of the loop, for their metadata."""

    def __init__(self, graph: fx.Graph, operators: Operators, behind: fx.Node, like: fx.Node) -> None:
        self.graph, self.operators, self.behind, self.like = graph, operators, behind, like

    def call(self, target: Any, args: Any, value: torch.Tensor, expression: bool = False) -> fx.Node:
        """A new call behind the others."""
        with self.graph.inserting_after(self.behind):
            made = self.graph.call_function(target, args)
        made.meta = {**self.like.meta, "value": value, "expression": expression, "several": object()}
        self.behind = made
        return made

    def erase(self, node: fx.Node) -> None:
        """Erase a call that nobody reads, and those before it of which that is so."""
        from synth.runtime.tracing.expressions import may_change

        if node._erased or node.users or node.op != "call_function" or may_change(node):
            return
        before = node.all_input_nodes
        self.graph.erase_node(node)
        for each in before:
            self.erase(each)

    # -- rows in one tensor ---------------------------------------------------------------------------

    def stacked(self, rows: Nodes, dims: int, dim: int | None) -> tuple[fx.Node, int]:
        """A tensor with the rows, which are broadcast to so many dimensions, along a new dimension.

        dim: of the rows in it; None where they lie now, else 1. Returns the tensor and the dimension.
        """
        import torch

        found = self._straight(rows, dims)
        if found is not None and dim in (None, found.dim):
            return self._source(found, len(rows)), found.dim
        dim = min(1, dims) if dim is None else dim
        value = rows[0].meta["value"]
        lead = [1] * (dims - value.dim())
        shape = [*lead, *value.shape]
        if all(row is rows[0] for row in rows):
            shape.insert(dim, 1)
            expression = rows[0].op == "get_attr" or bool(rows[0].meta.get("expression"))
            return self.call(torch.reshape, (rows[0], tuple(shape)), value.reshape(shape), expression), dim
        whole = value.new_empty([*shape[:dim], len(rows), *shape[dim:]])
        made = self.mapped(rows, dim, True, whole, tuple(shape)) if uniform(rows) else None
        if made is None:
            shape.insert(dim, 1)
            wide = [self.call(torch.reshape, (row, tuple(shape)), value.reshape(shape)) for row in rows]
            made = self.call(torch.cat, (wide, dim), whole)
        return made, dim

    def _straight(self, rows: Nodes, dims: int) -> Rows | None:
        """Single rows of one tensor, without the dimension along which they stand."""
        found = self.rows(rows)
        if found is None or found.size != 1:
            return None
        kept = tuple(each for each in range(dims + 1) if each != found.dim)
        plain = all(m.plain for d, m in enumerate(found.moved.maps) if d != found.dim)
        return found if plain and found.moved.dims == kept else None

    def rows(self, nodes: Nodes) -> Rows | None:
        """How some calls select blocks of rows that follow each other; None where they do not."""
        from synth.runtime.grid.row_maps import CONSTANT, RowMap

        if any(n.op != "call_function" or n.meta.get("expression") for n in nodes) or not uniform(nodes):
            return None
        sources = {each for node in nodes for each in node.all_input_nodes}
        forms = [self.operators.form(node, "reindex") for node in nodes]
        if len(sources) > 1 or any(form is None or form.dims != forms[0].dims for form in forms):
            return None
        if len(nodes) < 2:
            return None
        first, second = forms[0].maps, forms[1].maps
        other = [dim for dim, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
        if len(other) != 1 or any(CONSTANT in each.rows for each in first):
            return None
        (dim,) = other
        begin, count = first[dim].rows[0], len(first[dim].rows)
        size = second[dim].rows[0] - begin
        if size < count or begin + len(nodes) * size > first[dim].size:
            return None
        for turn, form in enumerate(forms):
            low = begin + turn * size
            wanted = (*first[:dim], RowMap(first[dim].size, range(low, low + count)), *first[dim + 1 :])
            if form.maps != wanted:
                return None
        inner = (*first[:dim], RowMap(size, range(count)), *first[dim + 1 :])
        return Rows(sources.pop(), dim, begin, size, forms[0]._replace(maps=inner))

    def _source(self, rows: Rows, turns: int) -> fx.Node:
        """The rows of all turns, and no others."""
        import torch

        value, count = rows.source.meta["value"], turns * rows.size
        if (rows.first, count) == (0, value.shape[rows.dim]):
            return rows.source
        args = rows.source, rows.dim, rows.first, count
        return self.call(torch.narrow, args, value.narrow(*args[1:]))

    def joined(self, parts: Nodes, dim: int, value: torch.Tensor) -> fx.Node | None:
        """A stack of which rows that follow each other in one tensor are one part; None where none do."""
        import torch

        from synth.runtime.tracing.expressions import is_computed

        groups = list[Nodes]()
        while left := parts[sum(map(len, groups)) :]:
            groups.append(left[: self._in_a_row(left, dim)])
        if all(len(group) == 1 for group in groups):
            return None
        made = []
        for group in groups:
            if len(group) > 1:
                rows = self._straight(group, value.dim() - 1)
                assert rows is not None
                made.append(self._source(rows, len(group)))
                continue
            (part,) = group
            wide = part.meta["value"].unsqueeze(dim)
            made.append(self.call(torch.unsqueeze, (part, dim), wide, not is_computed(part)))
        return made[0] if len(made) == 1 else self.call(torch.cat, (made, dim), value)

    def _in_a_row(self, parts: Nodes, dim: int) -> int:
        """How many of some parts, from the first on, are rows of one tensor that follow each other."""
        dims, most = parts[0].meta["value"].dim(), len(parts)

        def follow(number: int) -> bool:
            rows = self._straight(parts[:number], dims)
            return rows is not None and rows.dim == dim

        known = 1
        while known < most and follow(min(2 * known, most)):
            known = min(2 * known, most)
        beyond = min(2 * known, most + 1)
        while beyond - known > 1:
            number = (known + beyond) // 2
            known, beyond = (number, beyond) if follow(number) else (known, number)
        return known

    # -- one call for all turns -----------------------------------------------------------------------

    def mapped(
        self,
        parts: Nodes,
        dim: int,
        new: bool,
        value: torch.Tensor,
        shape: tuple[int, ...] | None = None,
    ) -> fx.Node | None:
        """One call that makes all parts and puts them together; None where they are not made alike.

        shape: that a part is given before; None for its own.
        """
        from synth.runtime.rules.mapped_rows import MappedRows

        turns = _Turns(self, len(parts))
        try:
            place = turns.place(parts)
        except (_Unlike, RecursionError):  # or a turn is very long
            return None
        if not turns.reads or not turns.calls:
            return None

        def part(*given: torch.Tensor) -> torch.Tensor:
            made = list[Any]()
            for step in turns.steps:
                made.append(step(made, given))
            result: torch.Tensor = made[place]
            return result if shape is None else result.reshape(shape)

        reads = [each for _, each in turns.reads]
        sources = [self._source(rows, len(parts)) for rows, _ in turns.reads]
        function = MappedRows(part, reads, dim, new, turns.may_refuse)
        return self.call(function, (*sources, *turns.whole), value)


class _Turns:
    """Finds what all turns of a loop do.

    reads: of blocks of rows. whole: tensors that all turns read. calls: how many calls a turn makes.
    steps: make the values of a turn, in order. may_refuse: whether torch may refuse a call by its words, as
    any that ranks do not divide.
    """

    def __init__(self, writer: LoopWriter, turns: int) -> None:
        self.writer, self.turns = writer, turns
        self.reads: list[tuple[Rows, RowRead]] = []
        self.whole: list[fx.Node] = []
        self.calls, self.may_refuse = 0, False
        self.steps: list[Step] = []
        self.known: dict[Nodes, int] = {}

    def place(self, nodes: Nodes) -> int:
        """Which step makes some values, one of each turn. Raises `_Unlike`."""
        if nodes not in self.known:
            step = self._same(nodes[0]) if len({*nodes}) == 1 else self._step(nodes)
            self.known[nodes] = len(self.steps)
            self.steps.append(step)
        return self.known[nodes]

    def _same(self, node: fx.Node) -> Step:
        """A tensor that all turns read."""
        if node not in self.whole:
            self.whole.append(node)
        place = self.whole.index(node)
        return lambda made, given: given[len(self.reads) + place]

    def _step(self, nodes: Nodes) -> Step:
        from synth.runtime.tracing.expressions import DRAWS, is_expression

        if len({*nodes}) < len(nodes):
            raise _Unlike
        rows = self.writer.rows(nodes)
        if rows is not None:
            return self._rows(rows)
        first, word = nodes[0], str(getattr(nodes[0].target, "__name__", "")).rstrip("_")
        if first.op != "call_function" or word in DRAWS or not uniform(nodes) or "kept" in first.meta:
            raise _Unlike
        if any(is_expression(node) for node in nodes) or any(n.target != first.target for n in nodes):
            raise _Unlike
        return self._call(nodes)

    def _rows(self, rows: Rows) -> Step:
        from synth.runtime.rules.mapped_rows import RowRead, picked_rows

        read = RowRead(rows.dim, rows.size)
        known = [(each.source, each.dim, each.first, each.size) for each, _ in self.reads]
        key = rows.source, rows.dim, rows.first, rows.size
        if key not in known:
            self.reads.append((rows, read))
            known.append(key)
        place = known.index(key)
        return lambda made, given: picked_rows(given[place], rows.moved)

    def _call(self, nodes: Nodes) -> Step:
        """The same function in all turns, with the same arguments beside its tensors."""
        from torch import fx

        from synth.runtime.operators.refused_words import may_refuse

        operands = list[list[fx.Node]]()
        for node in nodes:
            operands.append([])
            fx.node.map_arg((node.args, node.kwargs), operands[-1].append)
        shown = {repr(fx.node.map_arg((node.args, node.kwargs), lambda _: None)) for node in nodes}
        if len(shown) > 1 or len({*map(len, operands)}) > 1 or not operands[0]:
            raise _Unlike
        places = [self.place(each) for each in zip(*operands, strict=True)]
        self.calls += 1
        made = self.writer.operators.call(nodes[0])
        gathered = self.writer.operators.operator(made).kind == "gathered"
        self.may_refuse = self.may_refuse or gathered or may_refuse(made)
        function: Any = nodes[0].target
        call = nodes[0].args, nodes[0].kwargs  # the node will be erased

        def run(made: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> Any:
            fresh = iter([made[place] for place in places])
            args: Any = fx.node.map_arg(call, lambda _: next(fresh))
            return function(*args[0], **args[1])

        return run
