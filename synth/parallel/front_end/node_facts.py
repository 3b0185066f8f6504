"""What the planner knows of a call besides its shapes: what autograd saves, and how ranks divide it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from synth.network.graph import Divided

if TYPE_CHECKING:
    from synth.runtime.operators.call import Call

# operations whose derivative is computed from the result
OUTPUT_SAVERS = ("relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "softmax", "logsoftmax", "reciprocal")


def saved_tensor(call: Call) -> str:
    """What the backward pass of an operation on single words, or of a pooling, needs: "in" or "out"."""
    word = (type(call.module).__name__ if call.module is not None else call.word).lower()
    if call.module is not None and getattr(call.module, "p", None) == 0:  # a dropout that drops nothing
        return "none"
    if word in ("mean", "sum", "cumsum"):
        return "none"
    return "out" if word.replace("_", "") in OUTPUT_SAVERS else "in" if "avg" not in word else "none"


def division(call: Call, kind: str) -> Divided:
    """How ranks divide a call of some kind for which the planner has no layout."""
    from synth.runtime.operators.one_tensor import RESHAPES

    same = math.prod(call.out) == math.prod(call.shapes[0])
    if kind in ("flatten", "permute") or (call.word in RESHAPES and same):
        return "view"
    return {"gathered": "", "product": "product", "cat": "joined"}.get(kind, "parts")  # type: ignore[return-value]
