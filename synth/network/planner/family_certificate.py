"""The certificate of the bound of a network's family: no plan of it receives fewer words.

The certificate lists options of each class of layers (a grid and the order of its axes) with their words, and
the least words of all others. Redistributions are split between their ends by `potentials`; those to or from
an option that is not listed count nothing. `check` counts all of this again, without a search. There is also
the bound of any schedule, see `surface_certificate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from synth.base.doors import option
from synth.base.errors import CheckError, InfeasibleError
from synth.bounds.certificate_check import digest, must
from synth.layer.axes import AXES, ROW_MAJOR, SPATIAL, PerAxis
from synth.layer.layer import Layer
from synth.layer.window import Window
from synth.machine.rank_groups import CHANNELS_SWAPPED, distinct_orders
from synth.network.edges.redistribution import EdgeEnd, redistribution_words, single_positions
from synth.network.graph import Channels, Edge, Network
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.plan.plan_file import NetworkPlanFile
from synth.network.plan.universal import loads
from synth.network.planner.candidates import GridCandidates
from synth.network.planner.family_optimum import with_edges
from synth.network.planner.planner import _NetworkPlanner
from synth.network.planner.potentials import bound_of, potentials
from synth.network.planner.surface_certificate import any_schedule
from synth.network.planner.surface_certificate import check as check_surface
from synth.network.request import NetworkRequest

SCHEMA = "synth.network-certificate/2"
MOST_PROCS, MOST_LAYERS, MOST_PAIRS = 1024, 4096, 1 << 22
NO_OTHERS = 2**50  # words
ORDERS = (ROW_MAJOR, CHANNELS_SWAPPED)
PROBLEM = ("kind", "input", "out_channels", "groups", "kernel", "stride", "padding", "dilation")
TRANSPOSED = ("transposed", "output_padding")
CLASS = {"problem", "weighted", "gradient", "options", "least"}
FIELDS = {"schema", "claim", "network", "procs", "balance", "mode", "layers", "edges"}
FIELDS |= {"classes", "potentials", "words", "any_schedule", "digest"}


def family_certificate(network: Network, request: NetworkRequest) -> dict[str, Any]:
    """The certificate as JSON data; docs/networks.md explains the fields.

    Raises `InfeasibleError` for what it does not cover, by name.
    """
    _require(network, request)
    planner = _NetworkPlanner(network, request, "auto", _silent)
    plan = planner.run()
    listed = [
        list(dict.fromkeys(PlacedGrid(e.grid, e.order) for e in row)) for row in planner.family.looked_at
    ]
    least = [_least_of_others(*each) for each in zip(planner.candidates, listed, strict=True)]
    rows = [
        np.array([*(each.words_of(placed.grid) for placed in row), other], float)
        for each, row, other in zip(planner.candidates, listed, least, strict=True)
    ]
    edges = [edge for edge in network.edges if _is_counted(network, edge)]
    priced = {edge: each for edge, each in planner.prices.of(listed).items() if edge in edges}
    costs, pairs = with_edges([rows[k] for k in planner.class_of], priced, planner.position)
    parts = potentials(costs, {ends: np.pad(table, (0, 1)) for ends, table in pairs.items()})
    place = planner.position
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "network": network.name,
        "procs": request.procs,
        "balance": str(request.balance),
        "mode": "training" if request.training else "inference",
        "layers": [
            {"name": node.name, "class": k} for node, k in zip(network.planned, planner.class_of, strict=True)
        ],
        "edges": [
            {
                "source": place[edge.source],
                "target": place[edge.target],
                "role": edge.role,
                "channels": [[each.source, each.target, each.count] for each in edge.channels],
                "back": request.sends_gradient_back(edge),
            }
            for edge in edges
        ],
        "classes": [
            {
                "problem": problem_of(planner.nodes[planner.class_of.index(k)].layer),
                "weighted": kind.weighted,
                "gradient": kind.input_gradient,
                "options": [
                    [*placed.grid, ORDERS.index(placed.order), int(words)]
                    for placed, words in zip(listed[k], rows[k], strict=False)
                ],
                "least": least[k],
            }
            for k, kind in enumerate(planner.classes)
        ],
        "potentials": [
            {
                "source": source,
                "target": target,
                "of_source": [int(n) for n in one],
                "of_target": [int(n) for n in other],
            }
            for (source, target), (one, other) in parts.items()
        ],
        "words": bound_of(costs, parts),
        "any_schedule": any_schedule(
            network.name, planner.classes, planner.class_of, loads(plan), request.procs, request.training
        ),
    }
    data["claim"] = claim(data)
    return {**data, "digest": digest(data)}


def _silent(text: str) -> None:
    """Report nothing."""


def _require(network: Network, request: NetworkRequest) -> None:
    """Raises `InfeasibleError` for a request or a layer that certificates do not cover."""
    given = {
        "objective": request.objective if request.objective != "words" else None,
        "memory": request.limit_bytes,
        "exact_procs": request.exact_procs or None,
        "axes": request.axes or None,
    }
    for name, value in given.items():
        if value is not None:
            raise InfeasibleError(
                f"a certificate of a network is about the words of all its plans, but {option(name, value)}"
                " is given; leave it out"
            )
    if request.procs > MOST_PROCS:
        raise InfeasibleError(
            f"procs is {request.procs}, but a certificate of a network counts every rank of at most"
            f" {MOST_PROCS}; take fewer"
        )
    for node in network.planned:
        layer = node.layer
        assert layer is not None
        both = any(n > 1 and d > 1 for n, d in zip(layer.stride, layer.dilation, strict=True))
        rows = layer.transposed and any(
            (window.size, window.is_reduced) != (size, False) for window, size in _outputs(layer)
        )
        if layer.kind == "einsum" or both or rows:
            what = "is an einsum" if layer.kind == "einsum" else "has stride and dilation above 1"
            what = "makes rows to which no input row adds" if rows else what
            raise InfeasibleError(f"{node.name} {what}, which certificates of networks do not cover")


def _outputs(layer: Layer) -> list[tuple[Window, int]]:
    """The windows of a transposed layer, and the rows of its output."""
    sizes = layer.output_shape[2:]
    return [(layer.nest.windows[axis], n) for axis, n in zip(SPATIAL[-len(sizes) :], sizes, strict=True)]


def problem_of(layer: Layer | None) -> dict[str, Any]:
    """The fields of a layer that certificates have."""
    assert layer is not None
    data = layer.to_json()
    return {key: data[key] for key in (*PROBLEM, *(TRANSPOSED if layer.transposed else ()))}


def _is_counted(network: Network, edge: Edge) -> bool:
    """Whether the words of an edge follow from its layers: not those of moved rows, reductions and gates."""
    moves = edge.moves_rows or edge.source_path or edge.target_path or edge.source == edge.target
    return not moves and not any(single_positions(network, edge))


def _least_of_others(candidates: GridCandidates, listed: Sequence[PlacedGrid]) -> int:
    """What the grids receive at least that are not listed in all orders; very much where all are."""
    places = _others(candidates, listed)
    return int(candidates.known_least(np.inf)[places].min()) if len(places) else NO_OTHERS


def _others(candidates: GridCandidates, listed: Sequence[PlacedGrid]) -> Any:
    """The places of the grids that are not listed in all orders."""
    orders: dict[PerAxis, set[Any]] = {}
    for each in listed:
        orders.setdefault(each.grid, set()).add(each.order)
    full = [grid for grid, some in orders.items() if len(distinct_orders(grid, ORDERS)) == len(some)]
    others = np.ones(candidates.grids.size, dtype=bool)
    others[[candidates.grids.places[grid] for grid in full]] = False
    return np.flatnonzero(others)


def claim(data: Mapping[str, Any]) -> str:
    """The sentence that a certificate proves, with all that it assumes."""
    passes = "the forward pass with weights that stay"
    if data["mode"] == "training":
        passes = "a training step that keeps what it gathers"
    return (
        f"no plan of {data['network']} of this family receives fewer than {data['words']} words, of the"
        " process that receives most in each layer and each redistribution, given: "
        f"{data['procs']} processes; {passes}; grids whose most loaded process has at most"
        f" {1 + Fraction(data['balance'])} times the least work; blocks by output rows or, of layers with"
        " weights, by input rows; ranks in row-major order, or with c and k exchanged; shards as even as they"
        " can be; every row computed once; statistics of normalizations, poolings of all positions and calls"
        " that the planner does not cut are not counted"
    )


# -- the check ------------------------------------------------------------------------------------------


def about(data: Mapping[str, Any], plan: NetworkPlanFile) -> str:
    """A line that compares a plan with a certificate that `check` has checked."""
    kind = "words" if plan.objective == "words" else "seconds"
    wanted = {
        "network": (data["network"], plan.name),
        "procs": (data["procs"], plan.procs),
        "mode": (data["mode"], "training" if plan.data["pass"] == "training" else "inference"),
        "unit": ("words", kind),
        "layers": ([each["name"] for each in data["layers"]], list(plan.grids)),
    }
    require_about(wanted, plan)
    return f"the plan {plan.file} has these layers, P and passes; it costs {plan.cost:.0f} words"


def require_about(wanted: Mapping[str, tuple[Any, Any]], plan: NetworkPlanFile) -> None:
    """Raises `CheckError` if a certificate and a plan differ. wanted: what both have, by name."""
    for key, (given, of_plan) in wanted.items():
        if given != of_plan:
            raise CheckError(
                f"the certificate is not about the plan {plan.file}: {key} is {str(given)[:80]} in it and"
                f" {str(of_plan)[:80]} in the plan"
            )


def check(data: Mapping[str, Any]) -> list[str]:
    """Count all words of a certificate again; returns the steps as text.

    Raises `CheckError` at the first false step, and `ValueError` and others for data of another form.
    """
    must(data.keys() == FIELDS, f"its fields are {', '.join(sorted(FIELDS))}")
    procs = whole_number(data["procs"], 1, MOST_PROCS)
    training = {"training": True, "inference": False}[data["mode"]]
    request = NetworkRequest(
        procs, training=training, resident_weights=not training, balance=float(data["balance"])
    )
    kinds = [_class_of(each) for each in data["classes"]]
    options = [_options(each["options"]) for each in data["classes"]]
    of = [whole_number(each["class"], 0, len(kinds) - 1) for each in data["layers"]]
    must(len(of) <= MOST_LAYERS, f"a network has at most {MOST_LAYERS} layers")
    rows, lines = [], []
    for number, (kind, placed, each) in enumerate(zip(kinds, options, data["classes"], strict=True)):
        own = [whole_number(option[-1]) for option in each["options"]]
        rows.append(np.array([*own, whole_number(each["least"])], float))
        grids = _check_class(GridCandidates(kind, request), placed, own, each["least"], number)
        lines.append(
            f"class {number}: {grids} grids; words of {len(own)} options, of others at least {each['least']}"
        )
    parts = {}
    for each in data["potentials"]:
        ends = tuple(whole_number(each[end], 0, len(of) - 1) for end in ("source", "target"))
        must(ends not in parts, f"layers {ends} have potentials once")
        both = [kinds[of[end]] for end in ends], [options[of[end]] for end in ends]
        edges = [e for e in data["edges"] if (e["source"], e["target"]) == ends]
        table = _words_of(edges, *both, request)
        one, other = (
            np.array([_signed(n) for n in each[of_end]], float) for of_end in ("of_source", "of_target")
        )
        must((len(one), len(other)) == table.shape, f"layers {ends} have a number for each option")
        must(bool((one[:, None] + other <= table).all()), f"layers {ends}: potentials are at most what moves")
        parts[ends[0], ends[1]] = one, other
    total = bound_of([rows[k] for k in of], parts)
    lines.append(f"redistributions of {len(parts)} pairs of layers move at least their potentials")
    words = whole_number(data["words"])
    must(words <= total, f"{words} words follow; {total} do")
    must(data["claim"] == claim(data), "the claim is what is proved")
    of_any = data["any_schedule"]
    must(of_any is not None or training, "any_schedule is there")  # of training since a later version
    more = [] if of_any is None else check_surface(of_any, data["network"], kinds, of, procs, training)
    must(data["digest"] == digest(data), "the digest is that of the other fields, which were edited")
    lines.append(f"all layers and their potentials: at least {total} words")
    return [*lines, *more, f"so {data['claim']}"]


def _class_of(data: Mapping[str, Any]) -> LayerClass:
    problem = data["problem"]
    keys = {*PROBLEM, *(TRANSPOSED if "transposed" in problem else ())}
    must(data.keys() == CLASS and problem.keys() == keys, "the fields of a class are those of this version")
    layer = Layer(**problem)
    must(type(data["weighted"]) is type(data["gradient"]) is bool, "a class has weights or none")
    rows = layer.output_shape[2:] if layer.transposed else ()
    return LayerClass(layer.nest, data["weighted"], rows, data["gradient"])


def _options(options: Sequence[Sequence[Any]]) -> list[PlacedGrid]:
    found = []
    for option_ in options:
        *grid, order, _ = option_
        must(len(grid) == len(AXES), "a grid has a number for each axis")
        found.append(
            PlacedGrid(PerAxis(*(whole_number(n, 1) for n in grid)), ORDERS[whole_number(order, 0, 1)])
        )
    must(len(set(found)) == len(found), "an option is listed once")
    return found


def _check_class(
    candidates: GridCandidates, placed: Sequence[PlacedGrid], own: Sequence[int], least: int, number: int
) -> int:
    """Compare the words of a class; returns the number of its grids."""
    strange = [each.grid for each in placed if each.grid not in candidates.grids.places]
    must(not strange, f"the grids of class {number} are of the family")
    known = candidates.known_least(least)
    others = _others(candidates, placed)
    open_ = others[known[others] < least]
    for grid in candidates.grids.grids(open_):
        must(
            candidates.words_of(grid) >= least, f"class {number}, {grid.shown()} moves at least {least} words"
        )
    for each, words in zip(placed, own, strict=True):
        right = candidates.words_of(each.grid) >= words
        must(right, f"class {number}, {each.grid.shown()} moves {words} words")
    return candidates.grids.size


def _words_of(
    edges: Sequence[Mapping[str, Any]],
    kinds: Sequence[LayerClass],
    options: Sequence[Sequence[PlacedGrid]],
    request: NetworkRequest,
) -> Any:
    """Words between two layers by their options, and 0 for all others."""
    total = np.zeros((len(options[0]), len(options[1])))
    must(total.size <= MOST_PAIRS, f"two layers have at most {MOST_PAIRS} pairs of options")
    for each in edges if total.size else ():
        must(each["role"] in ("in", "out"), "an edge ends at the input or at the output of a layer")
        channels = tuple(Channels(*map(whole_number, some)) for some in each["channels"])
        source, target = (
            EdgeEnd(kind, OwnedBoxes(kind.nest, placed, request.procs, request.resident))
            for kind, placed in zip(kinds, options, strict=True)
        )
        edge = Edge("source", "target", each["role"], channels)
        total = total + redistribution_words(
            edge, source, target, single=(False,) * 5, back=each["back"] is True
        )
    return np.pad(total, (0, 1))


def whole_number(value: Any, least: int = 0, most: int = 2**53) -> int:
    """A value that is one. Raises `ValueError` for any other."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is not a whole number from {least} to {most}")
    return value


def _signed(value: Any) -> int:
    return -whole_number(-value) if type(value) is int and value < 0 else whole_number(value)
