"""Writes a network as a network file: `parse_network(network_text(network), ...)` gives the same nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from synth.layer.layer import Layer, listed
from synth.layer.validate import DEFAULTS
from synth.network.graph import Network, Node
from synth.network.kinds import CONVS, SHUFFLES
from synth.network.row_map_entries import runs_of

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")  # needs no quotes in YAML


def network_text(network: Network, notes: Mapping[str, str] | None = None, title: str = "") -> str:
    """The text of a network file.

    notes: layer -> a comment on its line. title: a comment on the first line.
    """
    head = [f"# {title}"] if title else []
    head += [f"network: {_quoted(network.name)}", f"input: {list(network.input)}"]
    head += [] if network.dtype == "float32" else [f"dtype: {network.dtype}"]
    lines, last = [*head, "layers:"], "input"
    for node in network.nodes.values():
        lines.append(_line(node, last, (notes or {}).get(node.name, "")))
        last = node.name
    return "\n".join(lines) + "\n"


def _line(node: Node, last: str, note: str) -> str:
    """One layer. What it takes is left out where that is the line above."""
    body = ", ".join(f"{key}: {_shown(value)}" for key, value in _arguments(node).items())
    origin = f", from: [{', '.join(map(_quoted, node.inputs))}]" if node.inputs != (last,) else ""
    comment = f"  # {note}" if note else ""
    return f"  - {{name: {_quoted(node.name)}, {node.kind}: {{{body}}}{origin}}}{comment}"


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of a layer's kind, without those that have their default."""
    layer = node.layer
    match node.kind:
        case kind if kind in CONVS:
            assert layer is not None
            numbers = {"out_channels": layer.out_channels, **_window(layer)}
            numbers |= {"transposed": True} if layer.transposed else {}
            numbers |= {"groups": layer.groups} if layer.groups != 1 else {}
            return numbers | ({"bias": True} if node.bias else {})
        case "linear":
            return {"out_features": node.shape[1], "bias": node.bias}
        case "matmul":
            return {"n": node.shape[1], "bias": node.bias}
        case "pool":
            assert layer is not None
            widened = layer.input != node.in_shape  # by a last, partial window
            return {**_window(layer), "stride": list(layer.stride)} | ({"ceil": True} if widened else {})
        case "upsample":
            assert layer is not None
            linear = layer.kernel != layer.stride
            return {"scale": list(layer.stride)} | ({"linear": True} if linear else {})
        case "globalpool":
            return _reduced(node) | ({"max": True} if node.maximum else {})
        case "reindex":
            rows = {"rows": list(runs_of(node.maps))}
            return rows | ({"dims": list(node.dims)} if node.dims else {})
        case "channelmean":
            return {"size": node.in_shape[1] // node.shape[1]}
        case kind if kind in SHUFFLES:
            pairs = zip(*sorted((node.in_shape[2:], node.shape[2:])), strict=True)
            return {"factor": [more // less for less, more in pairs]}
        case "gathered":
            own: dict[str, Any] = {"divided": node.divided} if node.divided else {}
            own |= {"joined": node.dims[0]} if node.dims else {}
            return {
                "shape": list(node.shape),
                **own,
                **({"parameters": node.trained} if node.trained else {}),
                **({"multiply_adds": node.multiply_adds} if node.multiply_adds else {}),
            }
        case _:
            return _trained(node) if "parameters" in node.known.keys else {}


def _reduced(node: Node) -> dict[str, Any]:
    """The positions that a pooling reduces where they are not all, and the extents that are not 1."""
    rows = list(zip(node.in_shape[2:], node.shape[2:], strict=True))
    dims = [dim for dim, (size, n) in enumerate(rows, 2) if size != n]
    if all(n == 1 for _, n in rows):
        return {}
    extents = [node.shape[dim] for dim in dims]
    return {"dims": dims} | ({"out": extents} if set(extents) != {1} else {})


def _window(layer: Layer) -> dict[str, Any]:
    """Kernel, stride, padding and dilation where they are no defaults."""
    keys = ("stride", "padding", "dilation", "output_padding")
    numbers = {key: getattr(layer, key) for key in keys}
    changed = {key: listed(value) for key, value in numbers.items() if set(value) - {DEFAULTS[key]}}
    return {"kernel": list(layer.kernel), **changed}


def _trained(node: Node) -> dict[str, Any]:
    """The parameters of a layer that stays where its input lies."""
    known, affine = node.known, node.trained > 0
    groups = {"groups": node.groups} if node.groups else {}
    usual = known.trained[0] * node.shape[1] + known.trained[1]
    if node.trained == usual * (affine or "affine" not in known.keys):
        return groups if affine == known.affine else {**groups, "affine": affine}
    return {**groups, "parameters": node.trained}


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(name: str) -> str:
    """A name in quotes where YAML would read something else, such as the number 0."""
    plain = PLAIN_NAME.fullmatch(name) and isinstance(yaml.safe_load(name), str)
    return name if plain else json.dumps(name, ensure_ascii=False)
