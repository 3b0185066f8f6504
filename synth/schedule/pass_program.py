"""The schedule of one pass as a tree: the one form that every walker reads.

    PassProgram = Rows(fetch)* Gather(slice)* Loop Reduce(slice)* Rows(return)*
    Loop        = Gather(panel)* Compute Reduce(panel)*      once per tile of the work block

A node stands in the tree if and only if words move (or are computed with) there. So the tree answers every
question of the form "does this pass ...": volume, memory, time, simulation, verification, reports and the
emitted text walk the tree, and derive no such answer again.

`lowered` makes the tree from a pass plan; `codegen.lower` makes a program from the trees of a plan.

The tree is rank-independent: the boxes of a rank are functions of its coordinates in `Distribution`. Tile
counts stand in the `PassPlan`, not in the tree: all plans that tile the same axes share one tree.

A further schedule is a further decision in `lowered`, and no further case in the walkers. Blocks that are cut
by input rows change the tensor of `Rows` only. Residue classes of a dilation are samples of the nest
(`layer.residue_classes`), so the tree does not see them. A resident tensor (`Distribution`) has no `Gather`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from synth.layer.axes import DIMS, LACKED_INDEX, TENSORS, Axis, Tensor
from synth.layer.passes import Pass, role_name
from synth.schedule.distribution import Distribution
from synth.schedule.panel_rotation import rotated
from synth.schedule.pass_plan import PassPlan, Structure

Scope = Literal["slice", "panel"]  # the whole slice at once, or the panel of a step
SCOPES: tuple[Scope, ...] = ("slice", "panel")

WHY = {
    "fetch": "the output rows of a block read input rows that its neighbours own",
    "fetch Out": "the input rows of a block meet rows of {tensor} that its neighbours own",
    "return": "the rows of {tensor} that a block computes for its neighbours are added where they are owned",
    "gather": "all ranks along {along} need the same slice of {tensor}",
    "reduce": "each rank along {along} holds a partial sum of the same slice of {tensor}",
}


@dataclass(frozen=True)
class Rows:
    """Halo exchange: rows of a framed tensor move between neighbours on the grid.

    The framed tensor of an axis is In where blocks are cut by output rows, and Out where by input rows.

    fetch: before the pass, rows that a block reads and its neighbours own.
    return: after the pass, partial sums of rows that its neighbours own; the owner adds them.
    """

    direction: Literal["fetch", "return"]
    tensor: Tensor
    role: str  # the tensor's name in this pass: "In" or "dIn"
    axes: tuple[Axis, ...]  # spatial axes along which rows move

    @property
    def why(self) -> str:
        """The reason, as a sentence for reports and emitted comments."""
        reason = WHY.get(f"{self.direction} {self.tensor}", WHY[self.direction])
        return reason.format(tensor=self.role)


@dataclass(frozen=True)
class Collective:
    """A move of one tensor within the groups that share its slices."""

    tensor: Tensor
    role: str  # the tensor's name in this pass: "In" or "dIn"
    over: str  # the composite index that the tensor lacks
    axes: tuple[Axis, ...]  # grid axes of the group: those of `over` that are split
    scope: Scope
    changes: tuple[Axis, ...]  # loop axes on which its panel changes, outermost first; () for a slice

    def why(self, along: str = "") -> str:
        """The reason, as a sentence; `along` names the group if not by its index."""
        return WHY[type(self).__name__.lower()].format(along=along or self.over, tensor=self.role)


@dataclass(frozen=True)
class Gather(Collective):
    """Ranks of a group send each other the parts that they carry: all-gather, or broadcasts.

    saves: the slice stays in memory for a later pass. A panel is then copied into that slice as well.
    """

    saves: bool = False


@dataclass(frozen=True)
class Reduce(Collective):
    """Ranks of a group add their partial sums; each gets the words that it carries: reduce-scatter."""


@dataclass(frozen=True)
class Compute:
    """The local kernel on the tile of this step: reads two tensors, adds to the third.

    If the result is not stationary, its panel is complete where it `changes`; see `PassProgram.completes`.
    """

    pass_: Pass
    reads: tuple[Tensor, ...]
    writes: Tensor
    stationary: bool  # the result's slice stays in memory during the loop
    changes: tuple[Axis, ...]  # loop axes on which the result's panel changes; () if it is stationary


@dataclass(frozen=True)
class Loop:
    """Steps over the tiles of a work block, the streaming index outermost; one step where `axes` is empty."""

    axes: tuple[Axis, ...]  # tiled axes, outermost first
    rotation: tuple[Tensor, ...]  # tensors of which the ranks of a group use different panels at a step
    gathers: tuple[Gather, ...]  # panels that a step waits for; those of the next step are in flight
    compute: Compute
    reduces: tuple[Reduce, ...]  # panels of partial sums that leave when they are complete


Node = Rows | Gather | Loop | Compute | Reduce


@dataclass(frozen=True)
class Tree:
    """The nodes of a pass: all plans with one `Structure` share them."""

    fetches: tuple[Rows, ...]
    gathers: tuple[Gather, ...]  # whole slices
    loop: Loop
    reduces: tuple[Reduce, ...]  # the whole slice of a stationary result
    returns: tuple[Rows, ...]

    def top(self) -> Iterator[Rows | Gather | Loop | Reduce]:
        """The nodes of the top level, in order of execution."""
        yield from self.fetches
        yield from self.gathers
        yield self.loop
        yield from self.reduces
        yield from self.returns

    def nodes(self) -> Iterator[Node]:
        """All nodes in order of execution, the loop before its body."""
        for node in self.top():
            yield node
            if isinstance(node, Loop):
                yield from node.gathers
                yield node.compute
                yield from node.reduces

    def collectives(self) -> Iterator[Gather | Reduce]:
        """All moves within groups, in order of execution."""
        for node in self.nodes():
            if isinstance(node, Gather | Reduce):
                yield node

    def repeats(self, move: Collective) -> tuple[Axis, ...]:
        """The loops that come back to each panel of a tensor, outermost first.

        They are around the innermost loop on which the panel changes, as `nest.Access.loads` counts.
        """
        changing = [place for place, axis in enumerate(self.loop.axes) if axis in move.changes]
        around = self.loop.axes[: changing[-1]] if changing else ()
        return tuple(axis for axis in around if axis not in move.changes)

    @property
    def fills(self) -> tuple[Tensor, ...]:
        """Tensors whose panels are used and copied into a slice that a later pass reuses."""
        return tuple(gather.tensor for gather in self.loop.gathers if gather.saves)


@dataclass(frozen=True)
class PassProgram(Tree):
    """The schedule tree of one pass, with the decisions it was lowered from."""

    pass_plan: PassPlan

    def completes(self, step: int) -> bool:
        """Whether a panel of a streamed result is complete after `step`."""
        return not self.loop.compute.stationary and self.changes(self.loop.compute, step)

    def changes(self, node: Collective | Compute, step: int) -> bool:
        """Whether a node's panel changes after `step`; so it does before the first and after the last."""
        if step < 0 or step + 1 == self.pass_plan.steps:
            return True
        now, then = self.pass_plan.indices(step), self.pass_plan.indices(step + 1)
        return any(now[axis] != then[axis] for axis in node.changes)

    def loads(self, move: Collective) -> int:
        """How often each panel of a tensor moves: more than once where an inner loop comes back to it."""
        return math.prod(getattr(self.pass_plan.counts, axis) for axis in self.repeats(move))


