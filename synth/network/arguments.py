"""The arguments of an entry of a network file: which its kind takes, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from synth.base.yaml_positions import Listing, Scalar, did_you_mean
from synth.base.yaml_positions import Node as YamlNode
from synth.network.entries import Entry
from synth.network.graph import Divided
from synth.network.kinds import CONVS, KINDS

DIVISIONS: tuple[Divided, ...] = get_args(Divided)[1:]
FLAGS = ("max", "bias", "ceil", "transposed", "linear", "affine")


def check_arguments(entry: Entry, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises `InputError` for unknown or missing arguments, or a wrong number of inputs.

    shapes: of the inputs.
    """
    kind, known = entry.kind, KINDS[entry.kind]
    for key, node in entry.arguments.items():
        if key not in known.keys:
            raise node.fault(
                f"{entry.name}: unknown key {key} of {kind}{did_you_mean(key, known.keys or ('none',))}"
            )
    for key in known.required:
        if key not in entry.arguments:
            raise entry.place.fault(f"{entry.name}: {kind} lacks {key}; write {key}: under it")
    for source, shape in zip(entry.inputs, shapes, strict=True):
        if known.several is not None and not 2 <= len(shape) <= 5:
            raise entry.place.fault(
                f"{entry.name}: {source} is {shown(shape)}, but {kind} needs 2 to 5 dimensions"
            )
    if known.several is False and len(shapes) > 1:
        raise entry.place.fault(f"{entry.name}: {kind} takes one input, not {len(shapes)}; use add")
    if known.several and len(shapes) < 2:
        raise entry.place.fault(f"{entry.name}: {kind} takes two inputs or more; list them in from")


def number_of(entry: Entry, key: str) -> Any:
    """An integer or a tuple of them; of the padding of a convolution also pairs, and `same`."""
    return _numbers(entry, entry.arguments[key], key)


def _numbers(entry: Entry, node: YamlNode, key: str) -> Any:
    padding = key == "padding" and entry.kind in CONVS
    if isinstance(node, Scalar):
        return node.text if padding and node.text == "same" else node.integer(key)
    items = node.items if isinstance(node, Listing) else ()
    if not items:
        raise node.fault(f"{entry.name}: {key} is {node}; write an integer or a list of them")
    for item in items:
        if not isinstance(item, Scalar | Listing) or (isinstance(item, Listing) and not padding):
            raise item.fault(f"{entry.name}: an entry of {key} is {item}; write an integer")
    return tuple(_numbers(entry, item, key) for item in items)


def flag_of(entry: Entry, key: str, usual: bool = False) -> bool:
    """Whether an argument is `true`. usual: of one that is not given."""
    node = entry.arguments.get(key)
    if node is None:
        return usual
    if not isinstance(node, Scalar) or node.text not in ("true", "false"):
        raise node.fault(f"{entry.name}: {key} is {node}; write true or false")
    return node.text == "true"


def division_of(entry: Entry) -> Divided:
    """How ranks divide a call. Raises `InputError` for an unknown way."""
    given = entry.arguments.get("divided")
    if given is None:
        return ""
    for known in DIVISIONS:
        if isinstance(given, Scalar) and given.text == known:
            return known
    known_ways = did_you_mean(given.text if isinstance(given, Scalar) else "", DIVISIONS)
    raise given.fault(f"{entry.name}: divided is {given}{known_ways}")


def shown(shape: tuple[int, ...]) -> str:
    """A shape as messages write it."""
    return "x".join(map(str, shape))
