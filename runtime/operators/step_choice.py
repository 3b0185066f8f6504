"""The step that runs a call of a traced model on shards."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import fx, nn
from torch.nn import functional

from synth.runtime.comm.layout import Layout, replicated
from synth.runtime.comm.redistribute import Count
from synth.runtime.layers.norms.rule_norms import norm_step
from synth.runtime.layers.steps.dropout import Dropout
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import OnShards, Step
from synth.runtime.operators.batch_norms import BatchNorms
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.loops import affine_step, mapped_step
from synth.runtime.operators.products import Product
from synth.runtime.operators.refused_words import may_refuse
from synth.runtime.operators.table import RULES, Kind, Operator
from synth.runtime.rules.access import Same, Single, aligned
from synth.runtime.rules.movement import best_joined, joined, like_part
from synth.runtime.rules.pointwise import pointwise
from synth.runtime.rules.products import Factor, best_layout, product, wanted
from synth.runtime.rules.reductions import reduction
from synth.runtime.rules.rule import Rule, Together, needed

# kinds of calls that act on shards as they are -> the settings of their modules that
# may change without another plan; () for all
SETTINGS: dict[Kind, tuple[str, ...]] = {
    **dict.fromkeys(("elementwise", "same"), ()),
    "dropout": ("p",),
    "batchnorm": ("momentum", "eps", "track_running_stats"),
    **dict.fromkeys(("groupnorm", "instancenorm", "layernorm"), ("eps",)),
}


def choose_step(
    call: Call,
    operator: Operator,
    inputs: Mapping[fx.Node, Layout],
    counter: Callable[[str], Count],
    batch_norms: BatchNorms,
    wanted: Layout | None = None,
    owned: Layout | None = None,
) -> Step | None:
    """The step for a call; None where every rank has to compute it from the whole.

    inputs: the layout of each computed tensor among the arguments.
    counter: makes the counter of received words for a name.
    batch_norms: makes the steps of batch normalizations.
    wanted: the layout of the result of a concatenation, pooling, resizing or shuffle.
    owned: the words of the input that ranks own, if they compute others, too.
    """
    step = _chosen(call, operator, inputs, counter, batch_norms, wanted, owned)
    if isinstance(step, Pulled) and may_refuse(call):
        word = "a loop" if operator.kind == "mapped" else call.word.strip("_")
        place = call.node.meta.get("place", "")
        step.rule = Together.of(f"{word}{place}", step.rule)
    return step


def _chosen(
    call: Call,
    operator: Operator,
    inputs: Mapping[fx.Node, Layout],
    counter: Callable[[str], Count],
    batch_norms: BatchNorms,
    wanted: Layout | None,
    owned: Layout | None,
) -> Step | None:
    if operator.kind in SETTINGS and operator.module is not None:
        given = next(iter(inputs.values())), owned
        step = _on_shards(call, operator, *given, counter, batch_norms)
        if call.module is not None:  # a function is called with its settings
            step.settings = SETTINGS[operator.kind] or _settings_of(call.module)
        return step
    source, module = next(iter(inputs.values())), operator.module
    count = counter(call.name)
    if operator.kind == "reduction":
        rule = reduction(operator.form, source, batch_norms.groups, count)
        return Pulled(rule, count)
    if operator.kind == "affine":
        return affine_step(call, inputs, count, hold)
    if operator.kind == "mapped":
        return mapped_step(call, inputs, count, hold)
    if operator.kind == "scan":
        cut = operator.form.rule(source, count)
        if cut is not None:
            return Pulled(cut, count)
    if operator.kind == "prelu":
        boxes = _broadcast(call, source, module.weight.shape)
        held = ReplicatedParams({"weight": module.weight}, {"weight": boxes}, count)
        return Pulled(pointwise([source], functional.prelu), count, held)
    if operator.kind == "cat":
        parts, dim = operator.form
        counts = [counter(f"{call.name} <- {part.name}") for part in parts]
        places = [call.inputs.index(part) for part in parts]
        layouts = [inputs[part] for part in parts]
        if wanted is None:
            first = "like_first" in call.node.meta
            wanted = best_joined(layouts, dim, 0 if first else None)
        return Pulled(joined(layouts, dim, places, wanted), counts)
    if operator.kind == "joined":
        parts, dim = operator.form
        return _joined(call, parts, dim, inputs, count)
    if operator.kind == "product":
        return _product(call, operator.form, inputs, count)
    if operator.kind in ("elementwise", "same"):
        return _elementwise(call, list(inputs.values()), count)
    rule_of = RULES.get(operator.kind)
    return rule_of and Pulled(rule_of(call, operator, source, wanted), count)


def _on_shards(
    call: Call,
    operator: Operator,
    source: Layout,
    owned: Layout | None,
    counter: Callable[[str], Count],
    batch_norms: BatchNorms,
) -> Step:
    """The step of a module that acts on shards as they are."""
    module, groups, count = operator.module, batch_norms.groups, counter(call.name)
    made: nn.Module
    match operator.kind:
        case "dropout":
            made = Dropout(
                module.p, source, None if isinstance(module, nn.Dropout) else 2
            )
        case "batchnorm":
            return batch_norms.step(call, module, source, owned)
        case "groupnorm" | "instancenorm" | "layernorm":
            return norm_step(operator.kind, module, source, groups, count, owned)
        case _:
            made = copy.copy(module)  # the user's stays as it is
            if hasattr(made, "inplace"):
                vars(made)["inplace"] = False
    return OnShards(made, source)


def _settings_of(module: nn.Module) -> tuple[str, ...]:
    """What a module of torch without parameters was made with: numbers and words."""
    kept = ("training", "inplace")
    return tuple(n for n in vars(module) if not n.startswith("_") and n not in kept)


def _product(
    call: Call, found: Product, inputs: Mapping[fx.Node, Layout], count: Count
) -> Step | None:
    """A step that ranks divide over dimensions along which the call is independent."""
    pairs = list(zip(found.operands, found.dims, strict=True))
    sources = [(inputs[node], dims) for node, dims in pairs if node in inputs]
    layout = best_layout(call.out, sources, found.cut)
    given = {node: dims for node, dims in pairs if node in call.parameters}
    if len(given) + len(sources) < len(pairs):
        return None  # a parameter that occurs twice
    boxes = {
        name: wanted(layout, tuple(call.parameters[node][1].shape), given[node])
        for node, (name, _) in call.parameters.items()
    }
    orders = {**_numbered(call.inputs), **_numbered(call.parameters)}
    operands = [
        Factor(orders[node], node_shape(node), inputs.get(node), dims)
        for node, dims in pairs
    ]
    rule = product(found.on_box, layout, operands)
    return Pulled(rule, count, hold(call, boxes, count))


def _joined(
    call: Call,
    parts: Sequence[fx.Node],
    dim: int,
    inputs: Mapping[fx.Node, Layout],
    count: Count,
) -> Step | None:
    """A concatenation, of which each rank has the words of its parameters' parts."""
    ranks = next(iter(inputs.values())).ranks
    layouts = [inputs.get(p) or replicated(node_shape(p), ranks) for p in parts]
    base = parts.index(max(inputs, key=lambda p: math.prod(node_shape(p))))
    out = like_part(layouts, base, dim)
    places = [call.inputs.index(p) if p in inputs else 0 for p in parts]
    rule = joined(layouts, dim, places, out)
    given = [place for place, part in enumerate(parts) if part not in inputs]
    moved = [place for place, part in enumerate(parts) if part in inputs]
    names = [call.parameters[parts[place]][0] for place in given]
    if len({*names}) < len(names):
        return None  # a parameter that occurs twice
    boxes = {
        name: cast(Layout, rule.operands[place].reads)
        for name, place in zip(names, given, strict=True)
    }
    order = [*moved, *given]

    def local(*here: torch.Tensor) -> torch.Tensor:
        by_place = dict(zip(order, here, strict=True))
        return rule.call(*(by_place[place] for place in range(len(parts))))

    operands = tuple(rule.operands[place] for place in moved)
    return Pulled(Rule(out, operands, local), count, hold(call, boxes, count))


