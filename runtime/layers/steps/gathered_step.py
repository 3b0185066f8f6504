"""Calls without a rule for shards: every rank computes them from whole tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.layout import Layout, even, replicated
from synth.runtime.comm.redistribute import Count
from synth.runtime.layers.steps.draws import Draws
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.rules.rule import Operand, Rule, is_trainable
from synth.runtime.tensor.partition import Partition


class Several:
    """The results of a call that gives several, each of which has a step.

    The step that runs first computes them all, and the others take theirs.
    """

    def __init__(self) -> None:
        self.places: list[int] = []  # of the results, in the order of the steps
        self.left: dict[int, torch.Tensor] = {}

    def computes(self, place: int) -> bool:
        """Whether the step of a result computes those of the others."""
        return self.places[0] == place

    def keep(self, made: Sequence[torch.Tensor]) -> torch.Tensor:
        """Keep the results for the other steps; returns that of the first."""
        first, *others = self.places
        self.left = {place: made[place] for place in others}
        return made[first]


class GatheredStep(Pulled):
    """A call that every rank computes from the whole inputs; it keeps a part.

    For calls that cannot be cut. `calls`, one for evaluation and one for training, take
    the whole inputs, then the tensors of `params`. `plain` is the module that they
    call, if they call one: see `empty_copy`. Gradients of the parameters of both are
    summed over the ranks. Random numbers are drawn alike on all ranks.

    changes: whether the function that they call may change a buffer.
    several: where the calls give several tensors; the step is that of one, at `place`.
    """

    def __init__(
        self,
        calls: tuple[Callable[..., Any], Callable[..., Any]],
        layouts: Sequence[Layout],
        out: Sequence[int],
        count: Count,
        draws: Draws | None = None,
        params: ReplicatedParams | None = None,
        plain: nn.Module | None = None,
        several: Several | None = None,
        place: int = 0,
        changes: bool = False,
    ) -> None:
        operands = (
            Operand(each, replicated(each.whole, each.ranks), place)
            for place, each in enumerate(layouts)
        )
        out_layout = even(out, layouts[0].ranks)
        super().__init__(Rule(out_layout, tuple(operands), self._called), count, params)
        self.calls, self.draws, self.plain = calls, draws, plain
        self.several, self.place, self.changes = several, place, changes
        if several is not None:
            several.places.append(place)

    @property
    def changes_buffers(self) -> bool:
        """Whether a call may: some functions; modules of which a part trains."""
        parts = () if self.plain is None else self.plain.modules()
        return self.changes or any(each.training for each in parts)

    def held_tensors(self) -> dict[str, Held]:
        """All tensors that the call uses, whole on every rank."""
        found = super().held_tensors()
        ranks = self.layout.ranks
        everyone = tuple(range(ranks.size))
        for path, part in () if self.plain is None else self.plain.named_modules():
            for name, values in part._parameters.items():
                if values is not None:
                    each = Partition(replicated(values.shape, ranks))
                    found[_joined(path, name)] = Held(part, name, each, everyone)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    place = Partition(replicated(buffer.shape, ranks))
                    own = place if is_trainable(buffer) else None
                    found[_joined(path, name)] = Held(part, name, own)
        return found

    def forward(self, *shards: torch.Tensor) -> torch.Tensor:
        """The own part of the result."""
        if self._computes:
            result = super().forward(*shards)
        else:
            assert self.several is not None
            result = self.several.left.pop(self.place)
        mine = tuple(slice(*interval) for interval in self.layout.mine)
        part: torch.Tensor = result[mine].contiguous()
        return part

    @property
    def _computes(self) -> bool:
        return self.several is None or self.several.computes(self.place)

    def _called(self, *given: torch.Tensor) -> torch.Tensor:
        """The whole result, from the whole inputs and the parameters."""
        flat = nullcontext() if self.plain is None else bound_flat_weights(self.plain)
        alike = self.draws.alike(given[0].device) if self.draws else nullcontext()
        with alike, flat:
            made: Any = self.calls[self.training](*given)
        result: torch.Tensor = made if self.several is None else self.several.keep(made)
        return result

    def exchanges(self) -> list[Exchange]:
        """Whole inputs, and the gradients of parameters, where they are computed."""
        return super().exchanges() if self._computes else []


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
