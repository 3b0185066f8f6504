"""Random small plans: any kind of layer, any grid up to eight ranks, any pass plan."""

from __future__ import annotations

import random
from dataclasses import replace

from synth.layer.axes import AXES, TENSORS, Axis, PerAxis, Tensor, placement
from synth.layer.layer import Layer, LayerError
from synth.layer.passes import Task, sequences
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan
from synth.search.training_step import pass_templates


def random_layer(rng: random.Random) -> Layer:
    """A layer of at most some thousand multiply-adds per output channel."""
    dims = rng.choice([0, 1, 1, 2, 2, 2, 3])
    if dims == 0:
        return Layer.matmul(rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 12))
    while True:
        groups = rng.choice([1, 1, 1, 2, 3])
        size = [rng.randint(3, 13 if dims < 3 else 7) for _ in range(dims)]
        rest = {
            "stride": [rng.choice([1, 1, 2, 3]) for _ in range(dims)],
            "padding": [rng.choice([0, 1, 2]) for _ in range(dims)],
            "dilation": [rng.choice([1, 1, 2]) for _ in range(dims)],
        }
        channels = (groups * rng.randint(1, 6), groups * rng.randint(1, 6))
        kernel = [rng.randint(1, 4) for _ in range(dims)]
        make = (Layer.conv1d, Layer.conv2d, Layer.conv3d)[dims - 1]
        try:
            return make([rng.randint(1, 4), channels[0], *size], channels[1], kernel, groups=groups, **rest)  # type: ignore[arg-type]
        except LayerError:
            continue


def random_plan(rng: random.Random, task: Task = "forward") -> Plan:
    """A plan of a random layer; nothing in it has to be good."""
    layer = random_layer(rng)
    extents = layer.nest.extents
    while True:
        grid = PerAxis(*(rng.choice([1, 1, 1, 2, 2, 3, 4]) for _ in AXES))
        if grid.size <= 8 and all(p <= n for p, n in zip(grid, extents, strict=True)):
            break
    blocks = [-(-n // p) for n, p in zip(extents, grid, strict=True)]
    kept = frozenset(t for t in TENSORS if task == "training" and rng.random() < 0.7)
    gradients: tuple[Tensor, ...] = rng.choice([("In", "Ker"), ("In", "Ker"), ("Ker",), ("In",)])
    sequence = rng.choice(sequences(gradients=gradients)) if task == "training" else (task,)
    passes = pass_templates(kept, sequence)
    first, *later = (_tiled(rng, blocks, role) for role in passes)
    order = placement(grid, rng.sample(AXES, len(AXES)) if rng.random() < 0.5 else AXES)
    return Plan(layer, grid.size, grid, first, later=tuple(later), order=order)


def _tiled(rng: random.Random, blocks: list[int], role: PassPlan) -> PassPlan:
    """A stationary tensor and tiles, in any number."""
    counts = PerAxis(*(rng.choice([1, 1, 1, 2, 3]) for _ in AXES))._replace(g=1)
    counts = PerAxis(*(min(t, b) for t, b in zip(counts, blocks, strict=True)))
    stationary: Tensor = rng.choice(["Out", "Ker", "In"])
    if role.reuses | role.saves and rng.random() < 0.5:
        axis: Axis = {"Out": "c", "In": "k", "Ker": "b"}[stationary]  # type: ignore[assignment]
        most = min(3, blocks[AXES.index(axis)])
        counts = PerAxis().with_(axis, rng.randint(1, most))  # what is kept may stream, or comes whole
    return replace(role, stationary=stationary, counts=counts, swapped=rng.random() < 0.5)
