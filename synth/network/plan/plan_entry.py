"""The fields of plan files of networks: types, ranges, and what fields of one object say of each other."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from synth.base.ranges import MOST_PROCS
from synth.layer.axes import AXES, SPATIAL, Axis
from synth.planning.plan_entry import TensorName

SCHEMA = "synth.network-plan/1"
MAX_NUMBER = 2**62
MAX_ROWS = 100_000
Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Some = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Processes = Annotated[int, Meta(ge=1, le=MOST_PROCS)]
Number = Annotated[float, Meta(ge=0, lt=1e300)]
Text = Annotated[str, Meta(min_length=1)]


class Row(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An object of a file, whose texts are printable."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str) and not value.isprintable():
                raise ValueError(f"{name} is not printable text")


class TensorWords(Row, rename={"in_": "in"}):
    """Words by tensor."""

    in_: Count
    ker: Count
    out: Count


class LayerRow(Row, kw_only=True):
    """The plan of a layer."""

    name: Text
    grid: Annotated[dict[Axis, Processes], Meta(min_length=len(AXES))]
    order: Annotated[tuple[Axis, ...], Meta(min_length=len(AXES), max_length=len(AXES))]
    turned: tuple[Axis, ...] = ()
    stationary: TensorName
    panels: Some
    cost: Number
    words: TensorWords
    memory_words: Count
    gradients: list[Literal["in", "ker"]] = []
    whole: Annotated[bool, Meta(description="whether ranks hold whole slices of weights in training")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.order)) < len(AXES):
            raise ValueError("order does not name every axis once")
        if self.turned != tuple(axis for axis in SPATIAL if axis in self.turned):
            raise ValueError("turned is not a list of d, h and w")
        if self.whole and self.words.ker:
            raise ValueError(f"words.ker is {self.words.ker}, but whole weights do not move")

    @property
    def processes(self) -> int:
        """The size of the grid."""
        return math.prod(self.grid.values())


class EdgeRow(Row, rename={"from_": "from"}):
    """The redistribution from a layer to another, or of the rows of one to itself."""

    from_: Text
    to: Text
    onto: Literal["in", "out"]
    words: Count
    cost: Number


class SingleRow(Row):
    """A single strategy: what it costs, or why it cannot be."""

    name: Text
    cost: Number | None
    why: str


class MarginRow(Row):
    """Of a tensor, the rows along d, h and w that a rank computes beyond its own; the words that it fetches.

    covered: whether ranks may compute rows of others. seconds: of the fetch, in a plan for time. back: of
    `words`, those of the gradient.
    """

    name: Text
    rows: Annotated[list[Count], Meta(min_length=len(SPATIAL), max_length=len(SPATIAL))]
    words: Count
    covered: bool
    seconds: Number = 0
    back: Count = 0


class MarginsEntry(Row):
    """Rows that several ranks compute, see `Margins`."""

    recompute: Number | None
    tensors: Annotated[list[MarginRow], Meta(max_length=MAX_ROWS)]
    extra_work: Number
    rounds: Count
    rounds_before: Count
    words_before: Count
    exact: bool
    above: Number = 0


class WordsBeside(Row):
    """Words per process beyond those of layers and between them, by cause; see `NetworkPlan.words_beside`."""

    calls: Count = 0
    normalizations: Count = 0
    checkpoints: Count = 0


class TodayRow(Row):
    """The plan, or a method in use today: words and bytes of a process; null where `how` says why not."""

    name: Text
    how: str
    words: Count | None
    memory_bytes: Count | None
    ranks: Annotated[Count | None, Meta(description="that work in some layer")] = None


class NetworkPlanEntry(Row, kw_only=True, rename={"pass_": "pass"}):
    """A plan file of a network."""

    schema: Literal["synth.network-plan/1"]
    name: Text
    procs: Processes
    objective: Literal["words", "time"]
    pass_: Literal["forward", "training"]
    kept: list[TensorName] = []
    machine: Text | None
    cost: Number
    lower_bound: Number
    gap: Number
    method: Text
    memory_limit: Annotated[Some | None, Meta(description="bytes per process")] = None
    word_bytes: Annotated[int, Meta(ge=1, le=64)]
    memory_words: Count
    resident_words: Count
    layers: Annotated[list[LayerRow], Meta(min_length=1, max_length=MAX_ROWS)]
    redistributions: Annotated[list[EdgeRow], Meta(max_length=MAX_ROWS)]
    singles: Annotated[list[SingleRow], Meta(max_length=MAX_ROWS)]
    best_single: str | None
    ratio: float | None
    digest: str
    beside: WordsBeside | None = None
    received: Annotated[Count | None, Meta(description="all words of the busiest process")] = None
    margins: MarginsEntry | None = None
    today: Annotated[list[TodayRow], Meta(max_length=MAX_ROWS)] = []


def network_plan_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a network plan file. It cannot check sums and the digest."""
    made = msgspec.json.schema(NetworkPlanEntry)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made["$defs"].pop("NetworkPlanEntry"),
        "title": "synth plan file of a network",
        "$defs": made["$defs"],
    }
