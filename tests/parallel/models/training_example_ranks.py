"""What four ranks of the tests of the examples do: the examples in small form, beside one process."""

from __future__ import annotations

import copy
import importlib
from importlib.util import find_spec
from typing import Any

import torch
from shared_plan import shared_plan
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

import synth
from examples import audio, tutorial, unet3d, weather
from synth.runtime.comm.layout import Layout
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.rules.affine_scan import CutAffineScan
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor

CUTS: dict[str, list[Any]] = {  # of scores (2, 3, 4, 4, 6): per rank an interval per dimension
    "columns": [((0, 2), (0, 3), (0, 4), (0, 4), (i, j)) for i, j in ((0, 2), (2, 3), (3, 5), (5, 6))],
    "samples and rows": [((b, b + 1), (0, 3), (0, 4), (h, h + 2), (0, 6)) for b in (0, 1) for h in (0, 2)],
    "classes": [
        ((0, 2), each, (d, d + 2), (0, 4), (0, 6)) for each in ((0, 1), (1, 3)) for d in (0, 2)
    ],
}  # fmt: skip


def preload() -> None:
    """Import monai before the ranks are forked."""
    if find_spec("monai"):
        importlib.import_module("monai.networks.nets")


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two tensors are apart, relative to the largest word."""
    one = one.detach()
    one = one.full_tensor() if isinstance(one, PartitionedTensor) else one
    error = float((one - other.detach()).abs().max() / (1 + other.detach().abs().max()))
    return error if error == error else 1.0


def state_apart(net: Any, model: nn.Module) -> float:
    """The same of all parameters and buffers."""
    state = net.full_state_dict()
    return max(apart(state[key].double(), values.double()) for key, values in model.state_dict().items())


def in_double(run: Any) -> Any:
    """What a function gives, called with float64 as the default."""
    torch.set_default_dtype(torch.float64)
    try:
        return run()
    finally:
        torch.set_default_dtype(torch.float32)


def volumes(checkpoints: bool) -> dict[str, Any]:
    """The U-Net on volumes trains as in one process."""

    def run() -> dict[str, Any]:
        torch.manual_seed(0)
        shape = (2, 1, 8, 8, 8)
        model = unet3d.UNet3d(base=4, levels=3, checkpoints=checkpoints)
        net = synth.parallelize(copy.deepcopy(model), shape)
        losses = [unet3d.train(each, shape, steps=3) for each in (net, model)]
        error = max(abs(a - b) for a, b in zip(*losses, strict=True))
        return {"losses": losses[0], "error": max(error, state_apart(net, model)), "words": net.received()}

    return in_double(run)  # type: ignore[no-any-return]


def forecasts() -> dict[str, Any]:
    """The weather U-Net on 2 x 2 ranks trains as one process does that has the batches of both replicas."""

    def run() -> dict[str, Any]:
        torch.manual_seed(0)
        shape, mesh = (2, 4, 8, 16), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "synth"))
        model = weather.WeatherUNet(width=8)
        net = synth.parallelize(copy.deepcopy(model), shape, mesh)
        mine = weather.train(net, shape, 3, mesh.get_local_rank("replicate"), 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(3):
            pairs = [weather.sample(shape, 2 * step + replica) for replica in (0, 1)]
            now, later = (torch.cat(each) for each in zip(*pairs, strict=True))
            optimizer.zero_grad()
            functional.mse_loss(model(now), later).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return {"losses": mine, "error": state_apart(net, model), "words": net.received()}

    return in_double(run)  # type: ignore[no-any-return]


def sounds() -> dict[str, Any]:
    """The audio model on cut positions trains as in one process, and no document reads another."""

    def run() -> dict[str, Any]:
        torch.manual_seed(0)
        model, (noisy, _, documents) = audio.AudioMamba(channels=8, chunk=4, blocks=1), audio.packed(76, 2)
        noisy = noisy.double()
        plan = shared_plan(model, [noisy, documents], axes="w")
        net = synth.parallelize(copy.deepcopy(model), [noisy, documents], plan=plan, check=False)
        losses = [audio.train(each, 76, steps=3) for each in (net, model)]
        words = net.received(), 3 * plan.words.step[net.ranks.me]
        error = max(abs(a - b) for a, b in zip(*losses, strict=True))
        with torch.no_grad():
            out = net(noisy, documents).full_tensor()
            other = net(torch.where(documents[:, None] == 1, noisy + 1, noisy), documents).full_tensor()
        changed = (out != other).any(1)
        steps = list(net.program.steps.values())
        kinds = [type(step).__name__ for step in steps]
        rules = [step.rule for step in steps if isinstance(step, Pulled)]
        return {
            "losses": losses[0],
            "error": max(error, state_apart(net, model)),
            "words": words,
            "leaks": bool((changed & (documents != 1)).any()) or not bool(changed.any()),
            "gathered": kinds.count("GatheredStep"),
            "scans": sum(isinstance(rule.combined, CutAffineScan) for rule in rules),
        }

    return in_double(run)  # type: ignore[no-any-return]


def segments() -> float:
    """The share of voxels in which the segmentation differs from that of one process."""
    from examples import segment_monai

    def run() -> float:
        torch.manual_seed(0)
        model, volume = segment_monai.model_of(), torch.randn(1, 1, 24, 16, 16)
        with torch.no_grad():
            right = model(volume).argmax(1)
        return float((segment_monai.segment(model, volume) != right).double().mean())

    return in_double(run)  # type: ignore[no-any-return]


def ten_steps() -> tuple[list[float], list[float]]:
    """The losses of the tutorial's program on the ranks, and those of one process."""
    torch.manual_seed(0)
    model = tutorial.build()
    alone = copy.deepcopy(model)
    batches = torch.get_rng_state()
    losses = tutorial.train(synth.parallelize(model, (8, 3, 32, 32), objective="words"))
    torch.set_rng_state(batches)
    return losses, tutorial.train(alone)


def losses_of_volumes(cut: str) -> list[float]:
    """Losses of classes and their gradients, of scores that are cut anyhow."""
    torch.manual_seed(0)
    scores, labels = torch.randn(2, 3, 4, 4, 6).double(), torch.randint(3, (2, 4, 4, 6))
    labels[0, 1] = -100  # without a class
    place = Partition(Layout(tuple(scores.shape), tuple(CUTS[cut]), Ranks.world()))
    words = place.uncut_along([1]).without([1], keepdim=False)
    found = []
    for given in (labels, PartitionedTensor.from_whole(labels, words)):
        for reduction in ("mean", "sum", "none"):
            for weight in (None, torch.tensor([1.0, 2.0, 0.5]).double()):
                whole, part = scores.clone().requires_grad_(), scores.clone().requires_grad_()
                out = PartitionedTensor.from_whole(part, place)
                right = functional.cross_entropy(whole, labels, weight, reduction=reduction)
                made = functional.cross_entropy(out, given, weight, reduction=reduction)
                found.append(apart(made, right))
                right.square().sum().backward()
                made.square().sum().backward()
                assert whole.grad is not None
                assert part.grad is not None
                found.append(apart(part.grad, whole.grad))
    return found
