"""The model that was given to `parallelize`, of which the network has a copy.

A user who changes it later may mean the network. What the network has not, too, is
refused, so that it is never ignored. Values of parameters are those of the copy.
"""

from __future__ import annotations

import weakref

from torch import nn

from synth.runtime.model.live.changes import Settings, in_words
from synth.runtime.model.live.watch import Watch
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.facts import Difference, Fact, Facts, same_value

VALUES = "attribute", "mode"


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
        weakref.finalize(model, self.forget).atexit = False

    def forget(self) -> None:
        """The model is gone."""
        self.watch, self.network = None, {}

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
        return self.watch is None or self.watch.same()

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
                f"{in_words(missed)} on the model that was given to parallelize, but"
                " not on its network, which has modules of its own; change the"
                " network, or give parallelize a copy (copy.deepcopy(model))"
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
