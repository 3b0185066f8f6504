"""`synth predict`: one strategy layer by layer, or all of them side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from synth.base.errors import InfeasibleError, SynthError, UsageError
from synth.base.text_table import table
from synth.base.units import show_bytes
from synth.base.yaml_positions import did_you_mean
from synth.machine.hierarchy import Machine
from synth.network.graph import Network
from synth.prediction.oracle_model import STRATEGIES, Row, Setting, hybrid_split
from synth.prediction.profile import Source

OWN = {"stationary-x": "bgdhwc", "stationary-y": "bgdhwk", "stationary-w": "bgdhwck", "plan": ""}
NAMES = (*STRATEGIES, *OWN)


@dataclass(frozen=True)
class Question:
    """A network on a machine: processes, samples per step, and the explicit inputs of the model."""

    network: Network
    machine: Machine
    profile: Source
    procs: int
    batch: int
    groups: int | None = None
    segments: int = 8
    flows: float | None = None
    reuse: float = 1.0

    def setting(self) -> Setting:
        """The oracle's view: layers that have a loop nest, in order, with their times."""
        nodes = tuple(self.network.planned)
        samples = self.network.input[0]
        times = tuple(self.profile.times(node, samples) for node in nodes)
        return Setting(
            nodes,
            times,
            self.machine,
            self.procs,
            self.batch,
            samples,
            self.groups,
            self.segments,
            self.flows,
            self.reuse,
        )


