"""Rewrites the graph of a model so that ranks move fewer words: the same values, computed elsewhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from synth.parallel.front_end.torch_layers import takes_map

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.table import Operators

MOVABLE = ("elementwise", "same", "dropout")  # the same on a feature map and on its flat form


def redirect(user: fx.Node, old: fx.Node, new: fx.Node) -> None:
    """Let a call read another value, also in the mode in which it is not made or has other arguments."""
    from torch.fx.node import map_arg

    user.replace_input_with(old, new)
    if user.meta.get("passes") is old:
        user.meta["passes"] = new
    if "arguments" in user.meta:
        user.meta["arguments"] = {
            mode: given and map_arg(given, lambda each: new if each is old else each)
            for mode, given in user.meta["arguments"].items()
        }


def redirect_users(old: fx.Node, new: fx.Node) -> None:
    """Let all calls that read a value read another one."""
    for user in list(old.users):
        redirect(user, old, new)


def bypass_flatten(graph: fx.Graph, operators: Operators) -> None:
    """Give linear layers the feature map itself where the graph flattens it for them.

    The ranks need not bring the positions of a map together then. Between the two there may be operators on
    single words.
    """
    from torch import nn

    from synth.runtime.tracing.expressions import is_expression

    for node in list(graph.nodes):
        if not node.op.startswith("call") or is_expression(node):
            continue
        operator = operators.operator(operators.call(node))
        if operator.kind != "layer" or not isinstance(operator.module, nn.Linear):
            continue
        between, flat = _chain(node, operators)
        if flat is None:
            continue
        (before,) = flat.all_input_nodes
        shape = tuple(before.meta["value"].shape)
        if not 2 < len(shape) <= 5 or math.prod(shape[2:]) == 1:
            continue
        if not takes_map(operator.module, shape):
            continue
        redirect(between[-1] if between else node, flat, before)
        for each in between:
            each.meta["value"] = each.meta["value"].reshape(shape)
        if not flat.users:
            graph.erase_node(flat)


def _chain(node: fx.Node, operators: Operators) -> tuple[list[fx.Node], fx.Node | None]:
    """The calls between a linear layer and the flattening before it, last one first; None without one."""
    between: list[fx.Node] = []
    while True:
        (node,) = node.all_input_nodes[:1]
        if not node.op.startswith("call") or node.meta.get("expression"):
            return between, None
        call = operators.call(node)
        kind = operators.operator(call).kind
        if kind == "flatten":
            return between, node
        if kind not in MOVABLE or len(node.users) > 1 or len(call.inputs) > 1 or call.parameters:
            return between, None
        between.append(node)


def join_stacks(graph: fx.Graph) -> None:
    """Replace every stack by a concatenation along a new dimension."""
    import torch

    from synth.runtime.operators.call import joined_by
    from synth.runtime.tracing.expressions import is_computed

    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.stack or "arguments" in node.meta:
            continue
        joined = None if "out" in node.kwargs else joined_by(node)
        if joined is None or not any(is_computed(each) for each in joined[0]):
            continue
        parts, dim = joined
        with graph.inserting_before(node):
            wide = []
            for part in parts:
                each = graph.call_function(torch.unsqueeze, (part, dim))
                each.meta = {**node.meta, "value": part.meta["value"].unsqueeze(dim)}
                each.meta["expression"] = not is_computed(part)
                wide.append(each)
            made = graph.call_function(torch.cat, (wide, dim))
        made.meta = node.meta
        redirect_users(node, made)
        graph.erase_node(node)


def reduce_parts(graph: fx.Graph, operators: Operators) -> None:
    """Replace the pooling of a concatenation by the concatenation of poolings.

    Each part is then reduced where it lies. Between the two there may be operators on single words.
    """
    import torch

    for node in list(graph.nodes):
        if not node.op.startswith("call") or node.meta.get("expression"):
            continue
        form = operators.form(node, "reduction")
        calls, cat = ([], None) if form is None else _calls_on_join(node, operators)
        if form is None or cat is None:
            continue
        parts, dim = operators.form(cat, "cat")
        alike = {each.meta["value"].dtype for each in (*parts, cat)}
        if not form.over or dim in form.over or len(alike) > 1 or not all(map(is_fixed, (*calls, cat))):
            continue
        after = dim if form.keep else dim - sum(each < dim for each in form.over)
        with graph.inserting_before(node):
            reduced, start = [], 0
            for part in parts:
                made, size = part, part.meta["value"].shape[dim]
                for each in calls:
                    (before,) = each.all_input_nodes
                    made = _copied(graph, each, before, made)
                    place = after if each is node else dim
                    made.meta["value"] = each.meta["value"].narrow(place, start, size)
                reduced.append(made)
                start += size
            whole = graph.call_function(torch.cat, (reduced, after))
        whole.meta = {**node.meta}
        redirect_users(node, whole)
        for each in (*reversed(calls), cat):
            if not each.users:
                graph.erase_node(each)


def _calls_on_join(node: fx.Node, operators: Operators) -> tuple[list[fx.Node], fx.Node | None]:
    """The calls from a concatenation to a node, in order, and the concatenation; None without one."""
    calls = [node]
    while True:
        before = calls[0].all_input_nodes
        if len(before) != 1 or not before[0].op.startswith("call") or before[0].meta.get("expression"):
            return calls, None
        if joined_dim(before[0], operators) is not None:
            return calls, before[0]
        call = operators.call(before[0])
        kind = operators.operator(call).kind
        if kind not in ("elementwise", "same") or len(before[0].users) > 1 or call.parameters:
            return calls, None
        calls.insert(0, before[0])


def is_fixed(node: fx.Node) -> bool:
    """Whether a call is the same in both modes of the model."""
    return not {"only", "arguments", "passes"} & node.meta.keys()


def is_fixed_function(node: fx.Node) -> bool:
    """Whether a call of a function depends on the input, the same way in both modes of the model."""
    return node.op == "call_function" and not node.meta.get("expression") and is_fixed(node)


def turned_by(node: fx.Node, operators: Operators) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The dimensions that a flip mirrors, and the order of those of a permutation; None for other calls."""
    import torch

    if not is_fixed_function(node) or len(node.all_input_nodes) != 1:
        return None
    call = operators.call(node)
    kind, dims = operators.operator(call).kind, tuple(range(len(call.out)))
    if kind == "permute":
        return (), call.order()
    if kind != "reindex" or node.target not in (torch.flip, torch.Tensor.flip):
        return None
    maps = operators.form(node, "reindex").maps
    return tuple(dim for dim in dims if not maps[dim].plain), dims


