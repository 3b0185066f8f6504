"""Short habits of training code: each is run on a network and on its model in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

import synth

SHAPE, CLASSES = (4, 3, 8, 6), 5
PLANS: dict[str, Any] = {"samples": "data", "rows": {"h": 2}, "filters": {"k": 2}}
Function = Callable[["Run"], Any]


class Habit(NamedTuple):
    """run: what is done. refused: a part of the sentence that refuses it; "" where nothing does."""

    run: Function
    refused: str = ""


HABITS: dict[str, Habit] = {}


def habit(name: str, refused: str = "") -> Callable[[Function], Function]:
    """A habit by its name."""

    def add(run: Function) -> Function:
        assert name not in HABITS
        HABITS[name] = Habit(run, refused)
        return run

    return add


class Classes(nn.Module):
    """Classes of images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.act, self.grouped = nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.norm, self.pool = nn.GroupNorm(2, 8), nn.MaxPool2d(2)
        self.drop, self.head = nn.Dropout(0.0), nn.Linear(8 * 4 * 3, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.bn(self.conv(x)))
        x = functional.silu(self.norm(self.grouped(x)))
        return self.head(self.drop(self.pool(x).flatten(1)))


class Maps(nn.Module):
    """Images of images, of any extents."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 3, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.bn(self.first(x))))


@cache
def pair_of(kind: type[nn.Module], plan: str) -> tuple[Any, nn.Module]:
    """A network and its model, of which each habit has copies."""
    torch.manual_seed(3)
    model = kind().double()
    return synth.parallelize(copy.deepcopy(model), SHAPE, plan=PLANS[plan], check=False), model


class Run:
    """One run of a habit, on ranks or in one process; both draw the same numbers."""

    def __init__(self, plan: str, on_ranks: bool) -> None:
        self.plan, self.on_ranks, self.notes = plan, on_ranks, list[torch.Tensor]()
        self.generator = torch.Generator().manual_seed(11)
        self.models = list[Any]()

    def of(self, kind: type[nn.Module]) -> Any:
        """A copy of a network, or of its model."""
        made = copy.deepcopy(pair_of(kind, self.plan)[0 if self.on_ranks else 1])
        self.models.append(made)
        return made

    def classes(self) -> Any:
        """Classes of images."""
        return self.of(Classes)

    def maps(self) -> Any:
        """Images of images."""
        return self.of(Maps)

    def made(self, kind: Callable[[], nn.Module], shape: Any = SHAPE) -> Any:
        """A model of the habit's own."""
        torch.manual_seed(4)
        model: Any = kind().double()
        if self.on_ranks:
            plan = PLANS[self.plan]
            model = synth.parallelize(model, shape, plan=plan, check=False)
        self.models.append(model)
        return model

    def randn(self, *shape: int) -> torch.Tensor:
        """Random words, the same on all ranks."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def x(self, samples: int = 4) -> torch.Tensor:
        """A whole batch."""
        return self.randn(samples, *SHAPE[1:])

    def y(self, samples: int = 4) -> torch.Tensor:
        """Labels."""
        return torch.randint(CLASSES, (samples,), generator=self.generator)

    def note(self, *values: Any) -> None:
        """Values that are compared."""
        self.notes += [plain(torch.as_tensor(each)) for each in values]

    def finish(self) -> list[torch.Tensor]:
        """All notes, and the states and gradients of the models."""
        for model in self.models:
            self.note(*model.state_dict().values())
            self.note(*(p.grad for p in model.parameters() if p.grad is not None))
        return self.notes


def plain(values: Any) -> torch.Tensor:
    """A whole in double precision."""
    whole = values.detach()
    whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
    return whole.double().clone()


def sgd(model: Any, rate: float = 0.05, **more: Any) -> torch.optim.Optimizer:
    """The usual optimizer."""
    return torch.optim.SGD(model.parameters(), rate, **{"momentum": 0.9, **more})


def steps(
    run: Run, model: Any, optimizer: Any, count: int = 2, loss: Any = None, between: Any = None
) -> None:
    """Training steps. loss: of output and labels. between: backward pass and step."""
    for _ in range(count):
        optimizer.zero_grad()
        value = (loss or functional.cross_entropy)(model(run.x()), run.y())
        value.backward()
        run.note(value)
        if between is not None:
            between()
        optimizer.step()
