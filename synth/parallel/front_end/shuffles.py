"""Rewrites a reshape, a permutation and a reshape that shuffle channels and positions as one call.

`x.view(b, c, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, c, 2 * h, 2 * w)` is a pixel shuffle, and its
inverse a pixel unshuffle: of one to three dimensions, with the factors in any order among the channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from synth.parallel.front_end.mapped_loops import LoopWriter, uniform
from synth.parallel.front_end.rewrite import redirect_users

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.call import Call
    from synth.runtime.operators.table import Operators

Runs = list[tuple[int, int]]  # (size, stride) of the parts of a dimension, the outermost first
Place = list[Runs]  # of a tensor, by dimension: where its words are in another one
Moved = tuple["Call", Sequence[int] | None]  # a call, and the order of dimensions of a permutation
MOST_CALLS = 8  # of a shuffle


def join_shuffles(graph: fx.Graph, operators: Operators) -> None:
    """Replace calls that are a shuffle together, and between which nothing else is read, by one call."""
    from synth.runtime.rules.shuffles import shuffle

    for node in list(graph.nodes):
        calls, source = list[Moved](), node
        while len(calls) < MOST_CALLS and not (calls and len(source.users) > 1):
            moved = _moved(source, operators)
            if moved is None or not uniform([node, source]):
                break
            calls.insert(0, moved)
            (source,) = moved[0].inputs
            found = _as_shuffle(calls)
            if found is not None:
                writer = LoopWriter(graph, operators, node, node)
                redirect_users(node, writer.call(shuffle, (source, *found), node.meta["value"]))
                writer.erase(node)
                break


def _moved(node: fx.Node, operators: Operators) -> Moved | None:
    """The call of a reshape, or of a permutation with its order; None for any other."""
    from synth.runtime.operators.local_calls import RESHAPES

    if node._erased or node.op != "call_function" or node.meta.get("expression"):
        return None
    call = operators.call(node)
    kind = operators.operator(call).kind
    copies = call.word in ("contiguous", "clone")
    reshapes = copies or (call.word in RESHAPES and kind in ("local", "flatten"))
    if len(call.inputs) != 1 or not (reshapes or kind == "permute"):
        return None
    return call, call.order() if kind == "permute" else None


def _as_shuffle(calls: Sequence[Moved]) -> tuple[Any, ...] | None:
    """(factors, order, down) of the shuffle that some calls are; None where they are none."""
    from synth.runtime.rules.shuffles import shuffle_form

    before, after = calls[0][0].shapes[0], calls[-1][0].out
    if not 2 < len(before) == len(after) <= 5 or not all(before) or before[1] == after[1]:
        return None
    down = before[1] < after[1]
    less, more = (after, before) if down else (before, after)
    factors = tuple(large // small for small, large in zip(less[2:], more[2:], strict=True))
    words = math.prod(factors)
    made = more[0], more[1] * words, *(n * f for n, f in zip(less[2:], factors, strict=True))
    if words < 2 or made != (*less[:2], *more[2:]):
        return None
    start = [[(size, math.prod(before[dim + 1 :]))] for dim, size in enumerate(before)]
    # without more dimensions between, one of size 1 changes places with the channels, as that of heads does
    if not any(order for _, order in calls) or all(len(call.out) <= len(before) for call, _ in calls):
        return None
    place = start
    for call, permuted in calls:
        order = permuted or range(len(call.out))
        viewed = _viewed(place, [call.out[order.index(dim)] for dim in range(len(order))], order)
        if viewed is None:
            return None
        place = viewed
    for inner in itertools.permutations(range(len(factors))):
        form = shuffle_form(before, factors, inner, down)
        wanted = _viewed(start, form.wide, form.dims)
        if wanted is not None and _joined(wanted) == _joined(place):
            return factors, inner, down
    return None


def _viewed(place: Place, shape: Sequence[int], order: Sequence[int]) -> Place | None:
    """The same words in dimensions of other sizes, these then in some order; None where borders differ."""
    left, made = [run for runs in place for run in runs if run[0] > 1][::-1], Place()
    for extent in shape:
        runs, size = Runs(), extent
        while size > 1:
            count, step = left.pop()
            part = math.gcd(size, count)
            if part not in (size, count):
                return None
            runs.append((part, step * (count // part)))
            left += [(count // part, step)] if count > part else []
            size //= part
        made.append(runs)
    return [made[dim] for dim in order]


def _joined(place: Place) -> Runs:
    """All words in order, in the fewest runs."""
    found = Runs()
    for count, step in (run for runs in place for run in runs if run[0] > 1):
        if found and found[-1][1] == step * count:
            found[-1] = found[-1][0] * count, step
        else:
            found.append((count, step))
    return found
