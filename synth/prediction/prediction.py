"""What a prediction is asked for and says: seconds and bytes of strategies on a machine, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from synth.base.tabular import Tabular
from synth.base.text_table import table
from synth.base.units import show_bytes
from synth.machine.hierarchy import Machine
from synth.network.graph import Network
from synth.network.step_time.calls import CallCost, call_costs, call_lines
from synth.prediction.oracle_setting import LayerCost, OracleSetting
from synth.prediction.profile import ComputeTimes

TIMES = ("forward", "backward", "update", "comm_forward", "comm_backward", "exchange")
FORWARD_TIMES = ("forward", "comm_forward")
HEADS = {"comm_forward": "comm fwd", "comm_backward": "comm bwd"}  # columns with other heads than their names


@dataclass(frozen=True)
class PredictionRequest:
    """A network on a machine: processes, samples per step, and the explicit inputs of the model.

    training: a training step, or a forward pass of inference, in which weights are resident.
    batch_norm: "local" or "global" statistics of batch normalizations in training, in every strategy.
    table3: price strategies as Table 3 of Kahira et al. does. Of it alone are: groups, p1 of a hybrid
    strategy, None to derive it; segments of a pipeline; flows, groups that share a link, None to derive them;
    reuse, the fraction of the plain memory that remains when buffers are reused.
    """

    network: Network
    machine: Machine
    compute_times: ComputeTimes
    procs: int
    batch: int
    groups: int | None = None
    segments: int = 8
    flows: float | None = None
    reuse: float = 1.0
    table3: bool = False
    batch_norm: str = "local"
    training: bool = True

    @property
    def times(self) -> tuple[str, ...]:
        """The seconds of a layer that there are."""
        return TIMES if self.training else FORWARD_TIMES

    @property
    def calls(self) -> list[CallCost]:
        """Calls that the planner does not cut; their seconds are in every row but Table 3's."""
        return [] if self.table3 else call_costs(self.network, self.procs, self.machine)

    @property
    def call_lines(self) -> list[str]:
        """A sentence about them; no line without them."""
        return call_lines(self.calls, self.training)

    @property
    def work(self) -> str:
        """What the seconds are of."""
        return "step" if self.training else "forward pass"

    def oracle_setting(self) -> OracleSetting:
        """The inputs of the oracle model: layers that have a loop nest, in order, with their times."""
        nodes = tuple(self.network.planned)
        samples = self.network.input[0]
        return OracleSetting(
            nodes=nodes,
            times=tuple(self.compute_times.times(node, samples) for node in nodes),
            machine=self.machine,
            procs=self.procs,
            batch=self.batch,
            file_samples=samples,
            word_bytes=self.network.word_bytes,
            groups=self.groups,
            segments=self.segments,
            flows=self.flows,
            reuse=self.reuse,
        )


