"""Which step stands for a call of a traced model; None where it cannot be cut."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from synth.runtime.comm.redistribute import Count, Layout, broadcast
from synth.runtime.layers.batch_norm import BatchNorm
from synth.runtime.layers.dropout import Dropout
from synth.runtime.layers.group_norm import GroupNorm, LayerNorm
from synth.runtime.layers.pooling import (
    ADAPTIVE,
    ADAPTIVE_MOST,
    MEANS,
    MOST,
    GlobalPool,
    adaptive,
    pooled,
    resized,
)
from synth.runtime.layers.replicated_params import Held
from synth.runtime.layers.step import (
    Flatten,
    Inside,
    Joined,
    Local,
    Step,
    Turned,
    largest,
)

ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid),
    *(nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.LogSigmoid),
    *(nn.SELU, nn.CELU, nn.Softsign, nn.Identity),
)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # they drop whole channels
# functions that act on every word by itself, their operands broadcast; without the _ of
# those that act in place
ALONE = {
    *("relu", "relu6", "leaky_relu", "elu", "gelu", "silu"),
    *("mish", "sigmoid", "tanh", "hardswish", "hardsigmoid", "hardtanh"),
    *("softplus", "logsigmoid", "selu", "celu", "softsign", "clamp"),
    *("clip", "exp", "log", "sqrt", "rsqrt", "abs"),
    *("neg", "pow", "square", "contiguous", "clone", "float"),
    *("detach", "to", "prelu", "add", "sub", "rsub"),
    *("mul", "div", "true_divide", "maximum", "minimum", "where"),
}
MODULES: dict[str, Callable[..., nn.Module]] = {  # functions that are layers, too
    "dropout": nn.Dropout,
    **{f"dropout{d}d": each for d, each in enumerate(CHANNELS, 1)},
    **{f"max_pool{d}d": each for d, each in enumerate(MOST, 1)},
    **{f"avg_pool{d}d": each for d, each in enumerate(MEANS, 1)},
    **{f"adaptive_avg_pool{d}d": each for d, each in enumerate(ADAPTIVE, 1)},
    **{f"adaptive_max_pool{d}d": each for d, each in enumerate(ADAPTIVE_MOST, 1)},
    "interpolate": nn.Upsample,
    "layer_norm": nn.LayerNorm,
    "group_norm": nn.GroupNorm,
}


@dataclass(frozen=True)
class Call:
    """One call: of a `module`, or of a function with nodes among its arguments.

    inputs: node -> the layout of each tensor that is computed.
    parameters: node -> (name, value) of each tensor of the model that is used.
    """

    name: str
    module: nn.Module | None
    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: Mapping[fx.Node, Layout]
    parameters: Mapping[fx.Node, tuple[str, torch.Tensor]]
    out: tuple[int, ...]
    count: Count

    @property
    def source(self) -> Layout:
        """The layout of the first operand."""
        return next(iter(self.inputs.values()))

    @property
    def word(self) -> str:
        """The plain name of the function."""
        name = getattr(self.function, "__name__", "")
        return name if name.startswith("__") else name.rstrip("_")

    def filled(self, in_place: bool = True) -> Callable[..., Any]:
        """The function of the tensors in `inputs`, then of those in `parameters`."""
        call: Any = self.function
        nodes = [*self.inputs, *self.parameters]
        if not in_place and getattr(call, "__name__", "").endswith("_"):
            call = getattr(torch.Tensor, self.word, call)
        kwargs = {k: v for k, v in self.kwargs.items() if in_place or k != "inplace"}

        def run(*tensors: torch.Tensor) -> Any:
            given = dict(zip(nodes, tensors, strict=True))
            args: Any = fx.node.map_arg((self.args, kwargs), given.__getitem__)
            return call(*args[0], **args[1])

        return run


def chosen(call: Call) -> Step | None:
    """The step for a call."""
    if call.module is not None:
        return of_module(call, call.module)
    word, source = call.word, call.source
    if word in ALONE:
        return _alone(call)
    if word in ("cat", "concat", "concatenate"):
        return _joined(call)
    if call.parameters and word not in ("layer_norm", "group_norm"):
        return None
    if word in MODULES and len(call.inputs) == 1:
        module = _as_module(call)
        return None if module is None else of_module(call, module)
    if word in ("permute", "transpose", "movedim", "swapaxes"):
        order = _order(call)
        return None if order is None else Turned(source, order)
    if word in ("flatten", "view", "reshape") and len(call.inputs) == 1:
        return _flattened(source, call.out, call.count)
    if word == "mean" and _spatial(call):
        return GlobalPool(source, len(call.out) > 2, call.count)
    return None


def of_module(call: Call, module: Any) -> Step | None:
    """The step for a layer."""
    source, out, count = call.source, call.out, call.count
    if isinstance(module, ELEMENTWISE):
        module = copy.copy(module)  # the user's stays as it is
        if hasattr(module, "inplace"):
            module.inplace = False
        return Inside(module, source)
    if isinstance(module, (nn.Dropout, *CHANNELS)):
        dims = None if isinstance(module, nn.Dropout) else 2
        return Inside(Dropout(module.p, source, dims), source)
    if isinstance(module, NORMS):
        return Inside(BatchNorm(module, source), source)
    if isinstance(module, nn.PReLU):
        boxes = broadcast_channels(source, module.weight.shape)
        held = Held({"weight": module.weight}, {"weight": boxes}, count)
        return Local(functional.prelu, [source], count, held)
    if isinstance(module, nn.GroupNorm):
        return Inside(GroupNorm(module, module.num_groups, source, count), source)
    if isinstance(module, INSTANCE) and not module.track_running_stats:
        if len(source.whole) < 3:
            return None
        return Inside(GroupNorm(module, source.whole[1], source, count), source)
    if isinstance(module, nn.LayerNorm):
        if len(module.normalized_shape) > 1:
            return None
        return Inside(LayerNorm(module, source, count), source)
    if isinstance(module, (*MOST, *MEANS)):
        return pooled(module, source, out, count)
    if isinstance(module, ADAPTIVE) and set(out[2:]) == {1}:
        return GlobalPool(source, True, count)
    if isinstance(module, (*ADAPTIVE, *ADAPTIVE_MOST)):
        return adaptive(module, source, out, count)
    if isinstance(module, nn.Upsample):
        return resized(module, source, out, count)
    if isinstance(module, nn.Flatten) and module.start_dim == 1:
        return _flattened(source, out, count)
    return None


def broadcast_channels(source: Layout, shape: torch.Size) -> Layout:
    """What every rank needs of one word per channel, or of one for all of them."""
    if shape.numel() == 1:
        return Layout((1,), (((0, 1),),) * len(source.boxes))
    return Layout(tuple(shape), tuple((box[1],) for box in source.boxes))


def _alone(call: Call) -> Step | None:
    layouts = list(call.inputs.values())
    base = largest(layouts)
    shapes = [*(lies.whole for lies in layouts)]
    shapes += [tuple(values.shape) for _, values in call.parameters.values()]
    alike = all(
        len(each) <= len(base.whole)
        and all(n in (1, m) for n, m in zip(each[::-1], base.whole[::-1], strict=False))
        for each in shapes
    )
    if base.whole != call.out or not alike:
        return None
    boxes = {
        name: broadcast(base, tuple(values.shape))
        for name, values in call.parameters.values()
    }
    if call.word == "prelu":
        boxes = {
            name: broadcast_channels(base, values.shape)
            for name, values in call.parameters.values()
        }
    held = _held(call, boxes)
    return Local(call.filled(in_place=False), layouts, call.count, held)


def _held(call: Call, boxes: Mapping[str, Layout]) -> Held | None:
    """The parameters of a call, by the last part of their names."""
    if not boxes:
        return None
    values = {entry(name, call): values for name, values in call.parameters.values()}
    layouts = {entry(name, call): lies for name, lies in boxes.items()}
    return Held(values, layouts, call.count)


def entry(name: str, call: Call) -> str:
    """What a parameter is called in its step."""
    names = [each for each, _ in call.parameters.values()]
    last = name.rpartition(".")[2]
    clear = sum(each.rpartition(".")[2] == last for each in names) == 1
    return last if clear else name.replace(".", "_")


def _joined(call: Call) -> Step | None:
    parts = call.args[0]
    dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
    layouts = [call.inputs.get(part) for part in parts]
    known = [lies for lies in layouts if lies is not None]
    if len(known) < len(layouts) or not isinstance(dim, int):
        return None
    return Joined(known, dim % len(call.out), call.count)


def _as_module(call: Call) -> nn.Module | None:
    """A layer that does what a function does with these arguments."""
    kwargs = dict(call.kwargs)
    if call.word.startswith("dropout"):
        trains = call.args[2] if len(call.args) > 2 else kwargs.get("training", True)
        p = call.args[1] if len(call.args) > 1 else kwargs.get("p", 0.5)
        return MODULES[call.word](p if trains else 0.0)
    if kwargs.pop("recompute_scale_factor", None) or kwargs.pop("antialias", False):
        return None
    given = {name.rpartition(".")[2]: v for name, v in call.parameters.values()}
    for name in ("input", "weight", "bias", "inplace"):
        kwargs.pop(name, None)
    args = [each for each in call.args[1:] if not isinstance(each, fx.Node)]
    module: nn.Module
    try:
        if call.word == "group_norm":
            module = nn.GroupNorm(args[0], call.source.whole[1], **kwargs)
        else:
            module = MODULES[call.word](*args, **kwargs)
    except (TypeError, IndexError):
        return None
    if call.word in ("layer_norm", "group_norm"):
        if set(given) - {"weight", "bias"} or len(given) < len(call.parameters):
            return None
        for name in ("weight", "bias"):
            module.register_parameter(name, given.get(name))  # type: ignore[arg-type]
    return module


def _order(call: Call) -> list[int] | None:
    """The order of dimensions that a function makes."""
    total, args = len(call.out), [a for a in call.args if not isinstance(a, fx.Node)]
    if call.word == "permute":
        dims = call.kwargs.get("dims", args[0] if len(args) == 1 else args)
        return [int(dim) % total for dim in dims]
    places = torch.empty(list(range(1, total + 1)), device="meta")  # extents tell dims
    moved: Any = call.filled()(places)
    return [extent - 1 for extent in moved.shape]


def _flattened(source: Layout, out: tuple[int, ...], count: Count) -> Step | None:
    """(b, c, *spatial) as (b, c * spatial)."""
    whole = source.whole
    flat = len(whole) > 1 and out == (whole[0], math.prod(whole[1:]))
    return Flatten(source, count) if flat else None


def _spatial(call: Call) -> bool:
    """Whether a mean is taken over all positions and nothing else."""
    total = len(call.source.whole)
    dims = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    given = (dims,) if isinstance(dims, int) else tuple(dims or ())
    rest = set(range(2, total))
    return {int(dim) % total for dim in given} == rest and len(rest) > 0
