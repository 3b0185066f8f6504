"""Which calls of a model run inside `torch.utils.checkpoint` while it is recorded."""

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint


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
