"""`synth predict`: one strategy layer by layer, or all of them side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from synth.base.errors import InfeasibleError, SynthError, UsageError
from synth.base.text_table import table
from synth.base.units import show_bytes
from synth.base.yaml_positions import did_you_mean
from synth.machine.hierarchy import Machine
from synth.network.graph import Network
from synth.prediction.oracle_model import STRATEGIES, hybrid_split
from synth.prediction.oracle_setting import LayerCost, OracleSetting
from synth.prediction.profile import ComputeTimes

# strategies that this project plans itself -> the axes that their grids may split; "" for all axes
PLANNED = {"stationary-x": "bgdhwc", "stationary-y": "bgdhwk", "stationary-w": "bgdhwck", "plan": ""}
NAMES = (*STRATEGIES, *PLANNED)
TIMES = ("forward", "backward", "update", "comm_forward", "comm_backward", "exchange")


@dataclass(frozen=True)
class PredictionRequest:
    """A network on a machine: processes, samples per step, and the explicit inputs of the model.

    groups: p1 of a hybrid strategy; None to derive it. segments: of a pipeline. flows: groups that share a
    link; None to derive them. reuse: fraction of the plain memory that remains when buffers are reused.
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
class Prediction:
    """Seconds per step and bytes per rank of one strategy, per layer and in all.

    limit: ranks up to which the strategy scales; None for no limit. plan_bytes: bytes per rank of a plan,
    which are not the sum over layers; None for a strategy of the oracle.
    """

    request: PredictionRequest
    strategy: str
    rows: tuple[LayerCost, ...]
    limit: int | None
    limit_why: str
    detail: str = ""
    plan_bytes: int | None = None

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
        return self.strategy in PLANNED

    @property
    def seconds(self) -> float:
        """Seconds per step."""
        return self.total.compute + self.total.comm

    def __str__(self) -> str:
        asked, total = self.request, self.total
        head = ["layer", "forward", "backward", "update", "comm fwd", "comm bwd", "exchange", "memory"]
        rows = [head, *([row.name, *_cells(row)] for row in (*self.rows, total))]
        limit = f"scales to {self.limit} ranks ({self.limit_why})" if self.limit else self.limit_why
        lines = [
            f"{asked.network.name} with {self.strategy}{self.detail} on {asked.procs} ranks of "
            f"{asked.machine.name}, {asked.batch} samples per step",
            f"{limit}; {asked.compute_times.description}; {_inputs(asked)}",
            "",
            *table(rows, right=range(1, 8)),
            "",
            f"{self.seconds * 1e3:.4g} ms per step: computing {total.compute * 1e3:.4g}, communication "
            f"{total.comm * 1e3:.4g}; times above in ms; {show_bytes(int(total.used_bytes))} a rank",
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """`synth.prediction/1`; seconds and bytes."""
        return {
            "schema": "synth.prediction/1",
            "network": self.request.network.name,
            "machine": self.request.machine.name,
            "strategy": self.strategy,
            "overlap": self.overlap,
            "procs": self.request.procs,
            "batch": self.request.batch,
            "limit": self.limit,
            "limit_why": self.limit_why,
            "compute_source": self.request.compute_times.description,
            "seconds": self.seconds,
            "compute": self.total.compute,
            "communication": self.total.comm,
            "memory_bytes": self.total.used_bytes,
            "layers": [_layer_json(row) for row in self.rows],
        }


def _layer_json(row: LayerCost) -> dict[str, Any]:
    fields = asdict(row)
    used_bytes = fields.pop("used_bytes")
    return {**fields, "memory": used_bytes}


def _cells(row: LayerCost) -> list[str]:
    times = [f"{getattr(row, name) * 1e3:.4g}" for name in TIMES]
    return [*times, show_bytes(int(row.used_bytes)) if row.used_bytes else "-"]


def _inputs(request: PredictionRequest) -> str:
    """The explicit inputs of the model, in words."""
    flows = request.flows
    links = "flows derived from the groups" if flows is None else f"{flows:g} flows on every link"
    staged = any(level.staging_alpha or level.staging_beta for level in request.machine.levels)
    staging = "staging through host memory" if staged else "no staging"
    return f"{links}, {staging}, memory reuse {request.reuse:g}"


def predict(request: PredictionRequest, strategy: str) -> Prediction:
    """One strategy. Raises `InfeasibleError` beyond its scaling limit, which the message names.

    Raises `UsageError` for an unknown strategy or a number out of range.
    """
    strategy = strategy.lower()
    if strategy not in NAMES:
        raise UsageError(f"strategy {strategy!r} is unknown{did_you_mean(strategy, NAMES)}")
    if request.procs < 1 or request.batch < 1 or request.segments < 1:
        raise UsageError("procs, batch and segments must be at least 1")
    _check_reuse(request)
    if strategy in PLANNED:
        return _predict_planned(request, strategy)
    setting, row = request.oracle_setting(), STRATEGIES[strategy]
    limit, why = row.limit(setting)
    if request.procs > limit:
        raise InfeasibleError(
            f"{strategy} scales to {limit} ranks on {request.network.name} ({why}), not to {request.procs}; "
            f"use at most {limit}"
        )
    detail = f" ({request.segments} segments)" if strategy == "pipeline" else ""
    if row.hybrid:
        p1, p2 = hybrid_split(setting)
        _check_hybrid(setting, strategy, p1, p2)
        detail = f" ({p1} groups of {p2})"
    return Prediction(request, strategy, tuple(row.price(setting)), limit, why, detail)


def _check_hybrid(setting: OracleSetting, strategy: str, p1: int, p2: int) -> None:
    """Raises `InfeasibleError` if p1 groups have too few samples, or p2 ranks too little to split."""
    inner = STRATEGIES[strategy.removeprefix("data+")].limit(setting)[0]
    if p1 > setting.batch or p2 > inner:
        remedy = "choose other --groups" if setting.groups else "take fewer --procs, or choose --groups"
        raise InfeasibleError(
            f"{strategy} as {p1} groups of {p2} needs at least {p1} samples and a width of {p2}, but has "
            f"{setting.batch} and {inner}; {remedy}"
        )


def _check_reuse(request: PredictionRequest) -> None:
    if not 0 <= request.reuse <= 1:
        raise UsageError(f"reuse is {request.reuse:g}; it must be from 0 to 1")


def _predict_planned(request: PredictionRequest, strategy: str) -> Prediction:
    """This project's plan per layer, or a stationary strategy of Dryden et al. (SC'19), redistributed."""
    from synth.machine.layer_time import LayerTimer
    from synth.network.planner.planner import plan_network
    from synth.network.planner.request import NetworkRequest
    from synth.schedule.distribution import Distribution
    from synth.schedule.memory import Footprints

    samples = request.network.input[0]
    if request.batch != samples:
        raise UsageError(
            f"strategy {strategy} is for the {samples} samples of the network's file, not "
            f"for --batch {request.batch}; leave out --batch or change the file's input"
        )
    machine = _machine_at_profile_rate(request)
    plan = plan_network(
        request.network,
        NetworkRequest(request.procs, "time", True, machine=machine, axes=PLANNED[strategy]),
    )
    incoming: dict[str, float] = {}
    for edge, seconds in plan.edge_costs.items():
        incoming[edge.target] = incoming.get(edge.target, 0.0) + seconds
    rows = []
    for node, placed, tiling in zip(request.network.planned, plan.placed_grids, plan.tilings, strict=True):
        assert node.layer is not None
        footprints = Footprints(Distribution(node.layer.nest.turn(placed.turned), placed.grid))
        timer = LayerTimer(machine, footprints, placed.order, node.weighted)
        forward, *backward = timer.passes(True)
        moved = incoming.get(node.name, 0.0)
        rows.append(
            LayerCost(
                node.name,
                forward=forward.compute,
                backward=sum(t.compute for t in backward),
                update=request.compute_times.times(node, samples).update / request.procs,
                comm_forward=forward.exposed + moved / 2,
                comm_backward=sum(t.exposed for t in backward[:1]) + moved / 2,
                exchange=sum(t.exposed for t in backward[1:]),
                used_bytes=tiling.used_words * node.layer.nest.word_bytes,
            )
        )
    why = "no limit of its own: every layer has its grid; exposed communication only"
    return Prediction(request, strategy, tuple(rows), None, why, plan_bytes=plan.used_bytes)


def _machine_at_profile_rate(request: PredictionRequest) -> Machine:
    """The machine with the compute rate that the profile reaches over the whole network."""
    samples = request.network.input[0]
    nodes = [n for n in request.network.planned if n.weighted]
    times = [request.compute_times.times(n, samples) for n in nodes]
    seconds = sum(t.forward + t.backward for t in times)
    operations = sum(6 * n.operations for n in nodes) / samples
    if seconds <= 0:
        return request.machine
    compute = replace(request.machine.compute, rate=operations / seconds)
    return replace(request.machine, compute=compute)


@dataclass(frozen=True)
class Comparison:
    """All strategies side by side. `refused` holds (strategy, reason) of those that cannot be used."""

    request: PredictionRequest
    predictions: tuple[Prediction, ...]
    refused: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        asked = self.request
        rows = [["strategy", "ms per step", "computing", "communication", "overlap", "memory", "limit"]]
        for each in sorted(self.predictions, key=lambda p: p.seconds):
            total = each.total
            times = [f"{t * 1e3:.4g}" for t in (each.seconds, total.compute, total.comm)]
            limit_bytes = asked.machine.limit_bytes
            exceeded = limit_bytes and total.used_bytes > limit_bytes
            memory = show_bytes(int(total.used_bytes))
            memory += f" > {show_bytes(limit_bytes)}" if limit_bytes and exceeded else ""
            limit = f"p <= {each.limit} ({each.limit_why})" if each.limit else each.limit_why
            overlap = "yes" if each.overlap else "no"
            rows.append([each.strategy + each.detail, *times, overlap, memory, limit])
        rows += [[name, "-", "-", "-", "-", "-", why] for name, why in self.refused]
        head = f"{asked.network.name} on {asked.procs} ranks of {asked.machine.name}, "
        head += f"{asked.batch} samples per step"
        source = f"{asked.compute_times.description}; {_inputs(asked)}"
        return "\n".join([head, source, "", *table(rows, right=[1, 2, 3, 5])])

    def to_json(self) -> dict[str, Any]:
        """`synth.predictions/1`: one object per strategy."""
        refused = [{"strategy": name, "why": why} for name, why in self.refused]
        made = [each.to_json() for each in self.predictions]
        return {"schema": "synth.predictions/1", "made": made, "refused": refused}


def compare(request: PredictionRequest) -> Comparison:
    """Every strategy that can be used, and why the others cannot."""
    _check_reuse(request)
    predictions, refused = [], []
    for name in NAMES:
        try:
            predictions.append(predict(request, name))
        except SynthError as fault:
            refused.append((name, str(fault)))
    return Comparison(request, tuple(predictions), tuple(refused))
