"""An event-driven replay of a network plan on a machine model, for up to a million ranks.

Ranks differ only in the size of their blocks. So two ranks represent all: one with the largest block of
every layer, one with the smallest. Each has two streams, compute and network. A task starts when the tasks
that it needs are done and its stream is free. A collective also waits for the slower of the two ranks. Links
carry the bytes that the algorithms of the collectives send per level.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.base.text_table import table
from synth.machine.hierarchy import Machine
from synth.network.plan.plan import NetworkPlan
from synth.prediction.task_graph import Task, tasks_of

RANKS = ("largest block", "smallest block")


@dataclass(frozen=True)
class Replay:
    """A replayed plan. `tasks` contain their start and end for both representative ranks."""

    plan: NetworkPlan
    machine: Machine
    tasks: tuple[Task, ...]

    @property
    def seconds(self) -> float:
        """From the first task to the last."""
        return max((max(task.end) for task in self.tasks), default=0.0)

    @cached_property
    def computing(self) -> float:
        """Seconds for which the rank with the largest blocks computes."""
        return sum(task.seconds[0] for task in self.tasks if task.stream == "compute")

    @property
    def exposed(self) -> float:
        """Seconds for which the rank with the largest blocks does not compute."""
        return self.seconds - self.computing

    @cached_property
    def link_bytes(self) -> tuple[float, ...]:
        """Per level, the bytes over the busiest link: those sent by the ranks of a unit, over its links."""
        procs, loads = self.plan.request.procs, []
        for index, level in enumerate(self.machine.levels):
            sent = sum(task.sent[index] for task in self.tasks if task.sent)
            inside = self.machine.inner(index, procs)
            loads.append(sent * inside / (level.links or inside))
        return tuple(loads)

    @property
    def link_busy(self) -> tuple[float, ...]:
        """Per level, the fraction of the replay for which the busiest link is busy at its nominal rate."""
        levels = zip(self.link_bytes, self.machine.levels, strict=True)
        return tuple(load * level.beta / self.seconds if self.seconds else 0.0 for load, level in levels)

    @property
    def working(self) -> tuple[int, int]:
        """Ranks that work in the layer that uses fewest, and in the layer that uses most."""
        used = [placed.grid.size for placed in self.plan.placed_grids]
        return min(used), max(used)

    @property
    def at_work(self) -> str:
        """How many ranks work, and what they hold of weights, as a sentence."""
        least, most = self.working
        asked = self.plan.request
        used = f"{most}" if least == most else f"{least} to {most}"
        said = f"ranks at work in a layer: {used} of {asked.procs}"
        if asked.training:
            whole = f"whole in {sum(self.plan.whole)} of {len(self.plan.whole)} layers"
            sharded = f"in shards; {option('whole_weights', True)} allows whole ones, as `predict` does"
            said += f"; weights {whole if asked.whole_weights else sharded}"
        return said

    @property
    def pass_(self) -> str:
        """What is replayed."""
        return "training step" if self.plan.request.training else "forward pass"

    @property
    def left_out(self) -> list[str]:
        """What the seconds of the plan have that a replay has not; no line for a plan for words."""
        if self.plan.timed is None:
            return []
        return [
            f"the plan counts {self.plan.show_cost(self.plan.cost)}: a replay leaves out normalizations, "
            "activations and other calls between layers"
        ]

    def __str__(self) -> str:
        rows = [["level", "bytes on the busiest link", "busy"]]
        for level, load, share in zip(self.machine.levels, self.link_bytes, self.link_busy, strict=True):
            rows.append([level.name, f"{load:.4g}", f"{share:.1%}"])
        asked = self.plan.request
        return "\n".join(
            [
                f"{self.plan.network.name} on {asked.procs} ranks of {self.machine.name}, {self.pass_}: "
                f"{self.seconds * 1e3:.4g} ms = computing {self.computing * 1e3:.4g} + exposed "
                f"{self.exposed * 1e3:.4g}, {len(self.tasks)} tasks",
                self.at_work,
                *self.left_out,
                *table(rows, right=[1, 2]),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """`synth.replay/1`; seconds and bytes."""
        names = [level.name for level in self.machine.levels]
        return {
            "schema": "synth.replay/1",
            "network": self.plan.network.name,
            "procs": self.plan.request.procs,
            "pass": "training" if self.plan.request.training else "forward",
            "planned_seconds": self.plan.cost if self.plan.timed else None,
            "working_procs": list(self.working),
            "whole_weights": sum(self.plan.whole),
            "machine": self.machine.name,
            "seconds": self.seconds,
            "computing": self.computing,
            "exposed": self.exposed,
            "link_bytes": dict(zip(names, self.link_bytes, strict=True)),
            "link_busy": dict(zip(names, self.link_busy, strict=True)),
            "tasks": len(self.tasks),
        }

    def chrome_trace(self) -> dict[str, Any]:
        """The tasks as a Chrome trace, which Perfetto opens; times in microseconds."""
        events: list[dict[str, Any]] = []
        for kind, name in enumerate(RANKS):
            events.append({"ph": "M", "pid": kind, "name": "process_name", "args": {"name": name}})
            for number, stream in enumerate(("compute", "network")):
                args = {"name": stream}
                events.append({"ph": "M", "pid": kind, "tid": number, "name": "thread_name", "args": args})
        for task, kind in itertools.product(self.tasks, range(2)):
            if task.seconds[kind] > 0:
                events.append(
                    {
                        "ph": "X",
                        "pid": kind,
                        "tid": 0 if task.stream == "compute" else 1,
                        "name": task.name,
                        "cat": task.layer,
                        "ts": task.start[kind] * 1e6,
                        "dur": (task.end[kind] - task.start[kind]) * 1e6,
                    }
                )
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def replay(plan: NetworkPlan) -> Replay:
    """Replay a plan on the machine that it was made for. Raises `UsageError` if it was made for none."""
    machine = plan.request.machine
    if machine is None:
        raise UsageError(f"a replay needs a machine; plan with one, {option('machine', 'lassen')}")
    tasks = tasks_of(plan, machine)
    run(tasks)
    return Replay(plan, machine, tuple(tasks))


def run(tasks: list[Task]) -> None:
    """Compute start and end of every task. Streams take their tasks in the order of the list."""
    queues: dict[tuple[int, str], Iterator[int]] = {}
    for kind, stream in itertools.product(range(2), ("compute", "network")):
        queues[kind, stream] = iter([i for i, task in enumerate(tasks) if task.stream == stream])
    heads = {key: next(queue, None) for key, queue in queues.items()}
    free = dict.fromkeys(queues, 0.0)
    events: list[tuple[float, int, int]] = []  # end, task, kind
    done: list[list[bool]] = [[False, False] for _ in tasks]

    def begin() -> bool:
        """Start every task at the head of a stream if its needs are met; returns whether one started."""
        started = False
        for (kind, stream), head in list(heads.items()):
            alone = stream == "compute"
            kinds = (kind,) if alone else (0, 1)
            if head is None or not (alone or (kind == 0 and heads[1, stream] == head)):
                continue
            task, needs = tasks[head], tasks[head].needs
            if not all(done[n][each] for n in needs for each in kinds):
                continue
            ends = [tasks[n].end[each] for n in needs for each in kinds]
            ready = max([*(free[each, stream] for each in kinds), *ends])
            for each in kinds:
                task.start[each], task.end[each] = ready, ready + task.seconds[each]
                heapq.heappush(events, (task.end[each], head, each))
                free[each, stream] = task.end[each]
                heads[each, stream] = next(queues[each, stream], None)
            started = True
        return started

    while True:
        while begin():
            pass
        if not events:
            return
        _, task, kind = heapq.heappop(events)
        done[task][kind] = True
