"""Lets a graph give what forward leaves in attributes, as further outputs.

The calls that nothing else needs take a form of which each rank computes a part. A
loss of a map would be computed from all of it on every rank, even if nobody adds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from synth.runtime.tracing.expressions import behind
from synth.runtime.tracing.recorded import function_name

SINGLE = "sum", "mean", "amax", "amin"  # that give a number of all words


def give_left(output: fx.Node) -> None:
    """Let a graph give, behind its outputs, what forward leaves in attributes."""
    given: Any = output.args[0]
    nodes, places = [*given], {node: at for at, node in [*enumerate(given)][::-1]}
    left = {}
    for mode, found in output.meta["left"].items():
        for node in (n for each in found for n in each.nodes if n is not None):
            if node not in places:
                places[node] = len(nodes)
                nodes.append(node)
        left[mode] = [
            each._replace(nodes=(), places=tuple(map(places.get, each.nodes)))
            for each in found
        ]
    output.args, output.meta["left"] = (tuple(nodes),), left
    memory = Counter(node.meta["memory"] for node in {*nodes})
    output.meta["shared"] |= {
        at
        for at, node in enumerate(nodes)
        if memory[node.meta["memory"]] > 1
        or (at >= len(given) and (node.op == "placeholder" or "shows" in node.meta))
    }
    for node in _only_for(nodes[len(given) :], given):
        if "arguments" not in node.meta:  # by the mode
            _by_rows(_as_mean(node))


def _only_for(left: Iterable[fx.Node], given: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that are read for what is left, and not for what is given."""
    needed, found = behind(*given), behind(*left)
    return [node for node in found if node not in needed]


def _as_mean(node: fx.Node) -> fx.Node:
    """The mean of squared differences in place of `mse_loss`; else the node."""
    pair = node.args
    shapes = {_shape(each) for each in pair}
    if node.target is not functional.mse_loss or node.kwargs or len(shapes) > 1:
        return node
    if len(pair) != 2 or not _shape(pair[0]):
        return node
    with node.graph.inserting_before(node):
        gap = _call(node, torch.sub, pair, pair[0])
        square = _call(node, torch.square, (gap,), pair[0])
    node.target, node.args = torch.mean, (square,)
    return node


def _by_rows(node: fx.Node) -> None:
    """Let a number of all words be one of the numbers of rows along one dimension."""
    source: Any = node.args[0] if node.args else None
    shape = _shape(source)
    plain = node.op == "call_function" and len(node.args) == 1 and not node.kwargs
    if not plain or function_name(node.target) not in SINGLE or len(shape) < 2:
        return
    value: torch.Tensor = source.meta["value"]
    if not value.is_floating_point() or node.meta["value"].ndim:
        return
    kept = min(range(len(shape)), key=shape.__getitem__)
    over = tuple(dim for dim in range(len(shape)) if dim != kept)
    with node.graph.inserting_before(node):
        rows = _call(node, node.target, (source, over), None)
    rows.meta["value"] = value.new_empty(shape[kept])
    node.args = (rows,)


def _call(node: fx.Node, target: Any, args: Any, like: Any) -> fx.Node:
    """A call made where another one is. like: what has the shape of its result."""
    made = node.graph.call_function(target, args)
    made.meta = {**node.meta, "several": object()}
    if like is not None:
        made.meta["value"] = like.meta["value"]
    if "passes" in node.meta:
        made.meta["passes"] = None
    return made


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("value") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
