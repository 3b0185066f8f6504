"""Which calls of a model run inside its own autocast regions and checkpoints."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import fx

from synth.runtime.kernels.autocast import Region

# what torch has where nobody has called `set_checkpoint_early_stop`
UNSET: Any = torch.utils.checkpoint._enable_checkpoint_early_stop
# calls of which no backward pass reads a tensor
SAVE_NOTHING = frozenset(
    {
        *("add", "sub", "rsub", "neg", "cat", "concat", "stack", "pad", "sum", "mean"),
        *("reshape", "view", "permute", "transpose", "movedim", "flatten", "unflatten"),
        *("chunk", "split", "select", "narrow", "expand", "to", "clone"),
        *("unsqueeze", "squeeze", "contiguous", "roll", "flip", "identity", "detach"),
        *("interpolate", "pixel_shuffle", "pixel_unshuffle"),
    }
)


class Checkpoint(NamedTuple):
    """A checkpoint that was open while a model ran.

    number: in the order in which they were opened. saves: whether the checkpoint around
    it saves its inputs. stops: whether torch ends to compute it again behind what saved
    the last tensor. sure: whether `forward` itself says so, whatever is set around it.
    """

    number: int
    saves: bool = True
    stops: bool = True
    sure: bool = False


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
    """Notes the checkpoints that are open while a model runs, and which calls save.

    A checkpoint without reentrant autograd runs its function inside the context
    manager `_checkpoint_hook`, whichever name the model has imported `checkpoint` by.
    A reentrant one is a `torch.autograd.Function`, which the recorder refuses.
    """

    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.opened = 0

    @property
    def current(self) -> tuple[Checkpoint, ...]:
        """The open ones, the outermost first; () outside of all."""
        return tuple(each.checkpoint for each in self.open)

    def note_saved(self, node: fx.Node, value: torch.Tensor | None = None) -> None:
        """Write into a call whether it saves a tensor in its innermost checkpoint.

        value: its result. One that has no gradient now may have one when others train
        their parameters.
        """
        if self.open and "saves" not in node.meta:
            node.meta["saves"] = self.open[-1].saved_since()
        if node.meta.get("region") and value is not None and not value.requires_grad:
            node.meta["saves"] |= may_save(node)

    def __enter__(self) -> CheckpointRegions:
        hook: Any = torch.utils.checkpoint._checkpoint_hook
        self.original = hook.__init__, hook.__enter__, hook.__exit__
        make, enter, leave = self.original
        self.unset = torch.utils.checkpoint.set_checkpoint_early_stop(UNSET)
        self.unset.__enter__()

        def made(each: Any, frame: Any) -> None:
            make(each, frame)
            each._stops, save, own = frame.early_stop, each.pack_hook, _Open()

            def saved(values: torch.Tensor) -> Any:
                own.saved += 1
                return save(values)

            each._open, each.pack_hook = own, saved

        def entered(each: Any) -> Any:
            self._begin(each._open, each._stops)
            return enter(each)

        def left(each: Any, *fault: Any) -> Any:
            self.open.pop()
            return leave(each, *fault)

        hook.__init__, hook.__enter__, hook.__exit__ = made, entered, left
        return self

    def _begin(self, own: _Open, stops: bool) -> None:
        saves = self.open[-1].saved_since() if self.open else True
        self.opened += 1
        sure = early_stop() is not None
        own.checkpoint = Checkpoint(self.opened, saves, stops, sure)
        self.open.append(own)

    def __exit__(self, *fault: object) -> None:
        hook: Any = torch.utils.checkpoint._checkpoint_hook
        self.unset.__exit__(None, None, None)
        hook.__init__ = self.original[0]
        del hook.__enter__, hook.__exit__  # those of the base class again


class _Open:
    """A checkpoint while it is open. saved: tensors so far."""

    checkpoint: Checkpoint

    def __init__(self) -> None:
        self.saved = self.known = 0

    def saved_since(self) -> bool:
        """Whether tensors were saved since this was asked."""
        known, self.known = self.known, self.saved
        return self.saved > known


def early_stop() -> bool | None:
    """What `set_checkpoint_early_stop` has set around checkpoints; None for nothing."""
    now: bool | None = torch.utils.checkpoint._enable_checkpoint_early_stop
    return None if now is UNSET else now


def may_save(node: fx.Node) -> bool:
    """Whether a call saves a tensor if its result has a gradient."""
    name = str(getattr(node.target, "__name__", node.target)).strip("_0123456789")
    if name in ("mul", "rmul", "div", "truediv", "getitem"):  # by numbers
        found = list[fx.Node]()
        fx.node.map_arg((node.args, node.kwargs), found.append)
        return len(found) > 1
    return node.op == "call_module" or name not in SAVE_NOTHING
