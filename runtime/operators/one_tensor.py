"""What a call of one tensor does: a recogniser for each kind of operator.

Row maps of calls that move or select rows (`synth.runtime.rules.row_calls`). Reductions
with parts of the values on every rank: `mean`, `sum`, `amax`, `amin`, `var`, `std`,
`norm` and `logsumexp`, adaptive poolings, and averages of which a window has all rows
of a dimension. Scans, where each row of the result is made of all rows up to it:
`cumsum`, `cumprod`, `logcumsumexp`, values and indices of `cummax` and `cummin`.
Shuffles of channels and positions (`synth.runtime.rules.shuffles`). Calls that ranks
compute from boxes that are whole along some dimensions: reshapes, and functions along
dimensions such as `softmax`, `sort` and `argmin`. Windows of rows
(`synth.runtime.rules.sliding`). Each is asked about calls of one tensor without
parameters, and gives None for what it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count
from synth.runtime.kernels.autocast import Operator
from synth.runtime.operators.call import Call
from synth.runtime.rules.local_forms import LocalForm, reshape_form, whole_along
from synth.runtime.rules.pooling import (
    ADAPTIVE_AVG,
    ADAPTIVE_MAX,
    AVG_POOLS,
    pool_operator,
)
from synth.runtime.rules.reductions import OPERATORS, ReductionForm
from synth.runtime.rules.row_calls import MovedRows, rows_of
from synth.runtime.rules.rule import Rule, in_one_dtype
from synth.runtime.rules.scans import SCANS, index_rule, scan_rule
from synth.runtime.rules.shuffles import channel_mean, shuffle
from synth.runtime.rules.sliding import Along, Sliding

PADS: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d), "constant"),
    **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d), "constant"),
    nn.ReflectionPad1d: "reflect",
    nn.ReflectionPad2d: "reflect",
    nn.ReflectionPad3d: "reflect",
    nn.ReplicationPad1d: "replicate",
    nn.ReplicationPad2d: "replicate",
    nn.ReplicationPad3d: "replicate",
    **dict.fromkeys((nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d), "circular"),
}
FOURIER = (
    *("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft"),
    *("fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2", "fft_hfft2", "fft_ihfft2"),
    *("fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn"),
)
RESHAPES = ("view", "reshape", "flatten", "unflatten", "ravel")
# function -> place of its argument `dim` after the input
ALONG = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "cumsum", "cumprod"), 0),
    **dict.fromkeys(("logcumsumexp", "glu", "sum", "mean", "amax", "amin"), 0),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "logsumexp"), 0),
    **dict.fromkeys(("argmax", "argmin", "max", "min", "prod", "any", "all"), 0),
    **dict.fromkeys(("median", "nanmedian", "mode", "sort", "argsort"), 0),
    **dict.fromkeys(("nansum", "nanmean", "count_nonzero"), 0),
    **dict.fromkeys(("normalize", "norm", "topk", "kthvalue"), 1),
    **dict.fromkeys(("linalg_norm", "linalg_vector_norm"), 1),
    **dict.fromkeys(("cummax", "cummin", "fft_fftshift", "fft_ifftshift"), 0),
    **dict.fromkeys(FOURIER, 1),
}
DEFAULT_DIM: dict[str, Any] = {
    "normalize": 1,
    **dict.fromkeys(("glu", "mode", "sort", "argsort", "topk", "kthvalue"), -1),
    **{name: (-2, -1) if name.endswith("2") else -1 for name in FOURIER[:12]},
}
ALONG_LAYERS: dict[type[nn.Module], str] = {
    nn.Softmax: "softmax",
    nn.LogSoftmax: "log_softmax",
    nn.GLU: "glu",
}
WINDOW = ("kernel_size", "dilation", "padding", "stride")
DIMENSION: dict[str, Any] = dict.fromkeys(("dimension", "size", "step"))
DEFAULTS = {"dilation": 1, "padding": 0, "stride": 1}


# -- rows that are moved or selected ---------------------------------------------------


def moved_rows(call: Call) -> MovedRows | None:
    """The row maps of a call; None for calls that do anything else."""
    if not all((call.shapes[0], call.out, *call.shapes[0])):
        return None
    shape = call.shapes[0]
    module: Any = call.module
    if module is None:
        name, part = getattr(call.function, "picked", (call.word, 0))
        found = rows_of(name, shape, call.node.args[1:], call.node.kwargs, part)
    elif type(module) is nn.ChannelShuffle:
        found = rows_of("channel_shuffle", shape, (module.groups,), {})
    else:
        mode, value = PADS.get(type(module)), getattr(module, "value", 0.0)
        found = (
            rows_of("pad", shape, (module.padding, mode, value), {}) if mode else None
        )
    return found if found is not None and found.shape == call.out else None


def as_autocast(call: Call, rule: Rule) -> Rule:
    """The rule, in the dtype in which autocast has reflected and repeated rows."""
    if call.module is None:
        args, kwargs = call.node.args, call.node.kwargs
        mode = args[2] if len(args) > 2 else kwargs.get("mode")
        mode = mode if call.word == "pad" else None
    else:
        mode = PADS.get(type(call.module))
    if mode not in ("reflect", "replicate"):
        return rule
    operator = _pad_operator(mode, len(call.out))
    return rule._replace(call=in_one_dtype("padding", operator, rule.call))


@cache
def _pad_operator(mode: str, dims: int) -> Operator:
    """torch's own padding of one word. It pads all dimensions but one or two."""
    padded = max(1, dims - 2)

    def one(word: torch.Tensor) -> torch.Tensor:
        rows = word.expand(*[1] * (dims - padded), *[2] * padded)
        return functional.pad(rows, [1] * 2 * padded, mode)

    return one


