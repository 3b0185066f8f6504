"""Networks of one model: each has copies of its parameters.

What one of them trains, the others do not have, as networks of a model that is trained
by DistributedDataParallel would. So a network that is used with the parameters that it
was made with, after another one of the same model was trained, says so once.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

from synth.runtime.grid.ranks import Ranks
from synth.runtime.model.checks.versions import counts

_MADE: weakref.WeakKeyDictionary[Any, Siblings]
_MADE = weakref.WeakKeyDictionary()
Counts = tuple[tuple[int, ...], ...]


class Siblings:
    """The networks that were made of the same parameters before.

    Made before the network takes the model's values. own, of_model: how often its
    parameters and those of the model had been changed when it was made. others:
    networks of a model that is there and has one of the parameters.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self.ranks = ranks
        self.own = self.of_model = _counts(model)
        self.model, own = weakref.ref(model), set(map(id, model.parameters()))
        self.others = [
            weakref.ref(other)
            for other, known in tuple(_MADE.items())
            if known.of_model == self.of_model and known.has_some_of(own)
        ]

    def has_some_of(self, parameters: set[int]) -> bool:
        """Whether the model is there, and has one of some parameters, given by id."""
        model = self.model()
        return model is not None and any(
            id(e) in parameters for e in model.parameters()
        )

    def made(self, network: nn.Module, model: nn.Module) -> None:
        """Its parameters are those of the model."""
        self.own, self.of_model = _counts(network), _counts(model)
        for other in filter(None, (each() for each in self.others)):
            _MADE[other].of_model = self.of_model  # which was broadcast, as it was
        _MADE[network] = self

    def look(self, network: nn.Module) -> None:
        """Warn, on the first rank and once, if another network was trained."""
        if not self.others:
            return
        if _counts(network) != self.own:  # it was trained itself, or given their words
            self.others = []
            return
        for each in self.others:
            other = each()
            if other is None or _counts(other) == _MADE[other].own:
                continue
            self.others = []
            if self.ranks.reports:
                warnings.warn(
                    "this network has the parameters that its model had, but another"
                    " network of the same model has changed its copies of them; call"
                    " net.load_state_dict(other.state_dict()) to take those",
                    stacklevel=2,
                )
            return


def _counts(module: nn.Module) -> Counts:
    parameters: Iterable[Any] = module.parameters()
    return tuple(() if e.is_inference() else counts(e) for e in parameters)
