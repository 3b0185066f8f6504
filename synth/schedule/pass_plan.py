"""The plan of one pass: all that is decided besides the grid. Which tensor stays, how the block is tiled.

The stationary tensor's slice lives whole in every process. The other two stream through panels along the
composite index that the stationary tensor lacks; that loop is outermost. When memory forces it, the two
other composite indices are tiled as well, by two inner loops. A tile of a tensor is brought in (or reduced
away) whenever it changes from one step to the next, exactly as `nest.Access.loads` counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from synth.layer.axes import LACKED_INDEX, TENSORS, X_AXES, Axis, PerAxis, Tensor
from synth.layer.intervals import Block, cut
from synth.layer.passes import WRITES, Pass, reads

ONES = PerAxis()
COMPOSITE: dict[str, tuple[Axis, ...]] = {"c": ("c",), "k": ("k",), "x": X_AXES}


@dataclass(frozen=True)
class PassPlan:
    """The pass, the stationary tensor, tiles per axis of the work block, the order of the two inner loops.

    `kept` names tensors whose whole needed slice is in memory already, from an earlier pass; `keeps` those
    whose slice this pass leaves for a later one: gathered whole at its start, or filled panel by panel.
    """

    stationary: Tensor = "Out"
    counts: PerAxis = ONES  # tiles along each axis of a work block; axis g is never tiled
    swapped: bool = False  # which of the two inner loops is the outer one
    pass_: Pass = "forward"
    kept: frozenset[Tensor] = frozenset()
    keeps: frozenset[Tensor] = frozenset()

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
        return WRITES[self.pass_]

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The two tensors that the pass reads."""
        return reads(self.pass_)

    def whole(self, tensor: Tensor) -> bool:
        """Whether a process holds its whole slice of a tensor all the time."""
        if tensor == self.stationary or tensor in self.kept:
            return True
        return tensor in self.keeps and tensor not in self.fills

    @cached_property
    def fills(self) -> tuple[Tensor, ...]:
        """The tensors that stream and are kept: every panel is used, and put into the slice.

        So if each panel comes once and no two share words: one loop, along a dimension without windows.
        """
        if self.loops() not in (("b",), ("c",), ("k",)) or self.panels < self.steps:
            return ()
        return tuple(t for t in self.streaming if t in self.keeps)

    @property
    def expanded(self) -> tuple[Tensor, ...]:
        """The tensors that are read and gathered whole before the loop."""
        return tuple(t for t in self.reads if self.whole(t) and t not in self.kept)

    @property
    def brought(self) -> tuple[Tensor, ...]:
        """The tensors that are read and brought in panel by panel."""
        return tuple(t for t in self.reads if not self.whole(t))

    def loads(self, tensor: Tensor) -> int:
        """How often each tile of a tensor is visited; 1 unless an inner loop has to come back to it."""
        if self.whole(tensor):
            return 1
        lacked = LACKED_INDEX[tensor]
        inner = self.order[self.order.index(lacked) + 1 :]
        return self.trips(lacked) if any(self.trips(c) > 1 for c in inner) else 1

    def loops(self) -> tuple[Axis, ...]:
        """The tiled axes, outermost first."""
        nested = (axis for composite in self.order for axis in COMPOSITE[composite])
        return tuple(axis for axis in nested if getattr(self.counts, axis) > 1)

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
            "kept": sorted(tensor.lower() for tensor in self.kept),
            "keeps": sorted(tensor.lower() for tensor in self.keeps),
        }

    def __str__(self) -> str:
        loops = " > ".join(f"{axis}:{getattr(self.counts, axis)}" for axis in self.loops())
        return (
            f"stationary {self.stationary}, {self.panels} panel(s) along {self.stream}, {loops or 'one tile'}"
        )