def _numbered(nodes: Iterable[fx.Node]) -> dict[fx.Node, int]:
    return {node: number for number, node in enumerate(nodes)}


def _broadcast(call: Call, out: Layout, shape: Sequence[int]) -> Layout:
    """What every rank needs of a parameter. That of a PReLU has a word per channel."""
    if call.word not in ("", "prelu"):
        return needed(out, shape, aligned(shape, out.whole))
    alone = math.prod(shape) == 1  # a slope, also of a result of fewer dimensions
    return needed(out, shape, (Single(),) * len(shape) if alone else (Same(1),))


def _elementwise(call: Call, layouts: list[Layout], count: Count) -> Step:
    like = call.node.meta.get("like")  # where the planner has it
    rule = pointwise(layouts, call.filled(in_place=False), call.out, like)
    given = call.parameters.values()
    boxes = {name: _broadcast(call, rule.out, v.shape) for name, v in given}
    return Pulled(rule, count, hold(call, boxes, count))


def hold(
    call: Call, boxes: Mapping[str, Layout], count: Count
) -> ReplicatedParams | None:
    """The parameters of a call in the given layouts; None where it has none."""
    if not boxes:
        return None
    values: dict[str, torch.Tensor]
    values = {call.state_key(name): v for name, v in call.parameters.values()}
    layouts = {call.state_key(name): layout for name, layout in boxes.items()}
    return ReplicatedParams(values, layouts, count)
