"""The entries of a network file, and the order in which their inputs are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.base.yaml_positions import Node, did_you_mean


@dataclass(frozen=True)
class Entry:
    """One layer as the file describes it.

    arguments: those of its kind. place, from_places: where the layer and its `from` stand in the file.
    """

    name: str
    kind: str
    arguments: dict[str, Node]
    inputs: tuple[str, ...]
    place: Node
    from_places: tuple[Node, ...] = ()


def in_dependency_order(entries: Sequence[Entry]) -> list[Entry]:
    """Every entry after its inputs, otherwise in the order of the file.

    Raises `InputError` with the place of an unknown input or of a cycle.
    """
    known = {entry.name: entry for entry in entries}
    _check_inputs(entries, known)
    done: dict[str, bool] = {}  # entry -> whether all its inputs are in the result
    result: list[Entry] = []
    for root in entries:
        if root.name in done:
            continue
        stack = [(root, iter(root.inputs))]
        path = [root.name]
        done[root.name] = False
        while stack:
            entry, sources = stack[-1]
            source = next((s for s in sources if s != "input"), "")
            if not source:
                done[entry.name] = True
                result.append(entry)
                stack.pop()
                path.pop()
            elif source not in done:
                done[source] = False
                stack.append((known[source], iter(known[source].inputs)))
                path.append(source)
            elif not done[source]:
                cycle = [*path[path.index(source) :], source][::-1]
                raise entry.place.fault(
                    f"the layers form a cycle: {' -> '.join(cycle)}; a layer takes what comes before it"
                )
    return result


def _check_inputs(entries: Sequence[Entry], known: dict[str, Entry]) -> None:
    for entry in entries:
        places = entry.from_places or (entry.place,) * len(entry.inputs)
        for source, place in zip(entry.inputs, places, strict=False):
            if source != "input" and source not in known:
                raise place.fault(
                    f"{entry.name} takes {source}, which no layer is named"
                    f"{did_you_mean(source, ['input', *known])}"
                )
