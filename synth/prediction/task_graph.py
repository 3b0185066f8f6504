"""One step of a network plan as tasks: what every rank computes and sends, in program order.

Ranks are alike but for the size of their blocks, so two kinds stand for all: one with the largest block of
every layer and one with the smallest. The order is the emitted one: per layer and pass what moves between
layers, the halo, the stationary tensor, then panels of the streaming tensors while the previous panel
computes, then the reduction. Where the runtime prefetches, Ker of the next layer is gathered while a layer
computes, and the sums of dKer travel while the layer before computes its gradients. A layer with whole
weights has no moves of Ker. Its part of the all-reduces of buckets travels after its backward-filter pass.
With margins a layer computes rows of others as well and fetches no halo. Rows that it does not compute are
fetched once, after the layer whose value they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from synth.layer.axes import PerAxis
from synth.layer.passes import Pass
from synth.machine.collectives import Op, exchange_seconds
from synth.machine.hierarchy import Machine
from synth.machine.layer_time import OPS, LayerTimer, PassTime, compute_seconds
from synth.machine.many_groups import costs_on
from synth.machine.rank_groups import split_over
from synth.network.graph import Edge
from synth.network.margins.prices import SecondPrices
from synth.network.margins.row_graph import row_graph
from synth.network.margins.walk import walk
from synth.network.plan.plan import NetworkPlan
from synth.network.step_time.buckets import bucket_bytes
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_program import Gather, Loop, Reduce, Rows

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
        self.whole = {
            node.name for node, whole in zip(plan.network.planned, plan.whole, strict=True) if whole
        }
        self.hides = plan.request.hides and not plan.request.resident_weights
        self.brought: dict[str, tuple[int, ...]] = {}  # layer -> the prefetch of its Ker
        self.waiting: list[Callable[[], object]] = []  # tasks to add beside the next computing
        self.margins = _Margins(plan, machine) if plan.margins is not None else None
        covered = self.margins.covered if self.margins and plan.request.training else frozenset()
        self.copied = covered - self.whole  # of which no bucket sums the gradients
        self.whole |= covered

    def tasks(self) -> list[Task]:
        nodes = list(zip(self.plan.network.planned, self.plan.placed_grids, strict=True))
        resident = self.plan.request.resident_of
        timers = {
            node.name: LayerTimer(
                self.machine,
                Footprints(
                    Distribution(
                        node.layer.nest.turn(placed.turned),
                        placed.grid,
                        resident=resident(node.name in self.whole),
                    )
                ),
                placed.order,
                node.weighted,
                saved=self.plan.request.saves,
                steps=kind.passes(True),
            )
            for (node, placed), kind in zip(nodes, self.plan.layer_classes, strict=True)
            if node.layer
        }
        self.first = self._rows_of_others(None, ())
        for index, (node, _) in enumerate(nodes):
            if self.hides and index == 0:
                self._prefetch(node.name, timers[node.name])
            for later, _ in nodes[index + 1 : index + 2] if self.hides else ():
                self.waiting.append(partial(self._prefetch, later.name, timers[later.name]))
            self._layer(node.name, timers[node.name], 0)
        if self.plan.request.training:
            ahead, self.last = self.last, {}
            self.after = ahead[nodes[-1][0].name]
            for node, _ in reversed(nodes):
                for number in range(1, len(timers[node.name].wanted(True))):
                    self._layer(node.name, timers[node.name], number)
            first = nodes[0][0].name
            if first in self.last:
                self._rows_of_others(None, (self.last[first],), backward=True)
        self.add_waiting()
        return self.made

    def add_waiting(self) -> None:
        """Add the moves of Ker that computing may hide."""
        waiting, self.waiting = self.waiting, []
        for add in waiting:
            add()

    def _prefetch(self, name: str, timer: LayerTimer) -> None:
        size, group = timer.sizes["Ker"], timer.groups["Ker"]
        if timer.travels("Ker") and group.size > 1 and name not in self.whole:
            made = costs_on(self.machine)("all_gather", size, group)
            task = Task(f"{name} Ker prefetch", "network", (made.seconds,) * 2, (), made.bytes_at, name)
            self.brought[name] = (self._add(task),)

    def _bucket(self, name: str, timer: LayerTimer, last: int) -> None:
        """The part of a layer with whole weights in the all-reduces of full buckets; see `LayerTimes`."""
        full = bucket_bytes(self.machine, self.plan.request.procs)
        made = costs_on(self.machine)("all_reduce", float(full), timer.groups["Ker"])
        part = timer.sizes["Ker"] / full
        sent = tuple(each * part for each in made.bytes_at)
        self._add(Task(f"{name} Ker bucket", "network", (made.seconds * part,) * 2, (last,), sent, name))

    def _add(self, task: Task) -> int:
        self.made.append(task)
        return len(self.made) - 1

    def _moved(self, name: str, backward: bool) -> list[int]:
        """Redistributions into a layer (forward), or of gradients from the layers after it."""
        tasks = []
        for edge in self._edges(backward):
            mine, other = (edge.source, edge.target) if backward else (edge.target, edge.source)
            if mine == name != other and other in self.last:
                tasks.append(self._exchange(edge, (self.last[other],), name))
        return tasks

    def _moved_behind(self, name: str, backward: bool, needs: tuple[int, ...]) -> tuple[int, ...]:
        """What moves between a layer and the next: rows of reindexings, parts of reductions."""
        for edge in self._edges(backward):
            if edge.source == edge.target == name and self.plan.edge_words[edge]:
                needs = (self._exchange(edge, needs, name),)
        return needs

    def _edges(self, backward: bool) -> list[Edge]:
        """The edges over which something moves in the forward pass, or on the way back."""
        edges, returns = self.plan.edge_costs, self.plan.request.sends_gradient_back
        return [edge for edge in edges if not backward or returns(edge)]

    def _exchange(self, edge: Edge, needs: tuple[int, ...], layer: str) -> int:
        """The task of an edge in one pass."""
        share = self.plan.edge_costs[edge] / (2 if self.plan.request.sends_gradient_back(edge) else 1)
        if self.plan.request.objective == "words":
            share = self._exchange_seconds(self.plan.edge_bytes(edge))
        sent = [0.0] * len(self.machine.levels)
        if self.plan.edge_words[edge]:
            outermost = split_over(self.machine, self.plan.request.procs).units()[-1][0]
            sent[outermost] = float(self.plan.edge_bytes(edge))
        title = f"{edge.source} -> {edge.target}"
        return self._add(Task(title, "network", (share, share), needs, tuple(sent), layer))

    def _exchange_seconds(self, size: int) -> float:
        """Seconds of one exchange of all ranks on the outermost level, `size` bytes per rank."""
        group = split_over(self.machine, self.plan.request.procs)
        return exchange_seconds(self.machine, size, group)

    def _layer(self, name: str, timer: LayerTimer, number: int) -> None:
        """The tasks of one pass of a layer: a walk over its schedule tree."""
        time = timer.passed(timer.wanted(True)[number])
        before = tuple(self._moved(name, number > 0)) if number < 2 else (self.last[name],)
        if not before:
            before = (self.after,) if number else self.first
        if number == 1:
            before = self._rows_of_others(name, self._moved_behind(name, True, before), backward=True)
        last = _PassTasks(self, name, timer, time).added(before, self.hides and number == 0)
        if not number:
            (last,) = self._rows_of_others(name, self._moved_behind(name, False, (last,)))
        self.last[name] = last
        if time.pass_ == "backward-filter" and name in self.copied:
            self.last[name] = self._sums_of_copies(name, timer, last)
        elif time.pass_ == "backward-filter" and name in self.whole:
            self.waiting.append(partial(self._bucket, name, timer, last))

    def _sums_of_copies(self, name: str, timer: LayerTimer, last: int) -> int:
        """The gradients of a layer with margins are added at their owners, and return to all ranks."""
        size, group = timer.sizes["Ker"], timer.groups["Ker"]
        if group.size == 1 or not self.plan.network.nodes[name].weighted:
            return last
        ops: tuple[Op, ...] = ("reduce_scatter", "all_gather")
        for made in (costs_on(self.machine)(op, size, group) for op in ops):
            sent = made.bytes_at
            last = self._add(Task(f"{name} Ker sums", "network", (made.seconds,) * 2, (last,), sent, name))
        return last

    def _rows_of_others(
        self, layer: str | None, needs: tuple[int, ...], backward: bool = False
    ) -> tuple[int, ...]:
        """Rows of others behind a layer, or of the network's input (None): computed, then fetched.

        backward: their gradients return, then those of what was computed are made.
        """
        for more in self.margins.behind(layer, backward) if self.margins else ():
            name, work, fetched, words = more
            made = list[Task]()
            back = " back" * backward
            if work:
                made.append(
                    Task(f"{name} rows of others{back}", "compute", (work,) * 2, (), (), layer or name)
                )
            if words:
                sent = [0.0] * len(self.machine.levels)
                outermost = split_over(self.machine, self.plan.request.procs).units()[-1][0]
                sent[outermost] = float(words * self.plan.word_bytes)
                task = Task(f"{name} rows{back}", "network", (fetched,) * 2, (), tuple(sent), layer or name)
                made.append(task)
            for task in reversed(made) if backward else made:
                task.needs = needs
                needs = (self._add(task),)
        return needs


class _Margins:
    """What margins of a plan add to its layers."""

    def __init__(self, plan: NetworkPlan, machine: Machine) -> None:
        assert plan.margins is not None
        self.covered, self.network, self.back = plan.margins.layers, plan.network, plan.margins.back
        graph = row_graph(plan.network, plan.placed_grids, plan.request.procs)
        kinds = zip(plan.network.planned, plan.layer_classes, strict=True)
        passes = {node.name: kind.passes(True) for node, kind in kinds} if plan.request.training else None
        self.walked = walk(graph, plan.margins.rows)
        self.prices = SecondPrices(plan.network, machine, passes)

    def behind(self, layer: str | None, backward: bool = False) -> Iterator[tuple[str, float, float, int]]:
        """Tensors of a layer: name, seconds of computing and of fetching rows of others, fetched words.

        As of own rows, only layers with a loop nest take time to compute. backward: of the gradients.
        """
        graph = self.walked.graph
        for name, tensor in reversed(graph.items()) if backward else graph.items():
            boxes = self.walked.boxes[name]
            if self.network.parts[name][0].node == layer:
                more = name == layer and tensor.covered
                work = float(self.prices.computed(tensor, boxes.computed)[backward][0]) if more else 0.0
                fetched = float(self.prices.fetching(tensor, *boxes)[0])
                words = self.back.get(name, 0) if backward else int(self.walked.fetched(name).max())
                yield name, work, fetched, words


class _PassTasks:
    """Adds the tasks of one pass, node by node of its schedule tree, in program order."""

    def __init__(self, lister: _Lister, layer: str, timer: LayerTimer, time: PassTime) -> None:
        self.add, self.machine, self.layer, self.timer = lister._add, lister.machine, layer, timer
        self.lister = lister
        self.covered = lister.margins is not None and layer in lister.margins.covered
        self.program = timer.program(time.pass_, time.stationary, time.panels)
        self.pass_, self.panels, self.title = time.pass_, time.panels, f"{layer} {time.pass_}"

    def added(self, before: tuple[int, ...], prefetched: bool) -> int:
        """Add all tasks after those of `before`; returns the last one. prefetched: whether Ker was."""
        last, needs = before[-1] if before else 0, before
        self.prefetched = prefetched
        if prefetched:
            needs = (*needs, *self.lister.brought.get(self.layer, ()))
        for node in self.program.top():
            match node:
                case Rows(direction="fetch") if not self.covered:
                    fetched = self._rows(node, before)
                    before, needs = fetched, (*fetched, *needs[len(before) :])
                case Rows() if not self.covered:
                    (last,) = self._rows(node, (last,))
                case Gather() if self._moves(node):
                    needs = (*needs, self._collective(node, before, "gather"))
                case Loop():
                    last = self._loop(node, before, needs)
                case Reduce(tensor="Ker") if self.lister.hides:
                    self.lister.waiting.append(partial(self._collective, node, (last,), "late sums", 1))
                case Reduce() if self.timer.travels(node.tensor):
                    last = self._collective(node, (last,), "reduce")
        return last

    def _moves(self, node: Gather | Reduce) -> bool:
        return self.timer.travels(node.tensor) and not (self.prefetched and node.tensor == "Ker")

    def _loop(self, loop: Loop, before: tuple[int, ...], ready: tuple[int, ...]) -> int:
        work, last = _computed(self.timer, self.pass_, self.panels), 0
        gathers = [node for node in loop.gathers if self._moves(node)]
        for panel in range(self.panels):
            brought = [self._collective(node, before, f"panel {panel}") for node in gathers]
            needs = (*ready, *brought)
            if panel == 0:
                self.lister.add_waiting()
            last = self.add(Task(f"{self.title} panel {panel}", "compute", work, needs, (), self.layer))
            for node in loop.reduces:
                if node.tensor == "Ker" and self.lister.hides:
                    if panel == self.panels - 1:
                        late = partial(self._collective, node, (last,), "late sums", 1)
                        self.lister.waiting.append(late)
                elif self.timer.travels(node.tensor):
                    last = self._collective(node, (last,), f"reduce {panel}")
        return last

    def _rows(self, node: Rows, needs: tuple[int, ...]) -> tuple[int, ...]:
        timer, sent = self.timer, [0.0] * len(self.machine.levels)
        took = timer.halo_seconds((node,))
        if not took:
            return needs
        sent[0] = float(timer.halo_words(node) * timer.nest.word_bytes)
        seconds = (took,) * 2
        return (self.add(Task(f"{self.title} halo", "network", seconds, needs, tuple(sent), self.layer)),)

    def _collective(
        self, node: Gather | Reduce, needs: tuple[int, ...], label: str, pieces: int | None = None
    ) -> int:
        pieces = pieces or (self.panels if node.scope == "panel" else 1)
        size, group = self.timer.sizes[node.tensor] / pieces, self.timer.groups[node.tensor]
        made = costs_on(self.machine)(OPS[type(node)], size, group)
        title = f"{self.title} {node.tensor} {label}"
        return self.add(Task(title, "network", (made.seconds,) * 2, needs, made.bytes_at, self.layer))


def _computed(timer: LayerTimer, pass_: Pass, panels: int) -> tuple[float, float]:
    """Seconds of one panel for the largest and for the smallest block."""
    nest, grid = timer.nest, timer.grid
    least = PerAxis(*(max(1, n // p) for n, p in zip(nest.extents, grid, strict=True)))
    overhead = timer.machine.compute.overhead
    seconds = (
        compute_seconds(timer.machine, nest, w, timer.weighted, pass_) - overhead for w in (timer.work, least)
    )
    most, few = (each / panels + overhead for each in seconds)
    return most, few
