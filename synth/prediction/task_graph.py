"""One step of a network plan as tasks: what every rank computes and sends, in program order.

Ranks are alike but for the size of their blocks, so two kinds stand for all: one with the largest block of
every layer and one with the smallest. The order is the emitted one: per layer and pass what moves between
layers, the halo, the stationary tensor, then panels of the streaming tensors while the previous panel
computes, then the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from synth.layer.axes import PerAxis
from synth.machine.hierarchy import Machine
from synth.machine.layer_time import LayerTimer, PassTime, collective, compute_seconds
from synth.machine.rank_groups import split_over
from synth.network.planner.plan import NetworkPlan
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints

Stream = Literal["compute", "network"]


@dataclass
class Task:
    """Work on one stream of every rank; `seconds` per kind of rank, `sent` bytes per rank and level."""

    name: str
    stream: Stream
    seconds: tuple[float, float]
    needs: tuple[int, ...] = ()
    sent: tuple[float, ...] = ()
    layer: str = ""
    start: list[float] = field(default_factory=lambda: [-1.0, -1.0])
    end: list[float] = field(default_factory=lambda: [-1.0, -1.0])


def tasks_of(plan: NetworkPlan, machine: Machine) -> list[Task]:
    """The tasks of a step of a plan on a machine, in program order: forward, or forward and back."""
    return _Lister(plan, machine).tasks()


class _Lister:
    def __init__(self, plan: NetworkPlan, machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.made: list[Task] = []
        self.last: dict[str, int] = {}  # layer -> its last task so far

    def tasks(self) -> list[Task]:
        nodes = list(zip(self.plan.network.planned, self.plan.placed_grids, strict=True))
        timers = {
            node.name: LayerTimer(
                self.machine,
                Footprints(Distribution(node.layer.nest, placed.grid)),
                placed.order,
                node.weighted,
                steps=kind.passes(True),
            )
            for (node, placed), kind in zip(nodes, self.plan.layer_classes, strict=True)
            if node.layer
        }
        for node, _ in nodes:
            self._layer(node.name, timers[node.name], 0)
        if self.plan.request.training:
            ahead, self.last = self.last, {}
            self.after = ahead[nodes[-1][0].name]
            for node, _ in reversed(nodes):
                for number in range(1, len(timers[node.name].wanted(True))):
                    self._layer(node.name, timers[node.name], number)
        return self.made

    def _add(self, task: Task) -> int:
        self.made.append(task)
        return len(self.made) - 1

    def _moved(self, name: str, backward: bool) -> list[int]:
        """Redistributions into a layer (forward), or of gradients from the layers after it."""
        tasks = []
        for edge, seconds in self.plan.edge_costs.items():
            mine, other = (edge.source, edge.target) if backward else (edge.target, edge.source)
            if mine != name or other not in self.last:
                continue
            both = self.plan.request.sends_gradient_back(edge)
            if backward and not both:
                continue
            share = seconds / 2 if both else seconds
            if self.plan.request.objective == "words":
                share = self._exchange_seconds(self.plan.edge_bytes(edge))
            sent = [0.0] * len(self.machine.levels)
            if self.plan.edge_words[edge]:
                outermost = split_over(self.machine, self.plan.request.procs).units()[-1][0]
                sent[outermost] = float(self.plan.edge_bytes(edge))
            title = f"{edge.source} -> {edge.target}"
            tasks.append(
                self._add(Task(title, "network", (share, share), (self.last[other],), tuple(sent), name))
            )
        return tasks

    def _exchange_seconds(self, size: int) -> float:
        """Seconds of one exchange of all ranks on the outermost level, `size` bytes per rank."""
        group = split_over(self.machine, self.plan.request.procs)
        if not size or not group.units():
            return 0.0
        level, _ = group.units()[-1]
        return self.machine.levels[level].message(float(size), group.shared(level))

    def _layer(self, name: str, timer: LayerTimer, number: int) -> None:
        pass_ = timer.wanted(True)[number]
        time = timer.passed(pass_)
        before = tuple(self._moved(name, number > 0)) if number < 2 else (self.last[name],)
        if number and not before:
            before = (self.after,)
        if timer.halo_seconds:
            sent = [0.0] * len(self.machine.levels)
            sent[0] = float(timer.halo_words() * timer.nest.word_bytes)
            seconds = timer.halo_seconds
            title = f"{name} {pass_} halo"
            before = (self._add(Task(title, "network", (seconds, seconds), before, tuple(sent), name)),)
        self.last[name] = self._panels(name, timer, time, before)

    def _panels(self, name: str, timer: LayerTimer, time: PassTime, before: tuple[int, ...]) -> int:
        travels = timer.travels(time.pass_)
        reads = [t for t, op in travels.items() if op == "all_gather"]
        writes = [t for t, op in travels.items() if op == "reduce_scatter"]
        title = f"{name} {time.pass_}"

        def travel(tensor: Any, pieces: int, needs: tuple[int, ...], label: str) -> int:
            made = collective(
                self.machine, travels[tensor], timer.sizes[tensor] / pieces, timer.groups[tensor]
            )
            return self._add(
                Task(f"{title} {tensor} {label}", "network", (made.seconds,) * 2, needs, made.bytes_at, name)
            )

        stays = time.stationary
        ready = [travel(t, 1, before, "gather") for t in reads if t == stays]
        work = _computed(timer, time.panels)
        last = before[-1] if before else 0
        for panel in range(time.panels):
            brought = [travel(t, time.panels, before, f"panel {panel}") for t in reads if t != stays]
            needs = (*before, *ready, *brought)
            last = self._add(Task(f"{title} panel {panel}", "compute", work, needs, (), name))
            for tensor in (t for t in writes if t != stays):
                last = travel(tensor, time.panels, (last,), f"reduce {panel}")
        for tensor in (t for t in writes if t == stays):
            last = travel(tensor, 1, (last,), "reduce")
        return last


def _computed(timer: LayerTimer, panels: int) -> tuple[float, float]:
    """Seconds of one panel for the largest and for the smallest block."""
    nest, grid = timer.nest, timer.grid
    least = PerAxis(*(max(1, n // p) for n, p in zip(nest.extents, grid, strict=True)))
    overhead = timer.machine.compute.overhead
    seconds = (
        compute_seconds(timer.machine, nest, w, timer.weighted) - overhead for w in (timer.work, least)
    )
    most, few = (each / panels + overhead for each in seconds)
    return most, few
