"""Calls that differ in constants, in what is given, and in what a mode gives, beside one process."""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import synth
from synth.parallel.self_check import automatic
from synth.runtime.layers.steps.dropout import Dropout

SHAPE = 4, 3, 8, 6
Call = Callable[[Any, torch.Tensor], Any]


class Model(nn.Module):
    """Takes a flag, a factor, a mask and names; has a head that only trains, and a method."""

    def __init__(self, how: str = "tuple") -> None:
        super().__init__()
        self.how = how
        self.conv, self.bn, self.more = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1)
        self.head, self.aux = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(6, 2, 1)
        self.drop = nn.Dropout(0.5)

    def forward(
        self,
        x: torch.Tensor,
        flag: bool = False,
        scale: float = 1.0,
        mask: torch.Tensor | None = None,
        names: tuple[str, ...] = ("out",),
    ) -> Any:
        x = self.bn(self.conv(x))
        if flag:
            x = self.more(x).relu()
        if mask is not None:
            x = x * mask
        out = self.head(x) * scale
        if self.how == "names":
            return dict.fromkeys(names, out)
        if self.training and self.how == "tuple":
            return out, self.aux(x)
        if not self.training and self.how == "evaluated":
            return {"scores": out.softmax(1), "classes": out.flip(1)}
        return out

    def encode(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return self.drop(self.more(self.conv(x)) if flag else self.conv(x))


def tensors(made: Any) -> list[torch.Tensor]:
    """All tensors of an output, whole."""
    parts = made.values() if isinstance(made, dict) else made if isinstance(made, tuple) else [made]
    return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in parts]


MASK = torch.arange(6.0).reshape(6, 1, 1).double()
# what is called, one after the other, on a model of some kind
CALLS: dict[str, tuple[str, list[Call]]] = {
    "a flag": ("plain", [lambda m, x: m(x), lambda m, x: m(x, True), lambda m, x: m(x, flag=True)]),
    "a number": ("plain", [lambda m, x: m(x, scale=2.0), lambda m, x: m(x, scale=-0.5), lambda m, x: m(x)]),
    "a mask": (
        "plain",
        [lambda m, x: m(x, mask=MASK), lambda m, x: m(x), lambda m, x: m(x[:, :, :6], mask=-MASK)],
    ),
    "names": ("names", [lambda m, x: m(x, names=("a", "b")), lambda m, x: m(x)]),
    "a tuple in training": ("tuple", [lambda m, x: m.train()(x), lambda m, x: m.eval()(x)] * 2),
    "a dict in evaluation": ("evaluated", [lambda m, x: m.eval()(x), lambda m, x: m.train()(x)] * 2),
    "modes and flags": (
        "tuple",
        [lambda m, x: m.eval()(x, True), lambda m, x: m.train()(x, True), lambda m, x: m.eval()(x[:3], True)],
    ),
    "some modules in evaluation": (
        "tuple",
        [lambda m, x: (m.train(), m.bn.eval(), m(x))[-1], lambda m, x: m.eval()(x)],
    ),
    "methods": ("plain", [lambda m, x: m.eval().encode(x, flag=True), lambda m, x: m.encode(x)]),
}


def called(name: str, plan: Any, first: bool) -> float:
    """The largest error of outputs, gradients and states. first: whether it is planned in training."""
    how, calls = CALLS[name]
    torch.manual_seed(0)
    model = Model(how).double().train(first)
    net: Any = synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan, check=False)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (net, model)]
    generator, errors = torch.Generator().manual_seed(1), list[float]()
    for call in calls * 2:
        x = torch.randn(SHAPE, generator=generator).double()
        outs = [call(each, x) for each in (net, model)]
        kinds = [list(each) if isinstance(each, dict) else len(tensors(each)) for each in outs]
        assert kinds[0] == kinds[1]
        lists = [tensors(each) for each in outs]
        errors += [float((a - b).detach().abs().max()) for a, b in zip(*lists, strict=True)]
        for every, optimizer in zip(lists, optimizers, strict=True):
            optimizer.zero_grad()
            sum(each.square().mean() for each in every).backward()
            optimizer.step()
    state = net.full_state_dict()
    return max(*errors, *(float((state[k] - v).abs().max()) for k, v in model.state_dict().items()))


