"""What a model gives: tensors in tuples, lists, dicts and objects.

The tensors of all ranks' steps are put into the same structure.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size,
         torch.device)  # fmt: skip


class Structure:
    """A structure of tensors, with its other entries.

    given: what the model returns. tensors: its tensors, in order. names: `name` for a
    single tensor, else where each is: "output.0", "output.sample".

    Raises `ValueError` for an entry that may hold tensors which are not seen.
    """

    def __init__(self, given: Any, name: str = "output") -> None:
        pairs = list(_entries(name, given, ()))
        self.tensors = [value for _, value in pairs]
        self.names = [name for name, _ in pairs]
        spots = {id(value): number for number, value in enumerate(self.tensors)}
        self._empty = _mapped(given, lambda tensor: _Spot(spots[id(tensor)]))

    @property
    def last(self) -> str | None:
        """The name of the last entry beside others; None where there is none."""
        parts = _parts(self._empty)
        return [*parts][-1] if parts is not None and len(parts) > 1 else None

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The structure with other tensors."""
        return _mapped(self._empty, lambda spot: tensors[spot.number])

    def without_tensors(self) -> Structure:
        """The same, which keeps no tensor of the model alive."""
        made = copy.copy(self)
        made.tensors = []
        return made


@dataclasses.dataclass(frozen=True)
class _Spot:
    """The place of a tensor."""

    number: int


def _entries(
    name: str, given: Any, around: tuple[int, ...]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of all tensors. around: what this entry is a part of."""
    if isinstance(given, torch.Tensor):
        yield name, given
        return
    if isinstance(given, PLAIN):
        return
    parts = _parts(given)
    if parts is None or id(given) in around:
        raise ValueError(
            f"the model gives a {type(given).__name__}, of which the ranks cannot make"
            " another; give its tensors, in a tuple, a dict or a dataclass"
        )
    for key, part in parts.items():
        yield from _entries(f"{name}.{key}", part, (*around, id(given)))


def _parts(given: Any) -> dict[str, Any] | None:
    """The entries of a container or of a plain object by name; None for others."""
    if isinstance(given, dict):
        return {str(key): part for key, part in given.items()}
    if isinstance(given, tuple | list):
        names = getattr(given, "_fields", range(len(given)))
        return {str(name): part for name, part in zip(names, given, strict=True)}
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        names = (field.name for field in dataclasses.fields(given))
        return {name: getattr(given, name) for name in names}
    return dict(vars(given)) if _is_plain_object(given) else None


def _is_plain_object(given: Any) -> bool:
    """Whether an object is its attributes, such as a distribution of the user's."""
    slots = any("__slots__" in vars(kind) for kind in type(given).__mro__[:-1])
    return hasattr(given, "__dict__") and not callable(given) and not slots


def _mapped(given: Any, change: Any) -> Any:
    """The same structure with every tensor, or its spot, changed."""
    made: Any
    if isinstance(given, torch.Tensor | _Spot):
        return change(given)
    if isinstance(given, tuple | list | dict):  # and what is registered with torch
        leaves, spec = _pytree.tree_flatten(
            given, is_leaf=lambda part: part is not given
        )
        if all(leaf is not given for leaf in leaves):
            parts = [_mapped(leaf, change) for leaf in leaves]
            return _pytree.tree_unflatten(parts, spec)
        if isinstance(given, dict):  # a class of its own
            made = copy.copy(given)
            made.update({key: _mapped(part, change) for key, part in given.items()})
            return made
        return type(given)(_mapped(part, change) for part in given)
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        made = copy.copy(given)
        for field in dataclasses.fields(given):
            part = _mapped(getattr(given, field.name), change)
            object.__setattr__(made, field.name, part)
        return made
    if not isinstance(given, PLAIN) and _is_plain_object(given):
        made = copy.copy(given)
        vars(made).update({k: _mapped(part, change) for k, part in vars(given).items()})
        return made
    return given


def beside(values: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The same words as a result of an input, of which ranks give out their parts."""
    nothing = (given != given).sum() * 0
    return values + nothing.to(values.dtype)
