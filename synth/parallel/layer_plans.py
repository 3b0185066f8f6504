"""What a network plan, or its file, decides about the layers of a model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from synth.base.errors import InfeasibleError, InputError
from synth.base.work_balance import BALANCE
from synth.layer.axes import TENSORS, PerAxis, Tensor, placement
from synth.layer.layer import Layer
from synth.layer.passes import GRADIENTS, sequences
from synth.network.graph import Node
from synth.network.grids.grid_family import family
from synth.network.grids.grid_table import grids_of
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import KER, OwnedBoxes, PlacedGrid, slice_words
from synth.network.margins.walk import Rows
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_entry import LayerRow
from synth.network.plan.plan_json import margins_read
from synth.network.planner.resident_weights import choose_resident_tiling
from synth.network.step_time.buckets import LARGEST, bucket_bytes
from synth.planning.plan import Plan
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.search.grids import Space, all_grids
from synth.search.request import STATIONARY
from synth.search.training_step import choose_tilings_reusing

Ranks = tuple[tuple[tuple[int, int], ...], ...]  # per rank a box: an interval per dimension


@dataclass(frozen=True)
class LayerPlans:
    """Per layer of a network: its grid with the order of its axes, memory and gradients.

    limit_words: what the working memory of a layer may take; None where nothing limits it.
    saves: tensors that a pass gathers once and saves for a later pass.
    limited: whether the plan was made for a memory limit.
    resident: whether it is of a forward pass with resident weights; see `NetworkRequest`.
    whole: layers that train with a copy of their slice of Ker on every rank that uses it.
    programs: pass plans of the planned work, where they are known: one rank chose them for all.
    bucket_bytes: of the messages with gradients that several ranks add up, as the plan has priced them.
    margins: node -> the rows beyond the own block that a rank computes of it; None for a plan without.
    fetched: words of other ranks that a rank receives in a forward pass, summed over tensors, as planned.
    """

    placed: dict[str, PlacedGrid]
    limit_words: dict[str, int | None]
    gradients: dict[str, tuple[Tensor, ...]]
    saves: frozenset[Tensor]
    limited: bool
    resident: bool = False
    whole: frozenset[str] = frozenset()
    programs: dict[str, tuple[PassPlan, ...]] = field(default_factory=dict)
    bucket_bytes: int = LARGEST
    margins: Mapping[str, Rows] | None = None
    fetched: int = 0

    @classmethod
    def of(cls, plan: NetworkPlan) -> LayerPlans:
        """What a plan decides. One of a forward pass that gathers weights leaves memory and `saves` open."""
        names = [node.name for node in plan.network.planned]
        resident = plan.request.resident_weights
        limited = (plan.request.training or resident) and plan.request.limit_bytes is not None
        return cls(
            dict(zip(names, plan.placed_grids, strict=True)),
            {n: each.used_words if limited else None for n, each in zip(names, plan.tilings, strict=True)},
            {n: each.gradients for n, each in zip(names, plan.layer_classes, strict=True)},
            plan.request.saves if plan.request.training else frozenset(TENSORS),
            limited,
            resident,
            frozenset(name for name, whole in zip(names, plan.whole, strict=True) if whole),
            {
                node.name: tiling.pass_plans
                for node, tiling in zip(plan.network.planned, plan.tilings, strict=True)
                if node.weighted and (plan.request.training or resident)
            },
            bucket_bytes(plan.request.machine if plan.timed else None, plan.request.procs),
            None if plan.margins is None else plan.margins.rows,
            0 if plan.margins is None else plan.margins.fetched,
        )

    @classmethod
    def read(cls, data: dict[str, Any]) -> LayerPlans:
        """What a plan file decides; `data` as `parse_network_plan` gives it."""
        rows = msgspec.convert(data["layers"], list[LayerRow])
        training = data["pass"] == "training"
        resident = not training and "ker" in data["kept"]
        rows_of_margins = (data.get("margins") or {}).get("tensors", ())
        return cls(
            {row.name: PlacedGrid(PerAxis(**row.grid), row.order, row.turned) for row in rows},
            {
                row.name: row.memory_words if training or (resident and data["memory_limit"]) else None
                for row in rows
            },
            {row.name: _named(row.gradients, GRADIENTS) if training else GRADIENTS for row in rows},
            frozenset(_named(data["kept"], TENSORS) if training else TENSORS),
            data["memory_limit"] is not None,
            resident,
            frozenset(row.name for row in rows if row.whole),
            margins=margins_read(data),
            fetched=sum(each["words"] - each.get("back", 0) for each in rows_of_margins),
        )

    def renamed(self, pairs: Mapping[str, str]) -> LayerPlans:
        """The same by other names: new name -> name here."""
        back = {theirs: mine for mine, theirs in pairs.items()}
        return LayerPlans(
            {mine: self.placed[theirs] for mine, theirs in pairs.items()},
            {mine: self.limit_words[theirs] for mine, theirs in pairs.items()},
            {mine: self.gradients[theirs] for mine, theirs in pairs.items()},
            self.saves,
            self.limited,
            self.resident,
            frozenset(mine for mine, theirs in pairs.items() if theirs in self.whole),
            {mine: self.programs[theirs] for mine, theirs in pairs.items() if theirs in self.programs},
            self.bucket_bytes,
            None if self.margins is None else {back.get(name, name): n for name, n in self.margins.items()},
            self.fetched,
        )

    def plan(self, layer: Layer, procs: int, inference: bool = False) -> Plan:
        """The training plan of a layer, or in inference that of its forward pass with resident weights.

        A plan of the one work leaves the memory of the other open. Raises `InputError` where nothing fits the
        planned memory.
        """
        placed = self.placed[layer.name]
        limit_words = self.limit_words[layer.name] if self.resident == inference else None
        known = self.programs.get(layer.name) if self.resident == inference else None
        if not set(placed.turned) <= set(layer.nest.turnable):
            raise InputError(f"{layer.name}: no axis of {placed.turned} can be cut by input rows; plan anew")
        if inference:  # rows are chosen for the words of the one work
            placed = placed if self.resident else replace(placed, turned=())
            return resident_plan(layer, procs, placed, limit_words, known)
        resident = KER if layer.name in self.whole else frozenset[Tensor]()
        if known is None:
            nest = layer.nest.turn(placed.turned)
            distribution = Distribution(nest, placed.grid, placed.order, resident, ghosts=False)
            training = self.saves, layer.transposed, self.gradients[layer.name]
            found, _ = choose_tilings_reusing(distribution, STATIONARY, limit_words, *training)
            known = None if found is None else found.pass_plans
        return _plan(layer, procs, placed, limit_words, known, resident)

    def boxes(self, node: Node, procs: int) -> tuple[Ranks, Ranks] | None:
        """What each rank owns of the input and of the output of a layer without weights.

        None where that is not all of the input: In of a nest has the rows that are read and no others.
        """
        assert node.layer is not None
        boxes = OwnedBoxes(node.layer.nest, [self.placed[node.name]], procs)
        dims = [0, 1, *range(7 - len(node.in_shape), 5)]
        result = []
        kind = LayerClass.of(node)
        ends = (kind.input_tensor, node.in_shape), (kind.output_tensor, node.shape)
        for tensor, whole in ends:
            low, high, _ = boxes.flat(tensor)
            cuts = [
                (np.minimum(low[dim, 0], size), np.minimum(high[dim, 0], size))  # a last window may exceed it
                for dim, size in zip(dims, whole, strict=True)
            ]
            words = np.prod([after - before for before, after in cuts], axis=0, dtype=np.int64)
            if int(words.sum()) != math.prod(whole):
                return None
            result.append(tuple(tuple((int(a[r]), int(b[r])) for a, b in cuts) for r in range(procs)))
        return result[0], result[1]


def _named(names: Collection[str], tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Those of some tensors that a file names."""
    return tuple(tensor for tensor in tensors if tensor.lower() in names)