# -- reductions, with parts of the values on every rank --------------------------------


def reduction_of(call: Call) -> ReductionForm | None:
    """What a call reduces; None for others, and where nothing but a scalar stays."""
    before, after = call.shapes[0], call.out
    floats = all(each.is_floating_point for each in call.dtypes)
    if not after or not floats or 0 in before:
        return None
    module: Any = call.module or (call.layer.module if call.layer else None)
    if module is not None:
        return _of_pooling(module, before, after)
    word, kwargs = call.word, dict(call.node.kwargs)
    if word not in OPERATORS or kwargs.pop("dtype", None) is not None:
        return None
    args = [each for each in call.node.args if not isinstance(each, fx.Node)]
    setting = _setting(word, args, kwargs)
    dims: Any = args[0] if args else kwargs.get("dim")
    given = dims if isinstance(dims, Sequence) else (dims,)
    wrong = len(args) > 2 or setting is None or not given
    if wrong or not all(type(dim) is int for dim in given):
        return None
    over = tuple(sorted({dim % len(before) for dim in given}))
    keep = len(after) == len(before)
    ones = (1,) * len(over)
    return ReductionForm(word, over, ones, keep, OPERATORS[word], setting)  # type: ignore[arg-type]


def _setting(word: str, args: list[Any], kwargs: dict[str, Any]) -> float | None:
    """The correction of a deviation, or the order of a norm, which leaves `args`.

    None for a norm that is not the root of a sum, or for what is known only at run
    time.
    """
    if word == "norm":
        order: Any = args.pop(0) if args else kwargs.get("p", 2)
        order = 2 if order in ("fro", None) else order
        fits = isinstance(order, int | float) and 0 < order < math.inf
        return float(order) if fits else None
    if word not in ("var", "std"):
        return 1.0
    given = kwargs.get("correction", kwargs.get("unbiased"))
    if len(args) > 1 and isinstance(args[1], bool):
        given = args.pop(1)
    given = 1 if given is None else given
    return float(given) if isinstance(given, int | float) else None


