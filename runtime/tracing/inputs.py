"""What a model is called with: tensors of fixed shapes, and values that do not change.

A user gives shapes, example tensors and values by position or by name. They are matched
with the arguments of the model's `forward`, so that a call may later name an argument
that was given by position before.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree

from synth.runtime.kernels.autocast import autocast_dtype
from synth.runtime.tracing.recorded import leaf_tensors

MOST = 80  # characters of a value in a message
CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype,
             torch.device, torch.Generator)  # fmt: skip
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, which differs by rank


class OtherCallError(ValueError):
    """A call gives other values than those of a plan, or tensors in other places."""


class Spec(NamedTuple):
    """A tensor among the arguments. dtype: None for that of the model's parameters."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None

    def __str__(self) -> str:
        kind = "" if self.dtype is None else f" of {self.dtype}"
        return f"{self.shape}{kind}"


class Inputs:
    """The arguments of a model, by position and by name.

        synth.Inputs((4, 3, 64, 64), torch.tensor([10, 20]), mask=(4, 64), scale=2.0)

    A tuple or list of integers is the shape of a tensor with the dtype of the model's
    parameters. A tensor is an example: its shape and dtype count, not its values. What
    is none of both, such as a number, a word or None, is part of the plan. Shapes and
    tensors may be in tuples, lists and dicts.

    autocast: the dtype of `torch.autocast` around the call; None without it.
    """

    autocast: torch.dtype | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = tuple(_specified(each) for each in args)
        self.kwargs = {name: _specified(each) for name, each in kwargs.items()}
        self.given: tuple[Any, Any] = args, kwargs  # with the examples themselves

    @classmethod
    def of(cls, given: Any) -> Inputs:
        """From what a user gives: one shape, a tuple by position, or a dict by name.

        Raises `ValueError` for anything else.
        """
        if isinstance(given, Inputs):
            return given
        if _is_shape(given) or isinstance(given, torch.Tensor):
            return cls(given)
        if isinstance(given, Mapping):
            return cls(**given)
        if isinstance(given, Sequence) and not isinstance(given, str) and given:
            return cls(*given)
        raise ValueError(
            f"the input is {shown(given)}; give the shape of the whole batch, or for"
            " several inputs a tuple of shapes and tensors, a dict by name, or"
            " synth.Inputs"
        )

    @classmethod
    def called(cls, args: Any, kwargs: Mapping[str, Any]) -> Inputs:
        """Of a call: its tensors are examples, and tuples of integers are values."""
        made = cls()
        made.given = args, dict(kwargs)
        made.args, made.kwargs = _pytree.tree_map(_of_tensor, made.given)
        devices = {each.device for each in leaf_tensors(made.given)}
        lows = (autocast_dtype(each) for each in devices)
        made.autocast = next((low for low in lows if low is not None), None)
        return made

    def mapped(self, change: Callable[[Spec], Spec]) -> Inputs:
        """The same arguments with other specs, without examples and autocast."""
        made = Inputs()

        def changed(leaf: Any) -> Any:
            return change(leaf) if isinstance(leaf, Spec) else leaf

        each = _pytree.tree_map(changed, (self.args, self.kwargs), is_leaf=_is_leaf)
        made.args, made.kwargs = each
        made.given = made.args, made.kwargs
        return made

    def without_examples(self) -> Inputs:
        """The same specs, which keep no tensor of the user alive."""
        made = self.mapped(lambda spec: spec)
        made.autocast = self.autocast
        return made

    def __str__(self) -> str:
        under = f" under autocast to {self.autocast}" if self.autocast else ""
        if len(self.args) == 1 and not self.kwargs:
            return ADDRESS.sub("", f"{self.args[0]}{under}")
        named = (f"{name}={each}" for name, each in self.kwargs.items())
        return ADDRESS.sub("", f"({', '.join([*map(str, self.args), *named])}){under}")


