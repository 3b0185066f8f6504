"""The table of features, and the models and plans with which each of them runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth
from synth.runtime.tensor.partitioned import PartitionedTensor

Function = Callable[["Run"], Any]
PLANS: dict[str, Any] = {
    "samples": "data",
    "space": {"h": 4},
    "channels": "filter",
    "mixed": None,
    "uneven": {"conv": {"h": 4}, "grouped": {"b": 2, "k": 2}, "head": {"k": 4}, "": {"w": 4}},
}
FAULTS = ValueError, RuntimeError, TypeError, NotImplementedError


class Feature(NamedTuple):
    """run: what is done. refused: a part of the sentence with which every rank refuses it; "" where it is
    as in one process. tolerance: of all values, relative to the largest one.
    """

    run: Function
    refused: str
    tolerance: float


FEATURES: dict[str, Feature] = {}


def correct(name: str, tolerance: float = 1e-8) -> Callable[[Function], Function]:
    """A feature with the same values as in one process."""

    def add(function: Function) -> Function:
        assert name not in FEATURES
        FEATURES[name] = Feature(function, "", tolerance)
        return function

    return add


def refused(name: str, sentence: str) -> Callable[[Function], Function]:
    """A feature that all ranks refuse."""

    def add(function: Function) -> Function:
        assert name not in FEATURES
        assert sentence
        FEATURES[name] = Feature(function, sentence, 0.0)
        return function

    return add


class Small(nn.Module):
    """Classes of images, by the usual kinds of layers."""

    def __init__(self, width: int, rows: int, columns: int, classes: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.act, self.pool = nn.PReLU(width), nn.MaxPool2d(2)
        self.grouped = nn.Conv2d(width, width, 3, padding=1, groups=2, bias=False)
        self.norm = nn.GroupNorm(2, width)
        self.head = nn.Linear(width * (rows // 2) * (columns // 2), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.bn(self.conv(x)))
        x = functional.silu(self.norm(self.grouped(x)))
        return self.head(self.pool(x).flatten(1))


class Checkpointed(Small):
    """The same with a region that is computed again in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(lambda x: self.act(self.bn(self.conv(x))), x, use_reentrant=False)
        x = functional.silu(self.norm(self.grouped(x)))
        return self.head(self.pool(x).flatten(1))


class Images(nn.Module):
    """Images of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.silu(self.conv(x)))


class Sizes(NamedTuple):
    """Extents of the models."""

    samples: int
    width: int
    rows: int
    columns: int
    classes: int

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape of a batch."""
        return self.samples, 3, self.rows, self.columns


def sizes_of(word: str) -> Sizes:
    """The extents with which a plan is tested."""
    return Sizes(5, 10, 9, 7, 5) if word == "uneven" else Sizes(4, 8, 8, 8, 4)


@cache
def models_of(word: str) -> dict[str, tuple[nn.Module, nn.Module]]:
    """By name, a network and the model in one process. The two networks of a plan lie differently."""
    sizes = sizes_of(word)
    torch.manual_seed(3)
    small = Small(*sizes[1:]).double()
    images = Images(sizes.width).double()
    plan = PLANS[word]
    other = {"c": 2, "k": 2} if plan is None or "h" in plan else {"h": 4}
    makes = {"small": (small, plan), "images": (images, other)}
    return {
        name: (synth.parallelize(model, sizes.batch, plan=how, input_gradient=True), model)
        for name, (model, how) in makes.items()
    }


class Run:
    """One run of a feature, on ranks or in one process; both draw the same numbers."""

    def __init__(self, word: str, on_ranks: bool) -> None:
        self.word, self.on_ranks = word, on_ranks
        self.sizes, self.notes = sizes_of(word), list[torch.Tensor]()
        self.generator = torch.Generator().manual_seed(11)
        torch.manual_seed(12)
        pairs = models_of(word)
        self.model = copy.deepcopy(pairs["small"][0 if on_ranks else 1])
        self.images = copy.deepcopy(pairs["images"][0 if on_ranks else 1])
        self.noted_models = [self.model]

    def checkpointed(self) -> nn.Module:
        """A model with a region that is computed again."""
        torch.manual_seed(4)
        model = Checkpointed(*self.sizes[1:]).double()
        return synth.parallelize(model, self.sizes.batch, plan=PLANS[self.word]) if self.on_ranks else model

    def made(self, change: Callable[[Any], Any]) -> nn.Module:
        """A new model that is changed before it is parallelized."""
        torch.manual_seed(4)
        model = Small(*self.sizes[1:]).double()
        change(model)
        return synth.parallelize(model, self.sizes.batch, plan=PLANS[self.word]) if self.on_ranks else model

    def randn(self, *shape: int) -> torch.Tensor:
        """Random words, the same on all ranks."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def batch(self) -> torch.Tensor:
        """A whole batch."""
        return self.randn(*self.sizes.batch)

    def targets(self) -> torch.Tensor:
        """A whole batch of outputs."""
        return self.randn(self.sizes.samples, self.sizes.classes)

    def labels(self) -> torch.Tensor:
        """A class for each sample."""
        shape = (self.sizes.samples,)
        return torch.randint(self.sizes.classes, shape, generator=self.generator)

    def loss(self) -> torch.Tensor:
        """The cross entropy of a new batch."""
        return functional.cross_entropy(self.model(self.batch()), self.labels())

    def note(self, *values: Any) -> None:
        """Values that are compared with those of the other run."""
        for each in values:
            tensor = torch.as_tensor(each) if not isinstance(each, torch.Tensor) else each
            self.notes.append(plain(tensor))

    def grads(self, model: nn.Module | None = None) -> None:
        """Note all gradients."""
        for parameter in (model or self.model).parameters():
            self.note(parameter.grad if parameter.grad is not None else torch.zeros(()))

    def finish(self) -> list[torch.Tensor]:
        """All notes and the state of the models."""
        for model in self.noted_models:
            self.note(*model.state_dict().values())
        return self.notes


def plain(values: torch.Tensor) -> torch.Tensor:
    """A whole in double precision."""
    values = values.detach()
    whole = values.full_tensor() if isinstance(values, PartitionedTensor) else values
    return whole.double().clone()


def train(run: Run, make: Callable[[Any], Any], steps: int = 3, between: Any = None) -> None:
    """Steps of an optimizer. between: called after the backward pass; what it returns is noted."""
    optimizer = make(run.model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        run.note(loss)
        if between is not None:
            found = between(run.model.parameters())
            if found is not None:
                run.note(found)
        optimizer.step()
