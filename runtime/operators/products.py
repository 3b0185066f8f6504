"""Products of matrices, attention and sums of products, which ranks divide.

Each word of the result is computed from slices of the operands. Ranks that compute a
box of the result read the slices that belong to it, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from synth.runtime.operators.call import Call, node_shape
from synth.runtime.tracing.expressions import is_expression

Dims = tuple[int | None, ...]


class Product(NamedTuple):
    """How a call is divided.

    call: takes the operands. operands: nodes in the order of the arguments; one may
    occur twice. dims: of each operand, the dimension of the result for each of its own;
    None for one that is read whole. cut: dimensions of the result that may be divided.
    """

    call: Callable[..., torch.Tensor]
    operands: tuple[fx.Node, ...]
    dims: tuple[Dims, ...]
    cut: tuple[int, ...]


def product_of(call: Call) -> Product | None:
    """How a call is divided; None for a call that is not known to be independent."""
    node = call.node
    if is_expression(node) or "arguments" in node.meta or not call.out:
        return None  # "arguments": others in evaluation
    rule = RULES.get(call.word)
    if rule is None:
        return None
    try:
        found = rule(call)
    except (TypeError, IndexError, KeyError):  # arguments of another form
        return None
    if found is None:
        return None
    operands = tuple[fx.Node, ...](nodes_of(node))
    dims, cut = found
    fits = len(dims) == len(operands) and all(
        len(each) == len(node_shape(operand))
        for each, operand in zip(dims, operands, strict=True)
    )
    return Product(filled(node), operands, dims, cut) if fits else None


def nodes_of(node: fx.Node) -> list[fx.Node]:
    """All nodes among the arguments, in order, also those that occur again."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def filled(node: fx.Node) -> Callable[..., torch.Tensor]:
    """The function of the operands."""
    function: Any = node.target

    def run(*operands: torch.Tensor) -> torch.Tensor:
        fresh = iter(operands)
        args: Any = fx.node.map_arg((node.args, node.kwargs), lambda _: next(fresh))
        result: torch.Tensor = function(*args[0], **args[1])
        return result

    return run


# -- rules -----------------------------------------------------------------------------

Rule = Callable[[Call], tuple[tuple[Dims, ...], tuple[int, ...]] | None]


def _argument(call: Call, name: str, place: int, default: Any = None) -> Any:
    args, kwargs = call.node.args, call.node.kwargs
    return args[place] if len(args) > place else kwargs.get(name, default)


def _aligned(shape: tuple[int, ...], out: tuple[int, ...]) -> Dims:
    """The result's dimensions of leading ones that are aligned at their last."""
    skip = len(out) - len(shape)
    return tuple(
        None if extent == 1 and out[dim + skip] > 1 else dim + skip
        for dim, extent in enumerate(shape)
    )


def _matmul(call: Call) -> tuple[tuple[Dims, ...], tuple[int, ...]] | None:
    """Products of matrices of (..., m, k) and (..., k, n)."""
    out = call.out
    one, other = (node_shape(each) for each in nodes_of(call.node))
    if len(one) < 2 or len(other) < 2:
        return None
    rows, columns = len(out) - 2, len(out) - 1
    return (
        (*_aligned(one[:-2], out[:-2]), rows, None),
        (*_aligned(other[:-2], out[:-2]), None, columns),
    ), tuple(range(len(out)))


def _attention(call: Call) -> tuple[tuple[Dims, ...], tuple[int, ...]] | None:
    """Scaled dot products: samples, heads and rows of the query are independent."""
    out, rows = call.out, len(call.out) - 2
    nodes = nodes_of(call.node)
    names = ("query", "key", "value", "attn_mask")
    given = [_argument(call, name, place) for place, name in enumerate(names)]
    if [each for each in given if each is not None] != nodes:
        return None
    if _argument(call, "dropout_p", 4, 0.0):
        return None  # ranks would draw other numbers
    heads = bool(_argument(call, "enable_gqa", 7, False))  # groups of them share a key
    dims = list[Dims]()
    for node, name in zip(nodes, names, strict=False):
        shape = node_shape(node)
        last: Dims = (None, None)
        if name == "query" or (name == "attn_mask" and shape[-2] > 1):
            last = (rows, None)
        before = _aligned(shape[:-2], out[:-2])
        dims.append((*(before[:-1] if heads else before), *[None] * heads, *last))
    if heads:
        dims[0] = (*range(rows), rows, None)
    cut = list(range(rows - heads))
    if not _argument(call, "is_causal", 5, False):
        cut.append(rows)
    return tuple(dims), tuple(cut)


def _einsum(call: Call) -> tuple[tuple[Dims, ...], tuple[int, ...]] | None:
    """Sums of products: labels of the result are independent."""
    text = str(call.node.args[0]).replace(" ", "")
    given, arrow, out = text.partition("->")
    parts = given.split(",")
    if not arrow or "." in text or any(len(set(each)) < len(each) for each in parts):
        return None
    extents = dict(zip(out, call.out, strict=True))
    dims = [
        tuple(
            out.index(n) if extents.get(n) == size else None  # 1 is broadcast
            for n, size in zip(each, node_shape(operand), strict=False)
        )
        for each, operand in zip(parts, nodes_of(call.node), strict=False)
    ]
    return tuple(dims), tuple(range(len(out)))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "mm"), _matmul),
    "scaled_dot_product_attention": _attention,
    "einsum": _einsum,
}
