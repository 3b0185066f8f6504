"""The plan of one pass: every decision besides the grid, that is, the stationary tensor and the tiling.

Every process holds its whole slice of the stationary tensor. The other two tensors stream in panels along the
composite index that the stationary tensor lacks; that loop is outermost. If memory requires it, two inner
loops tile the other two composite indices. A panel of a tensor is gathered, or reduced, whenever it changes
from one step to the next, as `nest.Access.loads` counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

from synth.layer.axes import AXES, LACKED_INDEX, TENSORS, X_AXES, Axis, PerAxis, Tensor
from synth.layer.intervals import Block, cut
from synth.layer.passes import WRITES, Pass, reads

ONES = PerAxis()
THINNEST = 16  # the least channels of a panel; with fewer the local kernel is slow
COMPOSITE: dict[str, tuple[Axis, ...]] = {"c": ("c",), "k": ("k",), "x": X_AXES}
# order of the composite loops -> their axes, with the places of these in `AXES`
NESTED = {
    order: [(axis, AXES.index(axis)) for each in order for axis in COMPOSITE[each]]
    for order in permutations(COMPOSITE)
}


class Structure(NamedTuple):
    """The decisions of a pass plan without tile counts: plans that tile the same axes have one structure."""

    pass_: Pass
    stationary: Tensor
    loops: tuple[Axis, ...]  # tiled axes, outermost first
    reuses: frozenset[Tensor]
    saves: frozenset[Tensor]

    @property
    def written(self) -> Tensor:
        """The tensor that the pass writes."""
        return WRITES[self.pass_]

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The two tensors that the pass reads."""
        return reads(self.pass_)

    def streams(self, tensor: Tensor) -> bool:
        """Whether a tensor arrives, or leaves, panel by panel.

        A tensor that is saved does so only if its panels tile its slice: one loop, the streaming one, along
        a dimension without windows. Otherwise its slice is gathered whole.
        """
        if tensor == self.stationary or tensor in self.reuses:
            return False
        tiled = self.loops in (("b",), ("c",), ("k",)) and (
            self.loops[0] in COMPOSITE[LACKED_INDEX[self.stationary]]
        )
        return tensor not in self.saves or tiled


@dataclass(frozen=True)
class PassPlan:
    """The pass, the stationary tensor, tiles per axis of the work block, the order of the two inner loops.

    reuses: tensors whose slice an earlier pass has saved. saves: tensors whose slice this pass leaves in
    memory for a later pass: gathered whole at its start, or filled panel by panel.
    """

    stationary: Tensor = "Out"
    counts: PerAxis = ONES  # tiles along each axis of a work block; axis g is never tiled
    swapped: bool = False  # which of the two inner loops is the outer one
    pass_: Pass = "forward"
    reuses: frozenset[Tensor] = frozenset()
    saves: frozenset[Tensor] = frozenset()

    @cached_property
    def structure(self) -> Structure:
        """The decisions without tile counts."""
        return Structure(self.pass_, self.stationary, self.loops(), self.reuses, self.saves)

    @property
    def stream(self) -> str:
        """The composite index along which panels stream: the one that the stationary tensor lacks."""
        return LACKED_INDEX[self.stationary]

    @cached_property
    def order(self) -> tuple[str, str, str]:
        """Composite tile loops, outermost first."""
        first, second = (c for c in ("x", "c", "k") if c != self.stream)
        return (self.stream, second, first) if self.swapped else (self.stream, first, second)

    def trips(self, composite: str) -> int:
        """Tiles along a composite index."""
        return self.counts.of(COMPOSITE[composite])

    @property
    def panels(self) -> int:
        """Steps of the streaming loop."""
        return self.trips(self.stream)

    @property
    def steps(self) -> int:
        """Steps of all tile loops together."""
        return self.counts.size

    @property
    def streaming(self) -> tuple[Tensor, ...]:
        """The two tensors that are not stationary."""
        return tuple(t for t in TENSORS if t != self.stationary)

    @property
    def written(self) -> Tensor:
        """The tensor that the pass writes."""
        return self.structure.written

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The two tensors that the pass reads."""
        return self.structure.reads

    def loops(self) -> tuple[Axis, ...]:
        """The tiled axes, outermost first."""
        if self.counts == ONES:
            return ()
        return tuple(axis for axis, place in NESTED[self.order] if self.counts[place] > 1)

    def indices(self, step: int) -> dict[str, int]:
        """Tiled axis -> index of its tile in a step of the loops."""
        indices: dict[str, int] = {}
        for axis in reversed(self.loops()):
            step, indices[axis] = divmod(step, getattr(self.counts, axis))
        return indices

    def tiles(self, work: Block, first: int = 0) -> Iterator[Block]:
        """The tiles of a work block in the order of execution, beginning with tile `first`."""
        for step in (*range(first, self.steps), *range(first)):
            chosen = {
                axis: cut(work[axis], getattr(self.counts, axis), index)
                for axis, index in self.indices(step).items()
            }
            yield {**work, **chosen}

    def sizes(self, work: PerAxis) -> PerAxis:
        """T: the largest tile of a block W."""
        return PerAxis(*(-(-w // n) for w, n in zip(work, self.counts, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """The plan of a pass as JSON data; `tiles` counts tiles per axis."""
        return {
            "pass": self.pass_,
            "stationary": self.stationary.lower(),
            "tiles": self.counts._asdict(),
            "swapped": self.swapped,
            "kept": sorted(tensor.lower() for tensor in self.reuses),
            "keeps": sorted(tensor.lower() for tensor in self.saves),
        }

    def __str__(self) -> str:
        loops = " > ".join(f"{axis}:{getattr(self.counts, axis)}" for axis in self.loops())
        return (
            f"stationary {self.stationary}, {self.panels} panel(s) along {self.stream}, {loops or 'one tile'}"
        )
