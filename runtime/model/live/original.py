"""The model that was given to `parallelize`, of which the network has a copy.

A user who changes it later may mean the network. What the network has not, too, is
refused, so that it is never ignored. The model may run by itself, which changes its
buffers, and be trained.
"""

from __future__ import annotations

import weakref

import torch
from torch import nn

from synth.runtime.model.checks.versions import counts
from synth.runtime.model.live.changes import Settings, in_words
from synth.runtime.model.live.watch import Watch
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.facts import (
    DTYPE,
    IN_PLACE,
    Difference,
    Fact,
    Facts,
    same_value,
)

VALUES = "attribute", "mode"
NEAR = (
    1e-3  # of the largest word: values of two that were trained alike, but for rounding
)
ELSEWHERE = (
    "on the model that was given to parallelize, but not on its network, which has"
)
COPY = "or give parallelize a copy (copy.deepcopy(model))"


class Original:
    """A model as long as others refer to it; then it cannot be changed.

    network: what its network was when that was made.
    """

    def __init__(
        self, model: nn.Module, attributes: Attributes, network: Watch
    ) -> None:
        self.watch: Watch | None = Watch(model, attributes)
        self.network = network.facts
        self.modes: Facts = {}  # of the model when the network was put into its own
        self.tensors, self.trained = _tensors(model), False
        self.values = [*map(_counted, self.tensors.values())]
        self.batches = _batches(self.tensors)
        its = {} if network.model is None else _tensors(network.model)
        self.begun = {name: counts(each) for name, each in its.items()}
        weakref.finalize(model, self.forget).atexit = False

    @property
    def model(self) -> nn.Module | None:
        """The model; None if it is gone."""
        return None if self.watch is None else self.watch.model

    def forget(self) -> None:
        """Drop what refers to the model, which was freed."""
        self.watch, self.network, self.tensors, self.values = None, {}, {}, []

    def take_modes(self) -> None:
        """The user puts the network into a mode; the model may stay in another."""
        model = self.model
        if model is not None:
            self.modes = {
                Fact(name, "mode", "training"): each.training
                for name, each in model.named_modules()
            }

    def same(self) -> bool:
        """Whether the model is as it was."""
        if self.watch is None:
            return True
        found = [*map(_counted, self.tensors.values())]
        return self.values == found and self.watch.same()

    def missed(self, network: nn.Module) -> str:
        """A tensor that was changed, but not on the network; "" for none.

        Each rank compares the words that it has. A model that has gradients is trained
        by itself, beside the network.
        """
        model = self.model
        if model is None:
            return ""
        now, its = _tensors(model), _tensors(network)
        found = {name: _counted(each) for name, each in now.items()}
        before = dict(zip(self.tensors, self.values, strict=True))
        batches = _batches(now)
        ran = {n for n, count in batches.items() if count > self.batches.get(n, count)}
        self.trained |= any(each.grad is not None for each in model.parameters())
        for name, own in now.items():
            mine, begun = its.get(name), self.begun.get(name)
            if self.trained or found[name] == before.get(name) or mine is None:
                continue
            untouched = counts(mine) == begun
            module = f"{name.rpartition('.')[0]}."
            passed = module in ran if module in batches else not untouched
            if passed and not isinstance(own, nn.Parameter):
                continue  # as passes change it
            if not _is_alike(own, mine, 0.0 if untouched else NEAR):
                return name
        self.tensors, self.values, self.batches = now, [*found.values()], batches
        return ""

    def require_followed(self, network: Watch, settings: Settings) -> None:
        """Raise `ValueError` for a change that the network, as it now is, has not."""
        watch = self.watch
        if watch is None:
            return
        seen, (changes, found) = network.attributes, watch.changes(settings)
        here = network.described().facts if any(changes) else {}
        own = {} if found is None else found.facts
        missed = [
            each
            for kind in changes
            for each in kind
            if (each.fact.module, each.fact.name) not in seen.written
            and not self._is_followed(each, here, own)
        ]
        if missed:
            raise ValueError(
                f"{in_words(missed)} {ELSEWHERE} modules of its own; change the"
                f" network, {COPY}"
            )
        watch.renew(found)

    def _is_followed(self, each: Difference, here: Facts, own: Facts) -> bool:
        """Whether the network was changed at the same place, or says the same.

        here: what it says. own: what the model says.
        """
        fact = each.fact
        if fact.path == DTYPE:  # `missed` compares them
            return True
        mine, before = here.get(fact), self.network.get(fact)
        if fact.path.endswith(IN_PLACE):  # counts of changes, each of its own tensor
            place = fact._replace(path=fact.path.removesuffix(IN_PLACE))
            pair = here.get(place), own.get(place)
            return not same_value(mine, before) or _is_same_tensor(*pair)
        if fact.kind in VALUES and same_value(mine, each.now):
            return True
        if fact.kind == "mode":
            return bool(self.modes.get(fact) == each.now)
        tensors = fact.kind == "buffer" and each.now is not None
        return tensors or not same_value(mine, before)


def _counted(values: torch.Tensor) -> tuple[int, int, bool]:
    """What tells that a tensor has other words, or is trained or not."""
    changes = 0 if values.is_inference() else values._version
    return changes, values.data_ptr(), values.requires_grad


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _is_same_tensor(one: object, other: object) -> bool:
    """Whether two plain tensors have the same words."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one.dtype == other.dtype and torch.equal(one, other)


def _batches(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """Module, with a point -> how many batches it has seen in training."""
    return {
        f"{name.rpartition('.')[0]}.": int(each)
        for name, each in tensors.items()
        if name.endswith("num_batches_tracked") and not each.is_meta
    }


def _is_alike(values: torch.Tensor, mine: torch.Tensor, near: float) -> bool:
    """Whether a network has the same tensor. near: relative to the largest word."""
    if mine.shape != values.shape or values.is_meta:
        return True  # other modules are in the network by now
    if mine.requires_grad != values.requires_grad or mine.dtype != values.dtype:
        return False
    own, words = mine.detach(), values.detach()
    if isinstance(mine, PartitionedTensor):
        own, words = mine._local.detach(), mine._partition.cut(words)
    there = words.to(own.device)
    if not near or not own.numel():
        return torch.equal(own, there)
    most = float(words.abs().nan_to_num().max())
    return torch.allclose(own, there, rtol=0.0, atol=near * most, equal_nan=True)
