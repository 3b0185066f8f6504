"""Reads a layer file: its values and the position of each. `validate` checks the values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from synth.base.errors import InputError
from synth.base.file_kinds import refuse_other_file
from synth.base.yaml_positions import Listing, Mapping, Node, Scalar, did_you_mean, refuse_other_kinds, shown
from synth.base.yaml_positions import parse as parse_yaml
from synth.layer.einsum import EINSUM_REST
from synth.layer.validate import (
    CONV_KEYS,
    CONV_REQUIRED,
    INPUT_ENTRIES,
    KINDS,
    MATMUL_KEYS,
    MAX_NAME,
    SPATIAL_AXES,
    TRANSPOSED_KEYS,
    LayerError,
)


@dataclass(frozen=True)
class ParsedLayer:
    """The arguments of a `Layer` from a file, and the position of each of them."""

    values: dict[str, Any]
    places: dict[str, Node]

    def fault(self, fault: LayerError) -> InputError:
        """The same fault as an `InputError` at the position of the wrong number."""
        node = self.places.get(fault.key, self.places["kind"])
        if fault.index is not None and isinstance(node, Listing):
            node = node.items[fault.index]
        return node.fault(fault.sentence)


def parse(text: str, filename: str) -> ParsedLayer:
    """The one layer in `text`. Raises `InputError` if it is not a layer or a value has a wrong type."""
    refuse_other_file(text, filename, "layer")
    root = parse_yaml(text, filename)
    known = f"write one of {', '.join(KINDS)} with its numbers"
    if root is None:
        raise Node(shown(filename, 4096), 1, 1).fault(f"the file holds no layer; {known}")
    if not isinstance(root, Mapping):
        raise root.fault(f"the file holds {root}, not a layer; {known}")
    refuse_other_kinds(root, "layer")
    for key, (place, _) in root.entries.items():
        known_keys = (*KINDS, "name", *(EINSUM_REST if "einsum" in root.entries else ()))
        if key not in known_keys:
            raise place.fault(f"unknown key {place}{did_you_mean(key, known_keys)}")
    kinds = [key for key in root.entries if key in KINDS]
    if not kinds:
        raise root.fault(f"the file holds {'a name and ' if root.entries else ''}no layer; {known}")
    kind = kinds[0]
    kind_place, body = root.entries[kind]
    if len(kinds) > 1:
        second = root.entries[kinds[1]][0]
        raise second.fault(f"{second} is a second layer after {kind}; keep one layer per file")
    places: dict[str, Node] = {"kind": kind_place}
    if kind == "einsum":
        values = _einsum(root, places)
    else:
        places |= _body(kind, kind_place, body)
        values = {key: _value(node, key) for key, node in places.items()}
    values.setdefault("name", _default_name(filename, kind))
    if "name" in root.entries:
        places["name"] = root.entries["name"][1]
        values["name"] = _word(places["name"], "name")
        if not values["name"]:
            raise places["name"].fault("name is empty; write a text or leave it out")
    if kind == "matmul":
        values |= {"out_channels": None, "kernel": ()}
    return ParsedLayer(values, places)


def _body(kind: str, place: Scalar, body: Node) -> dict[str, Node]:
    """Key -> value of the mapping under the kind. Raises `InputError` for unknown and missing keys."""
    known, needed = (*CONV_KEYS, *TRANSPOSED_KEYS), CONV_REQUIRED
    if kind == "matmul":
        known, needed = MATMUL_KEYS, ("input",)
    if not isinstance(body, Mapping):
        raise body.fault(f"{kind} is {body}, not a mapping; write {', '.join(needed)} under it")
    for key, (key_place, _) in body.entries.items():
        if key not in known:
            raise key_place.fault(f"unknown key {key_place} of {kind}{did_you_mean(key, known)}")
    nodes = {key: value for key, (_, value) in body.entries.items()}
    if kind == "matmul":
        nodes = _joined_input(place, nodes)
    for key in needed:
        if key not in nodes:
            remedy = {
                "input": f"input: [{', '.join(INPUT_ENTRIES[kind])}]",
                "out_channels": "out_channels: and their number",
                "kernel": f"kernel: and its size along {', '.join(SPATIAL_AXES[kind])}",
            }
            raise place.fault(f"{kind} lacks {key}; write {remedy[key]}")
    return nodes


def _einsum(root: Mapping, places: dict[str, Node]) -> dict[str, Any]:
    """The arguments of `Layer.einsum`; their positions go to `places`."""
    places["equation"] = root.entries["einsum"][1]
    values: dict[str, Any] = {"equation": _word(places["equation"], "einsum")}
    if "extents" not in root.entries:
        raise places["kind"].fault("einsum lacks extents; write extents: and the extent of each index")
    places["index_extents"] = extents = root.entries["extents"][1]
    if not isinstance(extents, Mapping):
        raise extents.fault(f"extents is {extents}; write the extent of each index, such as {{b: 8, h: 16}}")
    values["extents"] = {}
    for index, (key_place, node) in extents.entries.items():
        if not isinstance(node, Scalar):
            raise node.fault(f"extent {key_place} is {node}; write an integer")
        places[f"index_extents.{index}"] = node
        values["extents"][index] = node.integer(f"extent {key_place}")
    if "dtype" in root.entries:
        places["dtype"] = root.entries["dtype"][1]
        values["dtype"] = _word(places["dtype"], "dtype")
    return values


def _joined_input(place: Scalar, nodes: dict[str, Node]) -> dict[str, Node]:
    """The keys m, n, k of a matrix product, joined to one list `input`."""
    given = [key for key in "mnk" if key in nodes]
    if not given:
        return nodes
    if "input" in nodes:
        raise nodes[given[0]].fault(f"matmul has both input and {given[0]}; write input: [m, n, k] alone")
    for key in "mnk":
        if key not in nodes:
            raise place.fault(f"matmul lacks {key}; write m, n and k, or input: [m, n, k]")
    items = tuple(nodes.pop(key) for key in "mnk")
    return {"input": Listing(place.filename, place.line, place.column, items), **nodes}


def _value(node: Node, key: str) -> Any:
    """The value of a key: a text, an integer, or a tuple of integers."""
    if key in ("kind", "dtype"):
        return _word(node, key)
    if key == "transposed":
        word = _word(node, key)
        return {"true": True, "false": False}.get(word, word)
    if key == "padding" and isinstance(node, Scalar) and node.text == "same":
        return node.text
    if isinstance(node, Scalar):
        return node.integer(key)
    if not isinstance(node, Listing):
        raise node.fault(f"{key} is {node}; write integers")
    if key == "padding" and any(isinstance(item, Listing) for item in node.items):
        return tuple(_value(item, "an entry of padding") for item in node.items)
    for item in node.items:
        if not isinstance(item, Scalar):
            raise item.fault(f"an entry of {key} is {item}; write an integer")
    return tuple(item.integer(f"an entry of {key}") for item in node.items if isinstance(item, Scalar))


def _word(node: Node, key: str) -> str:
    if isinstance(node, Scalar):
        return node.text
    raise node.fault(f"{key} is {node}; write one text")


def _default_name(filename: str, kind: str) -> str:
    """The stem of the file name, printable and short enough for a report."""
    stem = "".join(c if c.isprintable() else "_" for c in PurePath(filename).stem)[:MAX_NAME]
    return stem if stem.strip() else kind
