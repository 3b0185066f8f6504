"""What a layer costs with the methods in use today: DDP, FSDP2, tensor and spatial parallelism.

The words of DDP and FSDP2 follow from their descriptions, not from a schedule of synth:

    DDP     Li et al., VLDB 2020: every rank holds the weights; their gradients are all-reduced, of which a
            rank receives 2 (W - W/p) words
    FSDP2   torch.distributed.fsdp (ZeRO-3, Rajbhandari et al., SC'20): a rank holds a shard; weights are
            gathered in each pass, gradients are reduce-scattered, W - W/p words each

W are the words of the weights, p the ranks, at most one for each sample. A rank holds weights, gradients and
the maps of its own samples; FSDP2 frees gathered weights after each pass. Tensor parallelism (filters or
channels) and spatial parallelism are the best plans of these strategies, see `planning.comparison`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synth.planning.comparison import THIS, Alternative, compare

if TYPE_CHECKING:
    from synth.layer.axes import PerAxis
    from synth.planning.plan import Plan

TENSOR = ("filter", "channel")


@dataclass(frozen=True)
class Today:
    """A method: words that the busiest rank receives and bytes that a rank holds; None where it cannot be.

    ranks: that work in some layer; None where it is not known.
    """

    name: str
    how: str
    words: int | None
    memory_bytes: int | None
    ranks: int | None = None

    def times(self, plan_words: int | None) -> str:
        """Words over those of the plan; a dash where there is no such number, or one rank works alone."""
        if self.words is None or not plan_words or self.ranks == 1:
            return "-"
        return f"{self.words / plan_words:.2f}"


def idle_ranks(procs: int, used: Collection[int]) -> str:
    """`7 ranks idle`: of so many processes, where layers use `used` of them; "" where none is idle."""
    least, most = procs - max(used), procs - min(used)
    count = f"{most}" if least == most else f"{least} to {most}" if least else f"up to {most}"
    return f"{count} rank{'s' * (most > 1)} idle" if most else ""


def today(plan: Plan) -> list[Today]:
    """The plan beside the methods in use today, on the same processes and for the same passes.

    A layer without weights (an einsum) has neither DDP nor FSDP2.
    """
    rows = [_on_grid(THIS, plan, plan.grid, plan.words["total"], plan.used_bytes)]
    if plan.layer.kind != "einsum":
        rows += [_ddp(plan), _fsdp(plan)]
    found = {each.name: each for each in compare(plan)}
    tensor = min((found[name] for name in TENSOR), key=lambda each: _order(each))
    return [*rows, _named("tensor", plan, tensor), _named("spatial", plan, found["spatial"])]


def _order(each: Alternative) -> tuple[bool, float]:
    return each.words is None, each.words or 0


def _named(name: str, plan: Plan, each: Alternative) -> Today:
    if each.words is None or each.grid is None:
        return Today(name, each.why, None, None)
    return _on_grid(name, plan, each.grid, each.words, each.used_bytes, each.why)


def _on_grid(
    name: str, plan: Plan, grid: PerAxis, words: int, memory_bytes: int | None, why: str = ""
) -> Today:
    how = ", ".join(filter(None, [grid.shown(), idle_ranks(plan.procs, [grid.size]), why]))
    return Today(name, how, words, memory_bytes, grid.size)


# -- data parallelism -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Samples:
    """The ranks that data parallelism can use, and the words of one of them."""

    ranks: int
    weights: int
    shard: int
    maps: int  # In and Out of the samples of a rank; in training the gradient of In, too

    idle: int

    @property
    def how(self) -> str:
        """The cut, and how many ranks it leaves idle."""
        return ", ".join(filter(None, [f"b={self.ranks}", idle_ranks(self.ranks + self.idle, [self.ranks])]))


def _samples(plan: Plan) -> _Samples:
    shapes, samples = plan.layer.nest.shapes, plan.layer.nest.extents.b
    ranks = min(plan.procs, samples)
    weights, part = math.prod(shapes["Ker"]), -(-samples // ranks)
    of_input = "Out" if plan.layer.transposed else "In"
    maps: Iterable[int] = (
        math.prod(shapes[t][1:]) * part * (2 if plan.pass_ == "training" and t == of_input else 1)
        for t in ("In", "Out")
    )
    return _Samples(ranks, weights, -(-weights // ranks), sum(maps), plan.procs - ranks)


def _ddp(plan: Plan) -> Today:
    of = _samples(plan)
    learns = plan.pass_ in ("training", "backward-filter")
    words = 2 * (of.weights - of.shard) if learns else 0
    held = of.weights * (2 if plan.pass_ == "training" else 1) + of.maps
    return Today("DDP", f"{of.how}, whole weights", words, held * plan.nest.word_bytes, of.ranks)


def _fsdp(plan: Plan) -> Today:
    of = _samples(plan)
    moves = {"training": 3}.get(plan.pass_, 1)
    shards = of.shard * (2 if plan.pass_ == "training" else 1)
    whole = of.weights * (2 if plan.pass_ == "training" else 1)  # gathered, and gradients before their sum
    held = (shards + whole + of.maps) * plan.nest.word_bytes
    return Today("FSDP2", f"{of.how}, weights in shards", moves * (of.weights - of.shard), held, of.ranks)
