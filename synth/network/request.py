"""The request for a network plan: one frozen record with every default and every check."""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.base.units import as_bytes
from synth.base.work_balance import BALANCE, check_balance
from synth.layer.axes import ROW_MAJOR, TENSORS, Order, Tensor
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import CHANNELS_SWAPPED, ORDERS
from synth.network.graph import Edge
from synth.runtime.grid.rules.processors import USUAL, Processor

MAX_PROCS = 2**20
MAX_MARGIN_PROCS = 4096
OBJECTIVES = ("words", "time")
BATCH_NORMS = ("global", "local")


@dataclass(frozen=True)
class NetworkRequest:
    """What to plan for. Raises `UsageError` if the fields contradict each other.

    procs: number of processes.
    objective: "words" (received per process, the maximum) or "time" (seconds on `machine`).
    training: whether to plan a training step instead of the forward pass.
    limit_bytes: of all that a process holds in a step; None for no limit.
    balance: extra work that the most loaded process may do, as a fraction.
    options_per_layer: number of grids per layer that are kept because of their own cost.
    axes: grids may split these axes only; "" for all axes.
    strict_axes: whether `axes` also bind layers that cannot use all processes within them.
    reorder_ranks: whether the grid axes may run over the ranks in another order than row-major.
    exact_procs: whether layers with weights use all processes, even unevenly loaded, if some grid does.
    saves: tensors that a training step gathers once and saves for a later pass; all that passes share, unless
        memory is too small: see `plan_network`.
    resident_weights: whether every process always holds the weights that its forward pass reads, so that only
        activations move. Copies of weights take memory, not words. Not for training.
    input_gradient: whether training computes the gradient of the network's input as well.
    batch_norm: "global" or "local" statistics of batch normalizations; see `synth.parallelize`.
    whole_weights: whether ranks may hold whole slices of weights in training (DDP) where that is faster than
        shards (ZeRO) and fits the machine's memory, and the limit. Of objective "time" alone.
    ahead: layers of which Ker is gathered while one computes; None for one, or none under a limit of memory.
    margin: what the seconds of a machine may err by, as a fraction of a step. Of the fastest plan and of data
        parallelism, if both are so near, the one that moves fewer words is taken; shards of weights must be
        faster than whole weights by as much.
    recompute: extra multiply-adds that the busiest process may do, as a fraction of its own, on rows that
        other processes own, so that fewer words move between layers; 0 for none. Of a forward pass with
        resident weights, or of a training step. None: none for words; for time as many as make a pass faster
        whose processes may hold whole weights.
    processors: that the ranks have, which decide what convolutions copy; () for those of the machine, or, if
        it does not say them, for any.
    """

    procs: int
    objective: str = "words"
    training: bool = False
    limit_bytes: int | None = None
    machine: Machine | None = None
    balance: float = BALANCE
    options_per_layer: int = 12
    axes: str = ""
    strict_axes: bool = True
    reorder_ranks: bool = True
    exact_procs: bool = False
    saves: frozenset[Tensor] = frozenset(TENSORS)
    input_gradient: bool = True
    batch_norm: str = "global"
    resident_weights: bool = False
    whole_weights: bool = False
    ahead: int | None = None
    margin: float = 0.0
    processors: tuple[Processor, ...] = ()
    recompute: float | None = None

    def __post_init__(self) -> None:
        check_balance(self.balance)
        check_batch_norm(self.batch_norm)
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective is {self.objective!r}; for a network it must be words or time")
        if self.objective == "time" and self.machine is None:
            raise UsageError(f"objective time needs a machine; name one with {option('machine')}")
        if self.training and self.resident_weights:
            raise UsageError(
                "a training step changes its weights, so they cannot be resident; plan one of both"
            )
        if self.whole_weights and not (self.training and self.objective == "time"):
            raise UsageError(
                "whole weights are of training for time, since only seconds decide about them; ask for both"
            )
        if not 0 <= self.margin < 1:
            raise UsageError(f"margin is {self.margin}; it must be at least 0 and below 1")
        if not 1 <= self.procs <= MAX_PROCS:
            raise UsageError(f"procs is {self.procs}; it must be from 1 to {MAX_PROCS} for a network")
        if self.recompute is not None:
            check_recompute(self.recompute)
        if self.recompute:
            self._check_margins()

    def _check_margins(self) -> None:
        """Raises `UsageError` for what rows that are computed twice do not go with."""
        asked = option("recompute", self.recompute or 0.0)
        if not self.resident_weights and not self.training:
            raise UsageError(f"{asked} is of a forward pass with resident weights; leave it out")
        if self.procs > MAX_MARGIN_PROCS:
            raise UsageError(
                f"{asked} is planned for up to {MAX_MARGIN_PROCS} processes, but procs is {self.procs};"
                " leave it out"
            )

    @property
    def most_recompute(self) -> float:
        """The most extra work on rows of others, as a fraction; infinite where seconds alone decide.

        Where nothing is said, plans for time have margins, but those of a named strategy, or of many ranks.
        """
        if self.recompute is not None:
            return self.recompute
        copies = self.resident_weights or (self.training and self.whole_weights)
        decide = self.objective == "time" and copies and not self.axes
        return math.inf if decide and 1 < self.procs <= MAX_MARGIN_PROCS else 0.0

    def sends_gradient_back(self, edge: Edge) -> bool:
        """Whether the gradient of the value that an edge carries returns over that edge."""
        return self.training and (self.input_gradient or edge.trained)

    @property
    def prefetched(self) -> int:
        """Layers of which Ker is gathered while one computes; without `ahead` one if memory is unlimited."""
        return int(self.limit_bytes is None) if self.ahead is None else self.ahead

    @property
    def computed_on(self) -> tuple[Processor, ...]:
        """The processors that may compute the network."""
        of_machine = self.machine.processors if self.machine else ()
        return self.processors or of_machine or USUAL

    @property
    def hides(self) -> bool:
        """Whether weights are prefetched and their gradients summed late."""
        return self.prefetched > 0

    def may_hold_whole(self, weighted: bool) -> bool:
        """Whether ranks may hold whole slices of the weights of a layer, or of one that has none."""
        return self.whole_weights and self.training and weighted

    @property
    def times_strategies(self) -> bool:
        """Whether seconds and memory of single strategies are known layer by layer: in predictions."""
        return self.objective == "time" and (self.whole_weights or self.resident_weights)

    @property
    def resident(self) -> frozenset[Tensor]:
        """The tensors of a layer that stay where they are used; see `Distribution`."""
        return frozenset({"Ker"} if self.resident_weights else ())

    def resident_of(self, whole: bool) -> frozenset[Tensor]:
        """The same of a layer whose ranks hold whole slices of weights in training, or not."""
        return self.resident | frozenset({"Ker"} if whole else ())

    @property
    def weights_compete(self) -> bool:
        """Whether copies of weights and a memory limit decide together which grids fit."""
        return self.resident_weights and self.limit_bytes is not None

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders of the grid axes over the ranks that the planner may use."""
        if not self.reorder_ranks:
            return (ROW_MAJOR,)
        return ORDERS if self.objective == "time" else (ROW_MAJOR, CHANNELS_SWAPPED)


def check_recompute(recompute: object) -> None:
    """Raises `UsageError` where extra work is no fraction from 0 to 1."""
    number = isinstance(recompute, int | float) and not isinstance(recompute, bool)
    if not number or not 0 <= recompute <= 1:  # type: ignore[operator]
        raise UsageError(
            f"recompute is {recompute!r}; it must be from 0 (no row twice) to 1 (twice the work)"
        )


def limit_of(memory: int | str | None, machine: Machine | None) -> int | None:
    """The limit of memory in bytes: what is given, else the memory of the machine, if it is known."""
    limit = as_bytes(memory)
    return machine.limit_bytes if limit is None and machine is not None else limit


def check_batch_norm(statistics: str, mode: str = "training") -> None:
    """Raises `UsageError` for statistics of batch normalizations that there are not, or not in a mode."""
    if statistics not in BATCH_NORMS:
        raise UsageError(
            f"batch_norm is {statistics!r}; it must be global (statistics of the whole batch) or local"
            " (of the samples of each rank)"
        )
    if statistics == "local" and mode == "inference":
        raise UsageError(
            "batch_norm='local' is of training, since inference takes running statistics; leave it away with"
            " mode='inference'"
        )
