"""Calls that torch may refuse by the values of their operands.

A rank that has such values would raise alone, and the others would wait in their next
exchange. So the ranks end these calls together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from synth.runtime.operators.call import Call
from synth.runtime.operators.one_tensor import along_of
from synth.runtime.rules.mapped_rows import MappedRows
from synth.runtime.rules.rule import is_trainable

# refused for a divisor of 0 where the result is of integers; others divide by the first
DIVISIONS = frozenset(
    ("__floordiv__", "div", "divide", "floor_divide", "fmod", "remainder")
)
TURNED = frozenset(("__rfloordiv__", "__rmod__"))
# refused for NaN where they are of matrices, by singular values -> their orders
NORMS = {"linalg_norm": ("nuc", 2, -2), "norm": ("nuc",), "normalize": ("nuc",)}


def may_refuse(call: Call) -> bool:
    """Whether torch may refuse a call, which ranks divide, on one rank alone."""
    if call.module is not None:
        return False
    if isinstance(call.function, MappedRows):
        return call.function.may_refuse
    word, node = call.word, call.node
    if word in NORMS:
        dims, key = along_of(word, node), "ord" if word == "linalg_norm" else "p"
        given: Any = [*node.args[1:2], node.kwargs.get(key)]
        return isinstance(dims, Sequence) and len(dims) > 1 and given[0] in NORMS[word]
    if word in DIVISIONS | TURNED and not is_trainable(node.meta["value"]):
        return word in TURNED or _divisor_is_unknown(node)
    return False


def _divisor_is_unknown(node: fx.Node) -> bool:
    divisor: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
    return not isinstance(divisor, int | float) or not divisor
