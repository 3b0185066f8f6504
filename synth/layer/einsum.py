"""Binary contractions in the notation of `torch.einsum`, folded into the nest of a grouped matrix product.

    bhqd,bhkd->bhqk      In[q, bh, d] · Ker[bh, k, d] -> Out[q, bh, k]

Indices of one class are folded into one loop, so that nothing is lost: the footprint of a block depends on
the products of their extents only. Indices of both operands and of the result are groups (g), indices of both
operands alone are summed (c), and the others are rows (b) or columns (k) of the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synth.base.yaml_positions import shown
from synth.layer.validate import MAX_EXTENT, LayerError, index_number

EXAMPLE = "bhqd,bhkd->bhqk"
EINSUM_KEYS = ("equation", "index_extents")  # fields of a `Layer`
EINSUM_REST = ("extents", "dtype")  # keys beside `einsum` in a layer file


@dataclass(frozen=True)
class Contraction:
    """The classes of the indices of two operands and a result, and the extent of each index.

    one, other, out: the indices of the operands and of the result, as written. In is `one`, Ker `other`.
    """

    one: str
    other: str
    out: str
    extents: tuple[tuple[str, int], ...]

    @property
    def rows(self) -> str:
        """Free indices of the first operand, in the order of the result."""
        return "".join(index for index in self.out if index not in self.other)

    @property
    def groups(self) -> str:
        """Indices of both operands and of the result, in its order."""
        return "".join(index for index in self.out if index in self.one and index in self.other)

    @property
    def columns(self) -> str:
        """Free indices of the second operand, in the order of the result."""
        return "".join(index for index in self.out if index not in self.one)

    @property
    def summed(self) -> str:
        """Indices that are summed over, in the order of the first operand."""
        return "".join(index for index in self.one if index not in self.out)

    @property
    def folds(self) -> tuple[str, str, str]:
        """The indices of In, Ker and Out in storage order, those of a class side by side."""
        rows, groups, columns, summed = self.rows, self.groups, self.columns, self.summed
        return rows + groups + summed, groups + columns + summed, rows + groups + columns

    def size(self, indices: str) -> int:
        """The product of the extents of some indices."""
        return math.prod(self.sizes(indices))

    def sizes(self, indices: str) -> tuple[int, ...]:
        """The extents of some indices."""
        extents = dict(self.extents)
        return tuple(extents[index] for index in indices)

    @property
    def equation(self) -> str:
        """The equation, without spaces."""
        return f"{self.one},{self.other}->{self.out}"

    @property
    def folded(self) -> dict[str, Any]:
        """The fields of a `Layer`: those of a convolution without spatial dimensions."""
        groups = self.size(self.groups)
        return {
            "input": (self.size(self.rows), groups * self.size(self.summed)),
            "out_channels": groups * self.size(self.columns),
            "groups": groups,
            "equation": self.equation,
            "index_extents": self.extents,
        }

    def __str__(self) -> str:
        """`In[q,bh,d] * Ker[bh,k,d] -> Out[q,bh,k]`: letters side by side are one folded dimension."""
        rows, columns, summed = self.rows or "1", self.columns or "1", self.summed or "1"
        groups = self.groups and f"{self.groups},"
        given = f"In[{rows},{groups}{summed}] * Ker[{groups}{columns},{summed}]"
        return f"{given} -> Out[{rows},{groups}{columns}]"


def contraction(equation: object, extents: object) -> Contraction:
    """The contraction of an equation.

    extents: index -> its extent, a mapping or pairs. Raises `LayerError` if the equation is no contraction of
    two operands, or if an extent is missing, too much or out of range.
    """
    one, other, out = _operands(equation)
    for index in dict.fromkeys(one + other):
        owner = "first" if index in one else "second"
        if index not in out and not (index in one and index in other):
            raise LayerError(
                f"einsum index {index} is summed in the {owner} operand alone; sum it there before, "
                "and leave it out of the equation",
                "equation",
            )
    for index in out:
        if index not in one + other:
            raise LayerError(
                f"einsum index {index} of the result is in no operand; leave it out, or expand afterwards",
                "equation",
            )
    found = Contraction(one, other, out, _extents(extents, "".join(dict.fromkeys(one + other))))
    for indices in (found.rows, found.groups + found.summed, found.groups + found.columns):
        if found.size(indices) > MAX_EXTENT:
            raise LayerError(
                f"einsum indices {indices} together have extent {found.size(indices)}, more than "
                f"{MAX_EXTENT}; use smaller ones",
                "equation",
            )
    return found


def checked_equation(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The checked `EINSUM_KEYS` of a layer of any kind. Raises `LayerError` if its other fields differ."""
    if kind != "einsum":
        for key in EINSUM_KEYS:
            if values[key] not in ("", ()):
                raise LayerError(f"{kind} {key} is {shown(repr(values[key]))}; leave it out", key)
        return {}
    if values["transposed"]:
        raise LayerError("einsum transposed is True; exchange the operands instead", "transposed")
    found = contraction(values["equation"], values["index_extents"]).folded
    for key in ("input", "out_channels", "groups"):
        given = values[key] if isinstance(values[key], int) else tuple(values[key])
        if given != found[key]:
            raise LayerError(f"einsum {key} is {given}, but {found['equation']} makes it {found[key]}", key)
    return {key: found[key] for key in EINSUM_KEYS}


