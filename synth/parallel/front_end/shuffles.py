"""Rewrites a reshape, a permutation and a reshape that shuffle channels and positions as one call.

`x.view(b, c, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, c, 2 * h, 2 * w)` is a pixel shuffle, and its
inverse a pixel unshuffle: of one to three dimensions, with the factors in any order behind the channels.
Where factors stand before them, a call beside it puts the channels into another order. Films may have their
frames before the channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from synth.parallel.front_end.mapped_loops import LoopWriter, uniform
from synth.parallel.front_end.rewrite import is_fixed, redirect_users, turned_by

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.call import Call
    from synth.runtime.operators.table import Operators

Runs = list[tuple[int, int]]  # (size, stride) of the parts of a dimension, the outermost first
Place = list[Runs]  # of a tensor, by dimension: where its words are in another one
Moved = tuple["Call", Sequence[int] | None]  # a call, and the order of dimensions of a permutation
Written = list[tuple[Any, ...]]  # functions, each of what the one before gives, with their other arguments
MOST_CALLS = 8  # of a shuffle
FRAMES = (0, 2, 1, 3, 4)  # order of dimensions of films that puts frames before the channels, and back


class _Form(NamedTuple):
    """A shuffle: the shapes that words are viewed in and the orders of their dimensions, and its calls."""

    views: list[tuple[tuple[int, ...], tuple[int, ...]]]
    calls: Written


def join_shuffles(graph: fx.Graph, operators: Operators) -> None:
    """Replace calls that are a shuffle together, and between which nothing else is read, by few calls."""
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
                _write(graph, operators, node, source, found)
                break


def shuffle_films(graph: fx.Graph, operators: Operators) -> None:
    """Let pixel shuffles of frames have the channels before the frames, as convolutions have them."""
    from synth.runtime.rules.shuffles import shuffle

    for node in list(graph.nodes):
        if not node.op.startswith("call") or node.meta.get("expression") or not is_fixed(node):
            continue
        if operators.form(node, "shuffle") != 2:
            continue
        before, after = operators.call(node).shapes[0], operators.call(node).out
        sizes = [max(pair) // min(pair) for pair in zip(before[3:], after[3:], strict=True)]
        call = shuffle, (1, *sizes), (0, 1, 2), after[2] > before[2]
        _write(
            graph, operators, node, node.all_input_nodes[0], [*_permuted(FRAMES), call, *_permuted(FRAMES)]
        )


def join_means(graph: fx.Graph, operators: Operators) -> None:
    """Replace means of channels that are viewed in groups by one call: `x.unflatten(1, (-1, 4)).mean(2)`."""
    from synth.runtime.operators.one_tensor import RESHAPES
    from synth.runtime.rules.shuffles import channel_mean

    for node in list(graph.nodes):
        if node.op != "call_function" or node.meta.get("expression"):
            continue
        form = operators.form(node, "reduction")
        if form is None or (form.word, form.over, form.keep) != ("mean", (2,), False):
            continue
        (wide,) = node.all_input_nodes
        moved = _moved(wide, operators) if len(wide.users) == 1 and uniform([node, wide]) else None
        if moved is None or moved[0].word not in RESHAPES:
            continue
        (before,), (b, c, size, *rows) = moved[0].shapes, moved[0].out
        if before == (b, c * size, *rows):
            _write(graph, operators, node, moved[0].inputs[0], [(channel_mean, size)])


def _write(graph: fx.Graph, operators: Operators, node: fx.Node, source: fx.Node, calls: Written) -> None:
    """Replace a call by some others, of which the first reads `source`. Two permutations are none."""
    writer, made = LoopWriter(graph, operators, node, node), source
    if calls[0][1:] == (FRAMES,) and _exchanges_frames(source, operators):
        made, calls = source.all_input_nodes[0], calls[1:]
    for function, *given in calls:
        inner, made = made, writer.call(function, (made, *given), function(made.meta["value"], *given))
    if calls[-1][1:] == (FRAMES,):
        for user in [each for each in node.users if _exchanges_frames(each, operators)]:
            redirect_users(user, inner)
            graph.erase_node(user)
    redirect_users(node, made)
    if node.op == "call_module":
        graph.erase_node(node)
    for each in (made, source, node):
        writer.erase(each)


def _exchanges_frames(node: fx.Node, operators: Operators) -> bool:
    """Whether a call does nothing but to exchange the frames and channels of a film."""
    return turned_by(node, operators) == ((), FRAMES)


def _moved(node: fx.Node, operators: Operators) -> Moved | None:
    """The call of a reshape, or of a permutation with its order; None for any other."""
    from synth.runtime.operators.one_tensor import RESHAPES

    if node._erased or node.op != "call_function" or node.meta.get("expression"):
        return None
    call = operators.call(node)
    kind = operators.operator(call).kind
    copies = call.word in ("contiguous", "clone")
    reshapes = copies or (call.word in RESHAPES and kind in ("local", "flatten"))
    if len(call.inputs) != 1 or not (reshapes or kind == "permute"):
        return None
    return call, call.order() if kind == "permute" else None


def _as_shuffle(calls: Sequence[Moved]) -> Written | None:
    """The shuffle that some calls are; None where they are none."""
    before, after = calls[0][0].shapes[0], calls[-1][0].out
    if not 2 < len(before) == len(after) <= 5 or not all(before):
        return None
    # without more dimensions between, one of size 1 changes places with the channels, as that of heads does
    if not any(order for _, order in calls) or all(len(call.out) <= len(before) for call, _ in calls):
        return None
    start = [[(size, math.prod(before[dim + 1 :]))] for dim, size in enumerate(before)]
    place = start
    for call, permuted in calls:
        order = permuted or range(len(call.out))
        viewed = _viewed(place, [call.out[order.index(dim)] for dim in range(len(order))], order)
        if viewed is None:
            return None
        place = viewed
    for to, back in itertools.product(_layouts(len(before)), repeat=2):
        shapes = [before[dim] for dim in to], [after[dim] for dim in back]
        for form in _forms(*shapes):
            wanted = _viewed([start[dim] for dim in to], shapes[0], range(len(before)))
            for wide, dims in form.views:
                wanted = wanted and _viewed(wanted, wide, dims)
            wanted = wanted and _viewed(wanted, shapes[1], back)
            if wanted is not None and _joined(wanted) == _joined(place):
                return [*_permuted(to), *form.calls, *_permuted(back)]
    return None


def _layouts(dims: int) -> list[tuple[int, ...]]:
    """Orders of dimensions that put the channels first behind the samples; each is its own inverse."""
    plain = tuple(range(dims))
    return [plain, FRAMES] if dims == 5 else [plain]


def _permuted(order: tuple[int, ...]) -> Written:
    import torch

    return [] if order == tuple(range(len(order))) else [(torch.permute, order)]


def _forms(before: Sequence[int], after: Sequence[int]) -> Iterator[_Form]:
    """All shuffles between two shapes, those first whose channels stand before the factors."""
    from synth.runtime.rules.shuffles import reordered, shuffle, shuffle_form

    down = before[1] < after[1]
    less, more = (after, before) if down else (before, after)
    factors = tuple(large // small for small, large in zip(less[2:], more[2:], strict=True))
    words = math.prod(factors)
    made = more[0], more[1] * words, *(n * f for n, f in zip(less[2:], factors, strict=True))
    if words < 2 or made != (*less[:2], *more[2:]):
        return
    extents = more[1], *factors
    for parts in itertools.permutations(range(len(extents))):
        inner = tuple(part - 1 for part in parts if part)
        form = shuffle_form(before, factors, inner, down)
        views, calls = [(form.wide, form.dims)], Written([(shuffle, factors, inner, down)])
        if parts[0]:
            straight = (0, *(1 + dim for dim in inner))
            held, wanted = (straight, parts) if down else (parts, straight)
            given = tuple(extents[part] for part in held), tuple(held.index(part) for part in wanted)
            rest = before[2:] if not down else after[2:]
            dims = (0, *(1 + at for at in given[1]), *range(1 + len(extents), 1 + len(extents) + len(rest)))
            view, call = ((before[0], *given[0], *rest), dims), (reordered, *given)
            views, calls = ([*views, view], [*calls, call]) if down else ([view, *views], [call, *calls])
        yield _Form(views, calls)


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
