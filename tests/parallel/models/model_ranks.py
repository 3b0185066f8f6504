"""What the ranks of the model tests do: functions that run on all of them and return what a test looks at."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from beside_one_process import Measured, error, refusal, three_steps
from torch import nn
from zoo import Drops, as_they_are, own, tiny

import synth
import synth.parallel.first_rank
import synth.parallel.parallelize
from synth.parallel.parallelize import parallelize

FAMILIES: dict[str, Callable[[], Any]] = {"tiny": tiny, "own": own}


def preload() -> None:
    """Import the libraries of the models before the ranks are forked."""
    if find_spec("transformers") and find_spec("monai"):
        tiny()


def train(family: str, plan: Any) -> dict[str, Measured]:
    """Model -> three SGD steps on the ranks compared with those in one process."""
    torch.manual_seed(0)
    return {name: three_steps(*built, plan) for name, built in FAMILIES[family]().items()}


def move_states() -> dict[str, float]:
    """Model -> the error of outputs in evaluation after a state has moved from one grid to another."""
    torch.manual_seed(0)
    errors = {}
    for name, (whole, shape) in own().items():
        nets = [synth.parallelize(whole, shape, plan=plan) for plan in ("filter", "spatial")]
        batch = torch.randn(shape)
        nets[0].gather(nets[0](nets[0].scatter(batch))).square().sum().backward()
        with torch.no_grad():
            for parameter in nets[0].parameters():
                parameter += 0.1
        saved = nets[0].full_state_dict()
        nets[1].load_full_state_dict(saved)
        whole.load_state_dict(saved)
        for model in (*nets, whole):
            model.eval()
        outs = [net.gather(net(net.scatter(batch))) for net in nets]
        errors[name] = max(error(out, whole(batch)) for out in outs)
    return errors


def refused_states() -> list[str]:
    """What is said to states of other models: a key less, another shape, a key more, a prefix."""
    net = synth.parallelize(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)), (4, 3, 8, 8))
    state = net.full_state_dict()
    return [
        refusal(lambda wrong=wrong: net.load_full_state_dict(wrong))
        for wrong in (
            {key: values for key, values in state.items() if key != "1.bias"},
            {**state, "0.weight": torch.zeros(3, 3, 1, 1)},
            {**state, "more.weight": torch.zeros(1)},
            {f"module.{key}": values for key, values in state.items()},
        )
    ]


def partly_trained(plans: dict[str, Any]) -> dict[str, Measured]:
    """Model and plan -> training while parts are frozen, evaluated or detached, and later are not."""
    found = {}
    for name, whole in as_they_are().items():
        for word, plan in plans.items():
            torch.manual_seed(0)
            found[f"{name} {word}"] = _partly_trained(copy.deepcopy(whole).double(), plan, name)
    return found


def _partly_trained(whole: nn.Module, plan: Any, name: str) -> Measured:
    """error: of losses and states. frozen: whether all gradients are of trained parameters.

    late_messages: gradients of shared parameters that are sent where none is trained.
    """
    net = synth.parallelize(whole, (4, 4, 8, 8), plan=plan)
    pair, errors, frozen, same_mode, late = (net, whole), [0.0], True, True, 0
    options: Any = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}
    for step in range(6):
        if step == 2:
            same_mode = net.training == whole.training
            net.load_full_state_dict(net.full_state_dict())
        if step == 3:  # all is trained from here on
            for model in pair:
                model.train()
                model.requires_grad_(True)
        if step == 5:  # one weight alone
            for model in pair:
                model.requires_grad_(False)
            key = {"partly": "last.weight", "functions": "one.weight"}.get(name, "3.weight")
            net.get_parameter(key).requires_grad_(True)
            whole.get_parameter(key).requires_grad_(True)
        if step in (0, 3, 5):
            optimizers = [torch.optim.SGD(model.parameters(), **options) for model in pair]
        batch, target = torch.randn(2, 4, 4, 8, 8, dtype=torch.float64)
        messages = net.program.buckets.messages
        losses = [(net(net.scatter(batch, "input")) - net.scatter(target, "output")).square().sum() / 100]
        losses.append((whole(batch) - target).square().sum() / 100)
        for loss, model, optimizer in zip(losses, pair, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            frozen = frozen and all(p.requires_grad or p.grad is None for p in model.parameters())
        late = net.program.buckets.messages - messages
        pairs = [(losses[0].detach(), losses[1].detach())]
        pairs += [(net.full_state_dict()[key], values) for key, values in whole.state_dict().items()]
        errors += [float((one - other).abs().max() / (1 + other.abs().max())) for one, other in pairs]
    return {"error": max(errors), "frozen": frozen, "same_mode": same_mode, "late_messages": late}


class Other(nn.Module):
    """Does something else in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return x[:, :2] if self.training else torch.sigmoid(x)


