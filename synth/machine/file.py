"""Machine files: YAML with levels, rates and memory. Error messages have line and column.

    machine: lassen
    source: where the numbers come from
    levels:                       # from the inside out
      - {name: node, ranks: 4, alpha: 9e-6, beta: 2e-11}
      - {name: system, alpha: 3e-5, beta: 8e-11, links: 2}
    compute: {rate: 7e12, bandwidth: 7.5e11, rates: {float16: 5e13}}
    memory: 16GiB
    processor: avx512 48KiB 2MiB  # instruction set, and a core's first and second cache

Seconds, bytes and floating-point operations per second; `hierarchy` explains the entries.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from synth.base.errors import InputError, UsageError
from synth.base.file_kinds import refuse_other_file
from synth.base.units import parse_bytes
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
from synth.machine.collectives import ALGORITHMS
from synth.machine.hierarchy import Compute, Level, Machine
from synth.runtime.grid.rules.processors import SETS, Processor

INSTRUCTION_SETS = SETS  # of a processor, in a machine file
_NUMBER = re.compile(r"[+-]?(\d{1,25}(\.\d{0,25})?|\.\d{1,25})([eE][+-]?\d{1,3})?")
TOP = ("machine", "source", "levels", "compute", "memory", "overlap", "algorithms", "errors", "processor")
LEVEL = (*(each.name for each in fields(Level)), "kind")
COMPUTE = tuple(each.name for each in fields(Compute))
POSITIVE = ("rate", "bandwidth", "stream", "weights", "gradients")
PROFILES = Path(__file__).resolve().parent / "data"


def profiles() -> list[str]:
    """The names of the machines that the package contains."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_machine(named: str | os.PathLike[str]) -> Machine:
    """The machine of a file, or a machine of the package by its name. Raises `InputError`."""
    name = os.fspath(named)
    if not os.path.exists(name) and "/" not in name and not name.endswith((".yaml", ".yml")):
        if name not in profiles():
            guess = did_you_mean(name, profiles())
            raise InputError(f"no machine file and no shipped machine {shown(name)}{guess}")
        path = PROFILES / f"{name}.yaml"
        return parse_machine(read_text(path), path.name)
    return parse_machine(read_text(name), name)


def parse_machine(text: str, filename: str) -> Machine:
    """The machine in the text of a file. Raises `InputError` with line and column."""
    refuse_other_file(text, filename, "machine")
    root = parse(text, filename)
    if root is None:
        raise InputError(f"{filename}:1:1: the file holds no machine; write levels: and compute:")
    if isinstance(root, Mapping):
        refuse_other_kinds(root, "machine")
    top = mapping(root, "the file", TOP)
    for key, what in (("levels", "a list of levels"), ("compute", "{rate: flop per second}")):
        if key not in top:
            raise root.fault(f"the machine lacks {key}; write {key}: with {what}")
    levels = _levels(top["levels"])
    compute = mapping(top["compute"], "compute", COMPUTE)
    if "rate" not in compute:
        raise top["compute"].fault("compute lacks rate; write rate: and floating-point operations per second")
    narrow, rates = compute.pop("narrow", None), compute.pop("rates", None)
    numbers = {key: number(node, key, positive=key in POSITIVE) for key, node in compute.items()}
    if numbers.get("crowd", 1.0) < 1:
        crowd = compute["crowd"]
        raise crowd.fault(f"crowd is {crowd}; computing beside others takes at least 1 time as long as alone")
    overlap = number(top["overlap"], "overlap") if "overlap" in top else 1.0
    if overlap > 1:
        raise top["overlap"].fault(f"overlap is {overlap:g}; it is a share from 0 to 1")
    name = word(top["machine"], "machine") if "machine" in top else Path(filename).stem
    return Machine(
        name,
        levels,
        Compute(
            **numbers,
            narrow=() if narrow is None else _steps(narrow, "narrow", "channels", "rate"),
            rates=() if rates is None else _rates(rates),
        ),
        _memory(top.get("memory")),
        overlap,
        _algorithms(top.get("algorithms")),
        word(top["source"], "source") if "source" in top else "",
        errors=_errors(top["errors"]) if "errors" in top else {},
        processors=_processors(top["processor"]) if "processor" in top else (),
    )