@dataclass(frozen=True)
class Prediction(Tabular):
    """Seconds per step and bytes per rank of one strategy, per layer and in all.

    limit: ranks up to which the strategy scales; None for no limit. plan_bytes: bytes per rank of a plan,
    which are not the sum over layers; None in Table 3. whole: layers whose weights are whole on every rank.
    idle: how many ranks of the plan are idle, and why; "" where none is, and for other strategies.
    held_bytes: of the plan of a forward pass, the peak of a rank with all values that live at once.
    """

    request: PredictionRequest
    strategy: str
    rows: tuple[LayerCost, ...]
    limit: int | None
    limit_why: str
    detail: str = ""
    plan_bytes: int | None = None
    whole: int = 0
    idle: str = ""
    held_bytes: int | None = None

    @property
    def notes(self) -> list[str]:
        """Sentences about the plan: its idle ranks, and what a rank holds."""
        held = (
            f"at its peak a rank of `parallelize` holds {show_bytes(self.held_bytes)}"
            if self.held_bytes
            else ""
        )
        return [each for each in (held, self.idle) if each]

    @property
    def total(self) -> LayerCost:
        """All layers. A pipeline uses the bytes of its fullest stage, a plan its own bytes."""
        by_layer = (row.used_bytes for row in self.rows)
        used_bytes = max(by_layer) if self.strategy == "pipeline" else sum(by_layer)
        used_bytes = used_bytes if self.plan_bytes is None else self.plan_bytes
        sums = {name: sum(getattr(row, name) for row in self.rows) for name in TIMES}
        return LayerCost("total", **sums, used_bytes=used_bytes)

    @property
    def overlap(self) -> bool:
        """Whether communication hidden behind computing is left out; in Table 3 nothing overlaps."""
        return not self.request.table3

    @property
    def seconds(self) -> float:
        """Seconds per step."""
        return self.total.compute + self.total.comm

    def __str__(self) -> str:
        asked, total = self.request, self.total
        head = ["layer", *(HEADS.get(name, name) for name in asked.times), "memory"]
        rows = [head, *([row.name, *_cells(row, asked.times)] for row in (*self.rows, total))]
        limit = f"scales to {self.limit} ranks ({self.limit_why})" if self.limit else self.limit_why
        lines = [
            f"{asked.network.name} with {self.strategy}{self.detail} on {asked.procs} ranks of "
            f"{asked.machine.name}, {asked.batch} samples per {asked.work}",
            f"{limit}; {asked.compute_times.description}; {inputs(asked)}",
            "",
            *table(rows, right=range(1, len(head))),
            "",
            f"{self.seconds * 1e3:.4g} ms per {asked.work}: computing {total.compute * 1e3:.4g}, "
            f"communication {total.comm * 1e3:.4g}; times above in ms; "
            f"{show_bytes(int(total.used_bytes))} a rank",
            *asked.call_lines,
            *self.notes,
        ]
        return "\n".join(lines)

    def records(self) -> list[dict[str, Any]]:
        """A row per layer: seconds of each part, and bytes of `memory`."""
        return [_layer_json(row) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """`synth.prediction/1`; seconds and bytes."""
        return {
            "schema": "synth.prediction/1",
            "network": self.request.network.name,
            "machine": self.request.machine.name,
            "strategy": self.strategy,
            "pass": "training" if self.request.training else "forward",
            "overlap": self.overlap,
            "whole_weights": self.whole,
            "procs": self.request.procs,
            "batch": self.request.batch,
            "limit": self.limit,
            "limit_why": self.limit_why,
            "compute_source": self.request.compute_times.description,
            "seconds": self.seconds,
            "compute": self.total.compute,
            "communication": self.total.comm,
            "memory_bytes": self.total.used_bytes,
            "held_bytes": self.held_bytes,
            "idle": self.idle or None,
            "calls": [asdict(each) for each in self.request.calls],
            "layers": [_layer_json(row) for row in self.rows],
        }


def _layer_json(row: LayerCost) -> dict[str, Any]:
    fields = asdict(row)
    used_bytes = fields.pop("used_bytes")
    return {**fields, "memory": used_bytes}


def _cells(row: LayerCost, names: Sequence[str]) -> list[str]:
    times = [f"{getattr(row, name) * 1e3:.4g}" for name in names]
    return [*times, show_bytes(int(row.used_bytes)) if row.used_bytes else "-"]


def inputs(request: PredictionRequest) -> str:
    """The explicit inputs of the model, in words."""
    if not request.table3:
        norm = (
            f"{request.batch_norm} batch norm" if request.training else "resident weights, running batch norm"
        )
        return f"{norm}; one model for all rows, exposed communication only"
    flows = request.flows
    links = "flows derived from the groups" if flows is None else f"{flows:g} flows on every link"
    staged = any(level.staging_alpha or level.staging_beta for level in request.machine.levels)
    staging = "staging through host memory" if staged else "no staging"
    return f"Table 3 of Kahira et al., nothing overlaps; {links}, {staging}, memory reuse {request.reuse:g}"


@dataclass(frozen=True)
class Comparison(Tabular):
    """All strategies side by side. `refused` holds (strategy, reason) of those that cannot be used."""

    request: PredictionRequest
    predictions: tuple[Prediction, ...]
    refused: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        asked = self.request
        rows = [
            [
                "strategy",
                f"ms per {asked.work}",
                "computing",
                "communication",
                "whole weights",
                "memory",
                "limit",
            ]
        ]
        for each in sorted(self.predictions, key=lambda p: p.seconds):
            total = each.total
            times = [f"{t * 1e3:.4g}" for t in (each.seconds, total.compute, total.comm)]
            limit_bytes = asked.machine.limit_bytes
            exceeded = limit_bytes and total.used_bytes > limit_bytes
            memory = show_bytes(int(total.used_bytes))
            memory += f" > {show_bytes(limit_bytes)}" if limit_bytes and exceeded else ""
            limit = f"{each.limit} ranks" if each.limit else each.limit_why
            whole = "-" if asked.table3 else f"{each.whole} of {len(each.rows)}"
            rows.append([each.strategy + each.detail, *times, whole, memory, limit])
        head = f"{asked.network.name} on {asked.procs} ranks of {asked.machine.name}, "
        head += f"{asked.batch} samples per {asked.work}"
        source = f"{asked.compute_times.description}; {inputs(asked)}"
        calls = [f"\n{line}" for line in asked.call_lines]
        plans = (each for each in self.predictions if each.strategy == "plan")
        notes = [f"\nplan: {note}" for each in plans for note in each.notes]
        limits = [f"  {each.strategy}: {each.limit_why}" for each in self.predictions if each.limit]
        tail = ["\nlimits", *limits] if limits else []
        tail += ["\nleft out", *(f"  {why}" for _, why in self.refused)] if self.refused else []
        return "\n".join([head, source, "", *table(rows, right=[1, 2, 3, 4, 5]), *tail, *calls, *notes])

    def records(self) -> list[dict[str, Any]]:
        """A row per strategy, with seconds and `memory_bytes`; of one that cannot be used, `why`."""
        made = [each.to_json() for each in self.predictions]
        kept = ("strategy", "seconds", "compute", "communication", "whole_weights", "memory_bytes", "limit")
        return [
            *({key: each[key] for key in kept} | {"why": ""} for each in made),
            *({"strategy": name, "why": why} for name, why in self.refused),
        ]

    def to_json(self) -> dict[str, Any]:
        """`synth.predictions/1`: one object per strategy."""
        refused = [{"strategy": name, "why": why} for name, why in self.refused]
        made = [each.to_json() for each in self.predictions]
        return {"schema": "synth.predictions/1", "made": made, "refused": refused}
