"""Calls that reduce dimensions, with parts of the values on every rank.

`mean`, `sum`, `amax`, `amin`, `var`, `std`, `norm` and `logsumexp`, adaptive poolings,
and averages of which a window has all rows of a dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import fx

from synth.runtime.operators.call import Call
from synth.runtime.rules.pooling import (
    ADAPTIVE_AVG,
    ADAPTIVE_MAX,
    AVG_POOLS,
    pool_operator,
)
from synth.runtime.rules.reductions import OPERATORS, ReductionForm


def reduction_of(call: Call) -> ReductionForm | None:
    """What a call reduces; None for others, and where nothing but a scalar stays."""
    if len(call.inputs) != 1 or call.parameters:
        return None
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
    dims: Any = args[0] if args else kwargs.get("dim", kwargs.get("axis"))
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
