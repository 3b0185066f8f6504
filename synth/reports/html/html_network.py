"""`synth report` of a network plan: the graph of its layers from input to output, as one HTML file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from synth.analysis.today import Today
from synth.base.units import show_bytes, show_words
from synth.layer.axes import AXES
from synth.network.plan.cost_text import received_of
from synth.reports.html.html_page import render
from synth.reports.html.network_strip import AXIS_NAMES, bars, folded, priced, strip
from synth.reports.html.replay_chart import timeline
from synth.reports.html.today_rows import today_rows

if TYPE_CHECKING:
    from synth.prediction.replay import Replay

ROW, TOP, LANE = 26, 30, 120  # pixels: height of a layer's row, of the heads, width of the lane of edges
NAME, GRID, GRID_WIDE, STATIONARY, WORDS, WORDS_WIDE, MOVED, WIDE = 134, 290, 230, 536, 622, 90, 880, 930
LETTER = 6.4  # pixels: width of a letter in the bar of a grid


def html_network(data: dict[str, Any], replayed: Replay | None = None) -> str:
    """The page of a network plan as `parse_network_plan` returns it: the same bytes for the same plan.

    replayed: a step of the plan, which the page then shows as a timeline.
    """
    whole = {"layers": rows(data), "edges": edges(data)}
    short = folded_graph(data)
    graphs = [short, whole] if len(short["layers"]) < len(whole["layers"]) else [whole]
    what = "words received" if data["objective"] == "words" else "time"
    machine = f", machine {data['machine']}" if data["machine"] else ""
    count = f"{len(data['layers'])} planned layers on {data['procs']} processes"
    return render(
        "network",
        graphs,
        label=f"network plan for {data['procs']} processes",
        kicker=f"network plan · {data['pass']}{_resident(data)}",
        title=data["name"],
        subtitle=f"{count}; objective: {what}{machine}",
        tiles=tiles(data),
        strip=strip(data),
        bars=bars(data),
        graphs=[{**graph, "high": TOP + ROW * len(graph["layers"]) + 6} for graph in graphs],
        at={
            "row": ROW,
            "name": NAME,
            "grid": GRID,
            "stationary": STATIONARY,
            "words": WORDS,
            "cost": "received" if data["objective"] == "words" else "time",
            "moved": MOVED,
            "wide": WIDE,
        },
        axes=[
            (axis, AXIS_NAMES[axis])
            for axis in AXES
            if any(layer["grid"][axis] > 1 for layer in data["layers"])
        ],
        singles=singles(data),
        today=today_rows([Today(**row) for row in data.get("today", ())]),
        replay=None if replayed is None else timeline(replayed),
    )


def _resident(data: dict[str, Any]) -> str:
    """What is said of a forward pass whose weights stay where they are used."""
    return ", resident weights" if data["pass"] == "forward" and "ker" in data["kept"] else ""


def shown(data: dict[str, Any], cost: float) -> str:
    """A cost with its unit."""
    return show_words(cost) if data["objective"] == "words" else f"{cost * 1e3:.4g} ms"


def short_cost(data: dict[str, Any], cost: float) -> str:
    """A cost in a row of the graph: bytes, or milliseconds."""
    return show_bytes(round(cost * data["word_bytes"])) if data["objective"] == "words" else shown(data, cost)


def tiles(data: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The tiles at the top of the page: (value, name, remark)."""
    moved = sum(edge["cost"] for edge in data["redistributions"])
    free = sum(edge["words"] == 0 for edge in data["redistributions"])
    size, ratio = data["word_bytes"], data["ratio"]
    in_words = data["objective"] == "words"

    def beside(cost: float) -> str:
        return f"{show_bytes(round(cost * size))}; " if in_words else ""

    every: float = data["cost"]
    said, others = "per process, at most, redistribution included", dict[str, int]()
    if in_words:
        every, exact = received_of(data)
        others = {} if exact else data.get("beside") or {}
        said = "received by the busiest process" if exact else said
    more = "".join(f"; {cause} {show_words(words)}" for cause, words in others.items())
    return [
        (str(data["procs"]), "processes", f"{len(data['layers'])} planned layers"),
        (
            shown(data, every),
            "words in all" if in_words else "time in all",
            f"{beside(every)}{said}{more}",
        ),
        (
            shown(data, moved),
            "redistribution",
            f"{beside(moved)}{free} of {len(data['redistributions'])} edges move nothing",
        ),
        _memory_tile(data, show_bytes(data["memory_words"] * size)),
        (f"{data['gap']:.2%}", "proven gap", f"among the options that were looked at{_family(data)}"),
        (
            "-" if ratio is None else f"{ratio:.3f}",
            "of the best single strategy",
            f"which is {data['best_single']}" if data["best_single"] else "none can be used everywhere",
        ),
    ]


def _family(data: dict[str, Any]) -> str:
    """How far the plan may be from the best of the family, which has no margins."""
    if data.get("margins") or not data["lower_bound"]:
        return ""
    return f"; at most {data['cost'] / data['lower_bound'] - 1:.1%} above any plan of the family"


def _memory_tile(data: dict[str, Any], layers: str) -> tuple[str, str, str]:
    """What a process holds in a step, where the file says it, else what layers need one by one."""
    held = next((row["memory_bytes"] for row in data.get("today", ())), None)
    stay = f"{show_bytes(data['resident_words'] * data['word_bytes'])} stay"
    if held is None:
        return layers, "memory of layers, one by one", f"per process, at most; {stay}"
    return show_bytes(held), "memory", f"per process in a step, at most; layers one by one {layers}, {stay}"


def rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per layer; `parts` are the segments of the grid's bar, as wide as log(axis)."""
    most = max([layer["cost"] for layer in data["layers"]]) or 1
    result = []
    for i, layer in enumerate(data["layers"]):
        split = [axis for axis in layer["order"] if layer["grid"][axis] > 1]
        total = math.log(math.prod(layer["grid"].values())) or 1
        x, parts = float(GRID), []
        for axis in split:
            wide = GRID_WIDE * math.log(layer["grid"][axis]) / total
            count = layer["grid"][axis]
            label = f"{AXIS_NAMES[axis]} {count}"
            label = label if LETTER * len(label) < wide - 6 else str(count)
            parts.append({"axis": axis, "label": label, "x": round(x, 1), "wide": round(wide, 1)})
            x += wide
        incoming = sum(e["cost"] for e in data["redistributions"] if e["to"] == layer["name"])
        result.append(
            {
                "name": layer["name"],
                "y": TOP + ROW * i,
                "grid": (", ".join(f"{AXIS_NAMES[a]} ÷ {layer['grid'][a]}" for a in split) or "one process")
                + ", whole weights" * layer["whole"],
                "parts": parts,
                "stationary": layer["stationary"].capitalize(),
                "panels": layer["panels"],
                "cost": priced(data, layer["cost"]),
                "bar": round(WORDS_WIDE * layer["cost"] / most, 1),
                "words": {t: _sized(data, n) for t, n in layer["words"].items()},
                "memory": show_bytes(layer["memory_words"] * data["word_bytes"]),
                "moved": short_cost(data, incoming) if incoming else "",
                "bytes": short_cost(data, layer["cost"]),
                "times": 1,
                "block": 0,
                "names": [layer["name"]],
            }
        )
    return result


def folded_graph(data: dict[str, Any]) -> dict[str, Any]:
    """The layers and edges of the graph with each block that repeats drawn once."""
    layers, all_rows, all_edges = data["layers"], rows(data), edges(data)
    same = [{key: value for key, value in layer.items() if key != "name"} for layer in layers]
    place = {layer["name"]: i for i, layer in enumerate(layers)}
    ends = [(place[e["from"]], place[e["to"]], e["words"]) for e in data["redistributions"]]
    kept, at = list[dict[str, Any]](), dict[int, int]()  # layer -> its row
    for block, times in folded(same, ends):
        for i in block:
            alike = [i + n * len(block) for n in range(times)]
            at |= dict.fromkeys(alike, len(kept))
            names = [layers[n]["name"] for n in alike]
            kept.append({**all_rows[i], "y": TOP + ROW * len(kept), "times": times, "names": names})
        kept[-len(block)]["block"] = len(block) if times > 1 else 0
    first = {row["names"][0] for row in kept}
    lines = [
        {**edge, **_line(at[edge["from"]], at[edge["to"]])}
        for edge in all_edges
        if layers[edge["to"]]["name"] in first and at[edge["from"]] < at[edge["to"]]
    ]
    return {"layers": kept, "edges": lines}


def edges(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One arc per redistribution, its width by words; a short line joins a layer to the next one."""
    place = {layer["name"]: i for i, layer in enumerate(data["layers"])}
    most = max([edge["words"] for edge in data["redistributions"]], default=0) or 1
    result = []
    for edge in data["redistributions"]:
        one, other = place[edge["from"]], place[edge["to"]]
        result.append(
            {
                **_line(one, other),
                "onto": edge["onto"].capitalize(),
                "free": edge["words"] == 0,
                "words": _sized(data, edge["words"]),
                "thick": round(2 + 3 * math.sqrt(edge["words"] / most), 1) if edge["words"] else 1.5,
            }
        )
    return result


def _line(one: int, other: int) -> dict[str, Any]:
    """The ends of an edge, and its line between two rows."""
    y, z = (TOP + ROW * i + ROW / 2 for i in (one, other))
    bulge = 0 if other == one + 1 else min(LANE - 14, 10 + 18 * abs(other - one))
    right = LANE - 2
    straight = f"M{right} {y:g}V{z:g}"
    curved = f"M{right} {y:g}C{right - bulge} {y:g} {right - bulge} {z:g} {right} {z:g}"
    return {"from": one, "to": other, "path": curved if bulge else straight}


def _sized(data: dict[str, Any], words: int) -> str:
    """Words with their bytes."""
    return f"{show_words(words)} words = {show_bytes(words * data['word_bytes'])}" if words else "0"


def singles(data: dict[str, Any]) -> list[dict[str, Any]]:
    """This plan and the single strategies, cheapest first; `to` is a length in percent, on a log scale."""
    found = [("this plan", data["cost"], ""), *((s["name"], s["cost"], s["why"]) for s in data["singles"])]
    known = [cost for _, cost, _ in found if cost]
    low, high = min(known, default=1) / 2, max(known, default=1)
    return [
        {
            "name": name,
            "cost": "-" if cost is None else short_cost(data, cost),
            "times": f"{cost / data['cost']:.2f}" if cost is not None and data["cost"] else "-",
            "why": why,
            "kind": "mine" if name == "this plan" else "unfair" if cost is None else "fair",
            "to": round(100 * math.log(cost / low) / math.log(high / low), 1) if cost else 0,
        }
        for name, cost, why in sorted(found, key=lambda row: (row[1] is None, row[1], row[0] != "this plan"))
    ]
