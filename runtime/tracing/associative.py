"""torch's associative scan, where it combines rows as a scan that ranks know.

That are affine maps, (a, b) with h = a · h + b, and sums, products, maxima and sums of
exponents of single words. The function that combines rows is looked at as a graph.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.overrides import _pop_mode_temporarily
from torch.utils._pytree import tree_leaves

from synth.runtime.rules.affine_scan import affine_scan
from synth.runtime.tracing.unsupported import in_user_code

PLACE = "torch._higher_order_ops.associative_scan"
SINGLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda values: torch.cumsum(values, 0),
    "mul": lambda values: torch.cumprod(values, 0),
    "maximum": lambda values: torch.cummax(values, 0).values,
    "minimum": lambda values: torch.cummin(values, 0).values,
    "logaddexp": lambda values: torch.logcumsumexp(values, 0),
}


@contextmanager
def record_associative_scans(record: Callable[..., Any]) -> Iterator[None]:
    """Record the scans of `associative_scan` while a model runs.

    record: takes a function and its arguments, calls it and returns its result.
    """
    place: Any = sys.modules.get(PLACE)
    if place is None or not hasattr(place, "generic_associative_scan"):
        yield
        return
    original = place.generic_associative_scan

    def scan(
        operator: Any, leaves: Sequence[torch.Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        found = _scanned(operator, list(leaves), record)
        if found is None:
            raise ValueError(
                "associative_scan combines rows in another way than h = a * h + b, a"
                " sum, a product or a maximum, which ranks do not know; write the scan"
                f" as a loop over rows{in_user_code()}"
            )
        return found

    place.generic_associative_scan = scan
    try:
        yield
    finally:
        place.generic_associative_scan = original


def _scanned(
    operator: Any, leaves: list[torch.Tensor], record: Callable[..., Any]
) -> list[torch.Tensor] | None:
    """What a scan along the first dimension gives; None for an unknown function."""
    outs, given = _combined(operator, len(leaves))
    if len(leaves) == 1 and len(outs) == 1:
        word = _word(outs[0])
        operands = {*outs[0].args} == {*given} and not outs[0].kwargs
        return [SINGLE[word](leaves[0])] if word in SINGLE and operands else None
    if len(leaves) != 2 or len(outs) != 2:
        return None
    for factor, term in ((0, 1), (1, 0)):
        if _is_affine(outs[factor], outs[term], given, factor, term):
            a, b = leaves[factor], leaves[term]
            wide = a.reshape(len(a), *[1] * (b.dim() - a.dim()), *a.shape[1:])
            made = [leaves[0], leaves[1]]
            made[factor] = torch.cumprod(a, 0)
            made[term] = record(affine_scan, wide, b, None, 0)
            return made
    return None


def _combined(operator: Any, leaves: int) -> tuple[list[fx.Node], list[fx.Node]]:
    """(results, rows) of the function that combines rows; no results if unknown."""
    options = dict(getattr(operator, "keywords", {}))
    combine = getattr(options.get("combine_fn"), "__wrapped__", None)
    if combine is None:
        return [], []
    call = functools.partial(operator.func, **{**options, "combine_fn": combine})
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    given = [graph.placeholder(f"row_{place}") for place in range(2 * leaves)]
    try:
        with _pop_mode_temporarily():
            made: Any = call(*(fx.Proxy(node, tracer) for node in given))
    except Exception:  # whatever a function does that no graph shows
        return [], given
    outs = [getattr(each, "node", None) for each in tree_leaves(made)]
    return ([] if None in outs else outs), given  # type: ignore[return-value]


def _word(node: Any) -> str:
    target = getattr(node, "target", "")
    return str(getattr(target, "__name__", target))


def _is_affine(
    product: fx.Node, total: fx.Node, rows: list[fx.Node], factor: int, term: int
) -> bool:
    """Whether results are a₂ · a₁ and a₂ · b₁ + b₂."""
    a1, b1, a2, b2 = rows[factor], rows[term], rows[2 + factor], rows[2 + term]
    if not _is(product, "mul", a1, a2):
        return False
    if _word(total) == "addcmul" and not total.kwargs:
        return total.args in ((b2, a2, b1), (b2, b1, a2))
    parts = [each for each in total.args if each is not b2]
    return (
        _word(total) == "add"
        and len(parts) == 1
        and _is(parts[0], "mul", a2, b1)
        and (_is(total, "add", b2, parts[0]))
    )


def _is(node: Any, word: str, one: Any, other: Any) -> bool:
    """Whether a node is a call of a function with two operands, in any order."""
    args = getattr(node, "args", ())
    plain = _word(node) == word and not node.kwargs if args else False
    return plain and args in ((one, other), (other, one))
