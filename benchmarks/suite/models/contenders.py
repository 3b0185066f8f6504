"""A network as each contender runs it, on this rank's part of the batch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

import synth
from benchmarks.suite.contenders.contender import NotApplicableError
from benchmarks.suite.models import by_hand
from benchmarks.suite.models.networks import Case

OURS, LOCAL = "ours", "ours, local"
WORDS, LOCAL_WORDS = "ours, for words", "ours, local, for words"  # the same, planned for the fewest words
MINE = (OURS, LOCAL, WORDS, LOCAL_WORDS)
ONE, COMPILED = "one process", "one process, compiled"  # with all cores: what no rank can beat on one host
LIMITS = (ONE, COMPILED)
SMALL = 100  # times smaller than the network: modules that FSDP2 gathers with the rest


@dataclass
class Trained:
    """A network in training; the loss is a mean of squares.

    words: of the outputs that the loss is the mean of. sharded: whether a rank updates a part of the
    parameters only (ZeRO-1).
    """

    net: nn.Module
    batch: torch.Tensor
    words: int
    sharded: bool = False
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        made: Any = {"lr": 1e-4, "momentum": 0.9}
        self.optimizer = (
            ZeroRedundancyOptimizer(self.net.parameters(), torch.optim.SGD, **made)
            if self.sharded
            else torch.optim.SGD(self.net.parameters(), **made)
        )

    def loss(self) -> torch.Tensor:
        """The loss: of the whole batch for ours, else this rank's part of it."""
        out: torch.Tensor = self.net(self.batch)
        return out.square().sum() / self.words

    def step(self) -> None:
        """The timed step."""
        self.optimizer.zero_grad()
        torch.autograd.backward(self.loss())
        self.optimizer.step()

    def held(self) -> int:
        """Bytes of parameters, gradients and momenta on this rank."""
        parameters = _bytes(self.net)
        return 2 * parameters + (parameters // dist.get_world_size() if self.sharded else parameters)


@dataclass
class Applied:
    """A network in inference."""

    net: nn.Module
    batch: torch.Tensor
    words: int

    @torch.no_grad()
    def loss(self) -> torch.Tensor:
        """The mean of squares of the output, or this rank's part of it."""
        out: torch.Tensor = self.net(self.batch)
        return out.square().sum() / self.words

    @torch.no_grad()
    def step(self) -> None:
        """The timed step."""
        self.net(self.batch)

    def held(self) -> int:
        """Bytes of parameters on this rank."""
        return _bytes(self.net)


@dataclass
class Alone:
    """A network on the first rank, with a thread for each core, while the others wait."""

    given: Trained | Applied | None  # None on the ranks that wait

    def _with_all_cores(self, call: Callable[[], Any]) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        try:
            return call()
        finally:
            torch.set_num_threads(before)

    def loss(self) -> torch.Tensor:
        """The loss on the first rank, zero on the others."""
        found: torch.Tensor = self._with_all_cores(self.given.loss) if self.given else torch.zeros(())
        return found

    def step(self) -> None:
        """The timed step."""
        if self.given:
            self._with_all_cores(self.given.step)

    def held(self) -> int:
        """Bytes of parameters, gradients and momenta."""
        return self.given.held() if self.given else 0


Made = Trained | Applied | Alone


@dataclass(frozen=True)
class Contender:
    """A contender that is not made yet. make: raises `NotApplicableError`.

    statistics: of its batch normalizations, "global" (the whole batch) or "local"; "" where there are none.
    """

    name: str
    statistics: str
    make: Callable[[], Made]

    @property
    def whole(self) -> bool:
        """Whether its loss is that of the whole batch on every rank; else it is this rank's part."""
        return self.name in MINE


def contenders(case: Case, model: nn.Module, batch: torch.Tensor, words: int) -> list[Contender]:
    """All of them, ours first. words: of the output on the whole batch."""
    if case.inference:
        return [
            Contender(OURS, "", partial(_ours_applied, case, model, batch, words)),
            Contender("spatial", "", partial(_rows_applied, case, model, batch, words)),
            *limits("", True, model, batch, words),
        ]
    norms = any(isinstance(each, nn.BatchNorm2d | nn.BatchNorm3d) for each in model.modules())
    every, own = ("global", "local") if norms else ("", "")
    ours = partial(_ours, case, model, batch, words)
    local = [
        Contender(LOCAL, own, partial(ours, "local")),
        Contender(LOCAL_WORDS, own, partial(ours, "local", "words")),
    ]
    return [
        Contender(OURS, every, partial(ours, "global")),
        Contender(WORDS, every, partial(ours, "global", "words")),
        *(local if norms else []),
        Contender("DDP", own, partial(_samples, _ddp, model, batch, words)),
        Contender("ZeRO-1", own, partial(_samples, _ddp, model, batch, words, sharded=True)),
        Contender("FSDP2", own, partial(_samples, _fsdp2, model, batch, words)),
        Contender("spatial", own, partial(_rows, case, model, batch, words)),
        Contender("tensor", every, partial(_filters, model, batch, words)),
        *limits(own, False, model, batch, words),
    ]


def limits(
    statistics: str, inference: bool, model: nn.Module, batch: torch.Tensor, words: int
) -> list[Contender]:
    """One process with all cores, as it is and compiled."""
    made = partial(_alone, inference, model, batch, words)
    return [Contender(name, statistics, partial(made, name == COMPILED)) for name in LIMITS]


def _alone(inference: bool, model: nn.Module, batch: torch.Tensor, words: int, compiled: bool) -> Made:
    if dist.get_rank():
        return Alone(None)
    net: Any = copy.deepcopy(model)
    net = torch.compile(net.eval() if inference else net) if compiled else net.eval() if inference else net
    return Alone((Applied if inference else Trained)(net, batch, words))


def _ours(
    case: Case,
    model: nn.Module,
    batch: torch.Tensor,
    words: int,
    norms: Literal["global", "local"],
    objective: Literal["time", "words"] = "time",
) -> Made:
    """What a user gets without a plan."""
    net = synth.parallelize(model, case.shape, batch_norm=norms, objective=objective)
    return Trained(net, net.scatter(batch), words)


def _ours_applied(case: Case, model: nn.Module, batch: torch.Tensor, words: int) -> Made:
    net = synth.parallelize(model, case.shape, mode="inference", objective="time")
    return Applied(net, net.scatter(batch), words)


def _samples(
    wrap: Callable[[nn.Module], nn.Module],
    model: nn.Module,
    batch: torch.Tensor,
    words: int,
    sharded: bool = False,
) -> Made:
    """What cuts the batch into samples, and averages gradients."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if batch.shape[0] % ranks:
        raise NotApplicableError(f"{batch.shape[0]} samples are no multiple of {ranks}")
    return Trained(wrap(copy.deepcopy(model)), batch.chunk(ranks)[rank], words // ranks, sharded)


def _ddp(model: nn.Module) -> nn.Module:
    """DDP in its leanest setting, with a process group of its own."""
    from torch.nn.parallel import DistributedDataParallel

    lean: Any = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
    return DistributedDataParallel(model, process_group=dist.new_group(), **lean)


def _fsdp2(model: Any) -> nn.Module:
    """FSDP2 that keeps gathered weights for the backward pass (ZeRO-2)."""
    from torch.distributed.fsdp import fully_shard

    for part in blocks(model):
        fully_shard(part, reshard_after_forward=False)
    sharded: nn.Module = fully_shard(model, reshard_after_forward=False)
    return sharded


def blocks(model: nn.Module) -> list[nn.Module]:
    """The units that FSDP2 gathers one by one: blocks and large layers. The others come with the model."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.Sequential):
            found += [
                each for link in child for each in (link if isinstance(link, nn.Sequential) else [link])
            ]
        else:
            found += child if isinstance(child, nn.ModuleList) else [child]
    return [each for each in found if _bytes(each) * SMALL >= _bytes(model)]


def _rows(case: Case, model: nn.Module, batch: torch.Tensor, words: int) -> Made:
    parts = by_hand.best_parts(case.shape[2:], case.least)
    cut = by_hand.spatial(copy.deepcopy(model), parts)
    return Trained(_ddp(cut), by_hand.block(batch, parts), words // dist.get_world_size())


def _rows_applied(case: Case, model: nn.Module, batch: torch.Tensor, words: int) -> Made:
    parts = by_hand.best_parts(case.shape[2:], case.least)
    cut = by_hand.spatial(copy.deepcopy(model), parts, ("Attention",), norms=True)
    return Applied(cut, by_hand.block(batch, parts), words)


def _filters(model: nn.Module, batch: torch.Tensor, words: int) -> Made:
    return Trained(by_hand.tensor(copy.deepcopy(model), batch.shape[1]), batch, words)


def _bytes(net: nn.Module) -> int:
    """Bytes of a network's parameters on this rank."""
    found: list[Any] = [p.to_local() if hasattr(p, "to_local") else p for p in net.parameters()]
    return sum(p.numel() * p.element_size() for p in found)
