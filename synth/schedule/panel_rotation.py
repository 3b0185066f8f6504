"""Which panel a rank begins with.

Where shares are cut along the dimension that panels are, a panel belongs to few ranks. Did all ranks begin
with the first one, those few would send it to everybody while the links of the others rest. So a rank begins
with a panel of which it has a part, and goes on from there, round and round, as the blocks of Cannon's
algorithm do (1969): at each step every rank sends its share to as many ranks as it hears from. Of a tensor
that alone is skewed, a rank has its part of the first panel; where both are, the two places add up.

It is done where shares fit into panels, so that a share travels whole and takes no room of its own; where
the sums stay, as those that leave need all their ranks at the same panel; and with a single loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from synth.layer.axes import SPATIAL, Axis, PerAxis, Tensor
from synth.layer.intervals import volume
from synth.layer.passes import role_name
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.slice_shares import member_parts


def skewed(distribution: Distribution, pass_plan: PassPlan) -> tuple[Tensor, ...]:
    """The tensors of which the ranks that share a slice are brought different panels at the same step."""
    loops, panels = pass_plan.loops(), pass_plan.panels
    if len(loops) != 1 or panels < pass_plan.steps or pass_plan.stationary != pass_plan.written:
        return ()
    return apart(distribution, pass_plan.brought, loops[0], panels)


def apart(
    distribution: Distribution, brought: Iterable[Tensor], axis: Axis, panels: int
) -> tuple[Tensor, ...]:
    """Those of the tensors that stream for which it is worth it.

    Of two, one whose slice just two ranks share goes one way at a time anyway: the other one then is there
    when the first step begins. Of two such, the one with larger slices is.
    """
    fitting = tuple(t for t in brought if fits(distribution, t, axis, panels))
    if len(fitting) < 2:
        return fitting
    many = tuple(t for t in fitting if distribution.group_size(t) > 2)
    return many or (max(fitting, key=lambda t: volume(distribution.needed(t, distribution.at(0)))),)


def fits(distribution: Distribution, tensor: Tensor, axis: Axis, panels: int) -> bool:
    """Whether every share of a tensor is part of one of the panels along an axis.

    Panels of In along rows have rows in common, so a share may be part of two.
    """
    if tensor == "In" and axis in SPATIAL:
        return False
    parts = dict(distribution.shares[tensor]).get(axis, 1)
    extent, over = getattr(distribution.nest.extents, axis), getattr(distribution.grid, axis)
    return bool(parts % panels == 0 == extent % (over * parts))


def told(distribution: Distribution, pass_plan: PassPlan) -> str:
    """The skewed tensors for people: `In or Ker`; empty without any."""
    return " or ".join(role_name(pass_plan.pass_, tensor) for tensor in skewed(distribution, pass_plan))


def first_panels(distribution: Distribution, pass_plan: PassPlan) -> list[int]:
    """rank -> the panel with which it begins."""
    tensors = skewed(distribution, pass_plan)

    def places(at: PerAxis) -> Iterator[int]:
        for tensor in tensors:
            place = member_parts(distribution.shares[tensor], distribution.member(tensor, at))
            parts, part = place[pass_plan.loops()[0]]
            yield part * pass_plan.panels // parts

    return [sum(places(distribution.at(rank))) % pass_plan.panels for rank in distribution.ranks]
