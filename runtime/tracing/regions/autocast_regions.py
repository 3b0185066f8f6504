"""Which calls of a model run inside its own autocast regions while it is recorded."""

from __future__ import annotations

from typing import Any

import torch

from synth.runtime.kernels.autocast import Region


class AutocastRegions:
    """Notes the regions of `torch.autocast` that are open while a model runs.

    device: of the model. It is recorded on "meta", for which autocast does not exist: a
    region that asks for the device of a tensor gets this one.

    current: the open regions, the outermost first.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.current: tuple[Region, ...] = ()

    def __enter__(self) -> AutocastRegions:
        kind: Any = torch.autocast
        self.original = kind.__init__, kind.__enter__, kind.__exit__
        make, enter, leave = self.original

        def made(each: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            device = self.device if device_type == "meta" else device_type
            make(each, device, *args, **kwargs)

        def entered(each: Any) -> Any:
            region = Region(each.device, each.fast_dtype, each._enabled)
            self.current = (*self.current, region)
            return enter(each)

        def left(each: Any, *fault: Any) -> Any:
            self.current = self.current[:-1]
            return leave(each, *fault)

        kind.__init__, kind.__enter__, kind.__exit__ = made, entered, left
        return self

    def __exit__(self, *fault: object) -> None:
        autocast: Any = torch.autocast
        autocast.__init__, autocast.__enter__, autocast.__exit__ = self.original
