"""What a step of a network takes beside its kernels, on the processor: Python, autograd, small tensors.

A network of normalizations and activations on almost no words runs on the ranks. Its normalizations have
local statistics, so that nothing is exchanged, and then global ones. The processor time of its thread is
taken, in which waiting does not count.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from synth.runtime.grid.ranks import Ranks

PAIRS = 8  # of a normalization and an activation
REPEATS = 7
CHANNELS = 4


def step_costs(ranks: Ranks, device: torch.device, crowd: float) -> dict[str, float]:
    """Seconds of one pass on average, forward or backward. All ranks call this.

    dispatch: of a step that exchanges nothing. shared: what a normalization takes more that exchanges its
    statistics. On a GPU both are 0: kernels are queued while others run. crowd: how much longer all ranks
    take than one.
    """
    if device.type != "cpu":
        return {"dispatch": 0.0, "shared": 0.0}
    alone, joint = (_of_a_step(ranks, norms) for norms in ("local", "global"))
    return {"dispatch": crowd * alone, "shared": crowd * max(0.0, 2 * (joint - alone))}


def _of_a_step(ranks: Ranks, norms: Literal["local", "global"]) -> float:
    """Processor seconds of a step of the network in a pass: the median of some, on this rank."""
    import torch
    from torch import nn

    from synth.parallel.recipe import NetworkRecipe, prepared_model
    from synth.runtime.tracing.inputs import Inputs

    shape = (2 * ranks.size, CHANNELS, 2, 2)
    model = nn.Sequential(*(each for _ in range(PAIRS) for each in (nn.BatchNorm2d(CHANNELS), nn.ReLU())))
    options: dict[str, Any] = {"refuse": False, "bucket_bytes": None, "check_finite": False}
    recipe = NetworkRecipe(ranks, None, False, None, {**options, "batch_norm": norms})
    prepared = prepared_model(model, shape, ranks.size, None, None, "training")
    net = recipe.network(model, Inputs.of(shape), prepared)
    words = shape[0] * CHANNELS * 4
    batch = net.scatter(torch.arange(words, dtype=torch.float32).view(shape) / words)
    found = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        out = net(batch)
        forward = time.thread_time() - begin
        loss = out.square().sum()
        begin = time.thread_time()
        torch.autograd.backward(loss)
        found.append(forward + time.thread_time() - begin)
    return statistics.median(found) / (2 * 2 * PAIRS)
