"""What the ranks of the tests of batch normalization in any layout do, beside torch's own of the whole."""

from __future__ import annotations

from typing import Any

import torch
from small_networks import near
from torch import nn

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import Box
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.norms.batch_norm import BatchNorm

LAYOUTS: dict[str, tuple[Box, ...]] = {  # of (6, 8, 5) on four ranks
    "samples": tuple(((low, high), (0, 8), (0, 5)) for low, high in ((0, 2), (2, 4), (4, 5), (5, 6))),
    "channels": tuple(((0, 6), (2 * r, 2 * r + 2), (0, 5)) for r in range(4)),
    "overlapping": (((0, 3), (0, 5), (0, 5)), ((3, 6), (0, 3), (0, 5)), ((3, 6), (3, 8), (0, 5)),
                    ((0, 3), (5, 8), (0, 5))),
    "idle": (((0, 6), (0, 4), (0, 5)), ((0, 6), (4, 8), (0, 2)), ((0, 6), (4, 8), (2, 5)),
             ((0, 0), (0, 0), (0, 0))),
}  # fmt: skip


def bind(made: BatchNorm, whole: nn.Module) -> None:
    """Let a batch normalization of shards use the own words of one of wholes."""
    for name, place in made.held_tensors().items():
        values = getattr(whole, name)
        own = values.detach() if place.partition is None else place.partition.cut(values.detach())
        place.bind(own.clone().requires_grad_(values.requires_grad))


def batch_norm_differences(layout: str, options: dict[str, Any], mean: float) -> dict[str, float]:
    """Batch normalization of shards beside torch's of the whole: the largest difference, by tensor.

    options: of `nn.BatchNorm1d`. mean: of the input, whose variance is 1. Two batches train, a third is
    evaluated.
    """
    cut = Layout((6, 8, 5), LAYOUTS[layout], Ranks.world())
    mine = tuple(slice(*interval) for interval in cut.mine)
    torch.manual_seed(0)
    whole: Any = nn.BatchNorm1d(8, **options).double()
    if whole.affine:
        nn.init.uniform_(whole.weight, 0.5, 2)
        nn.init.uniform_(whole.bias)
    made = BatchNorm(whole, cut, ProcessGroups())
    bind(made, whole)
    found = dict[str, float]()
    for training in (True, True, False):
        whole.train(training)
        made.train(training)
        batch, dout = torch.randn(6, 8, 5).double() + mean, torch.randn(6, 8, 5).double()
        given = batch.clone().requires_grad_()
        shard = batch[mine].clone().requires_grad_()
        right, out = whole(given), made(shard)
        right.backward(dout)
        made.train()
        made(batch[mine] + 1)  # another forward pass, which the backward pass must not see
        out.backward(dout[mine])
        pairs = {"output": (out.detach(), right.detach()[mine]), "dIn": (shard.grad, given.grad[mine])}
        if whole.affine:
            channels = mine[1]
            pairs["weight's gradient"] = made.weight.grad, whole.weight.grad[channels]
            pairs["bias's gradient"] = made.bias.grad, whole.bias.grad[channels]
        for name, pair in pairs.items():
            found[name] = max(found.get(name, 0.0), near(*pair))
        bind(made, whole)
        whole.zero_grad()
    return found


def refusal_of_one_value_per_channel() -> str:
    """How a batch normalization refuses a batch in which a channel has one value."""
    one = BatchNorm(
        nn.BatchNorm1d(8),
        Layout((1, 8), tuple(((0, 1), box[1]) for box in LAYOUTS["channels"]), Ranks.world()),
        ProcessGroups(),
    )
    try:
        one(torch.zeros(1, 2))
    except ValueError as error:
        return str(error)
    return ""