def resident_plan(
    layer: Layer,
    procs: int,
    placed: PlacedGrid,
    limit_words: int | None,
    known: tuple[PassPlan, ...] | None = None,
) -> Plan:
    """The forward pass of a layer whose ranks hold their slices of Ker.

    limit_words: beside the weights. known: its pass plan, if that is chosen. Raises `InputError` where
    nothing fits the limit.
    """
    if known is None:
        nest = layer.nest.turn(placed.turned)
        distribution = Distribution(nest, placed.grid, placed.order, KER, ghosts=False)
        forward = PassPlan(pass_="backward-data") if layer.transposed else PassPlan()
        found, _ = choose_resident_tiling(distribution, limit_words, forward)
        known = None if found is None else found.pass_plans
    if known is not None and limit_words is not None:
        limit_words += slice_words(layer.nest, placed.grid)
    return _plan(layer, procs, placed, limit_words, known, KER)


def cheapest_resident_plan(
    layer: Layer, procs: int, fixed: Mapping[str, int] | None, limit_bytes: int | None, exact: bool
) -> Plan:
    """The forward pass with resident weights that moves the fewest words, on a grid with some given parts.

    fixed: axis -> parts; None for a free grid within the usual work balance. limit_bytes: of the layer, its
    weights included. exact: use all ranks. Raises `InfeasibleError` where no grid does, or none fits.
    """
    nest, limit_words = layer.nest, None if limit_bytes is None else limit_bytes // layer.nest.word_bytes
    wide = [axis for axis, parts in (fixed or {}).items() if parts > getattr(nest.extents, axis)]
    if wide:
        raise InfeasibleError(f"{layer.name}: N_{wide[0]} is less than the parts of {fixed}; free this axis")
    if fixed is None:
        grids = grids_of(family(nest, procs, BALANCE, exact, uneven=exact))
    else:
        grids = all_grids(Space(nest, procs, fixed, exact), procs)
    if not grids:
        raise InfeasibleError(
            f"{layer.name}: no grid of {procs} processes has the parts {fixed}; free some axes"
        )
    placed = [PlacedGrid(grid) for grid in grids]
    words, _ = OwnedBoxes(nest, placed, procs, KER).words(sequences(layer.transposed, ())[0], True)
    for _, each in sorted(zip(words.tolist(), placed, strict=True), key=lambda pair: (pair[0], pair[1].grid)):
        left = None if limit_words is None else limit_words - slice_words(nest, each.grid)
        try:
            return resident_plan(layer, procs, each, left)
        except InputError:
            continue
    raise InfeasibleError(f"{layer.name}: no grid fits {limit_bytes} bytes per process; allow more memory")


def _plan(
    layer: Layer,
    procs: int,
    placed: PlacedGrid,
    limit_words: int | None,
    pass_plans: tuple[PassPlan, ...] | None,
    resident: frozenset[Tensor] = frozenset(),
) -> Plan:
    if pass_plans is None:  # the planner found one, but a file may be of another program
        raise InputError(
            f"{layer.name}: no program of the planned grid fits the planned {limit_words} words; plan anew"
        )
    first, *later = pass_plans
    return Plan(
        layer,
        procs,
        placed.grid,
        first,
        None if limit_words is None else limit_words * layer.nest.word_bytes,
        exact_procs=placed.grid.size == procs,
        later=tuple(later),
        order=placement(placed.grid, placed.order),
        resident=resident,
        turned=placed.turned,
        ghosts=False,
    )
