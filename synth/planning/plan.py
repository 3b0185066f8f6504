"""The plan: everything that was decided for one layer, and the numbers that follow from it.

A plan is frozen data; `derive` makes one. Its properties are arithmetic on the decisions. Its `id` is a hash
of the decisions alone (layer, processes, grid, order, passes), so two plans with the same id emit the same
program, and ranks can compare ids before they communicate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal

from synth.base.notebook import figure, inline_html
from synth.base.work_balance import BALANCE
from synth.bounds.assumptions import conditions
from synth.bounds.closed_form import ClosedForm, Eq4, best
from synth.bounds.paper_cost import cost_at
from synth.bounds.surface import surface_bound
from synth.bounds.training_step import training_bound
from synth.bounds.universal import UniversalBound, universal_bound
from synth.layer.axes import ROW_MAJOR, Axis, Order, PerAxis, Tensor
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, TURNED, Passes, Task, gradients_of
from synth.layer.residue_classes import Classes
from synth.planning.decisions import decided
from synth.planning.plan_json import to_json
from synth.planning.summary import summary
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints, Memory
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule
from synth.schedule.training_memory import reduction_overlaps, training_memory
from synth.schedule.volume import Received, received

if TYPE_CHECKING:
    from synth.machine.hierarchy import Machine
    from synth.search.fastest import Fastest

Algorithm = Literal["2D", "2.5D", "3D"]
Timed = tuple["Machine", "Fastest"]  # of objective time: the machine, and the seconds on it


@dataclass(frozen=True)
class Plan:
    """A layer on a process grid, with a plan for every pass, as `synth.plan` makes it.

    Numbers of words are of the process that has the most; `nest.word_bytes` gives the bytes of a word.

    Decisions: `grid` (processes per axis: b samples, g groups, d h w rows, c input and k output channels),
    `order`, `pass_plans` (stationary tensor and tiles, pass by pass), `turned`.
    Costs: `words` received, by tensor and in "total"; `used_words` and `used_bytes` of memory; `work` and
    `load` in iterations. Optimality: `bound` (docs/bounds.md), `ratio` = words / bound, `closed_form`
    (Eq. 4 of Li et al., SPAA'21), `paper_cost` (Eq. 3 and Eq. 10 there), `assumptions` of the bound.
    `to_json` is what a plan file has, `id` names the decisions; `synth.report(plan)` prints all of it.
    """

    layer: Layer
    procs: int  # processes of the request; the grid may leave a few idle
    grid: PerAxis
    first: PassPlan
    limit_bytes: int | None = None  # of memory, per process
    balance: float = BALANCE
    exact_procs: bool = False
    least_work: int | None = None  # w*: iterations of the most loaded process, at best
    pinned: tuple[Axis, ...] = ()  # the axes whose counts the request pinned: w* is over the other ones
    later: tuple[PassPlan, ...] = ()  # training: the backward passes, in order of execution
    order: Order = ROW_MAJOR  # how the axes run over the ranks; the last one varies fastest
    timed: Timed | None = field(default=None, compare=False)
    resident: frozenset[Tensor] = frozenset()  # in inference: Ker, of which ranks hold whole slices
    turned: tuple[Axis, ...] = ()  # spatial axes along which blocks are cut by input rows
    classes: Classes = ()  # (axis, number of residue classes), where the classes are samples
    ghosts: bool = field(default=True, compare=False)  # see `Distribution`: not for a layer of a network
    # where the search ended early: words that no plan of the family goes below; None: those of this plan
    proven_words: int | None = field(default=None, compare=False)
    algorithm: Algorithm | None = None  # see `planning.algorithm`; by default 2D, or 3D for a split index

    def __post_init__(self) -> None:
        if self.algorithm is None:
            name: Algorithm = "2D" if is_2d(self.distribution, self.pass_plans) else "3D"
            object.__setattr__(self, "algorithm", name)

    @cached_property
    def nest(self) -> Nest:
        """The loop nest that is planned: that of the layer, with the residue classes as samples."""
        return self.layer.nest.by_classes(self.classes)

    @property
    def used_procs(self) -> int:
        """Processes that work."""
        return self.grid.size

    @cached_property
    def distribution(self) -> Distribution:
        """Who works on what and owns what."""
        return Distribution(self.nest.turn(self.turned), self.grid, self.order, self.resident, self.ghosts)

    @property
    def pass_plans(self) -> tuple[PassPlan, ...]:
        """The plan of every pass, in order of execution."""
        return (self.first, *self.later)

    @property
    def passes(self) -> Passes:
        """The passes of the nest, in order of execution."""
        return tuple(pass_plan.pass_ for pass_plan in self.pass_plans)

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """The gradients that a training step makes, of the layer's own tensors."""
        return gradients_of(self.passes, self.layer.transposed) if self.later else GRADIENTS

    @property
    def task(self) -> Task:
        """What the plan does with its nest: one pass, or those of a training step."""
        return "training" if self.later else self.first.pass_

    @property
    def pass_(self) -> Task:
        """What the plan computes of its layer; of a transposed one, `task` is another pass."""
        task = self.task
        return TURNED[task] if self.layer.transposed and task != "training" else task

    @property
    def schedule(self) -> Schedule:
        """All moves and computations of all ranks in the first pass."""
        return self.schedules[0]

    @cached_property
    def schedules(self) -> tuple[Schedule, ...]:
        """All moves and computations of all ranks, pass by pass."""
        return tuple(Schedule(self.distribution, pass_plan) for pass_plan in self.pass_plans)

    @cached_property
    def received(self) -> Received:
        """Words that each rank receives, over all passes."""
        passes = [received(self.distribution, pass_plan) for pass_plan in self.pass_plans]
        return reduce(add, passes)

    @cached_property
    def words(self) -> dict[str, int]:
        """The most words any rank receives: "in", "ker", "out", "halo" (part of in and out), "total"."""
        return self.received.most()

    @cached_property
    def memory(self) -> Memory:
        """The most words any rank needs, per phase, over all passes, if buffers of messages do not stay."""
        return self._memory(self._footprints)

    def _memory(self, footprints: Footprints) -> Memory:
        if not self.later:
            return footprints.memory(self.first).beside(footprints.messages.kept(self.pass_plans))
        return training_memory(footprints, self.pass_plans, self.overlap)

    @cached_property
    def _footprints(self) -> Footprints:
        return Footprints(self.distribution)

    @cached_property
    def overlap(self) -> bool:
        """Whether the sums of the first gradient are reduced while the second gradient is computed.

        See `training_memory.reduction_overlaps`.
        """
        return self._overlaps(self.limit_words)

    def _overlaps(self, limit_words: int | None) -> bool:
        return bool(self.later) and reduction_overlaps(self._footprints, self.pass_plans, limit_words)

    @property
    def work(self) -> PerAxis:
        """W: the largest block of work, per axis."""
        return self.distribution.most_work

    @property
    def load(self) -> int:
        """Iterations of the most loaded process, as the work balance counts them."""
        return self.distribution.load

    @property
    def tile(self) -> PerAxis:
        """T: the largest tile, per axis."""
        return self.first.sizes(self.work)

    @property
    def limit_words(self) -> int | None:
        """The memory limit in words."""
        return None if self.limit_bytes is None else self.limit_bytes // self.nest.word_bytes

    @property
    def used_words(self) -> int:
        """The most words any rank needs: the least limit that the plan fits."""
        return self.memory.words

    @cached_property
    def held_words(self) -> int:
        """The most words any rank of the emitted program holds.

        Without a limit these are more than `used_words`: small pieces are copied for each receiver, and
        buffers of messages stay for the next run.
        """
        if self.limit_bytes is not None:
            return self.used_words
        return self._memory(Footprints(self.distribution, kept=True)).words

    @property
    def used_bytes(self) -> int:
        """The most bytes any rank holds."""
        return self.used_words * self.nest.word_bytes

    @cached_property
    def bound(self) -> UniversalBound:
        """The universal lower bound on received words, for any schedule on as many processes.

        It holds for every schedule that loads no process with more work than this plan does, and in which
        every word has one owner. A plan with resident tensors has several, so its bound is 0.
        """
        return self.bound_at(self.distribution.most_real_work, self.limit_words)

    @cached_property
    def fair_bound(self) -> UniversalBound:
        """The same bound for schedules with equal work: no process does more than ⌈F/P⌉ multiply-adds.

        It is at least `bound`. A plan whose work is less even than that can receive fewer words.
        """
        return self.bound_at(max(1, -(-self.layer.nest.real_work // self.procs)), self.limit_words)

    @cached_property
    def surface_bound(self) -> float:
        """The bound with the surface of regions, in words: at least `bound`, with the same assumptions.

        It sees the halos of layers with few channels, see `bounds.surface`. A training step has none.
        """
        if self.pass_ == "training" or self.resident:
            return self.bound.words
        return max(self.bound.words, surface_bound(self.layer.nest, self.procs, self.bound.most_work))

    def bound_at(self, most_work: int, limit_words: int | None) -> UniversalBound:
        """The bound for schedules of the same passes with another load or another memory.

        most_work: multiply-adds on real input of the most loaded process, in each pass.
        limit_words: memory per process; None for any amount. That of a training step is for any amount.
        """
        if self.pass_ == "training":
            return training_bound(self.layer.nest, self.procs, most_work, self.passes)
        found = universal_bound(self.layer.nest, self.procs, limit_words, most_work)
        return replace(found, words=0.0) if self.resident else found  # several owners: nothing is proved

    @property
    def assumptions(self) -> list[str]:
        """What `bound` assumes of a schedule, a phrase each; docs/bounds.md has the proof."""
        limit = self.limit_words
        return conditions(self.procs, self.bound.most_work, limit, self.pass_ == "training")

    @cached_property
    def closed_form(self) -> ClosedForm:
        """Eq. 4 with all its bounds, for the best stationary tensor (accessed words)."""
        return best(Eq4.of(self.layer.nest, self.procs, self.limit_words))

    @property
    def paper_bound(self) -> float:
        """Table 2 at M_L = M with all bounds of Eq. 4 kept: accessed words."""
        return self.closed_form.cost

    @cached_property
    def paper_cost(self) -> dict[str, float]:
        """Eq. 3 and Eq. 10 of SPAA'21, accessed words, at the chosen integers."""
        stationary = self.first.stationary
        return {
            "eq3": float(cost_at(self.nest, stationary, self.grid, self.tile)),
            "eq10": float(cost_at(self.nest, stationary, self.grid, self.tile, distributed=True)),
        }

    @property
    def ratio(self) -> float | None:
        """Received words over the universal bound; None where the bound is zero and words are moved."""
        if self.bound.words > 0:
            return self.words["total"] / self.bound.words
        return 1.0 if self.words["total"] == 0 else None

    def __str__(self) -> str:
        return summary(self)

    def _repr_html_(self) -> str:
        """Decisions, words and bound, for notebooks."""
        return inline_html(self)

    def plot(self, picture: str = "strategies") -> Any:
        """A matplotlib figure: "grid", "words", "memory", "strategies" or "tradeoff"."""
        return figure(self, picture)

    def to_json(self) -> dict[str, Any]:
        """The plan as the JSON data of a plan file: see `plan_json.to_json`."""
        return to_json(self)

    def decisions(self) -> dict[str, Any]:
        """The decisions, as JSON data: what `id` hashes. Usual decisions go without saying."""
        waits = {"overlap": False} if self._overlaps(None) and not self.overlap else {}
        resident = {"resident": sorted(self.resident)} if self.resident else {}
        return {
            "problem": self.layer.to_json(),
            "procs": self.procs,
            "grid": self.grid._asdict(),
            **decided(self),
            **waits,
            **resident,
            "passes": [pass_plan.to_json() for pass_plan in self.pass_plans],
        }

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits that name the decisions."""
        text = json.dumps(self.decisions(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_2d(distribution: Distribution, pass_plans: Sequence[PassPlan]) -> bool:
    """Whether the index that the stationary tensor of every pass lacks is whole in every process."""
    return all(distribution.group_size(pass_plan.stationary) == 1 for pass_plan in pass_plans)
