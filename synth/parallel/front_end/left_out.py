"""What outputs give a gradient of zeros: that of which slices read only other parts.

A slice of a concatenation is computed from the parts that it reads. In torch the others get zeros, with which
momentum and weight decay of an optimizer change them, where parameters without a gradient stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

    from synth.runtime.operators.table import Operators

    Sources = dict[fx.Node, list[fx.Node]]


def sources_of(graph: fx.Graph) -> Sources:
    """Node -> those that it reads; those of the last node are the outputs, in order."""
    found = {node: list(node.all_input_nodes) for node in graph.nodes}
    (last,) = graph.find_nodes(op="output")
    return {**found, last: list(last.args[0])}


def note_left_out(graph: fx.Graph, before: Sources, operators: Operators) -> None:
    """Note in the output which calls and inputs each of its values had a gradient by, and has no more.

    before: the sources of the graph that it was.
    """
    now = sources_of(graph)
    if not any(_lost(before, now, lambda node, sources: sources)):
        return
    passing = _Passing(now, operators)
    lost = _lost(before, now, passing)
    if any(lost):
        (output,) = graph.find_nodes(op="output")
        output.meta["left out"] = tuple(frozenset(node.name for node in each) for each in lost)


def _lost(
    before: Sources, now: Sources, passing: Callable[[fx.Node, Sequence[fx.Node]], Iterable[fx.Node]]
) -> list[set[fx.Node]]:
    """For each output, the nodes of both graphs that only the earlier one led to."""
    last = next(reversed(now))
    both = [
        node for node in before if node in now and node.op in ("placeholder", "call_module", "call_function")
    ]
    bits = {node: 1 << place for place, node in enumerate(both)}
    masks: list[list[int]] = []
    for sources in (before, now):
        found: dict[fx.Node, int] = {}
        for node, given in sources.items():
            found[node] = bits.get(node, 0)
            for each in passing(node, given):
                found[node] |= found[each]
        masks.append([found[each] for each in sources[last]])
    return [{node for node in both if bits[node] & was & ~has} for was, has in zip(*masks, strict=True)]


class _Passing:
    """Which of the nodes that a node reads get a gradient from it. now: the sources as they are."""

    def __init__(self, now: Sources, operators: Operators) -> None:
        self.now, self.operators = now, operators
        self.blocked: dict[fx.Node, set[int]] = {}

    def __call__(self, node: fx.Node, given: Sequence[fx.Node]) -> Iterable[fx.Node]:
        from synth.runtime.rules.rule import is_trainable

        value = node.meta.get("value")
        if node.op == "output":
            return given
        if "only" in node.meta or not node.meta.get("grad", True) or value is None or not is_trainable(value):
            return ()
        if node not in self.now:  # a slice or a concatenation
            return given
        if node not in self.blocked:
            self.blocked[node] = self._blocked(node)
        return (each for place, each in enumerate(given) if place not in self.blocked[node])

    def _blocked(self, node: fx.Node) -> set[int]:
        """The places of the sources that get no gradient."""
        from synth.runtime.operators.gradient_paths import gradient_paths

        if not node.op.startswith("call"):
            return set()
        call, sources = self.operators.call(node), self.now[node]
        paths = gradient_paths(call) if call.module is None else None
        if call.word == "detach":
            paths = set()
        names = [call.parameters[each][0] if each in call.parameters else each.name for each in sources]
        return {place for place, name in enumerate(names) if paths is not None and name not in paths}
