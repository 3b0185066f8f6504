"""Inputs that share memory, of which the model changes one in place.

One process would change the other, too. On ranks each input has a copy of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from synth.runtime.tensor.partitioned import PartitionedTensor


def require_apart(changed: Iterable[str], given: Mapping[str, torch.Tensor]) -> None:
    """Raise `ValueError` where a changed input shares words with another one.

    changed: names of inputs that forward changes in place. given: all inputs, by name.
    """
    for one in changed if len(given) > 1 else ():
        for other, values in given.items():
            if one != other and one in given and _overlap(given[one], values):
                raise ValueError(
                    f"{one} and {other} share memory, and forward changes {one} in"
                    f" place, which would change {other} in one process, too; give"
                    f" {other}.clone()"
                )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have words in common."""
    one, other = map(_plain, (one, other))
    memory = one.untyped_storage()
    if other.untyped_storage()._cdata != memory._cdata:
        return False
    if one.dtype != other.dtype:
        return True
    words = torch.arange(memory.nbytes() // one.element_size(), device=one.device)
    places = (
        words.as_strided(each.shape, each.stride(), each.storage_offset()).flatten()
        for each in (one, other)
    )
    return bool(torch.isin(*places).any())


def _plain(values: torch.Tensor) -> torch.Tensor:
    return values._local if isinstance(values, PartitionedTensor) else values.detach()
