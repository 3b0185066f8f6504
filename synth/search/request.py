"""What a search is asked for, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.base.work_balance import BALANCE
from synth.layer.axes import Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, Passes, Task, moves, reuse_intervals, sequences
from synth.layer.residue_classes import Classes
from synth.search.tiling_search import TilingChoice

STATIONARY: tuple[Tensor, ...] = ("Out", "In", "Ker")


@dataclass(frozen=True)
class Request:
    """A search request. `limit_words` is the memory per process, `fixed` the pinned axes of the grid."""

    nest: Nest
    procs: int
    limit_words: int | None = None
    stationary: tuple[Tensor, ...] = STATIONARY
    fixed: dict[str, int] = field(default_factory=dict)
    balance: float = BALANCE
    exact: bool = False
    most_work: int | None = None  # the most iterations of a process; by default from `balance`
    pass_: Task = "forward"  # of the nest
    transposed: bool = False  # a training step does backward-data first
    panels: int | None = None  # wanted panels; by default the number that overlap pays for
    gradients: tuple[Tensor, ...] = GRADIENTS  # of the layer, that a training step computes
    turnable: tuple[Axis, ...] = ()  # axes along which blocks may be cut by input rows
    turned: tuple[Axis, ...] = ()  # axes along which they must be
    ghosts: bool = True  # see `Distribution`
    fewer_than: int | None = None  # words: an optimum with as many is of no use
    divided: bool = False  # other residue classes of the nest are tried, too, and may need less memory

    @property
    def sequences(self) -> tuple[Passes, ...]:
        """The passes of the nest, in each possible order."""
        if self.pass_ == "training":
            return sequences(self.transposed, self.gradients)
        return ((self.pass_,),)

    @property
    def reusable(self) -> frozenset[Tensor]:
        """The tensors that two passes read, so that the later one may reuse them."""
        return frozenset(reuse_intervals(self.sequences[0]))

    @property
    def moves(self) -> dict[Tensor, int]:
        """How often each tensor is communicated at least, if every reusable tensor is reused."""
        return moves(self.sequences[0])


@dataclass(frozen=True)
class Optimum:
    """The result of a search: a grid and the tilings of its passes."""

    grid: PerAxis
    tiling: TilingChoice
    work: int  # iterations of the most loaded process, see `Distribution.load`
    least_work: int  # w*: the least `work` of all grids without turned axes
    turned: tuple[Axis, ...] = ()
    classes: Classes = ()  # of the nest
    # where the search ended early: words that no plan of the family goes below; None where none moves fewer
    proven_words: int | None = None
