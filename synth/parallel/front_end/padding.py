"""Rewrites padding in a graph: that of convolutions, and constants around what is turned.

Zeros become part of a convolution, other rows move before it. A convolution with other zeros before than
after, as `torch.nn.functional.pad` makes them before it, is one layer of the planner. Circular, reflected and
replicated rows are a call of their own, which moves rows.

Padding by constants comes last: what is turned and moved has none. A strip that is padded to a whole face,
turned, and added to a face moves as a strip. The sum says where the padded strip lies, so that no rank
receives a constant.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from synth.parallel.front_end.rewrite import is_fixed_function, redirect, redirect_users, turned_by
from synth.parallel.front_end.torch_layers import layer_of

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.grid.row_maps import RowMap
    from synth.runtime.operators.table import Operators

Zeros = tuple[tuple[int, int], ...]
MODES = ("circular", "reflect", "replicate")
Pairs = list[tuple[int, int]]  # constants before and behind the rows of each dimension


def move_padding(graph: fx.Graph, operators: Operators) -> None:
    """Give convolutions the zeros of a call before them; put a call of its own for other padding.

    Writes the zeros of such a layer into the metadata "zeros" of its node.
    """
    for node in list(graph.nodes):
        if not node.op.startswith("call") or "only" in node.meta:
            continue
        operator = operators.operator(operators.call(node))
        module: Any = operator.module
        if operator.kind != "layer" or not hasattr(module, "padding_mode"):
            continue
        if module.padding_mode in MODES:
            _pad_before(graph, node, module)
        elif module.padding_mode == "zeros":
            _take_zeros(graph, node, module, operators)


def _pad_before(graph: fx.Graph, node: fx.Node, module: Any) -> None:
    """Put a call of `pad` before a convolution that pads by other rows than zeros."""
    from torch.nn import functional

    (source,) = node.all_input_nodes[:1]
    before, pairs = source.meta["value"], tuple(module._reversed_padding_repeated_twice)
    none = ((0, 0),) * len(module.kernel_size)
    if not any(pairs) or not _planned(module, tuple(functional.pad(before, pairs).shape), none):
        return
    with graph.inserting_before(node):
        made = graph.call_function(functional.pad, (source, pairs), {"mode": module.padding_mode})
    made.meta = {key: value for key, value in node.meta.items() if key not in ("layer", "name")}
    made.meta["value"] = functional.pad(before, pairs)
    redirect(node, source, made)
    node.meta["zeros"] = none


def _take_zeros(graph: fx.Graph, node: fx.Node, module: Any, operators: Operators) -> None:
    """Take the zeros that calls before a convolution put around its input."""
    own = _own_zeros(module)
    while own is not None and (zeros := _zeros_of(node.all_input_nodes[0], operators)) is not None:
        pad = node.all_input_nodes[0]
        if pad.meta.get("grad", True) != node.meta.get("grad", True):
            return
        (source,) = pad.all_input_nodes
        own = tuple((a + c, b + d) for (a, b), (c, d) in zip(own, zeros, strict=True))
        if not _planned(module, tuple(source.meta["value"].shape), own):
            return
        redirect(node, pad, source)
        node.meta["zeros"] = own
        if not pad.users:
            graph.erase_node(pad)


def _own_zeros(module: Any) -> Zeros | None:
    """The zeros of a convolution's own padding; None for a transposed one."""
    if module.transposed:
        return None
    if module.padding == "valid":
        return ((0, 0),) * len(module.kernel_size)
    if module.padding == "same":
        spans = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return tuple((span // 2, span - span // 2) for span in spans)
    return tuple((each, each) for each in module.padding)


def _zeros_of(node: fx.Node, operators: Operators) -> Zeros | None:
    """The zeros that a call puts around the positions of its input; None for any other call."""
    if not node.op.startswith("call") or {"only", "arguments"} & set(node.meta):
        return None
    moved = operators.form(node, "reindex")
    if moved is None or moved.value or moved.dims is not None or not all(m.plain for m in moved.maps[:2]):
        return None
    zeros = tuple(map(constants_around, moved.maps[2:]))
    return None if None in zeros else zeros  # type: ignore[return-value]


def constants_around(rows: RowMap) -> tuple[int, int] | None:
    """How many constants are before and behind the rows of a dimension; None where these are moved, too."""
    if 0 not in rows.rows:
        return None
    before, more = rows.rows.index(0), len(rows.rows) - rows.size
    plain = tuple(rows.rows) == (-1,) * before + tuple(range(rows.size)) + (-1,) * (more - before)
    return (before, more - before) if plain else None


def _planned(module: Any, shape: tuple[int, ...], zeros: Zeros) -> bool:
    """Whether the planner has a layer for a convolution with these zeros."""
    twin = copy.copy(module)
    twin.zeros = zeros
    return layer_of("layer", twin, shape) is not None


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