def mapping(node: Node, what: str, known: tuple[str, ...]) -> dict[str, Node]:
    """The entries of a mapping whose keys are all in `known`. Raises `InputError` otherwise."""
    if not isinstance(node, Mapping):
        raise node.fault(f"{what} is {node}, not a mapping; write {', '.join(known[:3])} under it")
    for key, (place, _) in node.entries.items():
        if key not in known:
            raise place.fault(f"unknown key {place} of {what}{did_you_mean(key, known)}")
    return {key: value for key, (_, value) in node.entries.items()}


def number(node: Node, what: str, positive: bool = False) -> float:
    """The node as a number >= 0 (`positive`: > 0). Raises `InputError` otherwise."""
    if not isinstance(node, Scalar) or node.quoted or not _NUMBER.fullmatch(node.text):
        raise node.fault(f"{what} is {node}, not a number; write it like 8e-11")
    value = float(node.text)
    if value < 0 or (positive and value == 0) or value > 1e30:
        least = "more than 0" if positive else "at least 0"
        raise node.fault(f"{what} is {node}; it must be {least}, in seconds, bytes or operations per second")
    return value


def word(node: Node, what: str) -> str:
    """The node as a text on one line. Raises `InputError` otherwise."""
    if not isinstance(node, Scalar) or not node.text.strip():
        raise node.fault(f"{what} is {node}; write one text")
    return shown(node.text, 400)


def count(node: Node, what: str) -> int:
    """The node as a whole number from 1 to 2**40. Raises `InputError` otherwise."""
    if not isinstance(node, Scalar):
        raise node.fault(f"{what} is {node}; write a whole number")
    value = node.integer(what)
    if not 1 <= value <= 2**40:
        raise node.fault(f"{what} is {value}; it must be a whole number from 1 to 2**40")
    return value


def _levels(node: Node) -> tuple[Level, ...]:
    if not isinstance(node, Listing) or not node.items:
        raise node.fault(f"levels is {node}; write a list of levels, from the inside out")
    levels: list[Level] = []
    for place in node.items:
        level = _level(place)
        if any(level.name == before.name for before in levels):
            raise place.fault(f"level {level.name} is given twice; name each level once")
        if levels:
            _nested(place, levels[-1], level)
        levels.append(level)
    return tuple(levels)


def _level(place: Node) -> Level:
    entries = mapping(place, "a level", LEVEL)
    for key in ("name", "alpha", "beta"):
        if key not in entries:
            raise place.fault(f"a level lacks {key}; write name, ranks, alpha (s) and beta (s per byte)")
    floats = ("alpha", "beta", "base", "staging_alpha", "staging_beta", "contention")
    numbers = {key: number(entries[key], key) for key in floats if key in entries}
    if numbers.get("contention", 1.0) < 1:
        raise entries["contention"].fault(
            f"contention is {numbers['contention']:g}; it counts flows on a link, so it is at least 1"
        )
    return Level(
        word(entries["name"], "name"),
        count(entries["ranks"], "ranks") if "ranks" in entries else None,
        small=_steps(entries["small"], "small", "bytes", "beta") if "small" in entries else (),
        pieces=_steps(entries["pieces"], "pieces", "bytes", "beta") if "pieces" in entries else (),
        links=count(entries["links"], "links") if "links" in entries else None,
        **numbers,
    )


