"""Random problems from a seed, the same in every run: layers, plans of any kind, requests to the planner.

Hypothesis searches for small failing cases; these are for what takes too long for that: real ranks, emitted
programs, thousands of problems in parallel.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from typing import Any

from synth.base.errors import InfeasibleError
from synth.layer.axes import AXES, TENSORS, Axis, PerAxis, Tensor, placement
from synth.layer.layer import Layer, LayerError
from synth.layer.passes import TASKS, Task, sequences
from synth.planning.decisions import STATIONARY
from synth.planning.derive import plan
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan
from synth.search.training_step import pass_templates


def random_layer(rng: random.Random, least: int, most: int) -> Layer:
    """Any kind of layer with extents from `least` to about `most`: strides, dilations, paddings, groups."""
    dims = rng.choice([0, 1, 2, 2, 3])
    if dims == 0:
        return Layer.matmul(*(rng.randint(least, most) for _ in range(3)))
    make = (Layer.conv1d, Layer.conv2d, Layer.conv3d)[dims - 1]
    while True:
        groups = rng.choice([1, 1, 1, 2, 3])
        size = [rng.randint(least, 2 + (most if dims < 3 else most // 2)) for _ in range(dims)]
        channels, filters = (groups * rng.randint(1, min(most, 4)) for _ in range(2))
        rest = {
            "stride": [rng.choice([1, 1, 2, 3]) for _ in range(dims)],
            "padding": [rng.choice([0, 1, 2]) for _ in range(dims)],
            "dilation": [rng.choice([1, 1, 2]) for _ in range(dims)],
        }
        kernel = [rng.randint(1, 4) for _ in range(dims)]
        try:
            return make([rng.randint(1, 4), channels, *size], filters, kernel, groups=groups, **rest)  # type: ignore[arg-type]
        except LayerError:
            continue


# -- plans, good or bad ---------------------------------------------------------------------------------


def random_plan(rng: random.Random, task: Task = "forward") -> Plan:
    """A plan of a random layer on up to eight ranks: any grid, any pass plan, however bad."""
    layer = random_layer(rng, 3, 12)
    extents = layer.nest.extents
    while True:
        grid = PerAxis(*(rng.choice([1, 1, 1, 2, 2, 3, 4]) for _ in AXES))
        if grid.size <= 8 and all(p <= n for p, n in zip(grid, extents, strict=True)):
            break
    blocks = [-(-n // p) for n, p in zip(extents, grid, strict=True)]
    saved = frozenset(t for t in TENSORS if task == "training" and rng.random() < 0.7)
    gradients: tuple[Tensor, ...] = rng.choice([("In", "Ker"), ("In", "Ker"), ("Ker",), ("In",)])
    sequence = rng.choice(sequences(gradients=gradients)) if task == "training" else (task,)
    templates = pass_templates(saved, sequence)
    first, *later = (_tiled(rng, blocks, each) for each in templates)
    order = placement(grid, rng.sample(AXES, len(AXES)) if rng.random() < 0.5 else AXES)
    return Plan(layer, grid.size, grid, first, later=tuple(later), order=order)


def _tiled(rng: random.Random, blocks: list[int], template: PassPlan) -> PassPlan:
    """A stationary tensor and tiles, in any number."""
    counts = PerAxis(*(rng.choice([1, 1, 1, 2, 3]) for _ in AXES))._replace(g=1)
    counts = PerAxis(*(min(t, b) for t, b in zip(counts, blocks, strict=True)))
    stationary: Tensor = rng.choice(["Out", "Ker", "In"])
    if template.reuses | template.saves and rng.random() < 0.5:
        axis: Axis = {"Out": "c", "In": "k", "Ker": "b"}[stationary]  # type: ignore[assignment]
        most = min(3, blocks[AXES.index(axis)])
        counts = PerAxis().with_(axis, rng.randint(1, most))  # what is saved may stream, or comes whole
    return replace(template, stationary=stationary, counts=counts, swapped=rng.random() < 0.5)


# -- problems for the planner ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """What is asked of the planner; `memory` is a share of what the plan takes without a limit."""

    layer: dict[str, Any]
    procs: int
    pass_: str
    stationary: str
    memory: float | None
    balance: float
    exact: bool
    grid: dict[str, int]

    def planned(self) -> Plan:
        """The plan; where the memory is too little, the plan within the least that would do."""
        layer = Layer.from_json(self.layer, "problem", "random")
        asked: dict[str, Any] = {
            "stationary": self.stationary,
            "grid": self.grid,
            "balance": self.balance,
            "exact_procs": self.exact,
            "pass_": self.pass_,
        }
        free = plan(layer, self.procs, **asked)
        if self.memory is None:
            return free
        limit = max(layer.nest.word_bytes, int(free.used_bytes * self.memory))
        try:
            return plan(layer, self.procs, limit, **asked)
        except InfeasibleError as fault:
            least = re.search(r"--memory (\d+)", str(fault))
            if least is None:
                raise
            return plan(layer, self.procs, int(least[1]), **asked)


def random_problem(seed: int, number: int, most: int = 12) -> Problem:
    """Problem `number` of a seed, on at most `most` processes, at times more than there are multiply-adds."""
    rng = random.Random(f"{seed}/{number}")
    layer = random_layer(rng, 1, rng.choice([1, 2, 3, 5, 6]))
    procs = rng.randint(1, most)
    grid = {}
    if rng.random() < 0.2:
        axis = rng.choice("bgdhwck")
        grid = {axis: rng.randint(1, min(procs, getattr(layer.nest.extents, axis)))}
    return Problem(
        layer.to_json(),
        procs,
        rng.choice(TASKS),
        rng.choice(["auto", *STATIONARY]),
        rng.choice([None, None, None, rng.uniform(0, 1)]),
        rng.choice([0.1, 0.1, 0.0, 0.5, 10.0]),
        rng.random() < 0.1 and not grid,
        grid,
    )
