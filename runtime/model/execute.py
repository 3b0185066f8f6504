"""Runs the calls of a network; a value is freed after its last reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch


class Scheduled(NamedTuple):
    """A call: its node, the nodes that it reads, those that nobody reads later."""

    name: str
    sources: tuple[str, ...]
    last: tuple[str, ...]


def schedule(
    calls: Sequence[tuple[str, tuple[str, ...]]], output: str
) -> tuple[Scheduled, ...]:
    """The calls with the values that each of them reads last.

    calls: (node, the nodes that it reads), in order. output: the node to keep.
    The result of a call that nobody reads is in its own `last`.
    """
    read = {output}
    scheduled = []
    for name, sources in reversed(calls):
        names = dict.fromkeys((*sources, name))
        last = tuple(each for each in names if each not in read)
        read.update(sources)
        scheduled.append(Scheduled(name, sources, last))
    return tuple(reversed(scheduled))


def execute(
    scheduled: Sequence[Scheduled],
    values: dict[str, torch.Tensor],
    output: str,
    run: Callable[[str, list[torch.Tensor]], torch.Tensor],
) -> torch.Tensor:
    """The value of `output`.

    values: node -> tensor of the inputs; emptied here, so that the caller's own
        references alone keep them.
    run: computes a call from its name and the values that it reads.

    Autograd keeps what a backward pass needs; nothing else outlives its last reader.
    """
    for name, sources, last in scheduled:
        given = [values[each] for each in sources]
        for each in last:
            values.pop(each, None)
        made = run(name, given)
        given.clear()
        if name not in last:
            values[name] = made
        del made
    return values.pop(output)
