"""The model that was given to `parallelize`, of which the network has a copy.

A user who changes it later may mean the network. What the network has not, too, is
refused, so that it is never ignored. Buffers may differ, as the model may run, too.
"""

from __future__ import annotations

import weakref

import torch
from torch import nn

from synth.runtime.model.live.changes import Settings, in_words
from synth.runtime.model.live.watch import Watch
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.facts import Difference, Fact, Facts, same_value

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

    network: the facts of its network when that was made.
    """

    def __init__(
        self, model: nn.Module, attributes: Attributes, network: Facts
    ) -> None:
        self.watch: Watch | None = Watch(model, attributes)
        self.network = network
        self.modes: Facts = {}  # of the model when the network was put into its own
        self.parameters, self.trained = dict(model.named_parameters()), False
        self.values = [*map(_counted, self.parameters.values())]
        weakref.finalize(model, self.forget).atexit = False

    def forget(self) -> None:
        """The model is gone."""
        self.watch, self.network, self.parameters, self.values = None, {}, {}, []

    def take_modes(self) -> None:
        """The user puts the network into a mode; the model may stay in another."""
        model = None if self.watch is None else self.watch.model
        if model is not None:
            self.modes = {
                Fact(name, "mode", "training"): each.training
                for name, each in model.named_modules()
            }

    def same(self) -> bool:
        """Whether the model is as it was."""
        if self.watch is None:
            return True
        found = [*map(_counted, self.parameters.values())]
        return self.values == found and self.watch.same()

    def missed(self, network: nn.Module) -> str:
        """A parameter that was changed, but not on the network; "" for none.

        Each rank compares the words that it has. A model that has gradients is trained
        by itself, beside the network.
        """
        self.trained |= any(each.grad is not None for each in self.parameters.values())
        found = [*map(_counted, self.parameters.values())]
        for (name, own), now, before in zip(
            self.parameters.items(), found, self.values, strict=True
        ):
            if self.trained or now == before:
                continue
            if not _is_alike(own, network, name):
                return name
        self.values = found
        return ""

    def require_followed(self, network: Watch, settings: Settings) -> None:
        """Raise `ValueError` for a change that the network, as it now is, has not."""
        watch = self.watch
        if watch is None:
            return
        seen, (changes, found) = network.attributes, watch.changes(settings)
        here = network.described().facts if any(changes) else {}
        missed = [
            each
            for kind in changes
            for each in kind
            if (each.fact.module, each.fact.name) not in seen.written
            and not self._is_followed(each, here)
        ]
        if missed:
            raise ValueError(
                f"{in_words(missed)} {ELSEWHERE} modules of its own; change the"
                f" network, {COPY}"
            )
        watch.renew(found)

    def _is_followed(self, each: Difference, here: Facts) -> bool:
        """Whether the network was changed at the same place, or says the same."""
        fact = each.fact
        mine, before = here.get(fact), self.network.get(fact)
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


def _is_alike(values: torch.Tensor, network: nn.Module, name: str) -> bool:
    """Whether a network has the same parameter; one that it lacks is no difference."""
    mine = dict(network.named_parameters()).get(name)
    if mine is None or mine.shape != values.shape or values.is_meta:
        return True  # other modules are in the network by now
    if mine.requires_grad != values.requires_grad or mine.dtype != values.dtype:
        return False
    held: torch.Tensor = mine
    own, words = held.detach(), values.detach()
    if isinstance(held, PartitionedTensor):
        own, words = held._local.detach(), held._partition.cut(words)
    if not own.numel():
        return True
    most = float(words.abs().nan_to_num().max())
    there = words.to(own.device)
    return torch.allclose(own, there, rtol=0.0, atol=NEAR * most, equal_nan=True)