def pass_program(distribution: Distribution, pass_plan: PassPlan) -> PassProgram:
    """The schedule tree of a pass on a process grid."""
    rotation = rotated(distribution, pass_plan)
    turned = distribution.nest.turned
    tree = lowered(pass_plan.structure, distribution.groups, distribution.row_axes, rotation, turned)
    return PassProgram(**vars(tree), pass_plan=pass_plan)


Groups = tuple[tuple[Axis, ...], ...]  # per tensor: the grid axes of its group that are split


@lru_cache(maxsize=1 << 14)
def lowered(
    plan: Structure,
    groups: Groups,
    row_axes: tuple[Axis, ...],
    rotation: tuple[Tensor, ...] = (),
    turned: tuple[Axis, ...] = (),
) -> Tree:
    """The nodes of a tree: the one place that decides what a pass moves, and at which scope.

    groups and row_axes are those of the `Distribution`, turned those of its nest. rotation is that of
    `panel_rotation`; a walker that does not ask which panel a rank uses may leave it out.
    """
    shared = {tensor: axes for tensor, axes in zip(TENSORS, groups, strict=True) if axes}

    def scoped(scope: Scope, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        return (t for t in tensors if t in shared and plan.streams(t) == (scope == "panel"))

    def move(tensor: Tensor, scope: Scope) -> dict[str, Any]:
        panel = tuple(axis for axis in plan.loops if axis in DIMS[tensor] and scope == "panel")
        role, over = role_name(plan.pass_, tensor), LACKED_INDEX[tensor]
        axes = shared[tensor]
        return {"tensor": tensor, "role": role, "over": over, "axes": axes, "scope": scope, "changes": panel}

    gathered = [tensor for tensor in plan.reads if tensor not in plan.reuses]
    gathers = {
        scope: tuple(Gather(**move(t, scope), saves=t in plan.saves) for t in scoped(scope, gathered))
        for scope in SCOPES
    }
    reduces = {
        scope: tuple(Reduce(**move(t, scope)) for t in scoped(scope, (plan.written,))) for scope in SCOPES
    }
    streamed = plan.streams(plan.written)
    panel = tuple(axis for axis in plan.loops if axis in DIMS[plan.written] and streamed)
    compute = Compute(plan.pass_, plan.reads, plan.written, not streamed, panel)
    loop = Loop(plan.loops, rotation, gathers["panel"], compute, reduces["panel"])
    framed: dict[Tensor, tuple[Axis, ...]] = {
        "In": tuple(axis for axis in row_axes if axis not in turned),
        "Out": tuple(axis for axis in row_axes if axis in turned),
    }

    def rows(direction: Literal["fetch", "return"], tensors: Iterable[Tensor]) -> tuple[Rows, ...]:
        moved = (t for t in tensors if framed.get(t))
        return tuple(Rows(direction, t, role_name(plan.pass_, t), framed[t]) for t in moved)

    fetches, returns = rows("fetch", gathered), rows("return", (plan.written,))
    return Tree(fetches, gathers["slice"], loop, reduces["slice"], returns)
