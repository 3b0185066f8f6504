"""`torch.autocast` for layers that do not call torch's own operator on the whole.

In one process autocast casts the operands of each operator by its lists, which differ
by device and version of torch. Steps that call torch's operators on shards get the same
casts from torch. The other layers ask here: `lowered` casts as for a convolution or a
matrix product, and `operator_dtype` asks torch for the result's dtype. They then
compute with autocast disabled, so that torch does not cast inside a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch

Operator = Callable[..., torch.Tensor]
Function = type[torch.autograd.Function]


class Region(NamedTuple):
    """What one `with torch.autocast(...)` sets, for one kind of device."""

    device: str
    dtype: torch.dtype | None
    enabled: bool


@contextmanager
def entered(regions: Sequence[Region]) -> Iterator[None]:
    """Enter the regions, the first of them outermost."""
    with ExitStack() as stack:
        for device, dtype, enabled in regions:
            stack.enter_context(torch.autocast(device, dtype, enabled))
        yield


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The low precision of autocast on a device; None where autocast is disabled."""
    kind = device.type
    if not _available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


@cache
def _available(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind)


def uncached(device: torch.device) -> AbstractContextManager[Any]:
    """The same autocast, without its cache of weights."""
    low = autocast_dtype(device)
    if low is None:
        return nullcontext()
    return torch.autocast(device.type, low, cache_enabled=False)


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which torch computes in the dtypes of the operands."""
    if autocast_dtype(device) is None:
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def lowered(values: torch.Tensor) -> torch.Tensor:
    """An operand of a convolution or matrix product, as autocast casts it.

    It casts floating-point words, except those of float64. Differentiable.
    """
    low = autocast_dtype(values.device)
    if low is None or values.dtype == torch.float64 or not values.is_floating_point():
        return values
    return values.to(low)


def no_autocast_in_backward(function: Function) -> Function:
    """The same function; its backward pass computes in the dtype of its forward pass.

    That holds where the user calls `backward` inside of an autocast region, too.
    """

    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with no_autocast(gradients[0].device):
            return function.backward(ctx, *gradients)

    return type(function.__name__, (function,), {"backward": staticmethod(backward)})


def operator_dtype(
    what: str, operator: Operator, *operands: torch.Tensor | None
) -> torch.dtype:
    """The dtype of what an operator of torch gives, under autocast if it is enabled.

    operator: is called with one word in place of each operand.

    Raises `ValueError` where torch refuses the dtypes of the operands.
    """
    (first, *others) = [each for each in operands if each is not None]
    dtypes = tuple(None if each is None else each.dtype for each in operands)
    low = autocast_dtype(first.device)
    try:
        return _found_dtype(operator, first.device.type, low, dtypes)
    except RuntimeError as error:
        held = ", ".join(sorted({str(each.dtype) for each in others})) or "none"
        raise ValueError(
            f"{what}: the input is {first.dtype}, the parameters are {held}, which"
            f" torch refuses ({str(error).splitlines()[0]}); convert the input or the"
            " model"
        ) from error


@cache
def _found_dtype(
    operator: Operator,
    device: str,
    low: torch.dtype | None,
    dtypes: tuple[torch.dtype | None, ...],
) -> torch.dtype:
    words = (
        None if dtype is None else torch.ones(1, dtype=dtype, device=device)
        for dtype in dtypes
    )
    with torch.no_grad(), torch.autocast(device, dtype=low, enabled=low is not None):
        return operator(*words).dtype
