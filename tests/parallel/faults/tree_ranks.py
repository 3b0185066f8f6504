"""Ranks that agree, compare and watch as many do: along trees, each a few others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from synth.runtime.comm import agreement, group_tree, process_groups
from synth.runtime.grid import heartbeats, liveness

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
    from synth.runtime.grid.ranks import Ranks

    ranks = Ranks.world()
    total = combined(ranks, ranks.rank, lambda own, child: own + child)
    words = combined(ranks, [ranks.rank] * size, lambda own, child: own + child, sorted)
    most = combined(ranks, ranks.rank, max, lambda found: f"at most {found}")
    dist.barrier()
    return total, len(words), most
