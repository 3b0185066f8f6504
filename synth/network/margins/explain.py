"""Why margins pay: chains of layers whose rows are fetched once, where every layer would fetch its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from synth.base.units import show_words
from synth.network.graph import Network
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.margins.choose import evaluated
from synth.network.margins.margins import Margins
from synth.network.margins.row_graph import RowGraph, row_graph
from synth.network.margins.walk import readers


def reasons(
    network: Network, placed_grids: Sequence[PlacedGrid], procs: int, margins: Margins
) -> Iterator[str]:
    """One sentence for every tensor whose rows are fetched, and the layers behind it that fetch none."""
    graph = row_graph(network, placed_grids, procs)
    without = evaluated(graph, {}, graded=margins.back).words
    told = set[str]()
    for name in graph:
        if name not in margins.words:
            continue
        chain = _behind(graph, name, margins, told)
        before = sum(without.get(each, 0) for each in (name, *chain))
        own, words = without.get(name, 0), margins.words[name]
        if not chain:
            yield f"{name}: {show_words(words)} words are fetched, as without margins"
            continue
        behind = ", ".join(chain[:6]) + (" and others" if len(chain) > 6 else "")
        saved = "fewer" if words < before else "more, which other tensors save"
        yield (
            f"{name}: {show_words(words)} words are fetched in place of {show_words(own)}; then {behind} "
            f"fetch{'es' if len(chain) == 1 else ''} none, where together it would be {show_words(before)}: "
            f"{show_words(abs(before - words))} {saved}"
        )


def _behind(graph: RowGraph, name: str, margins: Margins, told: set[str]) -> list[str]:
    """The tensors that follow from a fetched one without another fetch, and have a margin; each told once."""
    by, found, open_ = readers(graph), list[str](), [name]
    while open_:
        for reader in by[open_.pop()]:
            each = reader.name
            if each in told or each in margins.words or each in found:
                continue
            open_.append(each)
            if any(margins.rows.get(each, ())) and reader.work:
                found.append(each)
    told.update(found)
    return [each for each in graph if each in found]
