"""Looks at the calls of the user's model while it computes, as a recorder sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.overrides import TorchFunctionMode

from synth.runtime.model.self_check.forced_draws import Drawn
from synth.runtime.model.self_check.twins import Place, Twins
from synth.runtime.model.templates import device_of
from synth.runtime.tracing.as_written import as_written
from synth.runtime.tracing.at_rest import AtRest
from synth.runtime.tracing.composed import composed
from synth.runtime.tracing.modes import DROPOUTS as DROPS
from synth.runtime.tracing.recorded import function_name, tensors_in
from synth.runtime.tracing.unsupported import in_user_code, record_autograd_functions

DROPOUTS = {*DROPS, "alpha_dropout", "feature_alpha_dropout", "feature_dropout"}
Look = Callable[[str, torch.Tensor], None]  # is called with a node and its value


class Witness(TorchFunctionMode):
    """Meets the calls of a model in a graph, and lets it draw what a network drew.

    twins: the calls of the graph. drawn: by the network. look: at each value that a
    call of the graph has, too; None to look at none.

    unmet: calls that drew random numbers of their own, though not by their step.
    """

    def __init__(
        self, model: nn.Module, twins: Twins, drawn: Drawn, look: Look | None
    ) -> None:
        super().__init__()
        self.twins, self.drawn, self.look = twins, drawn, look
        self.device = device_of(model)
        self.path: list[str] = []
        self.depth = 0  # modules that run as one call, or as parts of it
        self.place = Place("", "", "")  # of the outermost of them
        self.given: Any = ()  # its arguments
        self.before: Any = None  # the state of the generator before it
        self.inside = ExitStack()  # what is open while it runs
        self.computed: dict[int, torch.Tensor] = {}  # from inputs, by id; kept alive
        self.shown: str | None = None  # the node that was met last
        self.unmet: list[str] = []

    def run(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """What the model gives. It is a copy, to which hooks are added."""
        for tensor in tensors_in((args, kwargs)):
            self.computed[id(tensor)] = tensor
        hooks = list[Any]()
        try:
            return self._run(model, args, kwargs, hooks)
        finally:  # nothing outlives the pass
            self.computed.clear()
            for each in hooks:
                each.remove()

    def _run(self, model: nn.Module, args: Any, kwargs: Any, hooks: list[Any]) -> Any:
        self.rest = AtRest(model)
        for name, module in model.named_modules():
            enter, leave = partial(self._enter, name), partial(self._leave, name)
            hooks += [
                module.register_forward_pre_hook(enter, with_kwargs=True),
                module.register_forward_hook(leave, with_kwargs=True),
            ]
        with (
            self.inside,
            without_checkpoints(),
            as_written(),
            self,
            record_autograd_functions(self._autograd_function),
        ):
            return model(*args, **kwargs)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function and look at what it gives."""
        kwargs = kwargs or {}
        if self.depth:
            return func(*args, **kwargs)
        parts = composed(func)
        if parts is not None:
            before, self.shown = self._state(), None
            with self:
                made = parts(*args, **kwargs)
            if made is not NotImplemented:
                drew = not self._same(before)
                return made if drew else self._in_one(func, args, kwargs)
        return self._looked(func, function_name(func), args, kwargs)

    def _in_one(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function whose parts were looked at: what the user called."""
        with torch._C.DisableTorchFunction():
            made = func(*args, **kwargs)
            for each in tensors_in(made):
                self.computed[id(each)] = each
            if isinstance(made, torch.Tensor) and self.shown and self.look is not None:
                self.look(self.shown, made)  # instead of that of the last part
        return made

    def _autograd_function(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """A `torch.autograd.Function` is one call."""
        if self.depth:
            return call(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return self._looked(call, function_name(call), args, kwargs)

    def _looked(self, func: Any, word: str, args: Any, kwargs: Any) -> Any:
        used = list(tensors_in((args, kwargs)))
        place = Place(word, self.path[-1] if self.path else "", in_user_code())
        name, before = self.twins.of(place), self._state()
        versions = [each._version for each in used]
        given = _kept(args) if word in DROPOUTS else args
        with self.drawn.seeded(name, self.device):
            made = func(*args, **kwargs)
        if not self._same(before):
            made = self._drew(name, place, partial(func, **kwargs), given, made)
        if any(id(each) in self.computed for each in used):
            for each in tensors_in(made):
                self.computed[id(each)] = each
        if not isinstance(made, torch.Tensor):
            for index, each in enumerate(tensors_in(made)):
                self._show(place._replace(word=f"{word}_{index}"), each)
        elif not any(
            made is each and each._version == version
            for each, version in zip(used, versions, strict=True)
        ):
            self._show(place, made)
        return made

    def _drew(
        self, name: str | None, place: Place, func: Any, given: Any, made: Any
    ) -> Any:
        """The result of a call that drew, with what the network drew instead."""
        if name is None:
            self.unmet.append(str(place))
            return made
        if not given or not isinstance(made, torch.Tensor):
            return made

        def own(first: torch.Tensor) -> Any:
            return func(first, *given[1:])

        masked = self.drawn.masked(name, own, given[0])
        if masked is None:
            return made
        in_place = made._version > 0
        return made.copy_(masked) if in_place else masked

    def _show(self, place: Place, made: torch.Tensor) -> None:
        """Meet the node of a call, and look at what it gave."""
        name = self.shown = self.twins.take(place)
        if name is not None and self.look is not None:
            self.look(name, made)

    # -- modules -------------------------------------------------------------------

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.path.append(name)
        if self.depth:
            self.depth += 1
        elif self.rest.is_one_call(module, args, kwargs) and any(
            id(each) in self.computed for each in tensors_in((args, kwargs))
        ):
            with torch._C.DisableTorchFunction():
                self.place = Place("", name, in_user_code())
                self.before, node = self._state(), self.twins.of(self.place)
                drops = isinstance(module, nn.modules.dropout._DropoutNd)
                self.given = _kept(args) if drops else args
                self.inside.enter_context(self.drawn.seeded(node, self.device))
            self.depth = 1

    def _leave(
        self, name: str, module: nn.Module, args: Any, kwargs: Any, made: Any
    ) -> Any:
        self.path.pop()
        if not self.depth:
            return made
        self.depth -= 1
        if self.depth:
            return made
        with torch._C.DisableTorchFunction():
            self.inside.close()
            if not self._same(self.before):
                own, node = partial(module.forward, **kwargs), self.twins.of(self.place)
                made = self._drew(node, self.place, own, self.given, made)
            self.computed[id(made)] = made
            self._show(self.place, made)
        self.given = ()
        return made

    # -- random numbers ------------------------------------------------------------

    def _state(self) -> torch.Tensor:
        """Of the generator from which the model draws."""
        with torch._C.DisableTorchFunction():
            if self.device.type == "cuda":
                return torch.cuda.get_rng_state(self.device)
            return torch.get_rng_state()

    def _same(self, before: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return torch.equal(before, self._state())


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Let checkpoints keep their values: what they compute again would draw anew."""
    hook: Any = torch.utils.checkpoint._checkpoint_hook

    def nothing(*_: Any) -> None:
        return None

    hook.__enter__ = hook.__exit__ = nothing
    try:
        yield
    finally:
        del hook.__enter__, hook.__exit__  # those of the base class again


def _kept(args: Any) -> Any:
    """Arguments of which the first is not changed if the call is made in place."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor):
        return args
    with torch._C.DisableTorchFunction():
        return (first.clone(), *args[1:])
