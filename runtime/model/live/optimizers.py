"""What is meant for a network, but takes parameters of the model that was given.

Gradients are those of the network's parameters, which are other tensors. An optimizer
that was made of the model's parameters, before or after, would step without them, and
`clip_grad_norm_` and `clip_grad_value_` would find no gradients. A term of the loss
that is computed from them, such as their norm, would have no effect on the network. All
three are refused.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from functools import cache, wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from synth.runtime.compiled.optimizers import after_step
from synth.runtime.grid.ranks import Ranks
from synth.runtime.model.checks.versions import Before
from synth.runtime.tensor.partitioned import PartitionedTensor

GIVEN = "parameters of the model that was given to parallelize"


class _Known(NamedTuple):
    """A parameter of a model, which is not kept, and where its words are."""

    name: str
    words: int
    itself: weakref.ref[torch.Tensor]  # another tensor may have its number later


# network -> of each parameter of the model: id -> what is known of it. The model may be
# gone, and its parameters be the optimizer's alone
_GIVEN: weakref.WeakKeyDictionary[Any, Mapping[int, _Known]]
_GIVEN = weakref.WeakKeyDictionary()


class TermOfLoss:
    """A hook of a parameter of the model that was given: it has a gradient now.

    Ranks leave it out of a network that is made of the same model.
    """

    def __init__(self, network: Any, name: str) -> None:
        self.network, self.name = weakref.ref(network), name

    def __call__(self, gradient: torch.Tensor) -> None:
        """Look at the end of this backward pass whether it is the network's, too."""
        task = torch._C._current_graph_task_id()
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: self._require_other(task)
        )

    def _require_other(self, task: int) -> None:
        network = self.network()
        if network is not None and Before.latest == (task, id(network.ranks)):
            raise ValueError(
                f"the loss of the network reads {GIVEN} ({self.name}), whose gradients"
                " train nothing; compute this term from net.parameters()"
            )


def look_for_uses(network: nn.Module, model: nn.Module) -> None:
    """Look at what uses parameters of a model. network: made of it."""
    _GIVEN[network] = {
        id(each): _Known(name, each.data_ptr(), weakref.ref(each))
        for name, each in model.named_parameters()
    }
    for name, each in model.named_parameters():
        if each.requires_grad and not each.is_inference():
            each.register_hook(TermOfLoss(network, name))  # type: ignore[no-untyped-call]
    _hook()


def require_unshared(model: nn.Module, ranks: Ranks) -> None:
    """Raise `ValueError`, on all ranks, where a network of another model trains one of
    its parameters, too. Each has a copy, so what one trains the other would not see.
    """
    shared = _shared_with(model)
    if shared:
        gc.collect()  # networks that nobody has any more
        shared = _shared_with(model)
    said = ranks.gathered(shared) if ranks.size > 1 else [shared]
    shared = next(filter(None, said), "")
    if shared:
        raise ValueError(
            f"a network of another model trains {shared} of this model, too, but each"
            " has a copy of its own; parallelize one model with a method for each, or"
            " give copy.deepcopy(model) where the two may differ"
        )


def _shared_with(model: nn.Module) -> str:
    """The first parameter that a network of another model trains; "" for none."""
    own = {id(each): each for each in model.parameters() if each.requires_grad}
    for network, given in tuple(_GIVEN.items()):
        watch = None if network._original is None else network._original.watch
        other = None if watch is None else watch.model
        if network.program.inference or other is None or other is model:
            continue
        for key, known in given.items():
            if key in own and _is_of(own[key], {key: known}):
                return known.name
    return ""


@cache
def _hook() -> None:
    """Once in a process."""
    register_optimizer_step_post_hook(after_step(_require_trained))
    for clip in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_):
        _look_into(clip)


def _look_into(clip: Any) -> None:
    """Look at the parameters that a function of torch clips.

    torch has no hook there. Who has imported the function keeps it, so what is
    exchanged is the function that it calls without gradients.
    """
    cells = {cell.cell_contents: cell for cell in clip.__closure__}
    (own,) = (each for each in cells if getattr(each, "__name__", "") == clip.__name__)

    @wraps(own)
    def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return own(parameters, *args, **kwargs)
        one = isinstance(parameters, torch.Tensor)
        every = [parameters] if one else list(parameters)
        require_gradients(every, clip.__name__, "give it net.parameters()")
        return own(every, *args, **kwargs)

    cells[own].cell_contents = clipped


def _require_trained(optimizer: torch.optim.Optimizer) -> None:
    every = [each for group in optimizer.param_groups for each in group["params"]]
    kind = type(optimizer).__name__
    remedy = f"make it of the network, {kind}(net.parameters(), ...)"
    require_gradients(every, kind, remedy)


def require_gradients(every: Sequence[torch.Tensor], what: str, remedy: str) -> None:
    """Raise `ValueError` for parameters whose gradients are those of a network.

    what: takes them.
    """
    if all(each.grad is not None for each in every):
        return
    for network, given in tuple(_GIVEN.items()):
        its = [each for each in every if _is_of(each, given)]
        if not its or any(each.grad is not None for each in its):
            continue  # such a model is trained by itself
        if any(each.grad is not None for each in network.parameters()):
            more = f" and {len(its) - 1} more" if len(its) > 1 else ""
            raise ValueError(
                f"{what} has {GIVEN} ({given[id(its[0])].name}{more}), which have no"
                f" gradients: those of its network have; {remedy}"
            )


def _is_of(values: torch.Tensor, given: Mapping[int, _Known]) -> bool:
    """Whether a tensor is one of the parameters of a model."""
    known = given.get(id(values))
    if known is None or isinstance(values, PartitionedTensor):
        return False
    return known.itself() is values and bool(known.words == values.data_ptr())
