"""Panel rotation: the panel at which each rank starts the streaming loop (Cannon's skewing, 1969).

If shards are cut along the same dimension as panels, few ranks own the words of one panel. If all ranks
started at the first panel, those few ranks would send it to everybody, and all other links would be idle. So
each rank starts at a panel of which it owns a part, and takes the others in cyclic order. At each step, every
rank then sends its shard to as many ranks as it receives from. If one tensor is rotated, a rank owns part of
its first panel. If both streamed tensors are rotated, the starting panel is the sum of the two positions.

Rotation applies if
    every shard lies within one panel, so that it is sent whole and without a copy;
    the result is stationary, as a reduction needs all its ranks at the same panel;
    the pass has a single loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from synth.layer.axes import Axis, PerAxis, Tensor
from synth.layer.intervals import volume
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan, Structure
from synth.schedule.shard_cuts import member_parts


def rotated(distribution: Distribution, pass_plan: PassPlan) -> tuple[Tensor, ...]:
    """The tensors of which the ranks of a group use different panels at the same step."""
    panels = pass_plan.panels if pass_plan.panels == pass_plan.steps else 1
    return rotated_at(distribution, pass_plan.structure, panels)


def rotated_at(distribution: Distribution, plan: Structure, panels: int) -> tuple[Tensor, ...]:
    """The same for a number of panels; a single panel is no loop."""
    if panels == 1 or len(plan.loops) != 1 or plan.stationary != plan.written:
        return ()
    streamed = (tensor for tensor in plan.reads if plan.streams(tensor))
    return worth_rotating(distribution, streamed, plan.loops[0], panels)


def worth_rotating(
    distribution: Distribution, streamed: Iterable[Tensor], axis: Axis, panels: int
) -> tuple[Tensor, ...]:
    """The streamed tensors whose rotation pays.

    A slice that only two ranks share travels in one direction at a time anyway. Without its rotation, the
    other tensor's first panel is in memory when the loop starts. If both slices are shared by two ranks, the
    tensor with the larger slices is rotated.
    """
    possible = tuple(t for t in streamed if within_one_panel(distribution, t, axis, panels))
    if len(possible) < 2:
        return possible
    many = tuple(t for t in possible if distribution.group_size(t) > 2)
    return many or (max(possible, key=lambda t: volume(distribution.needed(t, distribution.at(0)))),)


def within_one_panel(distribution: Distribution, tensor: Tensor, axis: Axis, panels: int) -> bool:
    """Whether every shard of a tensor lies within one of the panels along an axis.

    Panels of a framed tensor along its rows overlap, so a shard may lie in two of them.
    """
    if axis in distribution.nest.framed(tensor):
        return False
    parts = dict(distribution.shard_cuts[tensor]).get(axis, 1)
    extent, over = getattr(distribution.nest.extents, axis), getattr(distribution.grid, axis)
    return bool(parts % panels == 0 == extent % (over * parts))


def first_panels(distribution: Distribution, pass_plan: PassPlan) -> list[int]:
    """rank -> the panel at which it starts."""
    tensors = rotated(distribution, pass_plan)

    def places(at: PerAxis) -> Iterator[int]:
        for tensor in tensors:
            place = member_parts(distribution.shard_cuts[tensor], distribution.member(tensor, at))
            parts, part = place[pass_plan.loops()[0]]
            yield part * pass_plan.panels // parts

    return [sum(places(distribution.at(rank))) % pass_plan.panels for rank in distribution.ranks]
