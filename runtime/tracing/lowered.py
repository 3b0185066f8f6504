"""Gives results on "meta", for which autocast does not exist, their dtypes under it.

torch knows by which lists a device casts. So a call is also made on fake tensors, which
have the device of the ranks, and its result on "meta" takes the dtype of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from synth.runtime.kernels.autocast import Region, entered
from synth.runtime.tracing.open_regions import AutocastRegions
from synth.runtime.tracing.recorded import mapped, tensors_in
from synth.runtime.tracing.shape_only import made_of


class Lowered:
    """Calls functions on "meta" as under autocast.

    device: the kind on which the ranks run. around: the dtype of autocast around the
    model; None without it. regions: those that the model has open.
    """

    def __init__(
        self, device: str, around: torch.dtype | None, regions: AutocastRegions
    ) -> None:
        self.device, self.regions = device, regions
        self.around = () if around is None else (Region(device, around, True),)
        self.mode = FakeTensorMode()

    def made_of(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function gives on "meta", in the dtype that it has on the ranks."""
        if not self._casts or not _is_torch(func):
            return made_of(func, args, kwargs)
        expected = self._dtypes(func, args, kwargs)
        try:
            made = made_of(func, args, kwargs)
        except RuntimeError:  # operands of several dtypes
            if not expected:
                raise
        else:
            if not expected or [each.dtype for each in tensors_in(made)] == expected:
                return made
        cast = self._each_tensor(lambda each: _cast(each, expected[0]), (args, kwargs))
        return made_of(func, *cast)

    @property
    def _casts(self) -> bool:
        """Whether autocast is enabled for the device of the ranks."""
        own = [
            each
            for each in (*self.around, *self.regions.current)
            if each.device == self.device
        ]
        return bool(own) and own[-1].enabled

    def _dtypes(self, func: Any, args: Any, kwargs: Any) -> list[torch.dtype]:
        """Of the results on the ranks; none where they are not known."""
        regions = (*self.around, *self.regions.current)
        try:
            with (
                torch.device(self.device),
                entered(regions),
                self.mode,
                torch.no_grad(),
            ):
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
    return values if fixed or not dtype.is_floating_point else values.to(dtype)
