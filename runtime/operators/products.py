"""Products of matrices, attention and sums of products, which ranks divide.

Each word of the result is computed from slices of the operands. Ranks that compute a
box of the result read the slices that belong to it, and nothing is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from synth.runtime.grid.boxes import Box
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.functional import SIGNATURES, module_of
from synth.runtime.operators.one_tensor import along_of
from synth.runtime.rules.convolution import computed_kernel
from synth.runtime.rules.products import Dims
from synth.runtime.rules.rule import LocalCall
from synth.runtime.tracing.expressions import is_expression
from synth.runtime.tracing.recorded import function_name

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
    return _divided(call, dims, range(len(out)), _einsum_work(call, parts, out))


def _einsum_work(call: Call, parts: Sequence[str], out: str) -> int:
    """Multiply-adds of operands that are contracted one after another.

    What only one of two has is summed before.
    """
    extents: dict[str, int] = {}
    for each, operand in zip(parts, nodes_of(call.node), strict=True):
        for label, size in zip(each, node_shape(operand), strict=True):
            extents[label] = max(size, extents.get(label, 1))  # 1 is broadcast
    work, made = 0, set(parts[0])
    for place, each in enumerate(parts[1:], 2):
        left = (made | set(each)) & {*out, *"".join(parts[place:])}
        work += math.prod(extents[label] for label in left | made & set(each))
        made = left
    return work


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


def _distances(call: Call) -> Product | None:
    """Distances of rows of (..., m, k) and of (..., n, k), by the way of the whole.

    torch takes products of matrices where either has more than 25 rows.
    """
    nodes, order = nodes_of(call.node), _argument(call, "p", 2, 2.0)
    if _argument(call, "compute_mode", 3, DISTANCES) != DISTANCES:
        return None
    if nodes != [_argument(call, "x1", 0), _argument(call, "x2", 1)]:
        return None
    one, other = map(node_shape, nodes)
    many = max(one[-2], other[-2]) > 25
    mode = "use_mm_for_euclid_dist" if many else "donot_use_mm_for_euclid_dist"
    rows, columns = len(call.out) - 2, len(call.out) - 1
    dims: tuple[Dims, ...] = (
        (*_aligned(one[:-2], call.out[:-2]), rows, None),
        (*_aligned(other[:-2], call.out[:-2]), columns, None),
    )
    work = math.prod(call.out) * one[-1]
    on_box = on_any_box(partial(torch.cdist, p=order, compute_mode=mode))
    return _divided(call, dims, range(len(call.out)), work, on_box)


DISTANCES = "use_mm_for_euclid_dist_if_necessary"


def _selection(call: Call) -> Product | None:
    """`gather` and `take_along_dim`: each word of the result is one of those along."""
    given, index = nodes_of(call.node)
    before = node_shape(given)
    dim = _argument(call, "dim", 1 if call.word == "gather" else 2)
    first = given is _argument(call, "input", 0) and given not in call.parameters
    if not first or type(dim) is not int or len(before) != len(call.out):
        return None
    if not _is_index(index, before[dim]):
        return None
    dim %= len(before)
    dims = tuple(
        None if d == dim or n != call.out[d] else d for d, n in enumerate(before)
    )
    places = _aligned(node_shape(index), call.out)
    if call.word == "gather" and any(
        each is None and d != dim for d, each in enumerate(dims)
    ):
        return None  # which reads the first rows of a dimension alone
    work = math.prod(call.out)
    return _divided(call, (dims, places), range(len(call.out)), work)


def _is_index(node: fx.Node, rows: int) -> bool:
    """Whether all words of a tensor are known to be numbers of that many rows.

    Else torch might refuse a word on one rank, and other ranks would wait.
    """
    source: Any = node
    while isinstance(source, fx.Node) and function_name(source.target) in MOVED:
        source = source.args[0]
    if not isinstance(source, fx.Node):
        return False
    name, place = getattr(source.target, "picked", (function_name(source.target), 1))
    if name not in INDICES or place != 1:
        return False
    dim, given = along_of(name, source), source.args[0]
    if not isinstance(given, fx.Node) or type(dim) is not int:
        return False
    return node_shape(given)[dim] <= rows


# calls that give the numbers of rows
INDICES = frozenset(
    ("argmax", "argmin", "argsort", "sort", "max", "min", "topk", "kthvalue")
)
MOVED = frozenset(
    (
        *("unsqueeze", "squeeze", "view", "reshape", "expand", "permute", "getitem"),
        *("transpose", "contiguous", "clone", "detach", "flatten"),
    )
)


def _classes(call: Call) -> Product | None:
    """Losses of labels, or of probabilities: positions are independent."""
    nodes, before = nodes_of(call.node), node_shape(nodes_of(call.node)[0])
    rest = tuple(range(1, len(call.out)))
    own: Dims = (0, None, *rest)
    work = math.prod(before)
    if call.word == "label_losses":
        dims: tuple[Dims, ...] = (own, (0, *rest), (None,))
        return _divided(call, dims[: len(nodes)], (0, *rest), work)
    given = [_argument(call, *each) for each in (("input", 0), ("target", 1))]
    alike = len(before) > 1 and [node_shape(each) for each in nodes] == [before] * 2
    if _argument(call, "reduction", 6) != "none" or given != nodes or not alike:
        return None
    return _divided(call, (own, own), (0, *rest), work)


def _similarity(call: Call) -> Product | None:
    """Cosines of the angles of vectors along a dimension."""
    one, other = (node_shape(each) for each in nodes_of(call.node))
    dim = _argument(call, "dim", 2, 1)
    if one != other or len(one) != len(call.out) + 1:
        return None
    before = range(dim % len(one))
    dims: Dims = (*before, None, *range(len(before), len(call.out)))
    return _divided(call, (dims, dims), range(len(call.out)), math.prod(one))


RULES: Mapping[str, Rule] = {
    "cdist": _distances,
    **dict.fromkeys(("gather", "take_along_dim"), _selection),
    **dict.fromkeys(("label_losses", "cross_entropy"), _classes),
    "cosine_similarity": _similarity,
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
