"""Products of matrices, attention and sums of products, which ranks divide.

Each word of the result is computed from slices of the operands. Ranks that compute a
box of the result read the slices that belong to it, and nothing is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from synth.runtime.grid.boxes import Box
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.functional import SIGNATURES, module_of
from synth.runtime.rules.convolution import computed_kernel
from synth.runtime.rules.products import Dims
from synth.runtime.rules.rule import LocalCall
from synth.runtime.tracing.expressions import is_expression

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class Product(NamedTuple):
    """How a call is divided.

    on_box: makes of a box of the result what takes the slices of the operands that
    belong to it. operands: nodes in the order of the arguments; one may occur twice.
    dims: of each operand, the dimension of the result for each of its own; None for one
    that is read whole. cut: dimensions of the result that may be divided.
    multiply_adds: of the whole; 0 where they follow from the shapes of the operands.
    """

    on_box: Callable[[Box], LocalCall]
    operands: tuple[fx.Node, ...]
    dims: tuple[Dims, ...]
    cut: tuple[int, ...]
    multiply_adds: int = 0


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
    if found is None or len(found.dims) != len(found.operands):
        return None
    fits = all(
        len(each) == len(node_shape(operand))
        for each, operand in zip(found.dims, found.operands, strict=True)
    )
    return found if fits else None


def on_any_box(call: LocalCall) -> Callable[[Box], LocalCall]:
    """A call that does the same with the slices of every box."""
    return lambda _: call


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

Rule = Callable[[Call], Product | None]


def _divided(
    call: Call,
    dims: Sequence[Dims],
    cut: Sequence[int],
    multiply_adds: int = 0,
    on_box: Callable[[Box], LocalCall] | None = None,
) -> Product:
    """on_box: None for a call that does the same with the slices of every box."""
    on_box = on_box or on_any_box(filled(call.node))
    operands = tuple(nodes_of(call.node))
    return Product(on_box, operands, tuple(dims), tuple(cut), multiply_adds)


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


def _matmul(call: Call) -> Product | None:
    """Products of matrices of (..., m, k) and (..., k, n)."""
    out = call.out
    one, other = (node_shape(each) for each in nodes_of(call.node))
    if len(one) < 2 or len(other) < 2:
        return None
    rows, columns = len(out) - 2, len(out) - 1
    dims: tuple[Dims, ...] = (
        (*_aligned(one[:-2], out[:-2]), rows, None),
        (*_aligned(other[:-2], out[:-2]), None, columns),
    )
    return _divided(call, dims, range(len(out)))


def _attention(call: Call) -> Product | None:
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
    on_box = on_any_box(_with_rows_together(filled(call.node)))
    return _divided(call, dims, cut, on_box=on_box)


def _with_rows_together(call: LocalCall) -> LocalCall:
    """The words of a row follow each other: else torch has no blockwise attention.

    It then makes the whole matrix of weights, in six times the time. Layers of maps
    give positions whose channels lie apart.
    """

    def run(*operands: torch.Tensor) -> torch.Tensor:
        return call(
            *(each if each.stride(-1) == 1 else each.contiguous() for each in operands)
        )

    return run


def _einsum(call: Call) -> Product | None:
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
    return _divided(call, dims, range(len(out)))


def _linear(call: Call) -> Product | None:
    """Rows times a matrix of (outputs, inputs) that is computed, too."""
    nodes, last = nodes_of(call.node), len(call.out) - 1
    if _named(call) != nodes or len(nodes) < 2 or len(node_shape(nodes[1])) != 2:
        return None
    dims: tuple[Dims, ...] = ((*range(last), None), (last, None), (last,))
    work = math.prod(call.out) * node_shape(nodes[1])[1]
    return _divided(call, dims[: len(nodes)], range(last + 1), work)


def _convolution(call: Call) -> Product | None:
    """A convolution whose kernel is computed: samples, channels and rows are apart."""
    nodes, function = nodes_of(call.node), call.function
    if _named(call) != nodes or len(nodes) < 2:
        return None
    values = [each.meta["value"] for each in nodes]
    if values[0].dim() != len(call.out) or any(each.is_complex() for each in values):
        return None
    given = dict(zip(("weight", "bias"), values[1:], strict=False))
    numbers = {name: each for name, each in _given(call) if name not in OPERANDS}
    module = module_of(function, tuple(values[0].shape), given, numbers)
    if module is None:
        return None
    dims, on_box = computed_kernel(module, tuple(values[0].shape), call.out)
    words = values[0].numel() if "transpose" in call.word else math.prod(call.out)
    work = words * math.prod(values[1].shape[1:])
    return _divided(call, dims[: len(nodes)], range(len(call.out)), work, on_box)


OPERANDS = ("input", "weight", "bias")


def _given(call: Call) -> list[tuple[str, Any]]:
    """The arguments of a function of weights, by name."""
    names = ("input", *SIGNATURES[call.function])
    return [*zip(names, call.node.args, strict=False), *call.node.kwargs.items()]


def _named(call: Call) -> list[Any]:
    """Input, weight and bias of a function of weights."""
    given = dict(_given(call))
    return [given[name] for name in OPERANDS if given.get(name) is not None]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "mm"), _matmul),
    "scaled_dot_product_attention": _attention,
    "einsum": _einsum,
    "linear": _linear,
    **{f"conv{dims}d": _convolution for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _convolution for dims in (1, 2, 3)},
}


def recurrent_of(call: Call) -> Product | None:
    """How ranks divide one result of a recurrent layer; None for any other call.

    With one sample, with dropout, and for packed sequences, which have no dimension of
    samples, the layer is computed whole.
    """
    name, place = (
        getattr(call.function, "picked", ("", 0)) if not call.module else ("", 0)
    )
    args: list[Any] = list(call.node.args)
    if name not in RECURRENT or len(args) != 9 or call.node.kwargs:
        return None
    values, _, weights, biases, _, dropout, _, _, first = args
    padded = isinstance(weights, list | tuple) and isinstance(biases, bool)
    if not padded or dropout or values not in call.inputs or len(call.out) != 3:
        return None
    own = 0 if first else 1  # the dimension of samples
    out = 1 if place else own
    if len(node_shape(values)) != 3 or call.out[out] < 2:
        return None

    def dims(node: fx.Node) -> Dims:
        if node in weights:
            return (None,) * len(node_shape(node))
        made: list[int | None] = [None, None, None]
        made[own if node is values else 1] = out
        return tuple(made)

    operands = nodes_of(call.node)
    found = tuple(dims(node) for node in operands)
    return Product(on_any_box(filled(call.node)), tuple(operands), found, (out,))
