"""Which calls of a model run inside its own autocast regions and checkpoints."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

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


class CheckpointRegions:
    """Notes the checkpoints that are open while a model runs.

    A checkpoint without reentrant autograd runs its function inside the context
    manager `_checkpoint_hook`, whichever name the model has imported `checkpoint` by.
    A reentrant one is a `torch.autograd.Function`, which the recorder refuses.

    current: the numbers of the open regions, the outermost first; () outside of all.
    """

    def __init__(self) -> None:
        self.current: tuple[int, ...] = ()
        self.opened = 0

    def __enter__(self) -> CheckpointRegions:
        hook: Any = torch.utils.checkpoint._checkpoint_hook
        self.enter, self.leave = hook.__enter__, hook.__exit__

        def enter(each: Any) -> Any:
            result = self.enter(each)
            self.opened += 1
            self.current = (*self.current, self.opened)
            return result

        def leave(each: Any, *fault: Any) -> Any:
            self.current = self.current[:-1]
            return self.leave(each, *fault)

        hook.__enter__, hook.__exit__ = enter, leave
        return self

    def __exit__(self, *fault: object) -> None:
        hook: Any = torch.utils.checkpoint._checkpoint_hook
        del hook.__enter__, hook.__exit__  # those of the base class again
