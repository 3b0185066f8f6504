"""Calls that ranks compute from boxes that are whole along some dimensions.

Reshapes, and functions along dimensions such as `softmax`, `normalize`, `cumsum` and
sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.operators.call import Call
from synth.runtime.rules.local_forms import LocalForm, reshape_form, whole_along

FOURIER = (
    *("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft"),
    *("fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2", "fft_hfft2", "fft_ihfft2"),
    *("fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn"),
)
RESHAPES = ("view", "reshape", "flatten", "unflatten", "ravel")
# function -> place of its argument `dim` after the input
ALONG = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "cumsum", "cumprod"), 0),
    **dict.fromkeys(("logcumsumexp", "glu", "sum", "mean", "amax", "amin"), 0),
    **dict.fromkeys(("var", "std", "logsumexp"), 0),
    **dict.fromkeys(("normalize", "norm"), 1),
    **dict.fromkeys(("cummax", "cummin", "fft_fftshift", "fft_ifftshift"), 0),
    **dict.fromkeys(FOURIER, 1),
}
DEFAULT_DIM: dict[str, Any] = {
    "normalize": 1,
    "glu": -1,
    **{name: (-2, -1) if name.endswith("2") else -1 for name in FOURIER[:12]},
}
LAYERS: dict[type[nn.Module], str] = {
    nn.Softmax: "softmax",
    nn.LogSoftmax: "log_softmax",
    nn.GLU: "glu",
}


def local_form(call: Call) -> LocalForm | None:
    """What a call needs of a box; None for calls that do anything else."""
    if len(call.inputs) != 1 or call.parameters:
        return None
    before, after = call.shapes[0], call.out
    if not before or not after or not all(after) or not all(before):
        return None
    module: Any = call.module
    if isinstance(module, nn.Flatten | nn.Unflatten):
        return reshape_form(before, after)
    if module is not None:
        known = LAYERS.get(type(module))
        return _along(before, after, [module.dim]) if known else None
    return _of_function(call, before, after)


def _of_function(
    call: Call, before: tuple[int, ...], after: tuple[int, ...]
) -> LocalForm | None:
    word, args = call.word, list(call.node.args[1:])
    word = getattr(call.function, "picked", (word, 0))[0] if word not in ALONG else word
    if word in RESHAPES:
        # another dtype is the other form of `view`
        dtypes = isinstance(args[0] if args else None, torch.dtype)
        return None if dtypes else reshape_form(before, after)
    if word in ("tril", "triu"):  # which know the places of words in a matrix
        return _along(before, after, (-2, -1)) if len(before) > 1 else None
    if word not in ALONG:
        return None
    place = ALONG[word]
    default = call.node.kwargs.get("dim", DEFAULT_DIM.get(word))
    dims: Any = args[place] if len(args) > place else default
    if isinstance(dims, bool | fx.Node) or dims is None:
        return None
    several = isinstance(dims, Sequence)
    return _along(before, after, dims if several else [dims])


def _along(
    before: tuple[int, ...], after: tuple[int, ...], dims: Sequence[Any]
) -> LocalForm | None:
    """A call along `dims`, which the result keeps or lacks."""
    if not dims or not all(isinstance(dim, int) for dim in dims):
        return None
    along = sorted({dim % len(before) for dim in dims})
    kept = list(range(len(before)))
    if len(after) < len(before):
        kept = [dim for dim in kept if dim not in along]
    others = [dim for dim in range(len(before)) if dim not in along]
    places = [kept.index(dim) if dim in kept else -1 for dim in others]
    same = [before[dim] for dim in others] == [after[place] for place in places]
    if len(kept) != len(after) or not same:
        return None
    return whole_along(before, along, after, kept)
