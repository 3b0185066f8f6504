"""Slices come before what joins, mirrors and turns: the same values from fewer words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from spheres import Healpix
from torch import fx, nn

import synth
from benchmarks.models_survey.field_models import CubedSphere
from synth.parallel.front_end.trace_model import trace_model


def turned(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.rot90(x, k, (-2, -1))[..., 1:3, :] for k in range(-1, 4)]


def mirrored(x: torch.Tensor) -> list[torch.Tensor]:
    y = torch.cat([x.flip(-1), x.transpose(2, 3).flip((2, 3))], 2)
    return [y[:, :, 2:9], y[:, :, 4:6], y[..., :2], y[..., 3:][:, :, 7:], y.narrow(1, 1, 1)]


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    return [*torch.cat([x, x + 1], 3).split((2, 5, 5), 3), *torch.cat([x.movedim(1, 3)] * 2, 1).chunk(3, 1)]


def padded(x: torch.Tensor) -> list[torch.Tensor]:
    strip, pad = x[:, :, :1], torch.nn.functional.pad
    made = [torch.rot90(pad(strip, (0, 0, 0, 5)), k, (-2, -1)) + x for k in range(4)]
    one = pad(x, (1, 0, 2, 3), value=4.0)
    made += [
        one.flip(-1) * 2,
        one.flip(1, 3),
        one.transpose(1, -1),
        one.transpose(-2, -1).flip(0) + one.sum(),
    ]
    return [*made, pad(strip, (1, 1, 1, 6)).flip((2, 3)) - pad(x, (1, 1, 1, 1)), pad(x, (-1, 0)).flip(3)]


class Of(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        made: list[torch.Tensor] = self.function(x * self.scale)
        return made


def values_of(graph: fx.Graph, x: torch.Tensor, model: nn.Module) -> tuple[torch.Tensor, ...]:
    """What a traced graph gives; each value has the shape that is noted of it."""
    found: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), found.__getitem__)
        match node.op:
            case "placeholder":
                found[node] = x
            case "get_attr":
                found[node] = model.get_parameter(str(node.target))
            case "call_function":
                assert callable(node.target)
                found[node] = node.target(*args, **kwargs)
                assert found[node].shape == node.meta["value"].shape
            case "output":
                return tuple(args[0])
    raise AssertionError("no output")


@pytest.mark.parametrize("function", [turned, mirrored, parts, padded])
def test_slices_are_those_of_the_model(function: Any) -> None:
    model, x = Of(function), torch.randn(1, 2, 6, 6)
    graph = trace_model(model, x.shape).graph
    for found, wanted in zip(values_of(graph, x, model), model(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    names = [str(getattr(node.target, "__name__", "")) for node in graph.nodes]
    assert "rot90" not in names


class Faces(nn.Module):
    """Four faces in a ring, and each turned face above its neighbour; two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = conv(self.bordered(x)).relu()
        return x

    def bordered(self, x: torch.Tensor) -> torch.Tensor:
        made = []
        for n in range(4):
            face, left, right = (x[i % 4 : i % 4 + 1] for i in (n, n - 1, n + 1))
            above = torch.rot90(left, n, (-2, -1))[..., -1:, :]
            below = torch.rot90(right, -n, (-2, -1))[..., :1, :]
            middle = torch.cat([above, face, below], -2)
            sides = [torch.nn.functional.pad(each, (0, 0, 1, 1)) for each in (left[..., -1:], right[..., :1])]
            made.append(torch.cat([sides[0], middle, sides[1]], -1))
        return torch.cat(made)


@pytest.mark.parametrize("procs", [4, 6, 8])
@pytest.mark.one_in(2)
def test_twelve_faces_move_about_the_strips_around_them(procs: int) -> None:
    side, channels, width = 16, 4, 8
    shape = 12, channels, side, side
    plan = synth.plan_model(Healpix(channels, width).eval(), shape, procs=procs, mode="inference")
    strips = 12 * 4 * side * (channels + width)
    assert sum(plan.words.forward) <= 3 * strips


def test_faces_of_a_sphere_move_less_than_all_activations() -> None:
    side, model = 16, Faces().eval()
    plan = synth.plan_model(model, (4, 4, side, side), procs=4, mode="inference")
    strips = 2 * 4 * 4 * side * 4  # of all faces, on both sides of the first convolution
    assert max(plan.words.forward) <= 3 * strips


@pytest.mark.parametrize("procs", [2, 4])
def test_six_faces_move_the_strips_around_them(procs: int) -> None:
    """Strips are padded to faces, turned, and added. No rank receives the zeros, or a face."""
    side, channels, width = 32, 2, 4
    shape = 1, channels, 6, side, side
    model = CubedSphere(width).eval()
    strips = 6 * 4 * side * (channels + width)
    by_rows = synth.plan_model(model, shape, procs=procs, mode="inference", axes="h")
    assert sum(by_rows.words.forward) <= 3.2 * strips
    found = synth.plan_model(model, shape, procs=procs, mode="inference")
    assert found.words.most <= 1.1 * by_rows.words.most
