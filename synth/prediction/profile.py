"""Compute times of layers: from a nominal rate (operations over flop/s), or from a table of measurements."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import dataclass

from synth.base.errors import InputError
from synth.base.file_kinds import refuse_other_file
from synth.base.user_files import read_text
from synth.base.yaml_positions import did_you_mean
from synth.machine.hierarchy import Machine
from synth.network.graph import Network, Node

HEADER = ("layer", "forward_s", "backward_s", "update_s")


@dataclass(frozen=True)
class LayerTimes:
    """Seconds on one rank: forward and backward per sample, weight update per step."""

    forward: float
    backward: float
    update: float


@dataclass(frozen=True)
class NominalRate:
    """Times from a machine's nominal rate: 2 operations per multiply-add, backward twice the forward.

    Layers without weights and the weight update are bound by memory bandwidth. Such a layer reads and writes
    each word once; an update reads weight and gradient, and writes the weight. Words have the layer's dtype.
    """

    machine: Machine

    @property
    def description(self) -> str:
        """The machine and its rate."""
        rate = self.machine.compute.rate / 1e12
        return f"compute times from the rate of {self.machine.name}, {rate:.4g} Tflop/s per rank"

    def times(self, node: Node, samples: int) -> LayerTimes:
        """The times of a layer of a network; `samples` is the number of samples in the node's shapes."""
        compute = self.machine.compute
        bandwidth = compute.bandwidth or math.inf
        assert node.layer is not None
        word_bytes = node.layer.nest.word_bytes
        update = 3 * word_bytes * node.parameters / bandwidth
        if node.weighted:
            forward = 2 * node.operations / samples / compute.rate
            return LayerTimes(forward, 2 * forward, update)
        words = (node.in_words + node.out_words) / samples
        return LayerTimes(word_bytes * words / bandwidth, 2 * word_bytes * words / bandwidth, update)


@dataclass(frozen=True)
class MeasuredTimes:
    """Layer name -> measured times."""

    table: dict[str, LayerTimes]
    description: str

    def times(self, node: Node, samples: int) -> LayerTimes:
        """The row of the layer. A layer without weights and without a row takes no time."""
        del samples
        return self.table.get(node.name, LayerTimes(0.0, 0.0, 0.0))


ComputeTimes = NominalRate | MeasuredTimes  # sources of compute times that describe themselves


def load_profile(path: str | os.PathLike[str], network: Network) -> MeasuredTimes:
    """Read a CSV with the columns layer, forward_s, backward_s (per sample) and update_s (per step).

    Raises `InputError` for unknown or repeated layers, texts that are not numbers, and layers with weights
    that have no row.
    """
    name = os.fspath(path)
    text = read_text(path)
    refuse_other_file(text, name, "profile")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}:1: the line is no CSV ({error})") from error
    if not rows or tuple(rows[0]) != HEADER:
        raise InputError(f"{name}:1:1: the profile's first line must be {','.join(HEADER)}")
    table: dict[str, LayerTimes] = {}
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
        table[row[0]] = LayerTimes(*(_seconds(name, line, text) for text in row[1:]))
    missing = [node.name for node in network.planned if node.weighted and node.name not in table]
    if missing:
        raise InputError(
            f"{name}: the profile lacks {len(missing)} of the layers of {network.name}, the first is "
            f"{missing[0]}; measure them with `synth calibrate`"
        )
    return MeasuredTimes(table, f"compute times measured, from {os.path.basename(name)}")


def _seconds(name: str, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(f"{name}:{line}:1: {text!r} is no time; write seconds, at least 0")
    return value


def write_profile(table: dict[str, LayerTimes]) -> str:
    """The CSV text that `load_profile` reads."""
    rows = [",".join(HEADER)]
    rows += [f"{name},{t.forward:.6e},{t.backward:.6e},{t.update:.6e}" for name, t in table.items()]
    return "\n".join(rows) + "\n"
