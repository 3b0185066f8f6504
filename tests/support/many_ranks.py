"""The loop of `training_faults.py` on ranks that behave as if they were more than MANY says, by default 0."""

from __future__ import annotations

import os

import training_faults

from synth.runtime.comm import agreement, group_tree, process_groups
from synth.runtime.grid import heartbeats, liveness

if __name__ == "__main__":
    many = int(os.environ.get("MANY", "0"))
    agreement.DIRECT = group_tree.DIRECT = process_groups.DIRECT = many
    heartbeats.WATCH_ALL = liveness.WATCH_ALL = many
    training_faults.main()