def apart(again: bool) -> tuple[list[str], float]:
    """What is said where ranks give other constants, once all are known (again) or not."""
    torch.manual_seed(0)
    model = Model("plain").double()
    net: Any = synth.parallelize(copy.deepcopy(model), SHAPE, check=False, objective="words")
    x, me, said = torch.ones(SHAPE).double(), dist.get_rank() == 0, list[str]()
    for call in (lambda m, f: m(x, flag=f), lambda m, f: m.eval().encode(x, flag=f)):
        if again:
            call(net, True), call(net, False)
        try:
            call(net, me)
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    both = net(x, flag=True), model.eval()(x, flag=True)
    return said, 0.0 if again else float((tensors(both[0])[0] - both[1]).detach().abs().max())


def many() -> tuple[int, int, float]:
    """Words that were received, also by graphs that are no more kept; graphs; the error at the end."""
    torch.manual_seed(0)
    model = Model("plain").double()
    net: Any = synth.parallelize(copy.deepcopy(model), SHAPE, plan={"h": 2}, check=False)
    x, words = torch.ones(SHAPE).double(), list[int]()
    for scale in range(12):
        before = net.received()
        out = net(x, scale=float(scale))
        words.append(net.received() - before)
    assert len(set(words)) == 1
    for _ in range(12):
        right = model(x, scale=11.0)
    graphs = len(list(net._programs))
    return words[0], graphs, float((tensors(out)[0] - right).detach().abs().max())


def refused() -> list[str]:
    """Calls that stay refused."""
    torch.manual_seed(0)
    model = Model("tuple").double()
    planned = synth.parallelize(model, SHAPE, plan=synth.plan_model(model, SHAPE, 2), check=False)
    x, said = torch.ones(SHAPE).double(), list[str]()
    for call in (
        lambda: planned(x, flag=True),
        lambda: planned(x, scale=object()),
        lambda: planned(x, flags=True),
        lambda: planned(None),
    ):
        try:
            call()
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def compared(wrong: bool) -> dict[str, Any]:
    """What is printed of the first call of a method. wrong: whether rank 0 drops nothing in training."""
    printed, said = io.StringIO(), ""
    with contextlib.ExitStack() as inside:
        inside.enter_context(mock.patch.dict(os.environ, SYNTH_CHECK="always"))
        net: Any = synth.parallelize(Model("plain"), SHAPE, objective="words")
        inside.enter_context(contextlib.redirect_stderr(printed))
        inside.enter_context(mock.patch.object(automatic, "SECONDS", 100.0))
        if wrong and dist.get_rank() == 0:
            inside.enter_context(mock.patch.object(Dropout, "_kept", _all_kept))
        try:
            net.encode(torch.ones(SHAPE), flag=True)
            net.encode(torch.ones(SHAPE), flag=True)
            net(torch.ones(SHAPE), mask=torch.ones(6, 1, 1))
        except synth.CheckError as error:
            said = str(error)
    return {"printed": printed.getvalue(), "said": said}


def _all_kept(self: Dropout, device: torch.device) -> torch.Tensor:
    return torch.ones([high - low for low, high in self.box], dtype=torch.bool, device=device)


class OfDtype(nn.Module):
    """Computes what depends on the dtype of its batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.conv = how, nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x
        if self.how == "bytes" and x.dtype == torch.uint8:
            x = x.float() / 255
        if self.how == "numbers" and not x.is_floating_point():
            x = x.float() / 7
        if self.how == "least":
            x = x / (x.square().mean() + torch.finfo(x.dtype).eps)
        made: torch.Tensor = self.conv(x.float())
        return made.to(given.dtype) if self.how == "back" else made


def of_dtypes(how: str) -> list[Any]:
    """Dtypes of results of a network that was planned by a shape, and how far they are from one process."""
    torch.manual_seed(0)
    model, found = OfDtype(how), []
    net = synth.parallelize(copy.deepcopy(model), (4, 3, 8, 8), objective="words", check=False)
    x = torch.linspace(1, 99, 768).reshape(4, 3, 8, 8)
    kinds = [torch.float32, torch.bfloat16, torch.float64]
    kinds += [torch.uint8, torch.int64] if how in ("bytes", "numbers", "back") else []
    for kind in (*kinds, torch.float32):
        wanted, made = model(x.to(kind)), net(x.to(kind)).full_tensor()
        far = (made.double() - wanted.double()).abs().max() / wanted.double().abs().max()
        found.append((kind, made.dtype == wanted.dtype, float(far)))
    return found
