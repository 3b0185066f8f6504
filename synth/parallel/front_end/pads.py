"""Rewrites the graph of a model so that padding by constants comes last: what is turned and moved has none.

A strip that is padded to a whole face, turned, and added to a face moves as a strip. The sum says where the
padded strip lies, so that no rank receives a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.parallel.front_end.padding import constants_around
from synth.parallel.front_end.rewrite import is_fixed_function, redirect_users, turned_by

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.table import Operators

Pairs = list[tuple[int, int]]  # constants before and behind the rows of each dimension


def pad_last(graph: fx.Graph, operators: Operators) -> None:
    """Replace a flip or a permutation of a padded value by the same of the value, padded."""
    import torch
    from torch.nn import functional

    for node in list(graph.nodes):
        order = turned_by(node, operators)
        source = node.all_input_nodes[0] if order else None
        found = None if source is None else _constants(source, operators)
        if order is None or source is None or found is None or len(source.users) > 1:
            continue
        pairs, more = found
        (before,) = source.all_input_nodes
        mirrored, dims = order
        moved = [pairs[dim][::-1] if dim in mirrored else pairs[dim] for dim in dims]
        with graph.inserting_before(node):
            made = graph.node_copy(node, lambda each: before if each is source else each)  # noqa: B023
            value = before.meta["value"]
            made.meta = {**node.meta, "several": object()}
            made.meta["value"] = torch.flip(value, mirrored) if mirrored else value.permute(dims)
            flat = [size for pair in reversed(moved) for size in pair]
            padded = graph.call_function(functional.pad, (made, flat, "constant", more))
        padded.meta = {**node.meta, "several": object()}
        redirect_users(node, padded)
        graph.erase_node(node)
        graph.erase_node(source)


def _constants(node: fx.Node, operators: Operators) -> tuple[Pairs, float] | None:
    """The constants that a call puts around one value, and which; None for any other call."""
    if not is_fixed_function(node):
        return None
    form = operators.form(node, "reindex")
    pairs = [] if form is None or form.dims is not None else [*map(constants_around, form.maps)]
    known = [each for each in pairs if each is not None]
    if len(known) < len(pairs) or not any(map(any, known)):
        return None
    return known, form.value