def _copied(graph: fx.Graph, node: fx.Node, before: fx.Node, source: fx.Node) -> fx.Node:
    """A copy of a call that reads another value."""
    made = graph.node_copy(node, lambda each: source if each is before else each)
    made.meta = {**node.meta}
    return made


def split_joins(graph: fx.Graph, operators: Operators) -> None:
    """Give every reader of a concatenation a copy of it, whose parts are no concatenations themselves.

    So each copy has the layout that its reader needs, and words move to it from the layouts of the parts.
    Readers that are results of one call share a copy. Concatenations without readers are erased.
    """
    for node in list(graph.nodes):
        if joined_dim(node, operators) is None:
            continue
        _merge_nested_cats(node, operators)
        readers: dict[object, list[fx.Node]] = {}
        for user in node.users:
            readers.setdefault(user.meta.get("several", user), []).append(user)
        for first, *others in list(readers.values())[1:]:
            with graph.inserting_before(first):
                twin = graph.node_copy(node)
            # it is computed where it is read
            twin.meta = {**node.meta, "regions": first.meta.get("regions", {}), "several": object()}
            for user in (first, *others):
                redirect(user, node, twin)
    for node in reversed(list(graph.nodes)):
        if not node.users and joined_dim(node, operators) is not None:
            graph.erase_node(node)


def joined_dim(node: fx.Node, operators: Operators) -> int | None:
    """The dimension along which a node joins tensors; None for any other node."""
    if node.op != "call_function":
        return None
    joined = operators.form(node, "cat")
    return None if joined is None else joined[1]


def _merge_nested_cats(node: fx.Node, operators: Operators) -> None:
    """Replaces parts that are concatenations themselves by their parts."""
    parts, dim = operators.form(node, "cat")
    if not any(joined_dim(part, operators) == dim for part in parts):
        return
    flat: list[fx.Node] = []
    for part in parts:
        inner = joined_dim(part, operators) == dim
        flat += operators.form(part, "cat")[0] if inner else [part]
    kwargs = {key: value for key, value in node.kwargs.items() if key not in ("tensors", "dim")}
    node.args, node.kwargs = (flat, dim), kwargs
