"""The terms of `memory`: words with a halo, what does not depend on tiles, and the tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.layer.axes import Tensor
from synth.schedule.memory_messages import Arrival


class HaloWords(NamedTuple):
    """Words of a tensor with a halo; zeros without one.

    carried: the widened shard. strips: in flight, what rows add to it at most. room: the buffer with the
    shard and all that is carried. beside: in flight, what rows add to that. padded: the widened shard with
    the zeros around it, which the room has, too.
    """

    carried: int = 0
    strips: int = 0
    room: int = 0
    beside: int = 0
    padded: int = 0


class Frame(NamedTuple):
    """The memory of all pass plans with one structure, in words, without the tiles.

    before: live before slices are gathered, whose gathers are `arrivals`. held: live in the loop beside the
    sums. panels: the tensors whose panels are gathered in it. returned: live while rows return, without
    panels; 0 if none do.
    """

    live: int
    before: int
    arrivals: tuple[Arrival, ...]
    halo: int
    expand: int
    held: int
    sums: int
    panels: tuple[Tensor, ...]
    reduce: int
    returned: int


class Tiles(NamedTuple):
    """Words of the largest tiles of a plan; or of several plans with one structure, as arrays.

    written: of the tensor that is written. padded: of In with zeros around it, as of `Footprints.padded`.
    """

    written: Any
    padded: Any