class CallForm(NamedTuple):
    """How a call gives the tensors of a plan.

    parameters: by their place. names: of the tensors. values: name -> what else a call
    may give. asked: the names among these that it has to give.
    """

    parameters: tuple[str, ...]
    names: tuple[str, ...]
    values: dict[str, Any]
    asked: frozenset[str]

    def named(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The call with these tensors, by names."""
        asked = {name: self.values[name] for name in self.asked}
        return {**asked, **dict(zip(self.names, tensors, strict=True))}


class Arguments:
    """The inputs of one model, matched with the arguments of its `forward`.

    names: of the tensors, in order. specs: of the same.
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        """Raises `ValueError` where `forward` does not take them."""
        self.inputs = inputs
        self.signature = inspect.signature(model.forward)
        try:
            leaves = self.leaves(inputs.args, inputs.kwargs)
        except TypeError as error:
            raise ValueError(
                f"forward of {type(model).__name__} does not take the input {inputs}:"
                f" {error}"
            ) from error
        specs = {path: each for path, each in leaves.items() if isinstance(each, Spec)}
        self.values = {p: each for p, each in leaves.items() if p not in specs}
        self.names, self.specs = tuple(specs), tuple(specs.values())
        if not self.names:
            raise ValueError(
                f"the input {inputs} has no tensor; give the shape of the whole batch"
            )
        if 0 in self.specs[0].shape:
            raise ValueError(
                f"the input {inputs} has no words, so there is nothing to compute;"
                " leave an empty batch out"
            )

    def examples(self) -> list[torch.Tensor | None]:
        """What was given as each tensor, in the order of `names`; None for a shape."""
        args, kwargs = self.inputs.given
        bound = self.signature.bind(*args, **kwargs)
        pairs, _ = _pytree.tree_flatten_with_path(
            dict(bound.arguments),
            is_leaf=lambda each: _is_leaf(each) or _is_shape(each),
        )
        given = {_path(keys): leaf for keys, leaf in pairs}
        found = [given.get(name) for name in self.names]
        return [each if isinstance(each, torch.Tensor) else None for each in found]

    def tensors(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Tensors without values. dtype: of the model's parameters."""
        return [
            torch.empty(each.shape, dtype=each.dtype or dtype, device="meta")
            for each in self.specs
        ]

    def filled(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, dict[str, Any]]:
        """Arguments by position and by name, with tensors in place of specs."""
        fresh = iter(tensors)

        def fill(leaf: Any) -> Any:
            return next(fresh) if isinstance(leaf, Spec) else leaf

        bound = self.signature.bind(*self.inputs.args, **self.inputs.kwargs)
        bound.apply_defaults()  # in the order of `names`
        for name, value in bound.arguments.items():
            bound.arguments[name] = _pytree.tree_map(fill, value, is_leaf=_is_leaf)
        return bound.args, bound.kwargs

    def read(self, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call, in the order of `names`.

        Raises `TypeError` as a call of `forward` does, `OtherCallError` for constants
        other than those of the plan, and `ValueError` for anything else that it does
        not take.
        """
        leaves = self.leaves(args, kwargs)
        found = []
        for path, spec in zip(self.names, self.specs, strict=True):
            tensor = leaves.pop(path, _MISSING)
            if not isinstance(tensor, torch.Tensor):
                absent = tensor is _MISSING
                given = self._given(path, args, kwargs) if absent else tensor
                kind = OtherCallError if given is None else ValueError
                raise kind(
                    f"{path} is {shown(given)}, but the network is planned for a"
                    f" tensor of {spec}; give {_as_tensor(given, path)}"
                )
            if spec.dtype not in (None, tensor.dtype) and not _casts(tensor, spec):
                raise ValueError(
                    f"{path} is of {tensor.dtype}, but the network is planned for"
                    f" {spec.dtype}"
                )
            found.append(tensor)
        for path in {**self.values, **leaves}:
            planned, now = (each.get(path, _MISSING) for each in (self.values, leaves))
            if not _same(planned, now):
                constant = isinstance(now, (*CONSTANTS, torch.Tensor, _Missing))
                kind = OtherCallError if constant else ValueError
                raise kind(
                    f"{path} is {shown(now)}, but the network is planned for"
                    f" {shown(planned)}; give what changes as a tensor, also when the"
                    " network is planned"
                )
        return found

    def taken(self, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor] | None:
        """The tensors of a call that gives them where these are, and the same values.

        None for any other call.
        """
        try:
            found = self.read(args, kwargs)
        except (TypeError, ValueError):
            return None
        pairs = zip(found, self.specs, strict=True)
        same = all(each.dim() == len(spec.shape) for each, spec in pairs)
        return found if same else None

    @property
    def form(self) -> CallForm | None:
        """How a compiled call is read; None for one that is not read by names.

        Such a call gives a tensor as a part of an argument, or by place alone.
        """
        if any("." in name for name in self.names):
            return None
        kinds = {name: each.kind for name, each in self.signature.parameters.items()}
        if inspect.Parameter.POSITIONAL_ONLY in kinds.values():
            return None
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        by_place = tuple(name for name, each in kinds.items() if each is kind)
        values = {path: each for path, each in self.values.items() if "." not in path}
        if any(isinstance(each, torch.Generator) for each in self.values.values()):
            return None  # a compiler would keep the first
        try:
            least = self.leaves((), dict(zip(self.names, self.specs, strict=True)))
        except TypeError:  # a value has no default
            least = {}
        planned = self.values.items()
        asked = {p for p, each in planned if not _same(least.get(p, _MISSING), each)}
        unknown = least.keys() - self.values.keys() - {*self.names}
        if unknown or asked - values.keys():  # parts of a value, planned otherwise
            return None
        return CallForm(by_place, self.names, values, frozenset(asked))

    def differences(self, other: Arguments) -> str:
        """What differs from another call of the same function, in words."""
        known = other._in_words()
        own = self._in_words().items()
        return ", ".join(f"{p}={word}" for p, word in own if known.get(p) != word)

    def _in_words(self) -> dict[str, str]:
        values = {path: shown(value) for path, value in self.values.items()}
        if self.inputs.autocast is not None:
            values["autocast"] = str(self.inputs.autocast)
        return {**values, **dict.fromkeys(self.names, "a tensor")}

    def _given(self, path: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """What a call gives in the place of a tensor, or of what it is a part of."""
        found: Any = self.signature.bind(*args, **kwargs).arguments
        for key in path.split("."):
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, list | tuple) and key.isdigit():
                found = found[int(key)] if int(key) < len(found) else None
        return found

    def leaves(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name -> a tensor, a spec or a value, of all arguments and defaults."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        pairs, _ = _pytree.tree_flatten_with_path(
            dict(bound.arguments), is_leaf=_is_leaf
        )
        return {_path(keys): leaf for keys, leaf in pairs}


def shown(given: Any) -> str:
    """A value in a message: what it is if it is short, else its kind and extents."""
    kind, shape = type(given).__name__, getattr(given, "shape", None)
    if isinstance(given, torch.Tensor) or (shape is not None and len(tuple(shape))):
        return f"a {kind} of {tuple(given.shape)}"
    if isinstance(given, torch.Generator):
        return "a torch.Generator"
    text = ADDRESS.sub("", repr(given))
    if len(text) <= MOST and "\n" not in text:
        return text
    return f"a {kind} of {len(given)}" if hasattr(given, "__len__") else f"a {kind}"


def _as_tensor(given: Any, path: str) -> str:
    """How to make a tensor of a value that is none."""
    if hasattr(given, "__array__"):
        return f"torch.as_tensor({path})"
    parts = isinstance(given, list | tuple) and len(given) > 0
    if parts and all(isinstance(each, torch.Tensor) for each in given):
        return f"one tensor, as torch.stack({path}) makes it"
    return f"torch.tensor({path})" if parts else "a tensor"


class _Missing:
    def __repr__(self) -> str:
        return "not given"


_MISSING = _Missing()


def _is_shape(given: Any) -> bool:
    """Whether this is a tuple or list of integers."""
    if isinstance(given, Spec) or not isinstance(given, tuple | list) or not given:
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) for n in given)


def _is_leaf(given: Any) -> bool:
    return isinstance(given, Spec)


def _specified(given: Any) -> Any:
    """The same structure with specs in the places of shapes and tensors."""
    if _is_shape(given):
        return Spec(tuple(given), None)
    if isinstance(given, torch.Tensor):
        return Spec(tuple(given.shape), given.dtype)
    if isinstance(given, tuple | list):
        parts = [_specified(each) for each in given]
        return type(given)(*parts) if hasattr(given, "_fields") else type(given)(parts)
    if isinstance(given, dict):
        return {name: _specified(each) for name, each in given.items()}
    return _own(given)


def _of_tensor(given: Any) -> Any:
    """The spec of a tensor; any other value itself."""
    if not isinstance(given, torch.Tensor):
        return _own(given)
    return Spec(tuple(given.shape), given.dtype)


def _casts(given: torch.Tensor, spec: Spec) -> bool:
    """Whether autocast takes a tensor as one of the dtype that is planned."""
    both = given.is_floating_point() and bool(
        spec.dtype and spec.dtype.is_floating_point
    )
    return both and autocast_dtype(given.device) is not None


def _own(given: Any) -> Any:
    """A value that stays as it is: generators of the user go on."""
    return copy.deepcopy(given) if isinstance(given, torch.Generator) else given


def _path(keys: Any) -> str:
    """The name of an argument, or of a part of it: "mask", "sizes.0"."""
    parts = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))
             for key in keys)  # fmt: skip
    return ".".join(map(str, parts))


def _same(planned: Any, now: Any) -> bool:
    if planned is now:
        return True
    if isinstance(planned, torch.Generator) and isinstance(now, torch.Generator):
        return planned.device == now.device  # calls draw from that of the pass
    try:
        return type(planned) is type(now) and bool(planned == now)
    except Exception:  # objects that cannot be compared
        return False
