"""Network files: named layers with one kind each, edges by `from`, blocks by `repeat`.

    network: small
    input: [32, 3, 224, 224]
    layers:
      - {name: conv1, conv2d: {out_channels: 64, kernel: 7, stride: 2, padding: 3}}
      - batchnorm:
      - relu:
      - repeat: 2
        layers:
          - {name: a, conv2d: {out_channels: 64, kernel: 3, padding: 1}}
          - {name: sum, add: {}, from: [a, entry]}     # `entry` is what enters this repetition

A layer takes the output of the one above it unless `from` names others; `input` is the network's input.
Names inside a block get the number of the repetition: `a.1`, `a.2`.
"""

from __future__ import annotations

import os
from pathlib import PurePath

from synth.base.errors import InputError
from synth.base.file_kinds import refuse_other_file
from synth.base.user_files import read_text
from synth.base.yaml_positions import (
    Listing,
    Mapping,
    Node,
    Scalar,
    did_you_mean,
    parse,
    refuse_other_kinds,
    shown,
)
from synth.layer.validate import MAX_NAME, LayerError, check_name
from synth.network.entries import Entry
from synth.network.graph import Network
from synth.network.kinds import KINDS
from synth.network.node_builder import build_network

TOP = ("network", "input", "dtype", "layers")
MAX_LAYERS = 10_000


def load_network(path: str | os.PathLike[str]) -> Network:
    """The network of a network file (YAML); docs/networks.md describes the file.

    Shapes are those of torch: (N, C, *spatial). Raises `InputError` with file, line and column of the fault.
    """
    return parse_network(read_text(path), os.fspath(path))


def parse_network(text: str, filename: str) -> Network:
    """The network in a file's text."""
    refuse_other_file(text, filename, "network")
    root = parse(text, filename)
    if root is None:
        raise InputError(f"{shown(filename)}:1:1: the file holds no network; write input: and layers:")
    if not isinstance(root, Mapping):
        raise root.fault(f"the file holds {root}, not a network; write input: and layers:")
    refuse_other_kinds(root, "network")
    for key, (place, _) in root.entries.items():
        if key not in TOP:
            raise place.fault(f"unknown key {place} of a network{did_you_mean(key, TOP)}")
    for key, remedy in (("input", "[N, C, H, W]"), ("layers", "and a list of layers")):
        if key not in root.entries:
            raise root.fault(f"the network lacks {key}; write {key}: {remedy}")
    entries = _Reader().read(root.entries["layers"][1])
    name = str(root.entries["network"][1]) if "network" in root.entries else PurePath(filename).stem
    dtype = root.entries["dtype"][1] if "dtype" in root.entries else None
    return build_network(name, root.entries["input"][1], dtype, entries, filename)


