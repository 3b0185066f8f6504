"""Rewrites the graph of a model so that parts of a concatenation are computed where they lie.

This is done where channels of the result are selected, as in coupling layers, or become positions: a slice
then reads the part that it is of, and a shuffle of joined channels is one of each part.

So a slice of a concatenation is computed from the parts that it reads. In torch the others get a gradient of
zeros, with which momentum and weight decay of an optimizer change them, where parameters without a gradient
stay as they are. The output notes which values have such gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from synth.parallel.front_end.rewrite import is_fixed, joined_dim, redirect_users
from synth.parallel.front_end.slices import rows_of_slice, slice_first

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.table import Operators

    Sources = dict[fx.Node, list[fx.Node]]

MOST_PARTS = 8  # of a concatenation
SINGLE = ("elementwise", "same")  # operations on single words
Bounds = Sequence[tuple[int, int]]  # (first row, number of rows) of every part


def compute_parts(graph: fx.Graph, operators: Operators) -> None:
    """Let slices come first, and operations on parts before concatenations, until nothing changes."""
    before = sources_of(graph)
    slice_first(graph, operators)
    while sum(_by_parts(graph, node, operators) for node in list(graph.nodes)):
        slice_first(graph, operators)
    note_left_out(graph, before, operators)


def _by_parts(graph: fx.Graph, node: fx.Node, operators: Operators) -> bool:
    """Replace an operation on a concatenation by a concatenation of operations; whether it was replaced."""
    import torch

    joined = next((each for each in node.all_input_nodes if joined_dim(each, operators) is not None), None)
    plain = node.op.startswith("call") and is_fixed(node) and "shows" not in node.meta
    if joined is None or not plain or node.meta.get("expression") or not is_fixed(joined):
        return False
    parts, dim = operators.form(joined, "cat")
    if len({each.meta["value"].dtype for each in (*parts, joined)}) > 1 or len(parts) > MOST_PARTS:
        return False
    kind = operators.operator(operators.call(node)).kind
    with graph.inserting_before(node):
        if kind == "shuffle":
            made = _shuffles(graph, node, joined, operators)
        elif kind in SINGLE and _is_selected(node, dim, operators) and _passes(node, operators):
            made = _single(graph, node, joined, operators)
        elif kind == "reindex" and _mirrors(node, dim, operators):
            made = [_copy(graph, node, {joined: part}, part.meta["value"]) for part in reversed(parts)]
        else:
            return False
        if len(made) < 2:
            return False
        whole = graph.call_function(torch.cat, (made, dim))
    whole.meta = {**node.meta, "several": object()}
    redirect_users(node, whole)
    for each in (node, *node.all_input_nodes):
        if not each.users and (each is node or joined_dim(each, operators) is not None):
            graph.erase_node(each)
    return True


def _is_selected(node: fx.Node, dim: int, operators: Operators) -> bool:
    """Whether rows along a dimension of a value, or of what is computed from its words, are selected."""
    for user in node.users:
        if not user.op.startswith("call") or user.meta.get("expression"):
            continue
        rows = rows_of_slice(user, operators)
        operator = operators.operator(operators.call(user))
        if operator.kind in SINGLE and user.meta["value"].shape == node.meta["value"].shape:
            if _is_selected(user, dim, operators):
                return True
        elif (rows is not None and rows[0] == dim) or (operator.kind == "shuffle" and operator.form == dim):
            return True
    return False


def _passes(node: fx.Node, operators: Operators) -> bool:
    """Whether gradients pass from a value to all that it is computed from, as `note_left_out` supposes."""
    from synth.runtime.operators.gradient_paths import gradient_paths
    from synth.runtime.rules.rule import is_trainable

    call = operators.call(node)
    paths = None if call.module is not None else gradient_paths(call)
    given = {each.name for each in call.inputs if is_trainable(each.meta["value"])}
    return call.word != "detach" and (paths is None or given <= paths)


def _mirrors(node: fx.Node, dim: int, operators: Operators) -> bool:
    """Whether a call does nothing but to turn the rows along a dimension round."""
    import torch

    maps = operators.form(node, "reindex").maps
    falls = all(each.plain or at == dim for at, each in enumerate(maps))
    return node.target in (torch.flip, torch.Tensor.flip) and falls and not maps[dim].plain


def _single(graph: fx.Graph, node: fx.Node, joined: fx.Node, operators: Operators) -> list[fx.Node]:
    """An operation on single words of each part; none where the parts of its operands are not known."""
    parts, dim = operators.form(joined, "cat")
    sizes = [part.meta["value"].shape[dim] for part in parts]
    bounds = list(zip(itertools.accumulate([0, *sizes]), sizes, strict=False))
    operands = dict[Any, list[Any]]()
    for each in node.all_input_nodes:
        found = _operand(graph, node, each, dim, bounds, operators)
        if found is None:
            return []
        operands[each] = found
    made = []
    for place, rows in enumerate(bounds):
        here = {each: found[place] for each, found in operands.items()}
        made.append(_copy(graph, node, here, node.meta["value"].narrow(dim, *rows)))
    return made


def _operand(
    graph: fx.Graph, node: fx.Node, operand: fx.Node, dim: int, bounds: Bounds, operators: Operators
) -> list[fx.Node] | None:
    """The parts of an operand of a call, which is broadcast to its result; None where they are not known."""
    import torch

    whole, shape = (tuple(getattr(each.meta["value"], "shape", ())) for each in (node, operand))
    at = dim - len(whole) + len(shape)
    if at < 0 or shape[at] == 1:
        return [operand] * len(bounds)
    if shape[at] != whole[dim]:
        return None
    if joined_dim(operand, operators) == at == dim:
        parts, _ = operators.form(operand, "cat")
        if [part.meta["value"].shape[dim] for part in parts] == [size for _, size in bounds]:
            return list(parts)
    given, made = operand.op == "get_attr" or bool(operand.meta.get("expression")), []
    for rows in bounds:
        part = graph.call_function(torch.narrow, (operand, at, *rows))
        value = operand.meta["value"].narrow(at, *rows)
        part.meta = {**node.meta, "value": value, "expression": given, "several": object()}
        made.append(part)
    return made


def _shuffles(graph: fx.Graph, node: fx.Node, joined: fx.Node, operators: Operators) -> list[fx.Node]:
    """A shuffle of each part, or of the fewest that have whole channels of the result together."""
    import torch

    parts, dim = operators.form(joined, "cat")
    before, after = joined.meta["value"].shape, node.meta["value"].shape
    if operators.form(node, "shuffle") != dim:
        return []
    groups, words = list[list[Any]](), max(1, before[dim] // after[dim])
    rows = 0
    for part in parts:
        groups += [[]] if rows % words == 0 else []
        groups[-1].append(part)
        rows += part.meta["value"].shape[dim]
    if len(groups) < 2:
        return []
    made, start = [], 0
    for group in groups:
        source, size = group[0], sum(part.meta["value"].shape[dim] for part in group)
        if len(group) > 1:
            source = graph.call_function(torch.cat, (group, dim))
            value = joined.meta["value"].narrow(dim, 0, size)
            source.meta = {**joined.meta, "value": value, "several": object()}
        size = size * after[dim] // before[dim]
        made.append(_copy(graph, node, {joined: source}, node.meta["value"].narrow(dim, start, size)))
        start += size
    return made


def _copy(graph: fx.Graph, node: fx.Node, operands: Mapping[Any, Any], value: Any) -> fx.Node:
    """A copy of a call that reads other values."""
    made = graph.node_copy(node, lambda each: operands.get(each, each))
    made.meta = {**node.meta, "value": value, "several": object()}
    return made


def sources_of(graph: fx.Graph) -> Sources:
    """Node -> those that it reads; those of the last node are the outputs, in order."""
    found = {node: list(node.all_input_nodes) for node in graph.nodes}
    (last,) = graph.find_nodes(op="output")
    return {**found, last: list(last.args[0])}


def note_left_out(graph: fx.Graph, before: Sources, operators: Operators) -> None:
    """Note in the output which calls and inputs each of its values had a gradient by, and has no more.

    before: the sources of the graph that it was.
    """
    now = sources_of(graph)
    if not any(_lost(before, now, lambda node, sources: sources)):
        return
    passing = _Passing(now, operators)
    lost = _lost(before, now, passing)
    if any(lost):
        (output,) = graph.find_nodes(op="output")
        output.meta["left out"] = tuple(frozenset(node.name for node in each) for each in lost)


def _lost(
    before: Sources, now: Sources, passing: Callable[[fx.Node, Sequence[fx.Node]], Iterable[fx.Node]]
) -> list[set[fx.Node]]:
    """For each output, the nodes of both graphs that only the earlier one led to."""
    last = next(reversed(now))
    both = [
        node for node in before if node in now and node.op in ("placeholder", "call_module", "call_function")
    ]
    bits = {node: 1 << place for place, node in enumerate(both)}
    masks: list[list[int]] = []
    for sources in (before, now):
        found: dict[fx.Node, int] = {}
        for node, given in sources.items():
            found[node] = bits.get(node, 0)
            for each in passing(node, given):
                found[node] |= found[each]
        masks.append([found[each] for each in sources[last]])
    return [{node for node in both if bits[node] & was & ~has} for was, has in zip(*masks, strict=True)]


class _Passing:
    """Which of the nodes that a node reads get a gradient from it. now: the sources as they are."""

    def __init__(self, now: Sources, operators: Operators) -> None:
        self.now, self.operators = now, operators
        self.blocked: dict[fx.Node, set[int]] = {}

    def __call__(self, node: fx.Node, given: Sequence[fx.Node]) -> Iterable[fx.Node]:
        from synth.runtime.rules.rule import is_trainable

        value = node.meta.get("value")
        if node.op == "output":
            return given
        if "only" in node.meta or not node.meta.get("grad", True) or value is None or not is_trainable(value):
            return ()
        if node not in self.now:  # a slice or a concatenation
            return given
        if node not in self.blocked:
            self.blocked[node] = self._blocked(node)
        return (each for place, each in enumerate(given) if place not in self.blocked[node])

    def _blocked(self, node: fx.Node) -> set[int]:
        """The places of the sources that get no gradient."""
        from synth.runtime.operators.gradient_paths import gradient_paths

        if not node.op.startswith("call"):
            return set()
        call, sources = self.operators.call(node), self.now[node]
        paths = gradient_paths(call) if call.module is None else None
        if call.word == "detach":
            paths = set()
        names = [call.parameters[each][0] if each in call.parameters else each.name for each in sources]
        return {place for place, name in enumerate(names) if paths is not None and name not in paths}
