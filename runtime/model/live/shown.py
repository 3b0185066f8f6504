"""A module that stands for the user's model: with its parts and its attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

from torch import nn

from synth.runtime.model.methods import planned_method
from synth.runtime.tracing.facts import INTERNAL, STORED
from synth.runtime.tracing.recorded import leaf_tensors
from synth.runtime.tracing.unsupported import plain_copies

SHARED = (
    *(*STORED, "_non_persistent_buffers_set"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
# what all modules have; Dynamo adds a mark later
PLAIN = frozenset((*dir(nn.Module()), "___needs_generation_tag_patch"))
# by which ranks know what a model has
WALKS = (
    *("named_parameters", "named_buffers", "named_modules", "named_children"),
    *("buffers", "modules", "children"),
)


class Shown(nn.Module):
    """A module with the parts of another one, which has the class of the user's model.

    `_shown`, the user's model as it is now, is never called. The two have the same
    dicts of modules, parameters, buffers and hooks of states. Attributes that a user
    sets here are set there. Methods of `nn.Module` that the model's class has in its
    own way, such as a `train` that freezes layers, do that here, too. _own: the
    attributes of the module itself.
    """

    _own = frozenset({"_shown"})
    _shown: nn.Module

    def show(self, model: nn.Module) -> None:
        """Take the parts of a model."""
        here = vars(self)
        here["_shown"] = model
        here.update({name: vars(model)[name] for name in SHARED})
        here["_version"] = model._version
        for name in _overridden(type(model)):
            if getattr(type(self), name) is getattr(nn.Module, name):
                here[name] = partial(self._as_shown, name)

    def _as_shown(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """What the model does by one of its methods that `nn.Module` has, too."""
        made = getattr(self._shown, name)(*args, **kwargs)
        return self if made is self._shown else made

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._shown._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._shown._load_from_state_dict(*args, **kwargs)

    @property
    def training(self) -> bool:
        """The mode of the model, which its methods may change."""
        shown = vars(self).get("_shown")
        return shown is None or bool(shown.training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "_shown" in vars(self):
            self._shown.training = mode

    @property
    def __class__(self) -> Any:
        """A class of its own and of the model's, by which `isinstance` finds both.

        `type` gives its own.
        """
        shown, own = vars(self).get("_shown"), _class_of(self)
        return own if shown is None else _both(own, _class_of(shown))

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        object.__dict__["__class__"].__set__(self, kind)

    def apply(self, function: Callable[[nn.Module], None]) -> Any:
        """Call a function of all modules, at last of the model itself."""
        return self._as_shown("apply", function)

    def _has_own(self, name: str) -> bool:
        kind = type(self)
        return name in kind._own or name in INTERNAL or hasattr(kind, name)

    def _hidden(self) -> list[str]:
        """The names of the model that this module has for something else."""
        shown = self._shown
        names = {*vars(shown), *shown._modules, *shown._parameters, *shown._buffers}
        names |= {*dir(type(shown))}
        return sorted(each for each in names if self._hides(each))

    def _hides(self, name: str) -> bool:
        return name not in PLAIN and self._has_own(name)

    def __setattr__(self, name: str, value: Any) -> None:
        shown = vars(self).get("_shown")
        taken = hasattr(type(self), name) and name not in PLAIN
        if shown is not None and taken and name in self._hidden():
            raise AttributeError(
                f"{name} of the network is its own, so it does not set that of"
                f" {type(shown).__name__}; rename it in the model"
            )
        if shown is None or self._has_own(name):
            super().__setattr__(name, value)
        if shown is not None and not self._has_own(name):
            setattr(shown, name, value)  # modules and tensors into the dicts of both

    def __getattr__(self, name: str) -> Any:
        shown = vars(self).get("_shown")
        if shown is None:
            return super().__getattr__(name)
        if name in vars(shown):
            return vars(shown)[name]
        if planned_method(shown, name) is not None:
            return partial(self._method, name)
        return getattr(shown, name)  # of its class, such as a property

    def _method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """What a method of the model gives; one that is given tensors is planned."""
        if leaf_tensors((args, kwargs)):
            return self.call_method(name, args, kwargs)
        return getattr(self._shown, name)(*args, **kwargs)

    def call_method(self, name: str, args: Any, kwargs: Any) -> Any:
        """What a method of the model gives for tensors."""
        raise NotImplementedError

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._shown)})

    def __delattr__(self, name: str) -> None:
        if "_shown" not in vars(self) or name in vars(self):
            super().__delattr__(name)
        else:
            delattr(self._shown, name)

    def copied_into(self, made: Shown, memo: dict[int, Any]) -> None:
        """Let another module show a copy of the model, and have copies of the rest."""
        memo.update(plain_copies(self._shown))
        nn.Module.__init__(made)
        for name, value in vars(self).items():
            if name not in type(self)._own and name not in SHARED:
                vars(made)[name] = copy.deepcopy(value, memo)
        made.show(copy.deepcopy(self._shown, memo))


def _class_of(module: nn.Module) -> Any:
    return type(module)


@lru_cache(2**8)
def _both(own: Any, model: Any) -> Any:
    """A class that nothing is made of, with the name of the model's."""
    try:
        return type(model.__name__, (own, model), {"__module__": model.__module__})
    except TypeError:  # the model's class lets no other be made of it
        return own


def _overridden(kind: type[nn.Module]) -> list[str]:
    """The methods of `nn.Module` that a class of models has in its own way."""
    return [
        name
        for name, method in vars(nn.Module).items()
        if isinstance(method, FunctionType)
        and not (name.startswith("_") or name in ("forward", *WALKS))
        and getattr(kind, name) is not method
    ]
