"""What a step of a network takes beside its kernels, on the processor: Python, autograd, small tensors.

A network of normalizations and activations on almost no words runs on the ranks. Its normalizations have
local statistics, so that nothing is exchanged, and then global ones. A network of convolutions that gather
their input runs, too, and the same convolutions without a plan. The processor time of the thread is taken, in
which waiting does not count.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from synth.parallel.plan_model import plan_model
from synth.parallel.recipe import NetworkRecipe, prepared_model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from synth.runtime.grid.ranks import Ranks

PAIRS = 8  # of a normalization and an activation; also convolutions
REPEATS = 7
CHANNELS = 4


def step_costs(ranks: Ranks, device: torch.device, crowd: float) -> dict[str, float]:
    """Seconds of one pass on average, forward or backward. All ranks call this.

    dispatch: of a step that exchanges nothing. shared: what a normalization takes more that exchanges its
    statistics. exchange: what a planned layer takes more that exchanges words. On a GPU they are 0: kernels
    are queued while others run. crowd: how much longer all ranks take than one.
    """
    if device.type != "cpu":
        return {"dispatch": 0.0, "shared": 0.0, "exchange": 0.0}
    alone, joint = (_of_a_step(ranks, norms) for norms in ("local", "global"))
    more = {"dispatch": alone, "shared": 2 * (joint - alone), "exchange": _of_a_layer(ranks) - alone}
    return {name: crowd * max(0.0, each) for name, each in more.items()}


def _of_a_layer(ranks: Ranks) -> float:
    """Processor seconds of a convolution that gathers its input, in a pass, beside those of its kernel."""
    import torch
    from torch import nn

    channels = CHANNELS * ranks.size
    convs = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(PAIRS)]
    model, shape = nn.Sequential(*convs), (2, channels, 2, 2)
    plan = plan_model(model, shape, ranks.size, axes="k")
    planned = _of_a_network(ranks, model, shape, "local", plan)
    alone = nn.Sequential(
        *(nn.Conv2d(channels, CHANNELS, 3, padding=1, bias=False) for _ in range(PAIRS))
    ).requires_grad_()
    given = torch.rand(shape, requires_grad=True)
    kernels = _passes(lambda: torch.cat([each(given) for each in alone]))
    return (planned - kernels) / (2 * PAIRS)


def _of_a_step(ranks: Ranks, norms: Literal["local", "global"]) -> float:
    """Processor seconds of a step of the network in a pass: the median of some, on this rank."""
    from torch import nn

    shape = (2 * ranks.size, CHANNELS, 2, 2)
    model = nn.Sequential(*(each for _ in range(PAIRS) for each in (nn.BatchNorm2d(CHANNELS), nn.ReLU())))
    return _of_a_network(ranks, model, shape, norms, None) / (2 * 2 * PAIRS)


def _of_a_network(
    ranks: Ranks, model: nn.Module, shape: Sequence[int], norms: Literal["local", "global"], plan: Any
) -> float:
    """Processor seconds of a training step of a model, without an update."""
    import torch

    from synth.runtime.tracing.inputs import Inputs

    options: dict[str, Any] = {"refuse": False, "bucket_bytes": None, "check_finite": False}
    recipe = NetworkRecipe(ranks, None, False, None, {**options, "batch_norm": norms})
    prepared = prepared_model(model, shape, ranks.size, plan, None, "training")
    net = recipe.network(model, Inputs.of(shape), prepared)
    words = math.prod(shape)
    batch = net.scatter(torch.arange(words, dtype=torch.float32).view(*shape) / words)
    return _passes(lambda: net(batch))


def _passes(run: Callable[[], torch.Tensor]) -> float:
    """Processor seconds of a forward and a backward pass on this rank: the median of some."""
    import torch

    found = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        out = run()
        forward = time.thread_time() - begin
        loss = out.square().sum()
        begin = time.thread_time()
        torch.autograd.backward(loss)
        found.append(forward + time.thread_time() - begin)
    return statistics.median(found)
