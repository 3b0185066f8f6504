"""The calls that a network has made, and what later ones may not read of them."""

from __future__ import annotations

from torch import nn

from synth.runtime.model.call_graphs import CallGraphs, modes_of
from synth.runtime.model.templates import device_of
from synth.runtime.model.undisturbed import undisturbed
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.left_before import (
    LeftBeforeError,
    Traceable,
    may_read,
    require_not_left,
)
from synth.runtime.tracing.modes import MODES

Source = tuple[Attributes, tuple[bool, ...]]  # of a call; the modes of all modules


class PassedCalls:
    """What was called since the network was planned, each in one mode.

    found: of one call after another, why the ranks refuse it; "" for what they do.
    last: the call that was made last, and the stamp of the network then.
    """

    def __init__(self) -> None:
        self.made: dict[Source, Traceable] = {}
        self.found: dict[tuple[Source, Source], str] = {}
        self.last: tuple[object, object] = None, None

    def __deepcopy__(self, memo: object) -> PassedCalls:
        made = PassedCalls()
        made.made, made.found = dict(self.made), self.found
        return made

    def require_not_left(self, call: CallGraphs, network: nn.Module) -> None:
        """Raise `ValueError` for a call that reads what another one has left."""
        if not self.made:
            return
        then = _traceable(call, network)
        for source, first in self.made.items():
            key = source, _source(then)
            if source == key[1]:
                continue
            if key not in self.found:
                self.found[key] = _refusal(first, then, network)
            if self.found[key]:
                raise LeftBeforeError(self.found[key])

    def note(self, call: CallGraphs, network: nn.Module) -> None:
        """Note a call that has been made."""
        if call.first.attributes.written:
            made = _traceable(call, network)
            self.made.setdefault(_source(made), made)


def _refusal(first: Traceable, then: Traceable, network: nn.Module) -> str:
    """Why a call is refused after another one; "" where it is not."""
    if may_read(first, then):
        try:
            with undisturbed(device_of(network)):
                require_not_left(first, then)
        except ValueError as error:
            return str(error)
    return ""


def _traceable(call: CallGraphs, network: nn.Module) -> Traceable:
    first, modes = call.first, modes_of(network)
    said = f"{call.method or 'forward'}() in {MODES[network.training]}"
    given = modes, first.arguments, first.dtype, device_of(network).type
    return Traceable(said, call.template, *given, first.attributes)


def _source(call: Traceable) -> Source:
    return call.seen, tuple(call.modes.values())
