"""Ranks that agree, compare and watch as many do: along trees, each a few others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from synth.runtime.comm import agreement, group_tree, process_groups
from synth.runtime.grid import heartbeats, liveness
from synth.runtime.grid.ranks import Ranks
from synth.runtime.model.replication import agreeing

for folder in ("boundary", "training"):
    sys.path.append(str(Path(__file__).parents[1] / folder))

from consistency_ranks import replicas, said  # noqa: E402, F401
from given_ranks import outcomes  # noqa: E402, F401
from replica_ranks import dropped, refused  # noqa: E402, F401

for module in (agreement, group_tree, process_groups):
    module.DIRECT = 1  # type: ignore[attr-defined]
for module in (heartbeats, liveness):
    module.WATCH_ALL = 1  # type: ignore[attr-defined]


def sums(size: int) -> tuple[int, int, Any]:
    """Values of short and long messages, combined on all ranks, and what the first one makes of them."""
    from synth.runtime.comm.group_tree import combined

    ranks = Ranks.world()
    total = combined(ranks, ranks.rank, lambda own, child: own + child)
    words = combined(ranks, [ranks.rank] * size, lambda own, child: own + child, sorted)
    most = combined(ranks, ranks.rank, max, lambda found: f"at most {found}")
    dist.barrier()
    return total, len(words), most


def ended_together(groups: list[list[int]]) -> list[str]:
    """What is said of calls that some ranks refuse, each with a text of its own, or none."""
    ranks, found = agreeing(Ranks.world(), "Net"), list[str]()

    def call(refusing: list[int]) -> str:
        if ranks.rank in refusing:
            raise IndexError(f"word {ranks.rank}")
        return "taken"

    for refusing in groups:
        try:
            found.append(ranks.together("a call", call, refusing))
        except IndexError as error:
            found.append(str(error))
    return found
