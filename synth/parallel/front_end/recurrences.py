"""Rewrites recurrences h = a · h + b, of which a traced model has every turn, as one scan.

That is right where no factor and no term depends on a state. What is not of this form stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from synth.parallel.front_end.mapped_loops import TURNS, LoopWriter, uniform
from synth.parallel.front_end.rewrite import redirect_users

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.table import Operators

Turn = tuple["fx.Node", Any, "fx.Node"]  # the state before, the factor, the term


class Recurrence(NamedTuple):
    """States, each a factor times the one before, plus a term. A factor may be a number."""

    start: fx.Node
    states: tuple[fx.Node, ...]
    factors: tuple[Any, ...]
    terms: tuple[fx.Node, ...]


def roll_recurrences(graph: fx.Graph, operators: Operators) -> None:
    """Replace the states of each recurrence by rows of one scan."""
    for found in list(_recurrences(graph)):
        _roll(graph, operators, found)


# -- what is a recurrence ---------------------------------------------------------------------------------


def _added(node: fx.Node, one: int, other: int) -> Turn | None:
    """Of a sum whose operand `one` is a product with the state as its operand `other`."""
    if not _is_call(node, "add", 2):
        return None
    product, term = node.args[one], node.args[1 - one]
    if not _is_call(product, "mul", 2):
        return None
    return product.args[other], product.args[1 - other], term  # type: ignore[return-value,union-attr]


def _fused(node: fx.Node, other: int) -> Turn | None:
    """Of `addcmul`, whose factor `other` is the state."""
    if not _is_call(node, "addcmul", 3):
        return None
    return node.args[1 + other], node.args[2 - other], node.args[0]  # type: ignore[return-value]


FORMS: tuple[Callable[[Any], Turn | None], ...] = (
    *(lambda node, o=one, t=two: _added(node, o, t) for one in (0, 1) for two in (0, 1)),
    *(lambda node, o=one: _fused(node, o) for one in (0, 1)),
)


def _is_call(node: Any, word: str, operands: int) -> bool:
    """Whether a value is that of a call of a function, which depends on the input."""
    given = getattr(node, "op", "") == "call_function" and not node.meta.get("expression")
    name = getattr(node.target, "__name__", "") if given else ""
    return name == word and not node.kwargs and len(node.args) == operands


def _turn(node: Any, form: Callable[[Any], Turn | None]) -> Turn | None:
    """How a state follows from one of the same shape and dtype; None where it does not."""
    found = form(node)
    if found is None or not (_is_node(found[0]) and _is_node(found[2])):
        return None
    numbers = (int, float)
    if isinstance(found[1], bool) or not (_is_node(found[1]) or isinstance(found[1], numbers)):
        return None
    value, before = node.meta["value"], found[0].meta["value"]
    alike = {each.meta["value"].dtype for each in found if _is_node(each)} == {value.dtype}
    return found if alike and before.shape == value.shape and value.dim() else None


def _is_node(value: Any) -> bool:
    return hasattr(value, "op") and getattr(value, "meta", {}).get("value") is not None


def _recurrences(graph: fx.Graph) -> Iterator[Recurrence]:
    """Those of a graph, the longest of each last state; no state is in two."""
    taken = set[Any]()
    for node in reversed(list(graph.nodes)):
        if node in taken:
            continue
        turns = max((_turns(node, form) for form in FORMS), key=len)
        states = [node, *(turn[0] for turn in turns[:-1])][::-1]
        if len(turns) < TURNS or taken & {*states}:
            continue
        taken |= {*states}
        _, factors, terms = zip(*turns[::-1], strict=True)
        yield Recurrence(turns[-1][0], tuple(states), factors, terms)


def _turns(node: Any, form: Callable[[Any], Turn | None]) -> list[Turn]:
    """The turns of one form that end in a state, the last one first."""
    found, turn = list[Turn](), _turn(node, form)
    while turn is not None:
        found.append(turn)
        turn = _turn(turn[0], form)
    return found


# -- the scan ---------------------------------------------------------------------------------------------


def _roll(graph: fx.Graph, operators: Operators, found: Recurrence) -> None:
    """Replace the states by rows of one scan, where that is right."""
    nodes = list(graph.nodes)
    order = {node: place for place, node in enumerate(nodes)}
    later = _dependents(found.states)
    numbers = [each for each in found.factors if not _is_node(each)]
    operands = [found.start, *found.terms, *(each for each in found.factors if _is_node(each))]
    mixed = numbers and (len(numbers) < len(found.factors) or len({*numbers}) > 1)
    if later & {*operands} or not uniform(found.states) or mixed:
        return
    last = max(operands, key=order.__getitem__)
    moved = sorted((node for node in later if order[node] < order[last]), key=order.__getitem__)
    between = nodes[order[moved[0]] : order[last] + 1] if moved else []
    free = all(_may_move(node, operators) for node in between)
    if _is_full(found) and free and uniform([found.states[0], *_calls(between)]):
        _write(graph, LoopWriter(graph, operators, last, found.states[0]), found, moved)


def _is_full(found: Recurrence) -> bool:
    """Whether the terms have the shape of the states: they then say where these lie."""
    shape = found.states[0].meta["value"].shape
    return all(term.meta["value"].shape == shape for term in found.terms)


def _calls(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Calls among nodes that depend on the input."""
    return [node for node in nodes if node.op.startswith("call") and not node.meta.get("expression")]


def _dependents(states: Sequence[fx.Node]) -> set[fx.Node]:
    """All nodes that depend on some states, and these."""
    found, fresh = {*states}, [*states]
    while fresh:
        for user in fresh.pop().users:
            if user not in found:
                found.add(user)
                fresh.append(user)
    return found


def _may_move(node: fx.Node, operators: Operators) -> bool:
    """Whether others may be computed before a call: it draws nothing and changes nothing."""
    from synth.runtime.tracing.expressions import DRAWS, may_change

    if node.op == "call_module":
        return operators.operator(operators.call(node)).kind in ("layer", "layernorm", "elementwise")
    word = str(getattr(node.target, "__name__", "")).rstrip("_")
    return word not in DRAWS and not may_change(node)


def _write(graph: fx.Graph, writer: LoopWriter, found: Recurrence, moved: Sequence[fx.Node]) -> None:
    """Put the scan behind the last of its operands, and what reads states behind it."""
    import torch

    from synth.runtime.rules.affine_scan import affine_scan

    dims = found.states[0].meta["value"].dim()
    terms, dim = writer.stacked(found.terms, dims, None)
    factors: Any = found.factors[0]
    if _is_node(factors):
        factors, _ = writer.stacked(found.factors, dims, dim)
    shape = list(found.states[0].meta["value"].shape)
    shape.insert(dim, len(found.states))
    value = found.states[0].meta["value"].new_empty(shape)
    states = writer.call(affine_scan, (factors, terms, found.start, dim), value)
    rows = [
        writer.call(torch.select, (states, dim, place), each.meta["value"])
        for place, each in enumerate(found.states)
    ]
    behind = writer.behind
    for node in moved:
        behind.append(node)
        behind = node
    for state, row in zip(found.states, rows, strict=True):
        redirect_users(state, row)
    for state in reversed(found.states):
        writer.erase(state)
    for row in rows:
        writer.erase(row)
