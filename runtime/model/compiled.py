"""torch.compile leaves networks and partitioned tensors alone.

What the ranks exchange cannot stand in a graph of one process. Dynamo breaks its graph
where a network is called, or an operation on a partitioned tensor, and runs that as it
is. It compiles the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from synth.runtime.tensor.partitioned import PartitionedTensor

Function = TypeVar("Function", bound=Callable[..., Any])
WHY = (
    "a network of synth.parallelize exchanges words between ranks, so torch.compile"
    " runs it as it is; compile without fullgraph=True"
)


def leave_alone() -> None:
    """Let torch.compile pass over synth's code and over partitioned tensors."""
    from torch._dynamo import config, trace_rules

    trace_rules.add("synth")
    config.nontraceable_tensor_subclasses.add(PartitionedTensor)


def as_it_is(function: Function) -> Function:
    """A function in which Dynamo compiles nothing."""
    disable: Any = torch.compiler.disable
    kept: Function = disable(function, reason=WHY)
    return kept


def marked(function: Function) -> Function:
    """The function itself, into which Dynamo does not look.

    For `forward`, of which torch.fx reads the code; what it calls is `as_it_is`.
    """
    noted: Any = function
    noted._torchdynamo_disable, noted._torchdynamo_disable_msg = True, WHY
    return function
