"""The JSON Schemas of what commands print with `--json`, beside those of files: fields, types, units.

One struct per object. A command that prints another field breaks `tests/cli/test_schemas.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Words = Annotated[int, Meta(ge=0, description="words: numbers of the layer's dtype")]
Bytes = Annotated[int, Meta(ge=0, description="bytes")]
Seconds = Annotated[float, Meta(description="seconds")]
Count = Annotated[int, Meta(ge=0)]
Grid = Annotated[dict[str, int], Meta(description="axis -> processes along it")]
Problem = Annotated[dict[str, Any], Meta(description="the layer: loop extents, stride, padding, dtype")]


class Object(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"pass_": "pass", "in_": "in"}):
    """An object that has no other fields."""


class ByTensor(Object):
    """Received words of a process by tensor; `halo` is part of them."""

    in_: Words
    ker: Words
    out: Words
    halo: Words
    total: Words


class ByTensorAndRank(Object):
    """Received words by tensor: a list over the ranks."""

    in_: list[Words]
    ker: list[Words]
    out: list[Words]
    halo: list[Words]
    total: list[Words]


class Simulation(Object):
    """`synth simulate --json`."""

    schema: Literal["synth.simulation/1"]
    plan: str
    ranks: Count
    steps: Count
    words: ByTensor
    words_per_rank: ByTensorAndRank
    peak_words_per_rank: list[Words]
    planned_memory_words: Words
    values_checked: bool


class Run(Object):
    """`synth run --json`; seconds of the slowest rank."""

    schema: Literal["synth.run/1"]
    plan: str
    procs: Count
    used_procs: Count
    seconds: Seconds
    times: list[Seconds]
    median_seconds: Seconds | None
    words_per_rank: list[ByTensor]
    values_agree: bool
    largest_difference: float
    words_agree: bool


class Bounds(Object):
    """`synth bounds --json`; words per process."""

    schema: Literal["synth.bounds/1"]
    name: str
    problem: Problem
    assumptions: dict[str, Any]
    points: list[Point]
    changes: list[dict[str, Any]]


class Point(Object):
    """Bounds at one number of processes and one memory."""

    procs: Count
    memory_bytes: Bytes | None
    fits: bool
    received: Received | None
    accessed: Accessed | None


class Received(Object):
    """Words that a process receives."""

    bound: float
    segments: Count
    most_work: Count
    bound_at_fair_load: float
    bound_with_surface: float | None
    regime: str
    relaxation: float | None
    plan: BestPlan | None
    gap: dict[str, float] | None
    matmul: Annotated[float | None, Meta(description="words; the bound of matrix products alone")]


class BestPlan(Object):
    """The plan with the fewest words."""

    words: Words
    grid: Grid
    used_procs: Count
    turned: list[str]
    stationary: str
    regime: str
    memory_bytes: Bytes
    ratio: float | None


class Accessed(Object):
    """Words that a process accesses in a global virtual memory."""

    bound: float
    sequential: float | None
    table1_printed: dict[str, Any] | None
    table1_corrected: dict[str, Any] | None
    table2_printed: float | None
    table2_corrected: float | None
    closed_form: dict[str, Any]
    stationary: str
    relaxation: float | None
    integer: dict[str, Any] | float | None


class SymbolicBound(Object):
    """`synth bounds --symbolic --json`."""

    schema: Literal["synth.symbolic_bound/1"]
    name: str
    problem: Problem
    meanings: dict[str, str]
    values: dict[str, float]
    sympy: dict[str, str]
    latex: dict[str, str]
    without_memory_limit: list[dict[str, Any]]
    assumptions: list[str]


class LayerTimes(Object):
    """Seconds and bytes of a layer in a prediction."""

    name: str
    forward: Seconds
    backward: Seconds
    update: Seconds
    comm_forward: Seconds
    comm_backward: Seconds
    exchange: Seconds
    memory: Bytes


class Prediction(Object):
    """The time of a network under one strategy."""

    schema: Literal["synth.prediction/1"]
    network: str
    machine: str
    strategy: str
    pass_: str
    overlap: bool
    whole_weights: Count
    procs: Count
    batch: Count
    limit: Count | None
    limit_why: str
    compute_source: str
    seconds: Seconds
    compute: Seconds
    communication: Seconds
    memory_bytes: Bytes
    held_bytes: Bytes | None
    idle: Any
    calls: list[dict[str, Any]]
    layers: list[LayerTimes]


class Refused(Object):
    """A strategy that cannot be, and why."""

    strategy: str
    why: str


class Predictions(Object):
    """`synth predict --json`."""

    schema: Literal["synth.predictions/1"]
    made: list[Prediction]
    refused: list[Refused]


class Replay(Object):
    """`synth replay --json`."""

    schema: Literal["synth.replay/1"]
    network: str
    procs: Count
    pass_: Literal["forward", "training"]
    planned_seconds: Seconds | None
    working_procs: list[Count]
    whole_weights: Count
    machine: str
    seconds: Seconds
    computing: Seconds
    exposed: Seconds
    link_bytes: dict[str, float]
    link_busy: dict[str, float]
    tasks: Count


class Doctor(Object):
    """`synth doctor --json`; packages that are absent are null."""

    schema: Literal["synth.doctor/1"]
    python: str
    cores: Count
    packages: dict[str, str | None]
    backends: dict[str, bool]
    cuda_devices: Count
    commands: dict[str, bool]
    well: bool


class Certificate(Object):
    """`synth plan --certify`; numbers are fractions as texts."""

    schema: Literal["synth.certificate/2"]
    claim: str
    problem: Problem
    procs: Count
    memory_words: Words | None
    most_work: Count
    sizes: dict[str, int]
    multiply_adds: Count
    constants: list[dict[str, Any]]
    segments: Count
    x: dict[str, str]
    nu: str
    multipliers: dict[str, str]
    words: str
    digest: str


class NetworkCertificate(Object):
    """`synth plan NET.yaml --certify`; numbers are whole words."""

    schema: Literal["synth.network-certificate/2"]
    claim: str
    network: str
    procs: Count
    balance: str
    mode: Literal["training", "inference"]
    layers: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    classes: list[dict[str, Any]]
    potentials: list[dict[str, Any]]
    words: Words
    any_schedule: dict[str, Any] | None
    digest: str


class RecomputationCertificate(Object):
    """`synth plan NET.yaml --recompute 10% --certify`; fractions are texts."""

    schema: Literal["synth.recomputation-certificate/1"]
    claim: str
    network: str
    procs: Count
    tensors: list[dict[str, Any]]
    words: Words
    digest: str


class Certified(Object):
    """`synth certify --json`: the steps that were checked."""

    schema: Literal["synth.certified/1"]
    file: str
    checked: list[str]


class Gathered(Object):
    """A call that every rank computes from the whole tensors, and the words that it reads."""

    name: str
    words: Words


class Imported(Object):
    """`synth import --json`; the text is that of the network file. Two operations are one multiply-add."""

    schema: Literal["synth.imported/1"]
    file: str | None
    network: str
    input: list[Count]
    dtype: str
    layers: Count
    planned_layers: Count
    parameters: Words
    operations: Count
    gathered: list[Gathered]
    gathered_share: Annotated[float, Meta(ge=0, le=1, description="of the words that all calls read")]
    text: str


class Checked(Object):
    """`synth check --json`: calls that were compared, or in `reason` why none were."""

    schema: Literal["synth.checked/1"]
    compared: bool
    model: str
    calls: Count
    modes: list[str]
    input: str
    dtype: str
    seconds: Seconds
    notes: list[str]
    reason: str


class LayerSeconds(Object):
    """Seconds per sample forward and backward, and per step for the update."""

    layer: str
    forward_s: Seconds
    backward_s: Seconds
    update_s: Seconds


class MachineCalibration(Object):
    """`synth calibrate --json`; `synth schema machine` describes the machine."""

    schema: Literal["synth.calibration/1"]
    file: str | None
    kind: Literal["machine"]
    machine: dict[str, Any]
    text: str


class LayerCalibration(Object):
    """`synth calibrate NET --json`."""

    schema: Literal["synth.calibration/1"]
    file: str | None
    kind: Literal["layers"]
    layers: list[LayerSeconds]
    text: str


class Fault(Object):
    """An error in the printed formulas of the method."""

    where: str
    fault: str
    example: str
    printed: str
    right: str


class Errata(Object):
    """`synth errata --json`."""

    schema: Literal["synth.errata/1"]
    errata: list[Fault]


class Decision(Object):
    """What two plans decide otherwise."""

    what: str
    one: str | None
    other: str | None


class Number(Object):
    """A number of two plans, and the second over the first."""

    what: str
    unit: Literal["words", "bytes", "seconds", "multiply-adds", "processes", ""]
    one: float | None
    other: float | None
    ratio: float | None


class LayerOfTwo(Object):
    """A layer of two plans of networks: its decisions that differ, and what it costs in each."""

    name: str
    decisions: list[Decision]
    unit: str
    one: float | None
    other: float | None


class Diff(Object):
    """`synth diff --json`."""

    schema: Literal["synth.diff/1"]
    kind: Literal["layer", "network"]
    names: list[str]
    about: list[str]
    same: bool
    decisions: list[Decision]
    numbers: list[Number]
    layers: list[LayerOfTwo]


class Term(Object):
    """What the busiest process receives of a tensor in a pass, in words."""

    task: str
    tensor: str
    sharers: Count
    along: list[str]
    slice: Words
    owns: Words
    times: Count
    halo: Words
    received: Words
    why: str


class OtherGrid(Object):
    """A grid beside that of the plan."""

    grid: Grid
    turned: list[str]
    words: Words
    memory_bytes: Bytes


class LayerExplanation(Object):
    """`synth explain --json` of the plan of a layer."""

    schema: Literal["synth.explanation/1"]
    kind: Literal["layer"]
    name: str
    plan: str
    procs: Count
    grid: Grid
    words: Words
    terms: list[Term]
    bound: float
    ratio: str
    caution: str
    regime: str
    others: list[OtherGrid]
    limits: list[str]


class Part(Object):
    """A layer or a redistribution, and what it costs."""

    name: str
    how: str
    words: dict[str, Words]
    cost: float
    share: float


class NetworkExplanation(Object):
    """`synth explain --json` of the plan of a network."""

    schema: Literal["synth.explanation/1"]
    kind: Literal["network"]
    name: str
    procs: Count
    unit: Literal["words", "seconds"]
    cost: float
    causes: dict[str, float]
    layers: list[Part]
    redistributions: list[Part]
    limits: list[str]


OUTPUTS: dict[str, tuple[type[Object], ...]] = {  # kind -> the objects that may be printed
    "simulation": (Simulation,),
    "run": (Run,),
    "bounds": (Bounds,),
    "symbolic_bound": (SymbolicBound,),
    "predictions": (Predictions,),
    "prediction": (Prediction,),
    "replay": (Replay,),
    "doctor": (Doctor,),
    "certificate": (Certificate, NetworkCertificate, RecomputationCertificate),
    "certified": (Certified,),
    "errata": (Errata,),
    "diff": (Diff,),
    "explanation": (LayerExplanation, NetworkExplanation),
    "imported": (Imported,),
    "checked": (Checked,),
    "calibration": (MachineCalibration, LayerCalibration),
}


def output_schema(kind: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what a command prints; a key of `OUTPUTS`."""
    kinds = OUTPUTS[kind]
    made, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"synth {kind}"}
    whole = made[0] if len(made) == 1 else {"anyOf": list(made)}
    return {**head, **whole, "$defs": definitions}
