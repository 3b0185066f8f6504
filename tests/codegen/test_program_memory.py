"""The tensors of emitted programs hold what their plans say: within 5 %, and never more than a limit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from live_storages import LiveStorages, most_words, program_of

import synth
from synth.base.errors import InfeasibleError
from synth.layer.layer import Layer
from synth.layer.passes import Task
from synth.planning.plan import Plan
from synth.runtime.comm import collectives, messages
from synth.runtime.comm.host_memory import NOTHING_SHARED
from synth.runtime.comm.process_groups import Group, ProcessGroups
from synth.runtime.grid.process_grid import coordinates, peers_along, rank_of
from synth.runtime.kernels.context import Context
from synth.schedule.memory import Footprints
from synth.schedule.training_memory import training_memory

APART = 0.05
LAYERS = {
    "resnet_conv2": Layer.conv2d((4, 16, 28, 28), 16, 3, padding=1),
    "resnet_conv5": Layer.conv2d((4, 64, 7, 7), 64, 3, padding=1),
    "resnet_strided": Layer.conv2d((4, 32, 28, 28), 32, 3, padding=1, stride=2),
    "resnet_pointwise": Layer.conv2d((4, 64, 14, 14), 32, 1),
    "stem": Layer.conv2d((4, 3, 56, 56), 16, 7, padding=3, stride=2),
    "unet_decoder": Layer.conv2d((1, 32, 64, 64), 16, 3, padding=1),
    "head": Layer.conv2d((1, 16, 96, 96), 2, 3, padding=1),
    "cosmoflow": Layer.conv3d((1, 4, 24, 24, 24), 16, 3, padding=1),
    "dilated": Layer.conv2d((1, 16, 32, 32), 16, 3, padding=4, dilation=4),
    "wavenet": Layer.conv1d((1, 16, 2048), 16, 2, dilation=64),
    "grouped": Layer.conv2d((2, 32, 28, 28), 32, 3, padding=1, groups=8),
    "transposed": Layer.conv2d((2, 32, 24, 24), 16, 4, stride=2, padding=1, transposed=True),
    "product": Layer.matmul(64, 256, 256),
    # as large as in networks: pieces are messages of their own
    "conv3": Layer.conv2d((8, 128, 28, 28), 128, 3, padding=1),
    "conv4": Layer.conv2d((8, 256, 14, 14), 256, 3, padding=1),
    "conv5": Layer.conv2d((8, 512, 7, 7), 512, 3, padding=1),
}


class Done:
    """Communication that has ended; it holds its tensors, as torch's does."""

    def __init__(self, *tensors: object) -> None:
        self.tensors = tensors

    def wait(self) -> None:
        """It has."""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of gloo are neither sent nor awaited: one process can be every rank in turn."""

    def done(*tensors: object, **__: object) -> Done:
        return Done(*tensors)

    monkeypatch.setattr(dist.distributed_c10d, "get_backend_config", lambda *_: "gloo")
    monkeypatch.setattr(messages, "host_memory", lambda _: NOTHING_SHARED)
    monkeypatch.setattr(dist, "broadcast", done)
    monkeypatch.setattr(dist, "all_to_all_single", done)
    monkeypatch.setattr(collectives, "native_gather", done)
    monkeypatch.setattr(dist, "isend", done)
    monkeypatch.setattr(dist, "irecv", done)


def held(plan: Plan) -> float:
    """Words that the rank with the most holds."""
    program, most = program_of(plan), 0.0
    grid = program["GRID"]
    for rank in range(plan.used_procs):
        ranks: Any = SimpleNamespace(group=None)
        at, context = coordinates(rank, grid), Context(process_groups=ProcessGroups(ranks))
        groups = {}
        for name, axes in program["GROUP_AXES"].items():
            peers = sorted(peers_along(at, grid, axes), key=lambda peer: rank_of(peer, grid))
            groups[name] = Group(None, peers, peers.index(at), context.buffers)
        most = max(most, most_words(plan, program, at, groups, context))
    return most


def tight(layer: Layer, procs: int, task: Task, times: float) -> Plan:
    """A plan within some times the least memory."""
    try:
        least = synth.plan(layer, procs, 4, pass_=task).used_bytes
    except InfeasibleError as fault:
        least = int(str(fault).split("fits is ")[1].split()[0])
    return synth.plan(layer, procs, int(times * least), pass_=task)


def planned(name: str, procs: int, task: Task, times: float | None) -> Plan:
    """A plan without a limit, or within some times the least memory."""
    if times is None:
        return synth.plan(LAYERS[name], procs, pass_=task)
    return tight(LAYERS[name], procs, task, times)


CASES: tuple[tuple[str, int, Task, float | None], ...] = (
    ("resnet_conv2", 4, "training", None),
    ("resnet_conv2", 4, "backward-data", 1.15),
    ("resnet_conv5", 4, "forward", None),
    ("resnet_conv5", 4, "backward-data", None),
    ("resnet_conv5", 4, "training", None),  # sums of dIn that are in flight, and are its shard then
    ("head", 4, "forward", 1.15),
    ("head", 4, "backward-filter", 1.15),
    ("head", 4, "training", None),
    ("grouped", 4, "training", None),
    ("product", 8, "backward-filter", None),
    ("conv3", 8, "backward-data", None),  # panels of small pieces
    ("conv4", 4, "backward-filter", None),  # panels that one rank carries
    ("conv4", 8, "forward", None),  # two of them, and rotation
    ("conv5", 4, "training", None),
)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("name", "procs", "task", "times"), CASES)
@pytest.mark.one_in(2)
def test_programs_hold_what_is_planned(name: str, procs: int, task: Task, times: float | None) -> None:
    plan = planned(name, procs, task, times)
    words = held(plan)
    assert abs(plan.held_words / words - 1) <= APART, (plan.held_words, words)
    assert plan.limit_words is None or words <= plan.limit_words


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["resnet_conv5", "product"])
def test_sums_that_travel_beside_a_pass_take_what_is_planned(name: str) -> None:
    """A limit below what they need keeps them from travelling, and leaves the rest of the plan as it is."""
    free = planned(name, 4, "training", None)
    footprints = Footprints(free.distribution)
    least = training_memory(footprints, free.pass_plans, overlap=False).words
    for limit_words in (free.used_words, least):
        plan = replace(free, limit_bytes=limit_words * free.nest.word_bytes)
        assert plan.overlap == (limit_words == free.used_words > least)
        assert held(plan) == plan.held_words == limit_words


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("name", "grid", "task"),
    [
        ("resnet_conv5", {"h": 4}, "training"),  # tiles of In with the zeros that its shard has
        ("resnet_strided", {"c": 4}, "backward-filter"),  # small pieces, without a copy for each receiver
        ("unet_decoder", {"c": 4}, "training"),  # sums that leave panel by panel
        ("grouped", {"h": 2, "k": 2}, "backward-data"),
    ],
)
@pytest.mark.one_in(2)
def test_a_limit_is_never_exceeded(name: str, grid: dict[str, int], task: Task) -> None:
    with pytest.raises(InfeasibleError) as fault:
        synth.plan(LAYERS[name], 4, 4, pass_=task, grid=grid)
    least = int(str(fault.value).split("fits is ")[1].split()[0])
    plan = synth.plan(LAYERS[name], 4, int(1.15 * least), pass_=task, grid=grid)
    words = held(plan)
    assert plan.limit_words is not None
    assert words <= plan.used_words <= min(plan.limit_words, (1 + APART) * words)


def test_storages_count_once_while_they_live() -> None:
    given = torch.zeros(10)
    live = LiveStorages(given)
    with live.counting():
        view = given[2:] + 0.0
        del view
        assert given.view(2, 5).add_(1.0).sum() == 10
        twice = given * 2
    assert live.peak == 4 * 20
    assert twice.numel() == 10