def _nested(place: Node, inner: Level, outer: Level) -> None:
    """Check that a unit of the outer level consists of whole units of the inner level."""

    def contradict(why: str) -> NoReturn:
        raise place.fault(f"level {outer.name} {why}; list levels from the inside out")

    if inner.ranks is None:
        contradict(f"lies outside {inner.name}, which has no ranks; give {inner.name} its ranks")
    if outer.ranks is None:
        return
    if outer.ranks <= inner.ranks:
        contradict(f"has {outer.ranks} ranks, not more than the {inner.ranks} of {inner.name} inside it")
    if outer.ranks % inner.ranks:
        contradict(f"has {outer.ranks} ranks, which is not a multiple of the {inner.ranks} of {inner.name}")


def _steps(node: Node, key: str, of: str, what: str) -> tuple[tuple[int, float], ...]:
    """A list [[bound, value], ...] with ascending bounds. The value holds below its bound."""
    steps: list[tuple[int, float]] = []
    for item in node.items if isinstance(node, Listing) else ():
        if not isinstance(item, Listing) or len(item.items) != 2:
            raise item.fault(f"an entry of {key} is {item}; write [{of}, {what}]")
        below, value = item.items
        step = count(below, f"{of} of {key}"), number(value, f"{what} of {key}", positive=what == "rate")
        if steps and step[0] <= steps[-1][0]:
            raise item.fault(f"{key} lists {step[0]} {of} after {steps[-1][0]}; list them ascending")
        steps.append(step)
    if not steps:
        raise node.fault(f"{key} is {node}; write a list of [{of}, {what}]")
    return tuple(steps)


def _rates(node: Node) -> tuple[tuple[str, float], ...]:
    """The rates by dtype, as {float32: 6.7e13}."""
    from synth.layer.nest import WORD_BYTES  # imports numpy, which `synth --help` does not need

    entries = mapping(node, "rates", tuple(WORD_BYTES)).items()
    return tuple((dtype, number(rate, f"rate of {dtype}", positive=True)) for dtype, rate in entries)


def _errors(node: Node) -> dict[str, float]:
    """The relative errors of measured numbers, by name."""
    if not isinstance(node, Mapping):
        raise node.fault(f"errors is {node}; write {{rate: 0.05}}, a share of 1 for each measured number")
    return {key: number(value, f"error of {key}") for key, (_, value) in node.entries.items()}


def _processors(node: Node) -> tuple[Processor, ...]:
    """The processors of a text or a list: an instruction set, with or without a core's two caches."""
    found: list[Processor] = []
    for item in node.items if isinstance(node, Listing) else [node]:
        isa, *caches = word(item, "processor").split() if isinstance(item, Scalar) else [""]
        if isa not in SETS or len(caches) not in (0, 2):
            raise item.fault(
                f"processor is {item}; write one of {', '.join(SETS)}, or with the two caches of a core: "
                "avx512 48KiB 2MiB"
            )
        try:
            sizes = [parse_bytes(size) for size in caches]
        except UsageError as fault:
            raise item.fault(f"processor: {fault}") from fault
        found += [Processor(isa, *sizes)] if sizes else Processor.usual_of(isa)
    if not found:
        raise node.fault(f"processor is {node}; write one of {', '.join(SETS)}")
    return tuple(dict.fromkeys(found))


def _memory(node: Node | None) -> int | None:
    if node is None:
        return None
    try:
        return parse_bytes(word(node, "memory"))
    except UsageError as fault:
        raise node.fault(f"memory: {fault}") from fault


def _algorithms(node: Node | None) -> tuple[str, ...]:
    if node is None:
        return ()
    if not isinstance(node, Listing) or not node.items:
        raise node.fault(f"algorithms is {node}; write a list out of {', '.join(ALGORITHMS)}")
    names = []
    for item in node.items:
        name = word(item, "an entry of algorithms")
        if name not in ALGORITHMS:
            raise item.fault(f"algorithm {name} is unknown{did_you_mean(name, ALGORITHMS)}")
        names.append(name)
    return tuple(names)