@dataclass(frozen=True)
class Prediction:
    """Seconds per step and bytes per rank of one strategy, per layer and in all."""

    question: Question
    strategy: str
    rows: tuple[Row, ...]
    most: int | None  # ranks up to which the strategy scales
    why: str
    detail: str = ""
    held: int | None = None  # bytes per rank that a plan says, where layers do not simply add up

    @property
    def total(self) -> Row:
        """All layers; a pipeline holds what its fullest stage holds, a plan what it says."""
        memory = (row.used_bytes for row in self.rows)
        held = max(memory) if self.strategy == "pipeline" else sum(memory)
        held = held if self.held is None else self.held
        names = ("forward", "backward", "update", "comm_forward", "comm_backward", "exchange")
        sums = {name: sum(getattr(row, name) for row in self.rows) for name in names}
        return Row("total", **sums, used_bytes=held)

    @property
    def overlap(self) -> bool:
        """Whether communication that computing hides is left out; in Table 3 nothing overlaps."""
        return self.strategy in OWN

    @property
    def seconds(self) -> float:
        """Seconds per step."""
        return self.total.compute + self.total.comm

    def __str__(self) -> str:
        q = self.question
        head = ["layer", "forward", "backward", "update", "comm fwd", "comm bwd", "exchange", "memory"]
        rows = [head, *([row.name, *_cells(row)] for row in (*self.rows, self.total))]
        limit = f"scales to {self.most} ranks ({self.why})" if self.most else self.why
        lines = [
            f"{q.network.name} with {self.strategy}{self.detail} on {q.procs} ranks of {q.machine.name}, "
            f"{q.batch} samples per step",
            f"{limit}; {q.profile.said}; {_inputs(q)}",
            "",
            *table(rows, right=range(1, 8)),
            "",
            f"{self.seconds * 1e3:.4g} ms per step: computing {self.total.compute * 1e3:.4g}, communication "
            f"{self.total.comm * 1e3:.4g}; times above in ms; "
            f"{show_bytes(int(self.total.used_bytes))} a rank",
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """`synth.prediction/1`; seconds and bytes."""
        return {
            "schema": "synth.prediction/1",
            "network": self.question.network.name,
            "machine": self.question.machine.name,
            "strategy": self.strategy,
            "overlap": self.overlap,
            "procs": self.question.procs,
            "batch": self.question.batch,
            "limit": self.most,
            "limit_why": self.why,
            "compute_source": self.question.profile.said,
            "seconds": self.seconds,
            "compute": self.total.compute,
            "communication": self.total.comm,
            "memory_bytes": self.total.used_bytes,
            "layers": [vars(row) for row in self.rows],
        }


def _cells(row: Row) -> list[str]:
    times = (row.forward, row.backward, row.update, row.comm_forward, row.comm_backward, row.exchange)
    return [*(f"{t * 1e3:.4g}" for t in times), show_bytes(int(row.used_bytes)) if row.used_bytes else "-"]


def _inputs(q: Question) -> str:
    flows = "flows derived from the groups" if q.flows is None else f"{q.flows:g} flows on every link"
    staged = any(level.staging_alpha or level.staging_beta for level in q.machine.levels)
    return f"{flows}, {'staging through host memory' if staged else 'no staging'}, memory reuse {q.reuse:g}"


def predict(question: Question, strategy: str) -> Prediction:
    """One strategy. Raises `InfeasibleError` beyond its scaling limit, which the message names."""
    if strategy not in NAMES:
        raise UsageError(f"strategy {strategy!r} is unknown{did_you_mean(strategy, NAMES)}")
    if question.procs < 1 or question.batch < 1 or question.segments < 1:
        raise UsageError("procs, batch and segments must be at least 1")
    _checked(question)
    if strategy in OWN:
        return _own(question, strategy)
    setting, row = question.setting(), STRATEGIES[strategy]
    most, why = row.limit(setting)
    if question.procs > most:
        raise InfeasibleError(
            f"{strategy} scales to {most} ranks on {question.network.name} ({why}), not to {question.procs}; "
            f"use at most {most}"
        )
    if row.hybrid:
        p1, p2 = hybrid_split(setting)
        inner = STRATEGIES[strategy.removeprefix("data+")].limit(setting)[0]
        if p1 > question.batch or p2 > inner:
            remedy = "choose other --groups" if setting.groups else "take fewer --procs, or choose --groups"
            raise InfeasibleError(
                f"{strategy} as {p1} groups of {p2} needs at least {p1} samples and a width of {p2}, but has "
                f"{question.batch} and {inner}; {remedy}"
            )
        return Prediction(question, strategy, tuple(row.price(setting)), most, why, f" ({p1} groups of {p2})")
    detail = f" ({question.segments} segments)" if strategy == "pipeline" else ""
    return Prediction(question, strategy, tuple(row.price(setting)), most, why, detail)


def _checked(question: Question) -> None:
    if not 0 <= question.reuse <= 1:
        raise UsageError(f"reuse is {question.reuse:g}; it must be from 0 to 1")


def _own(question: Question, strategy: str) -> Prediction:
    """This project's plan per layer, or one of SC'19's stationary strategies, with redistributions."""
    from synth.machine.layer_time import LayerTimer
    from synth.network.planner.planner import plan_network
    from synth.network.planner.request import NetworkRequest
    from synth.schedule.distribution import Distribution
    from synth.schedule.memory import Footprints

    if question.batch != question.network.input[0]:
        raise UsageError(
            f"strategy {strategy} is for the {question.network.input[0]} samples of the network's file, not "
            f"for --batch {question.batch}; leave out --batch or change the file's input"
        )
    machine = _effective(question)
    asked = NetworkRequest(question.procs, "time", True, machine=machine, axes=OWN[strategy])
    made = plan_network(question.network, asked)
    moved: dict[str, float] = {}
    for edge, seconds in made.edge_costs.items():
        moved[edge.target] = moved.get(edge.target, 0.0) + seconds
    rows = []
    for node, placed, fit in zip(question.network.planned, made.placed_grids, made.tilings, strict=True):
        assert node.layer is not None
        footprints = Footprints(Distribution(node.layer.nest, placed.grid))
        timer = LayerTimer(machine, footprints, placed.order, node.weighted)
        ahead, *back = timer.passes(True)
        update = question.profile.times(node, question.network.input[0]).update / question.procs
        rows.append(
            Row(
                node.name,
                ahead.compute,
                sum(t.compute for t in back),
                update,
                ahead.exposed + moved.get(node.name, 0.0) / 2,
                sum(t.exposed for t in back[:1]) + moved.get(node.name, 0.0) / 2,
                sum(t.exposed for t in back[1:]),
                fit.used_words * node.layer.nest.word_bytes,
            )
        )
    why = "no limit of its own: every layer has its grid; exposed communication only"
    held = made.used_bytes
    return Prediction(question, strategy, tuple(rows), None, why, held=held)


def _effective(question: Question) -> Machine:
    """The machine at the rate that the profile reaches over the whole network."""
    samples = question.network.input[0]
    nodes = [n for n in question.network.planned if n.weighted]
    seconds = sum(t.forward + t.backward for t in (question.profile.times(n, samples) for n in nodes))
    operations = sum(6 * n.operations for n in nodes) / samples
    if seconds <= 0:
        return question.machine
    compute = replace(question.machine.compute, rate=operations / seconds)
    return replace(question.machine, compute=compute)


@dataclass(frozen=True)
class Comparison:
    """All strategies side by side; those that cannot be used say why."""

    question: Question
    made: tuple[Prediction, ...]
    refused: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        q = self.question
        rows = [["strategy", "ms per step", "computing", "communication", "overlap", "memory", "limit"]]
        for each in sorted(self.made, key=lambda p: p.seconds):
            total = each.total
            times = [f"{t * 1e3:.4g}" for t in (each.seconds, total.compute, total.comm)]
            most = q.machine.limit_bytes
            over = f" > {show_bytes(most)}" if most and total.used_bytes > most else ""
            limit = f"p <= {each.most} ({each.why})" if each.most else each.why
            times.append("yes" if each.overlap else "no")
            rows.append(
                [each.strategy + each.detail, *times, show_bytes(int(total.used_bytes)) + over, limit]
            )
        rows += [[name, "-", "-", "-", "-", "-", why] for name, why in self.refused]
        head = f"{q.network.name} on {q.procs} ranks of {q.machine.name}, {q.batch} samples per step"
        return "\n".join([head, f"{q.profile.said}; {_inputs(q)}", "", *table(rows, right=[1, 2, 3, 5])])

    def to_json(self) -> dict[str, Any]:
        """`synth.predictions/1`: one object per strategy."""
        refused = [{"strategy": name, "why": why} for name, why in self.refused]
        return {"schema": "synth.predictions/1", "made": [p.to_json() for p in self.made], "refused": refused}


def compare(question: Question) -> Comparison:
    """Every strategy that can be used, and why the others cannot."""
    _checked(question)
    made, refused = [], []
    for name in NAMES:
        try:
            made.append(predict(question, name))
        except SynthError as fault:
            refused.append((name, str(fault)))
    return Comparison(question, tuple(made), tuple(refused))
