"""The step that runs a call of a traced model on shards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx, nn
from torch.nn import functional

from synth.runtime.comm.redistribute import Count, Layout, broadcast
from synth.runtime.layers.batch_norm import BatchNorm
from synth.runtime.layers.dropout import Dropout
from synth.runtime.layers.group_norm import GroupNorm, LayerNorm
from synth.runtime.layers.pooling import GlobalPool, adaptive, pooled, resized
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
from synth.runtime.model.calls import Call
from synth.runtime.model.operators import Operator


def choose_step(
    call: Call,
    operator: Operator,
    inputs: Mapping[fx.Node, Layout],
    counter: Callable[[str], Count],
    wanted: Layout | None = None,
) -> Step | None:
    """The step for a call; None where every rank has to compute it from the whole.

    inputs: the layout of each computed tensor among the arguments.
    counter: makes the counter of received words for a name.
    wanted: the layout of a concatenation; by default that of its first part.
    """
    source, module = next(iter(inputs.values())), operator.module
    count = counter(call.name)
    match operator.kind:
        case "elementwise" | "same":
            if module is None:
                return _elementwise(call, list(inputs.values()), count)
            module = copy.copy(module)  # the user's stays as it is
            if hasattr(module, "inplace"):
                module.inplace = False
            return Inside(module, source)
        case "prelu":
            boxes = broadcast_channels(source, module.weight.shape)
            held = Held({"weight": module.weight}, {"weight": boxes}, count)
            return Local(functional.prelu, [source], count, held)
        case "dropout":
            dims = None if isinstance(module, nn.Dropout) else 2
            return Inside(Dropout(module.p, source, dims), source)
        case "batchnorm":
            return Inside(BatchNorm(module, source), source)
        case "groupnorm":
            return Inside(GroupNorm(module, module.num_groups, source, count), source)
        case "instancenorm":
            return Inside(GroupNorm(module, source.whole[1], source, count), source)
        case "layernorm":
            return Inside(LayerNorm(module, source, count), source)
        case "pool":
            return pooled(module, source, call.out, count)
        case "adaptive":
            return adaptive(module, source, call.out, count)
        case "globalpool":
            return GlobalPool(source, len(call.out) > 2, count)
        case "resize":
            return resized(module, source, call.out, count)
        case "flatten":
            return Flatten(source, count)
        case "permute":
            return Turned(source, call.order())
        case "cat":
            joined = call.joined()
            assert joined is not None
            parts, dim = joined
            counts = [counter(f"{call.name} <- {part.name}") for part in parts]
            places = [call.inputs.index(part) for part in parts]
            layouts = [inputs[part] for part in parts]
            return Joined(layouts, dim, counts, places, wanted)
        case _:
            return None


def broadcast_channels(source: Layout, shape: Sequence[int]) -> Layout:
    """What every rank needs of one word per channel, or of one for all channels."""
    if tuple(shape) == (1,):
        return Layout((1,), (((0, 1),),) * len(source.boxes))
    return Layout(tuple(shape), tuple((box[1],) for box in source.boxes))


def _elementwise(call: Call, layouts: list[Layout], count: Count) -> Step:
    base = largest(layouts)
    place = broadcast_channels if call.word == "prelu" else broadcast
    held = hold(
        call,
        {name: place(base, tuple(v.shape)) for name, v in call.parameters.values()},
        count,
    )
    return Local(call.filled(in_place=False), layouts, count, held)


def hold(call: Call, boxes: Mapping[str, Layout], count: Count) -> Held | None:
    """The parameters of a call in the given layouts; None where it has none."""
    if not boxes:
        return None
    values: dict[str, torch.Tensor]
    values = {call.state_key(name): v for name, v in call.parameters.values()}
    layouts = {call.state_key(name): layout for name, layout in boxes.items()}
    return Held(values, layouts, count)
