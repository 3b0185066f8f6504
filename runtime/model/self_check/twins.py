"""The calls of a model by where they stand, so that the same call is found elsewhere.

A call of a graph and the call that the model itself makes have one `Place`: the layer
or function, the module in which it is called, and the line of the user's code. A line
may make several such calls; they are numbered in order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from torch import fx

from synth.runtime.tracing.recorded import function_name


class Place(NamedTuple):
    """Where the user's code makes a call.

    word: the function, or "" for a layer. module: the layer, or the module that calls
    the function. line: of the user's code, as " (model.py:12)".
    """

    word: str
    module: str
    line: str

    def __str__(self) -> str:
        """The call, for messages."""
        if not self.word:
            return f"{self.module or 'the model'}{self.line}"
        inside = f" in {self.module}" if self.module else ""
        return f"{self.word}{inside}{self.line}"


def place_of_node(node: fx.Node) -> Place:
    """Where a call of a traced graph stands."""
    line = str(node.meta.get("place", ""))
    if node.op == "call_module":
        return Place("", str(node.target), line)
    return Place(function_name(node.target), str(node.meta.get("module", "")), line)


class Twins:
    """The calls of a graph in one mode, found by the calls of the model.

    graph: of a traced model. made: whether a call is made in the mode.
    """

    def __init__(self, graph: fx.Graph, made: Any) -> None:
        self.nodes: dict[Place, list[str]] = {}
        for node in graph.nodes:
            if node.op in ("call_module", "call_function") and made(node):
                self.nodes.setdefault(place_of_node(node), []).append(node.name)
        self.met = Counter[Place]()

    def of(self, place: Place) -> str | None:
        """The node of the call that the model makes now; None for none there."""
        names, number = self.nodes.get(place, []), self.met[place]
        return names[number] if number < len(names) else None

    def take(self, place: Place) -> str | None:
        """The same; the next such call is another one."""
        name = self.of(place)
        self.met[place] += 1
        return name

    def unsure(self) -> set[str]:
        """The nodes of places at which model and graph make other numbers of calls."""
        return {
            name
            for place, names in self.nodes.items()
            if self.met[place] != len(names)
            for name in names
        }