def _operands(equation: object) -> tuple[str, str, str]:
    """The indices of the operands and of the result. Raises `LayerError`."""
    remedy = f"write two operands and the result, such as {EXAMPLE}"

    def fault(sentence: str) -> LayerError:
        return LayerError(f"einsum {shown(repr(equation), 60)} {sentence}", "equation")

    if not isinstance(equation, str):
        raise fault(f"is no text; {remedy}")
    given, arrow, out = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    if "." in equation:
        raise fault("has an ellipsis; write an index for each of its dimensions")
    if not arrow:
        raise fault(f"lacks the indices of the result; {remedy}")
    for letter in "".join((*parts, out)):
        if not (letter.isascii() and letter.isalpha()):
            raise fault(f"has {letter!r} in place of an index, which is one letter; {remedy}")
    if len(parts) != 2:
        count = f"{len(parts)} operands" if len(parts) > 1 else "one operand"
        more = "contract two at a time" if len(parts) > 2 else "a sum or a transposition needs no plan"
        raise fault(f"has {count}, not two; {more}")
    for indices, what in ((parts[0], "first operand"), (parts[1], "second operand"), (out, "result")):
        twice = next((index for index in indices if indices.count(index) > 1), "")
        if twice:
            raise fault(
                f"has index {twice} twice in the {what}; take the diagonal before, or use two indices"
            )
    return parts[0], parts[1], out


def _extents(extents: object, indices: str) -> tuple[tuple[str, int], ...]:
    """Index -> extent, in the order of the equation. Raises `LayerError`."""
    try:
        given: dict[Any, Any] = dict(extents)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        given = {}
        if not isinstance(extents, Mapping):
            raise LayerError(
                f"einsum extents are {shown(repr(extents))}; write the extent of each index, such as "
                "{b: 8, h: 16}",
                "index_extents",
            ) from None
    for index in given:
        if index not in tuple(indices):
            raise LayerError(
                f"einsum extents have {shown(str(index))}, which is no index of the equation; leave it out",
                f"index_extents.{index}",
            )
    for index in indices:
        if index not in given:
            raise LayerError(f"einsum extents lack index {index}; write its extent", "index_extents")
    return tuple((index, _extent(index, given[index])) for index in indices)


def _extent(index: str, value: object) -> int:
    number = index_number(value)
    if number is None or not 1 <= number <= MAX_EXTENT:
        said = shown(repr(value))
        raise LayerError(
            f"einsum extent {index} is {said}, not a whole number from 1 to {MAX_EXTENT}; write another",
            f"index_extents.{index}",
        )
    return number
