"""Gives results on "meta", for which autocast does not exist, their dtypes under it.

torch knows by which lists a device casts. So a call is also made on fake tensors, which
have the device of the ranks, and its result on "meta" takes the dtype of theirs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from synth.runtime.kernels.autocast import autocast_dtype
from synth.runtime.tracing.recorded import mapped, tensors_in
from synth.runtime.tracing.shape_only import made_of


class Lowered:
    """Calls functions on "meta" as under autocast.

    device: the kind on which the ranks run.
    """

    def __init__(self, device: str) -> None:
        self.device, self.mode = device, FakeTensorMode()

    def made_of(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function gives on "meta", in the dtype that it has on the ranks."""
        low = autocast_dtype(torch.device(self.device))
        if low is None or not _is_torch(func):
            return made_of(func, args, kwargs)
        expected = self._dtypes(func, args, kwargs)
        try:
            with warnings.catch_warnings(action="ignore"):  # of dtypes that are cast
                made = made_of(func, args, kwargs)
        except RuntimeError:  # operands of several dtypes
            if not expected:
                raise
        else:
            if not expected or [each.dtype for each in tensors_in(made)] == expected:
                return made
        cast = self._each_tensor(lambda each: _cast(each, expected[0]), (args, kwargs))
        return made_of(func, *cast)

    def _dtypes(self, func: Any, args: Any, kwargs: Any) -> list[torch.dtype]:
        """Of the results on the ranks; none where they are not known."""
        try:
            with torch.device(self.device), self.mode, torch.no_grad():
                fake = self._each_tensor(self._fake, (args, kwargs))
                return [each.dtype for each in tensors_in(func(*fake[0], **fake[1]))]
        except Exception:  # on "meta" torch says what is wrong with the call
            return []

    def _fake(self, values: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            values.size(), values.stride(), dtype=values.dtype, device=self.device
        )

    def _each_tensor(
        self, change: Callable[[torch.Tensor], torch.Tensor], given: Any
    ) -> Any:
        if isinstance(given, torch.Tensor):
            return change(given)
        if isinstance(given, torch.device) and given.type == "meta":
            return torch.device(self.device)
        return mapped(lambda each: self._each_tensor(change, each), given)


def _is_torch(func: Any) -> bool:
    """Whether a function is torch's own, so that calling it twice changes nothing."""
    return (getattr(func, "__module__", None) or "torch").partition(".")[0] == "torch"


def _cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An operand as autocast casts it."""
    fixed = not values.is_floating_point() or values.dtype == torch.float64
    real = dtype.to_real() if dtype.is_complex else dtype
    return values if fixed or not real.is_floating_point else values.to(real)
