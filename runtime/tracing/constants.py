"""Constants of a model, which are recorded with their values.

A tensor that a module has as a plain attribute, such as strides and anchors of a
detector, keeps its values while a model is recorded, as does what is computed from such
tensors alone. So Python may read them, loop over them, and give them as numbers.
Parameters, buffers, and what depends on the input have shapes alone.
"""

from __future__ import annotations

from typing import Any

import torch

from synth.runtime.tracing.expressions import DRAWS
from synth.runtime.tracing.recorded import mapped, tensors_in

# methods that read values in Python, without the _ of their names
READS = {"item", "tolist", "bool", "int", "float", "index", "complex"}


def has_values(word: str, given: Any) -> bool:
    """Whether a call of a function has tensors as arguments, and all their values."""
    tensors = list(tensors_in(given))
    if not tensors or word in DRAWS:
        return False
    return not any(each.is_meta for each in tensors)


def on_host(given: Any) -> Any:
    """Arguments with the host in the place of the device without values."""
    if isinstance(given, torch.device) and given.type == "meta":
        return torch.device("cpu")
    if isinstance(given, str) and given == "meta":
        return "cpu"
    if isinstance(given, torch.Tensor):
        return given
    return mapped(on_host, given)
