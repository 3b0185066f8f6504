"""The name of a plan's algorithm: 2D, 2.5D or 3D (Solomonik and Demmel 2011; Li et al., SPAA'21).

    2D    the index that the stationary tensor lacks is whole in every process
    3D    it is split, and no other grid moves fewer words, whatever the memory
    2.5D  it is split, and some grid moves fewer words: with more memory the index would be split further

A grid counts where it loads no process with more work than the plan does; and if the plan leaves no process
idle, where it leaves none idle either. So the name depends on the layer, the processes, the grid and the
passes alone, all of which `Plan.id` hashes: plans with the same id have the same name, whatever memory
limit, balance or fixed grid led to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from synth.layer.layer import Layer
from synth.layer.passes import GRADIENTS, gradients_of
from synth.planning.plan import Algorithm, is_2d
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received
from synth.search.branch_and_bound import search
from synth.search.request import Request


def algorithm_name(
    layer: Layer, procs: int, distribution: Distribution, pass_plans: Sequence[PassPlan]
) -> Algorithm:
    """The name of the algorithm; for a split index by one search without a memory limit."""
    if is_2d(distribution, pass_plans):
        return "2D"
    words = reduce(add, [received(distribution, pass_plan) for pass_plan in pass_plans]).most()["total"]
    free = search(unlimited(layer, procs, distribution, pass_plans))
    return "2.5D" if free.tiling.words < words else "3D"


def unlimited(
    layer: Layer, procs: int, distribution: Distribution, pass_plans: Sequence[PassPlan]
) -> Request:
    """The search for the fewest words over the grids that count, with the same classes and any memory."""
    passes = tuple(pass_plan.pass_ for pass_plan in pass_plans)
    step = len(passes) > 1
    nest = distribution.nest.turn(distribution.nest.turned)
    return Request(
        nest,
        procs,
        exact=distribution.grid.size == procs,
        most_work=max(distribution.load, Distribution(nest, distribution.grid).load),
        turnable=distribution.nest.turned,
        pass_="training" if step else passes[0],
        transposed=layer.transposed,
        gradients=gradients_of(passes, layer.transposed) if step else GRADIENTS,
    )