class Always(Drops):
    """Drops words in evaluation, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.conv(x), 0.5, True)


def dropped_by_mode(training: bool) -> list[float]:
    """The fraction of zeros in this mode, in the other one and in this one again; the model begins in it."""
    net = synth.parallelize(Drops().train(training), (4, 4, 8, 8))
    fractions, batch = [], torch.ones(4, 4, 8, 8)
    for mode in (training, not training, training):
        net.train(mode)
        zeros = net.gather(net(net.scatter(batch, "input"))) == 0
        fractions.append(float(zeros.double().mean()))
    return fractions


def other_modes() -> tuple[list[float], float]:
    """Errors of a model that does otherwise in a mode. What is dropped where evaluation drops, too."""
    errors, x = list[float](), torch.randn(4, 4, 8, 8).double()
    for mode in (True, False):
        model = Other().double().train(mode)
        net = synth.parallelize(copy.deepcopy(model), (4, 4, 8, 8))
        for now in (mode, not mode, mode):
            made, right = net.train(now)(x).full_tensor(), model.train(now)(x)
            errors.append(float((made - right).detach().abs().max()))
    always = synth.parallelize(Always(), (4, 4, 8, 8)).eval()
    zeros = always(torch.ones(4, 4, 8, 8)).full_tensor() == 0
    return errors, float(zeros.double().mean())


def dropped_by_plan(p: float, plans: list[str]) -> Measured:
    """By plan, two outputs of dropouts behind a convolution of ones, and the error in evaluation."""
    model = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.Dropout(p), nn.Dropout2d(p))
    nn.init.ones_(model[0].weight)
    batch, outs, errors = torch.ones(4, 4, 16, 16), [], []
    for plan in plans:
        torch.manual_seed(7)
        net = synth.parallelize(model, (4, 4, 16, 16), plan=plan)
        outs.append([net.gather(net(net.scatter(batch))).detach().numpy() for _ in range(2)])
        net.eval()
        errors.append(error(net.gather(net(net.scatter(batch))), model[0](batch)))
    return {"outs": outs, "error": max(errors)}


def fault_of_the_planner() -> str:
    """What every rank is told where rank 0's planner fails."""

    def fails(*given: Any) -> Any:
        raise KeyError("no such axis")

    module = synth.parallel.first_rank
    right, module.plan_network = module.plan_network, fails
    try:
        parallelize(nn.Conv2d(4, 4, 1), (4, 4, 8, 8))
    except RuntimeError as fault:
        return str(fault)
    finally:
        module.plan_network = right
    return ""


def scattered() -> Measured:
    """A batch whose shape is that of input and output, on a network where the two lie differently.

    The slices of the batch are numbered words, so that a test sees which a rank got.
    """
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    net = synth.parallelize(model, (4, 4, 8, 8), plan={"0": {"b": 4}, "1": {"h": 4}})
    whole = torch.arange(4 * 4 * 8 * 8.0).reshape(4, 4, 8, 8)
    cases = (whole, None), (whole, "target"), (whole[1:], None), (whole[1:], "output")
    return {
        "whole": whole.numpy(),
        "input": net.scatter(whole, "input").to_local().numpy(),
        "output": net.scatter(whole, like="output").to_local().numpy(),
        "refused": [refusal(lambda b=batch, like=like: net.scatter(b, like)) for batch, like in cases],
    }
