"""The steps of normalizations that have a rule: of groups, instances and rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count
from synth.runtime.kernels.autocast import Operator
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.rules.group_norm import group_norm
from synth.runtime.rules.layer_norm import layer_norm

Word = torch.Tensor | None


def norm_step(
    kind: str,
    module: Any,
    layout: Layout,
    process_groups: ProcessGroups,
    count: Count,
    owned: Layout | None = None,
) -> Pulled:
    """The step of a "groupnorm", an "instancenorm" or a "layernorm".

    module: of torch, with `eps`; without `weight` or `bias`, or with None, it has none.
    owned: whose words count; see `group_norm`.
    """
    dim = -1 if kind == "layernorm" else 1
    channels = ((box[dim],) for box in layout.boxes)
    each = layout.with_boxes(layout.whole[dim:][:1], channels)
    values = {name: getattr(module, name, None) for name in ("weight", "bias")}
    held = ReplicatedParams(values, dict.fromkeys(values, each), count)
    vars(held)["eps"] = module.eps  # which the user may change

    def eps() -> float:
        return float(vars(held)["eps"])

    operator = OPERATORS[kind]
    if kind == "layernorm":
        rule = layer_norm(eps, operator, layout, process_groups, count)
    else:
        groups = layout.whole[1] if kind == "instancenorm" else module.num_groups
        where = process_groups, count, owned
        rule = group_norm(groups, eps, operator, layout, *where)
    return Pulled(rule, count, held)


def _group_norm(word: torch.Tensor, weight: Word, bias: Word) -> torch.Tensor:
    return functional.group_norm(word.expand(2, 1, 2), 1, weight, bias)


def _instance_norm(word: torch.Tensor, weight: Word, bias: Word) -> torch.Tensor:
    batch = word.expand(2, 1, 2)
    return functional.instance_norm(batch, weight=weight, bias=bias)


def _layer_norm(word: torch.Tensor, weight: Word, bias: Word) -> torch.Tensor:
    return functional.layer_norm(word.expand(2, 1), (1,), weight, bias)


OPERATORS: dict[str, Operator] = {  # torch's own, of one word
    "groupnorm": _group_norm,
    "instancenorm": _instance_norm,
    "layernorm": _layer_norm,
}
