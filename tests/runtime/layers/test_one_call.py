"""Layers that need no words of other ranks but a halo: one call of torch's operator, with its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import CASES
from torch import nn

import synth
from synth.codegen.module import distributed_conv, imported, is_lean
from synth.codegen.render import render
from synth.layer.axes import PerAxis, Tensor
from synth.layer.layer import Layer
from synth.layer.passes import gathers
from synth.runtime.grid.boxes import overlap, volume
from synth.runtime.grid.process_grid import grid_size
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.layer_io import layer_layouts
from synth.runtime.layers.one_call import OneCall, one_call


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 5)),
    "strided": (lambda: nn.Conv2d(3, 4, (3, 5), (2, 3), (1, 2), (2, 1)), (2, 3, 15, 13)),
    "gaps": (lambda: nn.Conv2d(3, 4, 2, 3, 1), (2, 3, 17, 16)),
    "pointwise": (lambda: nn.Conv2d(3, 4, 1, 2, bias=False), (2, 3, 9, 9)),
    "grouped": (lambda: nn.Conv2d(6, 4, 3, padding=1, groups=2), (2, 6, 5, 5)),
    "line": (lambda: nn.Conv1d(4, 6, 4, padding=2, dilation=2), (2, 4, 12)),
    "volume": (lambda: nn.Conv3d(3, 4, 3, (1, 2, 1), 1), (2, 3, 6, 7, 5)),
    "up": (lambda: nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), (2, 6, 5, 6)),
    "apart": (lambda: nn.ConvTranspose2d(6, 4, 2, 3, groups=2, output_padding=(1, 0)), (2, 6, 5, 6)),
    "up dilated": (lambda: nn.ConvTranspose2d(4, 6, 3, (1, 2), 1, dilation=2), (2, 4, 7, 6)),
    "matrix": (lambda: nn.Linear(5, 7), (3, 5)),
}


@pytest.mark.parametrize("name", MODULES)
def test_values_and_gradients_are_those_of_torch(
    name: str, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    model = nn.Sequential(make().double())
    net: Any = synth.parallelize(model, shape, input_gradient=True)
    (step,) = (each for each in net.program.steps.values() if hasattr(each, "module"))
    assert step.module.one_call is not None
    monkeypatch.setattr(step.module, "function", None)  # the emitted passes are not called
    batch = torch.randn(shape, dtype=torch.float64)
    given = [batch.clone().requires_grad_() for _ in range(2)]
    out, right = net(given[0]), model(given[1])
    torch.testing.assert_close(out.full_tensor(), right)
    out.square().sum().backward()
    right.square().sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad)
    for ours, theirs in zip(net.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


def test_layers_that_gather_or_reduce_words_are_not_called_at_once() -> None:
    """A layer in one call receives the rows of its halo, and no other words."""
    training = {
        name: plan for name, plan in CASES.items() if plan.pass_ == "training" and plan.layer.kind != "einsum"
    }
    whole = frozenset[Tensor]({"Ker"})
    spatial = [name for name in training if name.startswith("training_spatial")]
    training |= {f"{name}, copies": replace(CASES[name], resident=whole) for name in spatial}
    found, halos = {}, {}
    for name, plan in training.items():
        program = imported(render(plan, module=True), f"one_call_{name}").PROGRAM
        ranks = [Ranks(tuple(range(plan.procs)), rank) for rank in range(grid_size(program.grid))]
        calls = [one_call(program, *layer_layouts(program, each)) for each in ranks]
        words = [plan.received.at(plan.distribution.at(rank)) for rank in range(len(ranks))]
        assert len({each is None for each in calls}) == 1, name
        found[name] = calls[0]
        if calls[0] is not None:
            assert all(each["total"] == each["halo"] for each in words), name
            halos[name] = [_received(each) for each in calls]
            times = gathers(plan.passes, plan.first.saves)["In"]  # rows are fetched; then gradients return
            assert sum(halos[name]) * (times + 1) == sum(each["halo"] for each in words), name
            assert is_lean(plan) == (times > 1), name
    assert all(any(halos[f"{name}, copies"]) for name in spatial)
    assert found["training_alone"] is not None
    assert sum(each is None for each in found.values()) > 20


def _received(call: OneCall) -> int:
    """Words that a rank fetches before its call."""
    halo = call.halo
    if halo is None:
        return 0
    return sum(volume(overlap(halo.carried.mine, halo.owned.boxes[peer])) for peer in halo.peers)


def test_tiles_stay(alone: None) -> None:
    """A plan that holds less memory by tiles is run tile by tile; a single block is one call."""
    layer = Layer.conv2d((2, 4, 8, 8), 4, 3, padding=1)
    plan = synth.plan(layer, 1, pass_="training")
    tiles = replace(plan, first=replace(plan.first, counts=PerAxis(c=2)))
    assert distributed_conv(plan).one_call is not None
    assert distributed_conv(tiles).one_call is None