class _Reader:
    """Unrolls blocks and resolves default edges.

    `last` is the name of the layer above; `suffix` numbers the repetitions, as in `.1.2`; `scopes` map the
    names in each enclosing block to unrolled names, the innermost block first.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.lines: dict[str, int] = {"input": 0, "entry": 0}  # unrolled name -> line

    def read(self, layers: Node) -> list[Entry]:
        self.block(layers, "input", "", ())
        if not self.entries:
            raise layers.fault("layers is empty; list at least one layer")
        return self.entries

    def block(self, layers: Node, entry: str, suffix: str, scopes: tuple[dict[str, str], ...]) -> str:
        """Read a list of layers; returns the name of the last one."""
        if not isinstance(layers, Listing):
            raise layers.fault(f"layers is {layers}; write a list of layers")
        local: dict[str, str] = {"entry": entry}
        scopes = (local, *scopes)
        last = entry
        for item in layers.items:
            if not isinstance(item, Mapping):
                raise item.fault(f"a layer is {item}, not a mapping; write - {{name: a, relu: }} or the like")
            if "repeat" in item.entries:
                last = self.repeated(item, last, suffix, scopes)
            else:
                last = self.layer(item, last, suffix, scopes)
            if len(self.entries) > MAX_LAYERS:
                raise item.fault(f"the network has more than {MAX_LAYERS} layers here; repeat less")
        return last

    def repeated(self, item: Mapping, last: str, suffix: str, scopes: tuple[dict[str, str], ...]) -> str:
        """Read a repeated block; returns the name of its last layer."""
        for key, (place, _) in item.entries.items():
            if key not in ("repeat", "layers"):
                raise place.fault(f"a repeated block has the key {place}; it has repeat and layers only")
        times = item.entries["repeat"][1]
        count = times.integer("repeat") if isinstance(times, Scalar) else 0
        if not 1 <= count <= MAX_LAYERS:
            raise times.fault(f"repeat is {times}; write a whole number from 1 to {MAX_LAYERS}")
        if "layers" not in item.entries:
            raise item.fault("a repeated block lacks layers; list them under layers:")
        for index in range(1, count + 1):
            last = self.block(item.entries["layers"][1], last, f"{suffix}.{index}", scopes)
        return last

    def layer(self, item: Mapping, last: str, suffix: str, scopes: tuple[dict[str, str], ...]) -> str:
        """Read one layer; returns its unrolled name."""
        kinds = [key for key in item.entries if key not in ("name", "from")]
        for key in kinds:
            if key not in KINDS:
                place = item.entries[key][0]
                raise place.fault(f"layer kind {place} is unknown{did_you_mean(key, KINDS)}")
        if len(kinds) != 1:
            kinds_text = f"{kinds[0]} and {kinds[1]}" if kinds else "no kind"
            raise item.fault(f"the layer has {kinds_text}; give it one of {', '.join(KINDS)}")
        kind = kinds[0]
        plain = self.name(item, kind, scopes[0])
        name = plain + suffix
        if name in self.lines:
            line = self.lines[name]
            raise item.fault(f"layer {name} is named twice, first on line {line}; name each layer once")
        self.lines[name] = item.line
        inputs, places = self.inputs(item, last, scopes)
        body = item.entries[kind][1]
        self.entries.append(Entry(name, kind, _arguments(body, kind), inputs, item, places))
        scopes[0][plain] = name
        return name

    def name(self, item: Mapping, kind: str, local: dict[str, str]) -> str:
        """The name of a layer as written, or its kind with the next free number."""
        if "name" not in item.entries:
            number = 1
            while f"{kind}{number}" in local or f"{kind}{number}" in self.lines:
                number += 1
            return f"{kind}{number}"
        node = item.entries["name"][1]
        if not isinstance(node, Scalar):
            raise node.fault(f"name is {node}; write one text")
        try:
            name = check_name(node.text)
        except LayerError as fault:
            raise node.fault(fault.sentence) from fault
        if name in ("input", "entry") or len(name) > MAX_NAME - 12:
            raise node.fault(f"name {name} is reserved or too long; take another name")
        return name

    def inputs(
        self, item: Mapping, last: str, scopes: tuple[dict[str, str], ...]
    ) -> tuple[tuple[str, ...], tuple[Node, ...]]:
        """(unrolled names of a layer's inputs, their places in the file)."""
        if "from" not in item.entries:
            return (last,), ()
        node = item.entries["from"][1]
        nodes = node.items if isinstance(node, Listing) else (node,)
        names = []
        for each in nodes:
            if not isinstance(each, Scalar) or not each.text:
                raise each.fault(f"from is {each}; name the layer, or list the layers, that this one takes")
            known = next((scope[each.text] for scope in scopes if each.text in scope), each.text)
            names.append(known)
        if not names:
            raise node.fault("from is an empty list; name at least one layer")
        return tuple(names), tuple(nodes)


def _arguments(body: Node, kind: str) -> dict[str, Node]:
    if isinstance(body, Scalar) and body.text == "":
        return {}
    if not isinstance(body, Mapping):
        raise body.fault(f"{kind} is {body}; write its numbers as a mapping, or nothing")
    return {key: value for key, (_, value) in body.entries.items()}