def _of_pooling(
    module: Any, before: Sequence[int], after: Sequence[int]
) -> ReductionForm | None:
    """A pooling whose windows follow from the extents of the result."""
    dims = len(before) - 2
    pools = (*ADAPTIVE_AVG, *ADAPTIVE_MAX, *AVG_POOLS)
    kind = next((each for each in type(module).__mro__ if each in pools), None)
    if kind is None or int(kind.__name__[-2]) != dims:
        return None
    over = tuple(dim for dim in range(2, 2 + dims) if after[dim] != before[dim])
    extents = tuple(after[dim] for dim in over)
    if kind in ADAPTIVE_MAX:
        name = pool_operator("adaptive_max_pool", dims)
        form = ReductionForm("first", over, extents, True, name)
        return None if module.return_indices else form
    if kind in AVG_POOLS and not (over and _covers(module, before, after)):
        return None
    name = pool_operator(f"{'adaptive_' * (kind in ADAPTIVE_AVG)}avg_pool", dims)
    return ReductionForm("mean", over, extents, True, name)


def _covers(module: Any, before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether windows have all rows of the reduced dimensions, and no others."""

    def each(value: Any) -> Sequence[int]:
        return value if isinstance(value, tuple | list) else (value,) * len(rows)

    rows = list(zip(before[2:], after[2:], strict=True))
    wanted = [size if n == 1 else 1 for size, n in rows]
    divided = getattr(module, "divisor_override", None)  # a row has none
    plain = divided is None and not any(each(module.padding))
    fits = all(n in (1, size) for size, n in rows)
    return plain and fits and list(each(module.kernel_size)) == wanted


# -- scans: each row is made of all rows up to it --------------------------------------


class ScanForm(NamedTuple):
    """A scan along a dimension.

    operator: of torch, of one word. local: how ranks scan that have all of its rows.
    indices: whether the result has the indices of extrema.
    """

    name: str
    dim: int
    operator: Callable[..., torch.Tensor]
    local: LocalForm
    indices: bool

    def rule(self, source: Layout, count: Count) -> Rule | None:
        """The rule where ranks cut the dimension; None where they do not."""
        if self.indices:
            return index_rule(self.name, self.dim, source, count)
        return scan_rule(self.name, self.dim, source, self.operator, count)


def scan_of(call: Call) -> ScanForm | None:
    """What a call scans; None for others."""
    if call.module is not None:
        return None
    name, part = getattr(call.function, "picked", (call.word, 0))
    shape = call.shapes[0]
    if name not in SCANS or not shape or call.out != shape or 0 in shape:
        return None
    kwargs = dict(call.node.kwargs)
    dtype: Any = kwargs.pop("dtype", None)
    args = (*call.node.args[1:], *kwargs.values())
    if len(args) != 1 or type(args[0]) is not int or isinstance(dtype, fx.Node):
        return None
    if str(getattr(call.function, "__name__", "")).endswith("_"):
        return None  # which keeps the dtype of its operand
    dim = args[0] % len(shape)
    options = {} if dtype is None else {"dtype": dtype}
    operator = partial(SCANS[name].scan, dim=0, **options)
    local = whole_along(shape, [dim], shape, range(len(shape)))
    return ScanForm(name, dim, operator, local, indices=part == 1)


# -- shuffles of channels and positions ------------------------------------------------


def shuffle_of(call: Call) -> int | None:
    """The dimension that has the channels; None for calls that do anything else."""
    if not all(call.shapes[0]):
        return None
    if call.function in (shuffle, channel_mean):
        return 1
    by_class = isinstance(call.module, nn.PixelShuffle | nn.PixelUnshuffle)
    names = ("pixel_shuffle", "pixel_unshuffle")
    by_name = call.module is None and call.word in names
    return len(call.out) - 3 if by_class or by_name else None


# -- boxes that are whole along some dimensions ----------------------------------------


def local_form(call: Call) -> LocalForm | None:
    """What a call needs of a box; None for calls that do anything else."""
    before, after = call.shapes[0], call.out
    if not before or not after or not all(after) or not all(before):
        return None
    module: Any = call.module
    if isinstance(module, nn.Flatten | nn.Unflatten):
        return reshape_form(before, after)
    if module is not None:
        known = ALONG_LAYERS.get(type(module))
        return _along(before, after, [module.dim]) if known else None
    return _local_function(call, before, after)


def _local_function(
    call: Call, before: tuple[int, ...], after: tuple[int, ...]
) -> LocalForm | None:
    word, args = call.word, list(call.node.args[1:])
    word = getattr(call.function, "picked", (word, 0))[0] if word not in ALONG else word
    if word in RESHAPES:
        # another dtype is the other form of `view`
        dtypes = isinstance(args[0] if args else None, torch.dtype)
        return None if dtypes else reshape_form(before, after)
    if word in ("tril", "triu"):  # which know the places of words in a matrix
        return _along(before, after, (-2, -1)) if len(before) > 1 else None
    if word not in ALONG:
        return None
    dims = along_of(word, call.node)
    if isinstance(dims, bool | fx.Node) or dims is None:
        return None
    several = isinstance(dims, Sequence)
    return _along(before, after, dims if several else [dims])


def along_of(word: str, node: fx.Node) -> Any:
    """The argument of a call in `ALONG` that says along what it acts."""
    place, args = ALONG[word] + 1, node.args
    default = node.kwargs.get("dim", DEFAULT_DIM.get(word))
    return args[place] if len(args) > place else default


def _along(
    before: tuple[int, ...], after: tuple[int, ...], dims: Sequence[Any]
) -> LocalForm | None:
    """A call along `dims`, which the result keeps or lacks."""
    if not dims or not all(isinstance(dim, int) for dim in dims):
        return None
    along = sorted({dim % len(before) for dim in dims})
    kept = list(range(len(before)))
    if len(after) < len(before):
        kept = [dim for dim in kept if dim not in along]
    if len(kept) != len(after):  # several dimensions, given one by one
        return None
    others = [dim for dim in range(len(before)) if dim not in along]
    places = [kept.index(dim) if dim in kept else -1 for dim in others]
    same = [before[dim] for dim in others] == [after[place] for place in places]
    return whole_along(before, along, after, kept) if same else None


# -- windows of rows -------------------------------------------------------------------


def windows_of(call: Call) -> Callable[[Layout], Rule] | None:
    """The rule of an `unfold` or a `fold`; None for any other call."""
    if not all((*call.out, *call.shapes[0])):
        return None
    module: Any = call.module
    args, kwargs = call.node.args, dict(call.node.kwargs)
    if call.word == "unfold" and len(call.out) > len(call.shapes[0]):  # of a tensor
        numbers = DIMENSION | dict(zip(DIMENSION, args[1:], strict=False)) | kwargs
        dim, size, step = numbers.values()
        return Along(dim % len(call.shapes[0]), size, step).rule
    back = isinstance(module, nn.Fold) or call.word == "fold"
    if not back and not isinstance(module, nn.Unfold) and call.word != "unfold":
        return None
    names = ("output_size", *WINDOW) if back else WINDOW
    if module is not None:
        given = {name: getattr(module, name) for name in names}
    else:
        given = DEFAULTS | dict(zip(names, args[1:], strict=False)) | kwargs
    pairs = [_pair(given.get(name)) for name in WINDOW]
    batched = len(call.out if back else call.shapes[0]) == 4
    if None in pairs or not batched:
        return None
    extents = _pair(given["output_size"]) if back else call.shapes[0][2:]
    sliding = Sliding(extents, *pairs)  # type: ignore[arg-type]
    return sliding.folded if back else sliding.unfolded


def _pair(number: Any) -> tuple[int, int] | None:
    """A number for height and for width; None for what is none."""
    pair = (number, number) if isinstance(number, int) else tuple(number or ())
    return pair if len(pair) == 2 else None
