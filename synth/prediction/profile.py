"""Where compute times come from: a rate (operations over flop/s) or a table of measured layers."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import dataclass
from typing import Protocol

from synth.base.errors import InputError
from synth.base.yaml_positions import did_you_mean, read_text
from synth.machine.hierarchy import Machine
from synth.network.graph import Network, Node

HEADER = ("layer", "forward_s", "backward_s", "update_s")


@dataclass(frozen=True)
class Times:
    """Seconds on one rank: forward and backward per sample, weight update per step."""

    forward: float
    backward: float
    update: float


class Source(Protocol):
    """Something that knows the times of layers, and says where it has them from."""

    @property
    def said(self) -> str:
        """Where the times are from, for the report."""

    def times(self, node: Node, samples: int) -> Times:
        """The times of a layer of a network with `samples` samples."""


@dataclass(frozen=True)
class Rate:
    """Times from a machine's nominal rate: 2 operations per multiply-add, backward twice the forward.

    Layers without weights and the weight update are bound by memory: each word is read and written once
    (an update reads weight and gradient, and writes the weight).
    """

    machine: Machine

    @property
    def said(self) -> str:
        """The provenance that is printed."""
        rate = self.machine.compute.rate / 1e12
        return f"compute times from the rate of {self.machine.name}, {rate:.4g} Tflop/s per rank"

    def times(self, node: Node, samples: int) -> Times:
        """Seconds per sample, and per update."""
        compute = self.machine.compute
        bandwidth = compute.bandwidth or math.inf
        update = 3 * 4 * node.parameters / bandwidth
        if node.weighted:
            forward = 2 * node.operations / samples / compute.rate
            return Times(forward, 2 * forward, update)
        words = (node.in_words + node.out_words) / samples
        return Times(4 * words / bandwidth, 8 * words / bandwidth, update)


@dataclass(frozen=True)
class Profile:
    """Measured times by layer name."""

    table: dict[str, Times]
    said: str

    def times(self, node: Node, samples: int) -> Times:
        """The layer's row; layers without weights that have none count as free."""
        del samples
        return self.table.get(node.name, Times(0.0, 0.0, 0.0))


def load_profile(path: str | os.PathLike[str], network: Network) -> Profile:
    """A CSV with the columns layer, forward_s, backward_s (per sample) and update_s (per step).

    Raises `InputError` for unknown or repeated layers, numbers that are none, and layers with weights that
    have no row.
    """
    name = os.fspath(path)
    rows = list(csv.reader(io.StringIO(read_text(path))))
    if not rows or tuple(rows[0]) != HEADER:
        raise InputError(f"{name}:1:1: the profile's first line must be {','.join(HEADER)}")
    table: dict[str, Times] = {}
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != 4:
            raise InputError(f"{name}:{line}:1: the row has {len(row)} columns, not {len(HEADER)}")
        if row[0] not in network.nodes:
            guess = did_you_mean(row[0], network.nodes)
            raise InputError(f"{name}:{line}:1: {network.name} has no layer {row[0]}{guess}")
        if row[0] in table:
            raise InputError(f"{name}:{line}:1: layer {row[0]} has a second row; keep one")
        table[row[0]] = Times(*(_seconds(name, line, text) for text in row[1:]))
    missing = [node.name for node in network.planned if node.weighted and node.name not in table]
    if missing:
        raise InputError(
            f"{name}: the profile lacks {len(missing)} of the layers of {network.name}, the first is "
            f"{missing[0]}; measure them with `synth calibrate`"
        )
    return Profile(table, f"compute times measured, from {os.path.basename(name)}")


def _seconds(name: str, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(f"{name}:{line}:1: {text!r} is no time; write seconds, at least 0")
    return value


def write_profile(table: dict[str, Times]) -> str:
    """The CSV text that `load_profile` reads."""
    rows = [",".join(HEADER)]
    rows += [f"{name},{t.forward:.6e},{t.backward:.6e},{t.update:.6e}" for name, t in table.items()]
    return "\n".join(rows) + "\n"
