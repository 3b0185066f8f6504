"""Calls without a rule for shards: every rank computes them from whole tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout, even, replicated
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.layers.steps.draws import Draws
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import Step
from synth.runtime.tensor.partition import Partition


class GatheredStep(Step):
    """A function that every rank computes from the whole inputs; it keeps a part.

    For functions that cannot be cut. `call`, a pair for evaluation and training, takes
    the whole tensors, then the parameters of `params`. If there is a `module`, that is
    called instead. Gradients of the parameters of either are summed over the ranks.
    Random numbers are drawn alike on all ranks.
    """

    def __init__(
        self,
        call: tuple[Callable[..., Any], Callable[..., Any]],
        layouts: Sequence[Layout],
        out: Sequence[int],
        count: Count,
        draws: Draws | None = None,
        params: ReplicatedParams | None = None,
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.call, self.layouts, self.count, self.draws = call, layouts, count, draws
        self.plain = None if module is None else empty_copy(module)
        self.module = params if module is None else self.plain
        self.layout = even(out, layouts[0].ranks)

    def held_tensors(self) -> dict[str, Held]:
        """All parameters and buffers, whole on every rank."""
        if self.plain is None:
            return super().held_tensors()
        ranks = self.layout.ranks
        everyone = tuple(range(ranks.size))
        found = {}
        for path, part in self.plain.named_modules():
            for name, values in part._parameters.items():
                if values is not None:
                    each = Partition(replicated(values.shape, ranks))
                    found[_joined(path, name)] = Held(part, name, each, everyone)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    floats = buffer.is_floating_point()
                    place = Partition(replicated(buffer.shape, ranks))
                    own = place if floats else None
                    found[_joined(path, name)] = Held(part, name, own)
        return found

    def forward(self, *shards: torch.Tensor) -> torch.Tensor:
        """The own part of the result."""
        pairs = zip(shards, self.layouts, strict=True)
        whole = [
            redistribute(
                shard, layout, replicated(layout.whole, layout.ranks), self.count
            )
            for shard, layout in pairs
        ]
        device = shards[0].device
        with self.draws.alike(device) if self.draws else nullcontext():
            result = self._computed(whole)
        mine = tuple(slice(*interval) for interval in self.layout.mine)
        part: torch.Tensor = result[mine].contiguous()
        return part

    def exchanges(self) -> list[Exchange]:
        """Whole inputs, and the gradients of parameters."""
        found = super().exchanges()
        for place, each in enumerate(self.layouts):
            found += moved(each, replicated(each.whole, each.ranks), place)
        return found

    def _computed(self, whole: list[torch.Tensor]) -> Any:
        if self.plain is not None:
            with bound_flat_weights(self.plain):
                return self.plain(*whole)
        held = self.module
        params = held.all() if isinstance(held, ReplicatedParams) else []
        return self.call[self.training](*whole, *params)


def empty_copy(module: nn.Module) -> nn.Module:
    """A copy of a module whose parameters and buffers have no values."""
    memo = {
        id(values): torch.empty_like(values, device="meta")
        for values in module.buffers()
    }
    for values in module.parameters():
        empty = torch.empty_like(values, device="meta")
        memo[id(values)] = nn.Parameter(empty, requires_grad=values.requires_grad)
    return copy.deepcopy(module, memo)


@contextmanager
def bound_flat_weights(module: nn.Module) -> Iterator[None]:
    """Let recurrent layers, which list their weights, use those that are bound."""
    layers = [each for each in module.modules() if isinstance(each, nn.RNNBase)]
    for each in layers:
        each._flat_weights = [getattr(each, n) for n in each._flat_weights_names]
    try:
        yield
    finally:
        for each in layers:
            each._flat_weights = []


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
