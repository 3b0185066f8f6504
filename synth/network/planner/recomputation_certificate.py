"""The certificate of the bound of a network in inference whose layers may compute words several times.

It lists the tensors between the layers, how each reads its sources, a tree and a price per position of each
tensor. `check` computes what these prove anew, in fractions; docs/bounds.md has the argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from synth.base.doors import option
from synth.base.errors import InfeasibleError
from synth.bounds.certificate_check import digest, must
from synth.bounds.least_inputs import Axis, Proportion, Reading, Windows, image_points
from synth.bounds.recomputation import TALLEST, Tensor, best_proof, proved_words
from synth.layer.layer import Layer
from synth.network.graph import Network, Node
from synth.network.margins.row_graph import INPUT
from synth.network.plan.plan_file import NetworkPlanFile
from synth.network.plan.recomputation import positions_of, reading_of, recomputing_assumptions, tensors_of
from synth.network.planner.family_certificate import problem_of, require_about, whole_number
from synth.network.planner.planner import plan_network
from synth.network.planner.surface_certificate import lowest_terms
from synth.network.request import NetworkRequest

SCHEMA = "synth.recomputation-certificate/1"
FIELDS = {"schema", "claim", "network", "procs", "tensors", "words", "digest"}
TENSOR = {"name", "channels", "positions", "most", "split", "given", "layer", "reads", "sources", "price"}
MOST_TENSORS = 4096
_whole = partial(whole_number, most=2**62)


def recomputation_certificate(network: Network, request: NetworkRequest) -> dict[str, Any]:
    """The certificate as JSON data, at the most positions per process of the plan for a request.

    Raises `InfeasibleError` for a training step.
    """
    if request.training:
        raise InfeasibleError(
            "a certificate of a network that computes words again is about inference, but pass is training;"
            f" plan with {option('pass_', 'forward')}"
        )
    tensors = tensors_of(plan_network(network, request))
    proof = best_proof(tensors, request.procs)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "network": network.name,
        "procs": request.procs,
        "tensors": [
            {
                "name": each.name,
                "channels": each.channels,
                "positions": each.positions,
                "most": str(each.most),
                "split": each.split,
                "given": each.given,
                "layer": _layer(network.nodes.get(each.name)),
                "reads": [_shown(name, reading) for name, reading in each.reads.items()],
                "sources": list(proof.sources[each.name]),
                "price": str(proof.prices[each.name]),
            }
            for each in tensors
        ],
        "words": math.floor(proof.words),
    }
    data["claim"] = claim(data)
    return {**data, "digest": digest(data)}


def _layer(node: Node | None) -> dict[str, Any] | None:
    if node is None or node.layer is None:
        return None
    return {"problem": problem_of(node.layer), "weighted": node.weighted}


def _shown(source: str, reading: Reading) -> dict[str, Any]:
    if isinstance(reading, Proportion):
        return {"source": source, "ratio": str(reading.ratio)}
    return {"source": source, "windows": _windows(reading)}


def _windows(reading: Windows) -> dict[str, Any]:
    points = image_points(reading)
    return {
        "axes": [list(axis) for axis in reading.axes],
        "images": reading.images,
        "groups": reading.groups,
        "points": [[str(x), str(y)] for x, y in zip(*points, strict=True)],
    }


def claim(data: Mapping[str, Any]) -> str:
    """The sentence that is proved, with all that it assumes."""
    given = recomputing_assumptions(
        "the certificate splits", "the positions of each tensor that the certificate has"
    )
    assumed = "; ".join([f"{data['procs']} processes", *given])
    return (
        f"in a forward pass of {data['network']} a process receives at least {data['words']} words of the"
        f" tensors between layers, on average over the processes, given: {assumed}"
    )


def about(data: Mapping[str, Any], plan: NetworkPlanFile) -> str:
    """A line that compares a plan with a certificate that `check` has checked."""
    wanted = {
        "network": (data["network"], plan.name),
        "procs": (data["procs"], plan.procs),
        "pass": ("forward", plan.data["pass"]),
    }
    require_about(wanted, plan)
    return f"the plan {plan.file} has this network, P and pass; it costs {plan.cost:.0f} words"


# -- the check ------------------------------------------------------------------------------------------


def check(data: Mapping[str, Any]) -> list[str]:
    """Compute what a certificate proves anew; returns the steps as text.

    Raises `CheckError` at the first false step, and `ValueError` and others for data of another form.
    """
    right = data.keys() == FIELDS and data["schema"] == SCHEMA
    must(right, f"its fields are {', '.join(sorted(FIELDS))} of {SCHEMA}")
    procs, words = _whole(data["procs"], 1), _whole(data["words"])
    must(0 < len(data["tensors"]) <= MOST_TENSORS, f"it has up to {MOST_TENSORS} tensors")
    known = dict[str, Tensor]()
    for each in data["tensors"]:
        tensor = _tensor(each, known, procs)
        known[tensor.name] = tensor
    sources = {each["name"]: tuple(each["sources"]) for each in data["tensors"]}
    _check_tree(known, sources)
    prices = {each["name"]: lowest_terms(each["price"]) for each in data["tensors"]}
    proved = math.floor(proved_words(list(known.values()), procs, sources, prices))
    must(words <= proved, f"{words} words follow; {proved} do")
    must(data["claim"] == claim(data), "the claim is what is proved")
    must(data["digest"] == digest(data), "the digest is that of the other fields, which were edited")
    read = sum(map(len, sources.values()))
    return [
        f"{len(known)} tensors, of which {read} are read along trees: what each reads of its sources",
        f"prices of all positions: a process receives at least {proved} words",
        f"so {data['claim']}",
    ]


def _tensor(data: Mapping[str, Any], known: Mapping[str, Tensor], procs: int) -> Tensor:
    must(data.keys() == TENSOR, "the fields of a tensor are those of this version")
    name, channels, positions = (
        data["name"],
        _whole(data["channels"], 1),
        _whole(data["positions"], 1),
    )
    must(type(name) is str and name not in known, "every tensor has a name of its own")
    most = lowest_terms(data["most"])
    must(positions <= most * procs and most <= positions, f"the processes can complete {name}")
    must(type(data["split"]) is type(data["given"]) is bool, f"sums of {name} are split or not")
    reads = {each["source"]: _reading(each, name, positions) for each in data["reads"]}
    must(len(reads) == len(data["reads"]) and reads.keys() <= known.keys(), f"{name} reads tensors before it")
    must(data["given"] == (name == INPUT) and not (data["given"] and reads), "the input alone is given")
    tensor = Tensor(name, channels, positions, most, reads, data["split"], data["given"])
    sources = [known[source] for source in reads]
    if data["layer"] is not None:
        _check_layer(tensor, data["layer"], sources)
        return tensor
    for each in sources:  # of a sum or a pixel shuffle
        alike = Proportion(positions, Fraction(each.positions, positions))
        must(reads[each.name] == alike, f"{name} reads all words of {each.name} in proportion")
    return tensor


def _reading(data: Mapping[str, Any], name: str, positions: int) -> Reading:
    if data.keys() == {"source", "ratio"}:
        ratio = lowest_terms(data["ratio"])
        must(ratio > 0, f"{name} reads a part of {data['source']}")
        return Proportion(positions, ratio)
    must(data.keys() == {"source", "windows"}, f"what {name} reads has the fields of this version")
    axes = tuple(_axis(axis) for axis in data["windows"]["axes"])
    must(1 <= len(axes) <= 3, f"windows of {name} have one to three axes")
    reading = Windows(axes, *(_whole(data["windows"][key], 1) for key in ("images", "groups")))
    outputs = math.prod(axis.outputs for axis in axes) * reading.images
    must(outputs == positions, f"{name} has {positions} positions in its images")
    must(data["windows"] == _windows(reading), f"least inputs of {name} are those that are proved")
    return reading


def _axis(numbers: Sequence[Any]) -> Axis:
    axis = Axis(*(_whole(n) for n in numbers))
    right = axis.outputs >= 1 and axis.taps > max(axis.before, axis.after)
    must(right and axis.more >= 0 and axis.side <= axis.outputs, "an axis is that of a window in a box")
    return axis


def _check_layer(tensor: Tensor, data: Mapping[str, Any], sources: Sequence[Tensor]) -> None:
    name = tensor.name
    must(data.keys() == {"problem", "weighted"}, f"{name} has the fields of a layer")
    must(type(data["weighted"]) is bool, f"{name} has weights or none")
    layer = Layer(**data["problem"])
    shape, reads = layer.output_shape, layer.input
    made, read = positions_of(shape), positions_of(reads)
    must((tensor.channels, tensor.positions) == (shape[1], made), f"{name} has its layer's shape")
    right = reading_of(layer, data["weighted"])
    must(all(reading == right for reading in tensor.reads.values()), f"{name} reads what its layer reads")
    must(all(each.positions == read for each in sources), f"{name} reads positions of its layer")
    channels = sum(each.channels for each in sources)
    must(channels <= reads[1], f"{name} reads channels of its layer")
    if layer.groups > 1 or not data["weighted"]:
        must(not sources or (len(sources) == 1 and channels == reads[1]), f"{name} reads one tensor")


def _check_tree(known: Mapping[str, Tensor], sources: Mapping[str, Sequence[str]]) -> None:
    taken = [name for names in sources.values() for name in names]
    must(len(set(taken)) == len(taken), "every tensor is counted for one reader")
    height = dict[str, int]()
    for name, names in sources.items():
        height[name] = 1 + max((height[each] for each in names), default=0)
        must(height[name] <= TALLEST, f"a path of a tree has at most {TALLEST} tensors")
        must(set(names) <= known[name].reads.keys(), f"{name} reads its sources")
        must(not known[name].split or len(names) <= 1, f"{name}, whose sums are split, has one source")
