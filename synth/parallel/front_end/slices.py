"""Rewrites the graph of a model so that slices come first: what is moved is only what is read.

A slice of a concatenation joins slices of its parts. A slice of a map that is turned or mirrored is a slice
of the map, turned. So padding that takes rows from other faces of a sphere moves strips, not faces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.parallel.front_end.rewrite import (
    is_fixed,
    is_fixed_function,
    joined_dim,
    redirect_users,
    turned_by,
)

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.table import Operators

Rows = tuple[int, int, int]  # dimension, first row, number of rows


def turn_by_flips(graph: fx.Graph) -> None:
    """Replace quarter turns by flips and transpositions, which move the rows of the result alone."""
    import torch

    for node in list(graph.nodes):
        turns = node.op == "call_function" and node.target in (torch.rot90, torch.Tensor.rot90)
        if not turns or not node.args or node.meta.get("expression") or "arguments" in node.meta:
            continue
        source, k, dims = (*node.args, *(1, (0, 1))[len(node.args) - 1 :])[:3]
        k, dims = node.kwargs.get("k", k) % 4, node.kwargs.get("dims", dims)
        if not hasattr(source, "meta"):
            continue
        value: Any = source.meta["value"]
        first, second = (dim % value.dim() for dim in dims)
        mirrored = {0: (), 1: (second,), 2: (first, second), 3: (first,)}[k]
        made = source
        with graph.inserting_before(node):
            if mirrored:
                made = graph.call_function(torch.flip, (made, mirrored))
                made.meta = {**node.meta, "value": value, "several": object()}
            if k % 2:
                made = graph.call_function(torch.transpose, (made, first, second))
                made.meta = {**node.meta, "several": object()}
        redirect_users(node, made)
        if not node.users:
            graph.erase_node(node)


def slice_first(graph: fx.Graph, operators: Operators) -> None:
    """Replace slices of what is joined, mirrored or permuted by the same of slices."""
    waiting = list(graph.nodes)
    while waiting:
        node = waiting.pop()
        rows = rows_of_slice(node, operators)
        if rows is None:
            continue
        (source,) = node.all_input_nodes
        if not source.op.startswith("call") or source.meta.get("expression") or not is_fixed(source):
            continue
        with graph.inserting_before(node):
            made = _joined(graph, node, source, rows, operators)
            made = made or _moved(graph, node, source, rows, operators)
        if made is None:
            continue
        whole, slices = made
        redirect_users(node, whole)
        graph.erase_node(node)
        waiting += slices
        if not source.users:
            graph.erase_node(source)
            waiting = [each for each in waiting if each is not source]


def rows_of_slice(node: fx.Node, operators: Operators) -> Rows | None:
    """The rows that a call takes of one tensor along one dimension; None for any other call."""
    if not is_fixed_function(node) or len(node.all_input_nodes) != 1:
        return None
    form = operators.form(node, "reindex")
    if form is None or form.dims is not None:
        return None
    cut = [dim for dim, each in enumerate(form.maps) if not each.plain]
    if len(cut) != 1:
        return None
    rows = list(form.maps[cut[0]].rows)
    if not rows or rows[0] < 0 or rows != [*range(rows[0], rows[0] + len(rows))]:
        return None
    return cut[0], rows[0], len(rows)


def _slice(graph: fx.Graph, source: fx.Node, rows: Rows, like: fx.Node) -> fx.Node:
    """Some rows of a value, computed where a slice is."""
    import torch

    made = graph.call_function(torch.narrow, (source, *rows))
    value = source.meta["value"].narrow(*rows)
    made.meta = {**like.meta, "value": value, "several": object()}
    return made


def _joined(
    graph: fx.Graph, node: fx.Node, source: fx.Node, rows: Rows, operators: Operators
) -> tuple[fx.Node, list[fx.Node]] | None:
    """A slice of a concatenation from slices of its parts, and these; None for another source."""
    import torch

    along, (dim, first, count) = joined_dim(source, operators), rows
    if along is None:
        return None
    parts, _ = operators.form(source, "cat")
    if len({each.meta["value"].dtype for each in (*parts, node)}) > 1:
        return None
    made, slices, start = list["fx.Node"](), list["fx.Node"](), 0
    for part in parts:
        size = part.meta["value"].shape[dim]
        low, high = max(0, first - start), min(size, first + count - start)
        start += size if dim == along else 0
        if low >= high:
            continue
        if high - low < size:
            part = _slice(graph, part, (dim, low, high - low), node)
            slices.append(part)
        made.append(part)
    if len(made) == 1:
        return made[0], slices
    whole = graph.call_function(torch.cat, (made, along))
    whole.meta = {**node.meta, "several": object()}
    return whole, slices


def _moved(
    graph: fx.Graph, node: fx.Node, source: fx.Node, rows: Rows, operators: Operators
) -> tuple[fx.Node, list[fx.Node]] | None:
    """A slice of a mirrored or permuted value from a slice of it; None for another source."""
    turned = turned_by(source, operators)
    if turned is None:
        return None
    (mirrored, order), (dim, first, count) = turned, rows
    (before,) = source.all_input_nodes
    if dim in mirrored:
        first = before.meta["value"].shape[dim] - first - count
    part = _slice(graph, before, (order[dim], first, count), node)
    made = graph.node_copy(source, lambda each: part if each is before else each)
    made.meta = {**node.meta, "several": object()}
    return made, [part]
