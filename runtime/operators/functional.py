"""Functions of torch as the layers of torch.nn that do the same.

A call of `F.conv2d` is planned as a convolution, whoever makes it: a subclass of
`nn.Conv2d`, a function of the user's, or a module with a computed weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional

from synth.runtime.rules.pooling import (
    ADAPTIVE_AVG,
    ADAPTIVE_MAX,
    AVG_POOLS,
    LP_POOLS,
    MAX_POOLS,
)
from synth.runtime.rules.rule import is_trainable

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# by the dimensions of the input
BATCH_NORMS = {
    2: nn.BatchNorm1d,
    3: nn.BatchNorm1d,
    4: nn.BatchNorm2d,
    5: nn.BatchNorm3d,
}
INSTANCE_NORMS = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
# functions that are layers without parameters: the layer has the same arguments
PLAIN: dict[str, Callable[..., nn.Module]] = {
    "dropout": nn.Dropout,
    "dropout1d": nn.Dropout1d,
    "dropout2d": nn.Dropout2d,
    "dropout3d": nn.Dropout3d,
    **{f"max_pool{d}d": each for d, each in enumerate(MAX_POOLS, 1)},
    **{f"avg_pool{d}d": each for d, each in enumerate(AVG_POOLS, 1)},
    **{f"lp_pool{d}d": each for d, each in enumerate(LP_POOLS, 1)},
    **{f"adaptive_avg_pool{d}d": each for d, each in enumerate(ADAPTIVE_AVG, 1)},
    **{f"adaptive_max_pool{d}d": each for d, each in enumerate(ADAPTIVE_MAX, 1)},
    "interpolate": nn.Upsample,
    "local_response_norm": nn.LocalResponseNorm,
}
CONV = ("weight", "bias", "stride", "padding", "dilation", "groups")
CONV_TRANSPOSED = (*CONV[:4], "output_padding", "groups", "dilation")
NORM = ("running_mean", "running_var", "weight", "bias")
# function with parameters -> names of its arguments after the input
SIGNATURES: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((functional.conv1d, functional.conv2d, functional.conv3d), CONV),
    functional.conv_transpose1d: CONV_TRANSPOSED,
    functional.conv_transpose2d: CONV_TRANSPOSED,
    functional.conv_transpose3d: CONV_TRANSPOSED,
    functional.linear: ("weight", "bias"),
    functional.batch_norm: (*NORM, "training", "momentum", "eps"),
    functional.instance_norm: (*NORM, "use_input_stats", "momentum", "eps"),
    functional.group_norm: ("num_groups", "weight", "bias", "eps"),
    functional.layer_norm: ("normalized_shape", "weight", "bias", "eps"),
}
OPERANDS = (*NORM, "num_batches_tracked")


class Layer(NamedTuple):
    """A function as a layer. `operands`: name of its parameter -> the node given."""

    module: nn.Module
    operands: dict[str, fx.Node]


def layer_of_function(
    function: Any,
    word: str,
    node: fx.Node,
    shape: tuple[int, ...],
    parameters: Mapping[fx.Node, tuple[str, torch.Tensor]],
) -> Layer | None:
    """The layer that does what a function does with these arguments; None for none.

    shape: of the input, the only argument that depends on the model's input.
    parameters: the arguments that do not, with their values.
    """
    if not node.args and "input" not in node.kwargs:
        return None
    try:
        if function in SIGNATURES:
            return _with_parameters(function, node, shape, parameters)
        made = None if parameters else _plain(word, node)
        return None if made is None else Layer(made, {})
    except (TypeError, IndexError, ValueError, RuntimeError):  # other arguments
        return None


def _plain(word: str, node: fx.Node) -> nn.Module | None:
    """A layer without parameters."""
    args, kwargs = node.args, dict(node.kwargs)
    if word.startswith("dropout"):
        return PLAIN[word](args[1] if len(args) > 1 else kwargs.get("p", 0.5))
    if word not in PLAIN:
        return None
    if kwargs.pop("recompute_scale_factor", None) or kwargs.pop("antialias", False):
        return None
    for name in ("input", "inplace"):
        kwargs.pop(name, None)
    rest = [each for each in args[1:] if not isinstance(each, fx.Node)]
    return PLAIN[word](*rest, **kwargs)


def _with_parameters(
    function: Any,
    node: fx.Node,
    shape: tuple[int, ...],
    parameters: Mapping[fx.Node, tuple[str, torch.Tensor]],
) -> Layer | None:
    names = SIGNATURES[function]
    first = node.args[0] if node.args else node.kwargs["input"]
    given = dict(zip(names, node.args[1:], strict=False))
    given |= {key: value for key, value in node.kwargs.items() if key != "input"}
    operands: dict[str, fx.Node] = {
        name: value for name, value in given.items() if isinstance(value, fx.Node)
    }
    if first in parameters or set(operands.values()) - set(parameters):
        return None  # weights that depend on the input
    values = {name: parameters[each][1] for name, each in operands.items()}
    numbers = {name: each for name, each in given.items() if name not in OPERANDS}
    module = module_of(function, shape, values, numbers)
    if module is None:
        return None
    for name in (*NORM, "num_batches_tracked"):
        if not hasattr(module, name):
            continue
        like = values.get(name)
        if name in module._buffers:
            module._buffers[name] = None if like is None else like.to("meta")
        else:
            module._parameters[name] = None if like is None else _empty(like)
    return Layer(module, operands)


def module_of(
    function: Any,
    shape: tuple[int, ...],
    values: Mapping[str, torch.Tensor],
    numbers: dict[str, Any],
) -> nn.Module | None:
    """The layer of a function, with parameters of its own on "meta"; None for none.

    shape: of the input. values: of the parameters, by name. numbers: other arguments.
    """
    meta: dict[str, Any] = {"device": "meta"}
    if function in (functional.batch_norm, functional.instance_norm):
        numbers.pop("training", None)
        numbers.pop("use_input_stats", None)
        tracked = "running_mean" in values
        kinds: Any = BATCH_NORMS
        if function is functional.instance_norm:
            kinds = INSTANCE_NORMS
            if tracked:
                return None
        if len(shape) not in kinds:
            return None
        numbers["track_running_stats"] = tracked
        affine = bool({"weight", "bias"} & set(values))
        return kinds[len(shape)](shape[1], affine=affine, **numbers, **meta)  # type: ignore[no-any-return]
    if function is functional.group_norm:
        affine = bool({"weight", "bias"} & set(values))
        groups = numbers.pop("num_groups")
        return nn.GroupNorm(groups, shape[1], affine=affine, **numbers, **meta)
    if function is functional.layer_norm:
        return nn.LayerNorm(numbers.pop("normalized_shape"), **numbers, **meta)
    weight, bias = values["weight"], "bias" in values
    if function is functional.linear:
        if weight.dim() != 2:
            return None
        return nn.Linear(weight.shape[1], weight.shape[0], bias, **meta)
    dims = weight.dim() - 2
    if len(shape) != dims + 2:
        return None
    groups = numbers.pop("groups", 1)
    kernel = tuple(weight.shape[2:])
    places = {name: _per_dimension(each, dims) for name, each in numbers.items()}
    ins, outs = shape[1], weight.shape[0]
    made: Any = CONVS[dims - 1]
    if SIGNATURES[function] is CONV_TRANSPOSED:
        made, outs = TRANSPOSED[dims - 1], weight.shape[1] * groups
    return made(ins, outs, kernel, groups=groups, bias=bias, **places, **meta)  # type: ignore[no-any-return]


def _per_dimension(number: Any, dims: int) -> Any:
    """An argument of a convolution, with a number for each dimension if it has any."""
    if isinstance(number, str):
        return number
    numbers = (number,) if isinstance(number, int) else tuple(number)
    return numbers * dims if len(numbers) == 1 else numbers


def _empty(like: torch.Tensor) -> nn.Parameter:
    """A parameter without values."""
    return nn.Parameter(
        torch.empty(like.shape, dtype=like.dtype, device="meta"),
        requires_grad=like.requires_grad and is_trainable(like),
    )
