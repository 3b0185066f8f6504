"""Numbers that know where they are compared.

A counter of a model may pass a threshold long after the model is traced. Its numbers
are compared as they are, and again with one comparison turned: so both ways are seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils import _pytree

from synth.runtime.grid.user_lines import is_users

Line = tuple[str, int]  # file, number
COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__")
ARITHMETIC = [
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow")
    for side in ("", "r")
] + ["__neg__", "__pos__", "__abs__"]


class Comparisons:
    """The lines of the model that compare certain numbers.

    turned: the line whose first comparison gives the other answer. Later ones there
    give their own, so that a loop ends.
    """

    def __init__(self, turned: Line | None = None) -> None:
        self.turned, self.lines = turned, dict[Line, None]()

    def answer(self, line: Line, own: bool) -> bool:
        """What a comparison at a line gives."""
        first = line not in self.lines
        self.lines[line] = None
        return own != (first and line == self.turned)

    def watched(self, value: Any, further: int = 0) -> Any:
        """A container with its numbers watched, and moved on by so much.

        A list that grows is that of many calls.
        """
        if further > 0 and isinstance(value, list):
            value = value * further
        return _pytree.tree_map(lambda each: self._watched(each, further), value)

    def _watched(self, value: Any, further: int) -> Any:
        kind = NUMBERS.get(type(value))
        return value if kind is None else kind(value + further)._with(self)


class _Watched:
    seen: Comparisons

    def _with(self, seen: Comparisons) -> Any:
        self.seen = seen
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self  # with those that see it


def _comparing(own: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Any, *other: Any) -> Any:
        answer, caller = own(self, *other), sys._getframe(1)
        if answer is NotImplemented or not is_users(caller.f_code.co_filename):
            return answer
        line = caller.f_code.co_filename, caller.f_lineno
        return self.seen.answer(line, bool(answer))

    return compare


def _computing(own: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Any, *other: Any) -> Any:
        made = own(self, *other)
        kind = NUMBERS.get(type(made))
        return made if kind is None else kind(made)._with(self.seen)

    return compute


def _class(base: type) -> Any:
    """Numbers of one type, which are watched as long as one computes with them."""
    methods = {
        **{name: _comparing(getattr(base, name)) for name in COMPARISONS},
        **{name: _computing(getattr(base, name)) for name in ARITHMETIC},
        "__hash__": base.__hash__,
    }
    return type(f"Watched{base.__name__.title()}", (_Watched, base), methods)


NUMBERS: dict[type, Any] = {}
for _base in (int, float):
    NUMBERS[_base] = _class(_base)
