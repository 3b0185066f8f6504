"""What a recorder looks at: functions, layers, and the tensors among arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils import _pytree

from synth.runtime.tracing.attention import may_nest
from synth.runtime.tracing.computed_weights import computed_weights

# layers of torch.nn that give several tensors, are called with other settings, or
# consist of layers that ranks divide
FOLLOWED = (
    *(nn.MultiheadAttention, nn.RNNBase, nn.LSTMCell, nn.Transformer),
    *(nn.TransformerEncoder, nn.TransformerDecoder),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    *(nn.modules.loss._Loss, nn.CosineSimilarity),
)


NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
OWN_AXIS = (torch.quantize_per_channel, torch.fake_quantize_per_channel_affine)
# names of tensors, which are given in this order where they have no name
IN_ORDER = (
    *("input", "x", "a", "condition", "mat", "mat1", "batch1", "vec1", "tensor1"),
    *("input1", "x1", "other", "mat2", "batch2", "vec", "vec2", "tensor2", "input2"),
    *("x2", "tensor"),
)


def stored_tensors(model: nn.Module) -> Iterator[tuple[int, str]]:
    """The ids of parameters and buffers, and their names."""
    for values_of in (model.named_parameters, model.named_buffers):
        for name, values in values_of():
            yield id(values), name


def function_name(func: Any) -> str:
    """The name of a function, without the _ of its in-place form."""
    return str(getattr(func, "__name__", "call")).strip("_")


def as_torch_names(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Named arguments of a call under the names of torch, tensors in its order.

    Its own functions take names of NumPy, too.
    """
    if not isinstance(func, BuiltinFunctionType | MethodDescriptorType):
        return kwargs
    renamed = {} if func in OWN_AXIS else NUMPY_NAMES
    named = {renamed.get(name, name): each for name, each in kwargs.items()}
    first = [name for name in IN_ORDER if name in named]
    return {name: named[name] for name in dict.fromkeys((*first, *named))}


def by_mode(module: nn.Module) -> bool:
    """Whether what a module computes, apart from its parts, may depend on its mode."""
    code = getattr(type(module).forward, "__code__", None)
    named = code is None or "training" in code.co_names
    return named or isinstance(module, nn.modules.batchnorm._NormBase)


def sets_requires_grad(func: Any) -> bool:
    """Whether a function is the assignment to `requires_grad`."""
    return getattr(func, "__self__", None) is vars(torch._C.TensorBase)["requires_grad"]


def node_name(name: str) -> str:
    """A name for a node that can be a key of a `ModuleDict`."""
    name = name.strip("_").replace(".", "_") or "model"
    return f"{name}_call" if hasattr(nn.ModuleDict, name) else name


def is_one_call(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether a module is a layer of torch.nn, which is recorded as one call."""
    own = type(module).__module__.startswith("torch.nn.modules")
    if not own or parametrize.is_parametrized(module) or _has_another_weight(module):
        return False
    if computed_weights(module) or getattr(module, "return_indices", False):
        return False
    if (
        isinstance(module, nn.modules.conv._ConvTransposeNd)
        and len(args) + len(kwargs) > 1
    ):
        return False  # output_size is another padding of the function
    if isinstance(module, nn.TransformerEncoder):
        return may_nest(module, *args, **kwargs)
    holders = nn.Sequential, nn.ModuleList, nn.ModuleDict
    return not isinstance(module, (*holders, *FOLLOWED))


def _has_another_weight(module: Any) -> bool:
    """Whether a layer says other extents than its weight has, as torch allows."""
    shape: tuple[int, ...]
    if isinstance(module, nn.modules.conv._ConvNd):
        extents = module.out_channels, module.in_channels // module.groups
        if module.transposed:
            extents = module.in_channels, module.out_channels // module.groups
        shape = (*extents, *module.kernel_size)
    elif isinstance(module, nn.Linear):
        shape = module.out_features, module.in_features
    else:
        return False
    return tuple(module.weight.shape) != shape


def mapped(change: Callable[[Any], Any], given: Any) -> Any:
    """A structure of tuples, lists, dicts and slices with changed entries."""
    if isinstance(given, torch.Size):
        return given
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return type(given)(*map(change, given))
    if isinstance(given, tuple | list):
        return (list if isinstance(given, list) else tuple)(map(change, given))
    if isinstance(given, dict):
        return {key: change(each) for key, each in given.items()}
    if isinstance(given, slice):
        return slice(*map(change, (given.start, given.stop, given.step)))
    return given


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """All tensors in a structure of tuples, lists and dicts, each once."""
    if isinstance(given, torch.Tensor):
        yield given
        return
    parts: Iterable[Any] = ()
    if isinstance(given, dict):
        parts = given.values()
    elif isinstance(given, tuple | list):
        parts = given
    seen: set[int] = set()
    for part in parts:
        for tensor in tensors_in(part):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def leaf_tensors(given: Any) -> list[torch.Tensor]:
    """The tensors in all containers that torch knows, each as often as it is there."""
    leaves = _pytree.tree_leaves(given)
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def picked(func: Callable[..., Any], index: int) -> Callable[..., Any]:
    """A function that gives one of several results of another."""

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        return list(tensors_in(func(*args, **kwargs)))[index]

    def every(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        return list(tensors_in(func(*args, **kwargs)))

    run.every = every  # type: ignore[attr-defined]
    run.__name__ = f"{getattr(func, '__name__', 'call')}_{index}"
    run.picked = getattr(func, "__name__", "").strip("_"), index  # type: ignore[attr-defined]
    return run
