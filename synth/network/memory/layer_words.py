"""Words of one planned layer on every rank: what it owns, gathers, saves, and its kernels need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from synth.layer.axes import SPATIAL, TENSORS, Tensor
from synth.layer.interval_arrays import lengths
from synth.layer.nest import Nest
from synth.network.graph import Node
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.memory.timeline import Words
from synth.schedule.memory import Footprints
from synth.schedule.memory_messages import Arrival, most_arriving
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import Gather, Loop, Reduce, Rows, Tree, lowered
from synth.schedule.training_memory import reduction_overlaps
from synth.search.tiling_search import TilingChoice

BLOCK, THIN = 16, 3  # channels of oneDNN's blocks; those that it reads without blocks
FEW = 20480  # words of a volume without its last dimension that torch computes by a plain kernel


@dataclass(frozen=True)
class PassWords:
    """Words of one pass of a layer on every rank, beside the shards of its tensors.

    gathered: tensor -> words of the buffer with its slice, where it is no shard.
    halo: of the widened shard of In, where rows are fetched and a gather follows.
    kernel: at most, of the kernel's result, of panels, and of the copies in the kernel's own layout.
    result: of the sums that the kernel makes. reduced: whether these are reduced or their rows returned.
    arriving: at most until the slices are there, themselves included.
    """

    gathered: dict[Tensor, Words]
    halo: Words
    kernel: Words
    result: Words
    reduced: bool
    arriving: Words


class LayerWords:
    """The words of one layer of a network plan, one number per rank."""

    def __init__(
        self,
        node: Node,
        layer_class: LayerClass,
        placed: PlacedGrid,
        tiling: TilingChoice,
        procs: int,
        resident: frozenset[Tensor] = frozenset(),
    ) -> None:
        self.node, self.layer_class, self.tiling = node, layer_class, tiling
        self.nest: Nest = layer_class.nest.turn(placed.turned)
        self.boxes = OwnedBoxes(self.nest, [placed], procs, resident)
        self.distribution = self.boxes.distributions[0]
        self.footprints = Footprints(self.distribution)
        self.messages = Footprints(self.distribution, kept=True).messages
        self.ranks = self.boxes.idle.shape[1]

    def _vector(self, words: Any) -> Words:
        row = np.broadcast_to(np.asarray(words, dtype=np.float64), (1, self.ranks))[0]
        return np.where(self.boxes.idle[0], 0.0, row)

    def own(self, tensor: Tensor) -> Words:
        """Words of the shards of a tensor."""
        words: Any = 1
        for span in self.boxes.owned(tensor).values():
            words = words * lengths(span).astype(np.float64)
        return self._vector(words)

    def slice(self, tensor: Tensor) -> Words:
        """Words of the slices of a tensor."""
        if tensor != "Ker":
            return self._vector(self.boxes.needed(tensor)[0])
        return self._vector(self.boxes._slice_words(tensor))

    @cached_property
    def input(self) -> Words:
        """Words of the layer's input."""
        return self.own(self.layer_class.input_tensor)

    @cached_property
    def output(self) -> Words:
        """Words of the layer's output, as the user sees it."""
        own = self.own(self.layer_class.output_tensor)
        nest_words = math.prod(self.nest.shapes[self.layer_class.output_tensor])
        return own * (self.node.out_words / nest_words if self.layer_class.transposed else 1.0)

    @cached_property
    def bias(self) -> Words:
        """Words of the bias."""
        return self._vector(self.channels * self.node.bias)

    @cached_property
    def channels(self) -> Words:
        """Channels of the shards of the layer's output."""
        spans = self.boxes.channels(self.layer_class.output_tensor)
        found: Words = np.broadcast_to(lengths(spans), (1, self.ranks))[0]
        return found

    @cached_property
    def passes(self) -> list[PassWords]:
        """The passes in their order."""
        return [self._pass(each) for each in self.tiling.pass_plans]

    def pooled(self, training: bool) -> Words:
        """Words of messages, which the network's buffer pool keeps."""
        plans = self.tiling.pass_plans if training else self.tiling.pass_plans[:1]
        overlap = training and reduction_overlaps(self.footprints, plans, None)
        return self._vector(self.messages.kept(plans, overlap))

    @property
    def deferred(self) -> Words:
        """Words of the sums of dKer in flight."""
        last = self.tiling.pass_plans[-1]
        return self._in_transit(last) if last.written == "Ker" else np.zeros(self.ranks)

    def saved(self, tensor: Tensor) -> Words:
        """Words that the forward pass saves of a tensor beside its shard; 0 if it is the shard."""
        if tensor not in self.tiling.first.saves:
            return np.zeros(self.ranks)
        return self.passes[0].gathered.get(tensor, np.zeros(self.ranks))

    def _pass(self, plan: PassPlan) -> PassWords:
        d = self.distribution
        tree = lowered(plan.structure, d.groups, d.row_axes, turned=d.nest.turned)
        nothing = np.zeros(self.ranks)
        gathered: dict[Tensor, Words] = {}
        halo = panels = nothing
        reduced, arrivals = False, list[Arrival]()
        for each in tree.top():
            match each:
                case Rows(direction="fetch"):
                    gathered[each.tensor] = self._widened(each.tensor)
                    if self._gathers(tree, each.tensor):  # else the widened shard is the slice
                        halo = halo + gathered[each.tensor]
                case Gather():
                    gathered[each.tensor] = self.slice(each.tensor)
                    arrivals.append(self.messages.arrival(each.tensor))
                case Loop():
                    for inner in each.gathers:
                        panels = panels + 2 * self._vector(self.footprints.tile(inner.tensor, plan))
                    reduced = reduced or bool(each.reduces)
                case Reduce() | Rows():
                    reduced = True
        result, copies = self._result(plan), self._copies(plan)
        if plan.steps > 1:  # the result of a step is added to the sums
            copies = copies + self._in_kernel(plan.written, plan)
        arriving = self._vector(most_arriving(arrivals))
        return PassWords(gathered, halo, panels + result + copies, result, reduced, arriving)

    def _widened(self, tensor: Tensor) -> Words:
        """Words of the widened shard of a tensor, with the zeros that are kept around it."""
        if tensor == "In" and self.distribution.keeps_zeros:
            return self._vector(self.footprints.saved(tensor))
        return self._vector(self.boxes.summed(tensor)[0])

    def _gathers(self, tree: Tree, tensor: Tensor) -> bool:
        return any(gather.tensor == tensor for gather in tree.gathers)

    def _in_transit(self, plan: PassPlan) -> Words:
        """Words of partial sums sent and received."""
        own, slice_ = self.own(plan.written), self.slice(plan.written)
        members = self.distribution.group_size(plan.written)
        return np.maximum(slice_ - own, 0) + (members - 1) * own if members > 1 else np.zeros(self.ranks)

    def _result(self, plan: PassPlan) -> Words:
        """Words of the sums of a pass: of the slice, or of the own part where panels leave in between."""
        away = plan.steps > 1 and plan.stationary != plan.written
        return self.own(plan.written) if away else self.slice(plan.written)

    def _in_kernel(self, tensor: Tensor, plan: PassPlan) -> Words:
        """Words of a tensor that one call of the kernel reads or makes."""
        return self.slice(tensor) if plan.steps == 1 else self._vector(self.footprints.tile(tensor, plan))

    def _copies(self, plan: PassPlan) -> Words:
        """Words beside the result that torch's kernel needs at most, on a CPU.

        oneDNN copies In, Ker and Out into blocks of 16 channels, and the result out of them; with groups the
        blocks are not filled up. It reads an In of up to three channels, and the kernels of one position, as
        they are. Strided dIn takes one copy more, and room for one sample of dOut. A gradient's shape is told
        by an empty tensor, but not where one call of torch makes both. For other words than float32 torch
        copies every window. Products of matrices and poolings copy nothing.
        """
        nest, nothing = self.nest, np.zeros(self.ranks)
        if not self.node.weighted or (self.node.kind in ("linear", "matmul") and nest.taps == 1):
            return nothing
        in_, ker, out = (self._in_kernel(tensor, plan) for tensor in TENSORS)
        zeros = self._vector(self.footprints.padded(plan))  # around In, in a copy or in the result
        in_, around = np.maximum(in_, zeros), zeros if plan.written != "In" else np.maximum(zeros - in_, 0)
        told = plan.pass_ != "forward" and not self._in_one_call
        made = in_ if plan.written == "In" else self._in_kernel(plan.written, plan)
        shape_only = around + (made if told else nothing)
        if nest.word_bytes != 4:
            return shape_only + out / max(1, nest.extents.k) * nest.extents.c * nest.taps
        strided = any(max(window.stride, window.divisor) > 1 for window in nest.windows.values())
        if nest.taps == 1 and not strided:
            return shape_only
        sizes = plan.sizes(self.footprints.work)
        thin = sizes.c <= THIN and plan.pass_ != "backward-data"
        of_c, of_k = (
            (_filled(1 if thin else sizes.c), _filled(sizes.k)) if nest.extents.g == 1 else (1.0, 1.0)
        )
        wide_in, wide_ker, wide_out = 0 * in_ if thin else in_ * of_c, ker * of_c * of_k, out * of_k
        together = wide_in + wide_ker + wide_out
        match plan.pass_:
            case "forward":
                copies = np.maximum(together - out, wide_out)
            case "backward-data" if strided:
                copies = np.maximum(together + wide_out / max(1, sizes.b) - in_, wide_in + in_)
            case "backward-data":
                copies = np.maximum(together - in_, wide_in)
            case _:
                copies = np.maximum(together - ker, wide_ker) + in_ * self._in_layout_of_onednn(plan)
        return copies + shape_only

    def _in_layout_of_onednn(self, plan: PassPlan) -> bool:
        """Whether In of a volume is copied so that torch calls oneDNN; see `runtime.kernels.autotune`."""
        sizes = plan.sizes(self.footprints.work)
        plane = sizes.c * self.footprints.rows("d", plan) * self.footprints.rows("h", plan)
        return len(self.node.in_shape) == 5 and self.nest.extents.g == sizes.b == 1 and plane <= FEW

    @property
    def _in_one_call(self) -> bool:
        """Whether the layer is one call of torch, without exchanges; see `runtime.layers.one_call`."""
        d = self.distribution
        cut = any(getattr(d.grid, axis) > 1 for axis in SPATIAL)
        plans = self.tiling.pass_plans
        ours = any(plan.steps > 1 or self._in_layout_of_onednn(plan) for plan in plans)
        return not (any(d.groups) or cut or d.nest.turned or ours)


def _filled(channels: int) -> float:
    """Channels in full blocks, over the channels; 1 for a single one, which is in no block."""
    return -(-channels // BLOCK) * BLOCK / channels if channels > 1 else 1.0
