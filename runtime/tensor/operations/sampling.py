"""Random values: drawn whole and alike on all ranks, as one process draws them."""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.tensor.operations.operands import on_wholes, to_whole, written
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor


def draw(func: Any, args: Any, kwargs: Any) -> Any:
    """Draw the whole tensor on every rank, and keep the own words.

    The words of a parameter are the same in all replicas.

    Raises `RuntimeError` on all ranks if their generators differ.
    """
    given = args[0]
    if not isinstance(given, PartitionedTensor):
        return on_wholes(func, args, kwargs)
    partition = given._partition
    parameter = isinstance(given, nn.Parameter)
    generator = kwargs.get("generator")
    require_same_generators(partition, generator, given.device, parameter)
    if func._schema.name in ("aten::bernoulli", "aten::bernoulli_.Tensor"):
        whole = to_whole(given)  # its words are probabilities
    else:
        whole = torch.empty(given.shape, dtype=given.dtype, device=given.device)
    drawn = func(whole, *map(to_whole, args[1:]), **kwargs)
    if not written(func):
        return PartitionedTensor(partition.cut(drawn).contiguous(), partition)
    given._local.copy_(partition.cut(drawn))
    return given


def require_same_generators(
    partition: Partition,
    generator: torch.Generator | None,
    device: torch.device,
    all_replicas: bool = False,
) -> None:
    """Raise `RuntimeError` on all ranks if their generators have other states.

    all_replicas: compare those of all replicas, not of this one alone.
    """
    if generator is not None:
        state = generator.get_state()
    elif device.type == "cuda":
        state = torch.cuda.get_rng_state(device)
    else:
        state = torch.get_rng_state()
    digest = zlib.crc32(state.cpu().numpy().tobytes())
    ends = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    partition.all_reduce(ends, dist.ReduceOp.MAX, all_replicas)
    if int(ends[0]) != -int(ends[1]):
        raise RuntimeError(
            f"the ranks would draw other words of {tuple(partition.shape)}, because"
            " their generators differ; call torch.manual_seed with one number on all"
        )


RULES: dict[str, Any] = dict.fromkeys(
    (
        *("normal_", "uniform_", "bernoulli_", "bernoulli", "exponential_"),
        *("cauchy_", "log_normal_", "geometric_", "random_"),
        *("rand_like", "randn_like", "randint_like"),
    ),
    draw,
)
