"""Words of one planned layer on every rank: what it owns, gathers, saves, and its kernels need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from synth.layer.axes import DIMS, SPATIAL, TENSORS, Axis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import gathers
from synth.layer.window import out_size
from synth.network.graph import Node
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.memory.kernel_copies import KernelCall, copies_of_product
from synth.network.memory.timeline import Words
from synth.runtime.grid.rules.convolution_call import ConvolutionCall
from synth.runtime.grid.rules.onednn_rules import multiplies
from synth.runtime.grid.rules.processors import USUAL, Processor
from synth.schedule.memory import Footprints
from synth.schedule.memory_messages import Arrival, most_arriving
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import Gather, Loop, Reduce, Rows, lowered
from synth.schedule.training_memory import reduction_overlaps
from synth.search.tiling_search import TilingChoice

FLOAT = 4  # bytes


@dataclass(frozen=True)
class PassWords:
    """Words of one pass of a layer on every rank, beside the shards of its tensors.

    gathered: tensor -> words of the buffer with its slice, where it is no shard.
    halo: of the widened shard of In, where rows are fetched and a gather follows.
    kernel: at most, of the kernel's result, of panels, and of the copies in the kernel's own layout.
    laid: among these, of a copy of In with zeros around it.
    result: of the sums that the kernel makes. reduced: whether these are reduced or their rows returned.
    arriving: at most until the slices are there, themselves included. prefetched: of Ker, from the start of
    its gather until its slice is there. travelling: of sums on their way, beside the finished shard.
    """

    gathered: dict[Tensor, Words]
    halo: Words
    kernel: Words
    laid: Words
    result: Words
    reduced: bool
    arriving: Words
    prefetched: Words
    travelling: Words


class LayerWords:
    """The words of one layer of a network plan, one number per rank.

    processors: of which any may compute it. Their routines copy more or less.
    """

    def __init__(
        self,
        node: Node,
        layer_class: LayerClass,
        placed: PlacedGrid,
        tiling: TilingChoice,
        procs: int,
        resident: frozenset[Tensor] = frozenset(),
        processors: Sequence[Processor] = USUAL,
    ) -> None:
        self.processors = processors
        self.node, self.layer_class, self.tiling = node, layer_class, tiling
        self.nest: Nest = layer_class.nest.turn(placed.turned)
        self.boxes = OwnedBoxes(self.nest, [placed], procs, resident)
        self.ownership, self.distribution = self.boxes.ownership, self.boxes.distributions[0]
        self.footprints = Footprints(self.distribution)
        self.kept = Footprints(self.distribution, kept=True)  # a network keeps the buffers of messages
        self.messages = self.kept.messages
        self.ranks = self.boxes.idle.shape[1]

    def _vector(self, words: Any) -> Words:
        row = np.broadcast_to(np.asarray(words, dtype=np.float64), (1, self.ranks))[0]
        return np.where(self.boxes.idle[0], 0.0, row)

    def own(self, tensor: Tensor) -> Words:
        """Words of the shards of a tensor."""
        return self._vector(self.ownership.words(tensor, "shard"))

    def slice(self, tensor: Tensor) -> Words:
        """Words of the slices of a tensor."""
        return self._vector(self.ownership.words(tensor, "visited"))

    @cached_property
    def input(self) -> Words:
        """Words of the layer's input."""
        return self.own(self.layer_class.input_tensor)

    @property
    def leaves_rows(self) -> bool:
        """Whether the layer's input has rows that no window reads; the runtime drops them by a copy."""
        return not self.layer_class.transposed and self.node.in_words > self.nest.words["In"]

    @cached_property
    def given(self) -> Words:
        """Words of the layer's input with unread rows, each of which the owner of the row before it owns."""
        if not self.leaves_rows:
            return self.input
        words: Any = 1
        for dim in DIMS["In"]:
            low, high = self.ownership.shard("In", dim)
            rows = dict(zip(reversed(SPATIAL), reversed(self.node.in_shape[2:]), strict=False))
            if dim not in rows:
                words = words * (high - low)
                continue
            window, extent = self.nest.windows[dim], rows[dim]
            ends = [
                np.where(row == 0, 0, np.where(row == window.size, extent, window.source(row)))
                for row in (low, high)
            ]
            words = words * np.maximum(ends[1] - ends[0], 0)
        return self._vector(words)

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
        output = self.layer_class.output_tensor
        inner: Axis = "k" if output == "Out" else "c"
        groups, channels = (self.ownership.length(output, "shard", dim) for dim in ("g", inner))
        found = groups * np.where(groups <= 1, channels, getattr(self.nest.extents, inner))
        return np.asarray(np.broadcast_to(found, (1, self.ranks))[0])

    @cached_property
    def passes(self) -> list[PassWords]:
        """The passes in their order."""
        return [self._pass(each) for each in self.tiling.pass_plans]

    @cached_property
    def overlap(self) -> bool:
        """Whether the sums of the second pass are on their way during the third."""
        return reduction_overlaps(self.footprints, self.tiling.pass_plans, None)

    def pooled(self, training: bool) -> Words:
        """Words of messages, which the network's buffer pool keeps."""
        plans = self.tiling.pass_plans if training else self.tiling.pass_plans[:1]
        return self._vector(self.messages.kept(plans, training and self.overlap))

    @property
    def deferred(self) -> Words:
        """Words of the sums of dKer in flight."""
        sums = (self._in_transit(plan) for plan in self.tiling.pass_plans if plan.written == "Ker")
        return next(sums, np.zeros(self.ranks))

    def _pass(self, plan: PassPlan) -> PassWords:
        d = self.distribution
        tree = lowered(plan.structure, d.groups, d.row_axes, turned=d.nest.turned)
        nothing = np.zeros(self.ranks)
        gathered: dict[Tensor, Words] = {}
        halo, reduced, arrivals, panels = nothing, False, dict[Tensor, Arrival](), list[Tensor]()
        for each in tree.top():
            match each:
                case Rows(direction="fetch"):
                    gathered[each.tensor] = self._widened(each.tensor)
                    # else the widened shard is the slice
                    if any(gather.tensor == each.tensor for gather in tree.gathers):
                        halo = halo + gathered[each.tensor]
                case Gather():
                    gathered[each.tensor] = self.slice(each.tensor)
                    arrivals[each.tensor] = self.messages.arrival(each.tensor)
                case Loop():
                    panels = [inner.tensor for inner in each.gathers]
                    reduced = reduced or bool(each.reduces)
                case Reduce() | Rows():
                    reduced = True
        for tensor in panels:
            if plan.steps == 1 or tensor in plan.saves:
                gathered[tensor] = self.slice(tensor)
            if plan.steps == 1:  # the only panel is the slice
                arrivals[tensor] = self.messages.arrival(tensor)
        result = self._result(plan)
        kernel = self.copies(plan) + (result if plan.steps == 1 else self._in_loop(plan, panels))
        laid = self._vector(self.footprints.padded(plan) if plan.steps == 1 and plan.written != "In" else 0)
        arriving = self._vector(most_arriving([*arrivals.values()]))
        prefetched = self._vector(arrivals["Ker"].flight if "Ker" in arrivals else 0)
        return PassWords(
            *(gathered, halo, kernel + laid, laid, result, reduced, arriving, prefetched),
            self._travelling(plan),
        )

    def _travelling(self, plan: PassPlan) -> Words:
        """Words of the last panel of sums on its way beside the shard, where sums leave panel by panel."""
        away = plan.steps > 1 and plan.stationary != plan.written
        return self._vector(self.kept.in_transit(plan) if away else 0)

    def _in_loop(self, plan: PassPlan, panels: Sequence[Tensor]) -> Words:
        """Words of the sums, of the panels in use, and of what a step holds beside them."""
        flight = sum(self.messages.panel(tensor, plan).flight for tensor in panels)
        in_use = sum(self.footprints.tile(tensor, plan) for tensor in panels)
        return self._result(plan) + self._vector(in_use + self.kept.step(plan, flight))

    def _widened(self, tensor: Tensor) -> Words:
        """Words of the widened shard of a tensor, with the zeros that are kept around it."""
        if tensor == "In" and self.distribution.keeps_zeros:
            return self._vector(self.footprints.saved(tensor))
        return self._vector(self.ownership.words(tensor, "carried"))

    @cached_property
    def room(self) -> Words | None:
        """Words of the buffer with the shard of In, its halo and zeros, in a forward pass without gradients.

        None where the pass fetches no halo of In, or gathers it; see `DistributedLayer.in_room`.
        """
        first, d = self.tiling.first, self.distribution
        if first.pass_ != "forward" or not d.halo_axes("In") or d.group_size("In") > 1:
            return None
        whole = d.keeps_zeros or first.steps == 1
        zeros = self._vector(self.footprints.padded_in(first)) if whole else 0.0
        return np.maximum(self._widened("In"), zeros)

    def _in_transit(self, plan: PassPlan) -> Words:
        """Words of partial sums sent and received."""
        own, slice_ = self.own(plan.written), self.slice(plan.written)
        members = self.distribution.group_size(plan.written)
        return np.maximum(slice_ - own, 0) + (members - 1) * own if members > 1 else np.zeros(self.ranks)

    def _result(self, plan: PassPlan) -> Words:
        """Words of the sums of a pass: of the slice, or of the own part where panels leave in between.

        Those of dIn that one step makes have the zeros around In.
        """
        if plan.steps > 1:
            return (self.slice if plan.stationary == plan.written else self.own)(plan.written)
        zeros = self._vector(self.footprints.padded(plan)) if plan.written == "In" else 0.0
        return np.maximum(self.slice(plan.written), zeros)

    def _in_kernel(self, tensor: Tensor, plan: PassPlan) -> Words:
        """Words of a tensor that one call of the kernel reads or makes."""
        return self.slice(tensor) if plan.steps == 1 else self._vector(self.footprints.tile(tensor, plan))

    def _call(self, plan: PassPlan) -> KernelCall:
        """One call of torch's kernel in a pass, with the zeros that are laid around In."""
        in_, ker, out = (self._in_kernel(tensor, plan) for tensor in TENSORS)
        in_ = np.maximum(in_, self._vector(self.footprints.padded(plan)))
        sizes, dims = plan.sizes(self.footprints.work), len(self.node.in_shape) - 2
        first = int(in_.max()) // (self.footprints.rows("w", plan) if dims == 3 else 1)
        return KernelCall(
            *(self.nest, plan.pass_, dims, sizes.b, sizes.c, sizes.k, in_, ker, out, first),
            self._torchs_call(plan, dims),
        )

    def _torchs_call(self, plan: PassPlan, dims: int) -> ConvolutionCall | None:
        """The sizes of one call of the largest block, where torch is given the layer's own windows."""
        sizes, axes, nest = plan.sizes(self.footprints.work), SPATIAL[len(SPATIAL) - dims :], self.nest
        windows = [nest.turn(nest.turned).windows[axis] for axis in axes]
        if any(window.divisor > 1 for window in windows) or nest.word_bytes != FLOAT:
            return None
        rows = [self.footprints.padded_rows(axis, plan).most for axis in axes]
        made = [
            out_size(read, window.kernel, window.stride, 0, window.dilation)
            if axis in nest.turned
            else getattr(sizes, axis)
            for axis, window, read in zip(axes, windows, rows, strict=True)
        ]
        call = ConvolutionCall(
            samples=sizes.b,
            channels=sizes.c * sizes.g,
            filters=sizes.k * sizes.g,
            rows=tuple(rows),
            made=tuple(made),
            taps=tuple(window.kernel for window in windows),
            dilation=tuple(window.dilation for window in windows),
            stride=tuple(window.stride for window in windows),
            groups=sizes.g,
        )
        return call if call.has_words else None

    def copies(self, plan: PassPlan) -> Words:
        """Words beside the result that torch's kernel needs at most, on a CPU.

        A gradient's shape is told by an empty tensor, but not where one call of torch makes both. Poolings
        copy nothing, nor do products of matrices that BLAS makes.
        """
        product = self.node.kind in ("linear", "matmul") and self.nest.taps == 1
        by_onednn = self.nest.word_bytes == FLOAT and any(multiplies(each) for each in self.processors)
        if not self.node.weighted or (product and not by_onednn):
            return np.zeros(self.ranks)
        if product:
            sizes, out = plan.sizes(self.footprints.work), self._in_kernel("Out", plan)
            tiled = plan.counts.c > 1
            return copies_of_product(plan.pass_, sizes.b, sizes.c, sizes.k, out, tiled)
        call = self._call(plan)
        most = np.zeros(self.ranks)
        for each in self.processors:
            most = np.maximum(most, self._of_call(call, plan, each))
        return most

    def _of_call(self, call: KernelCall, plan: PassPlan, processor: Processor) -> Words:
        """The same of a call on one processor."""
        told = call.in_ if plan.written == "In" else call.ker
        if call.is_reversed(processor) or (plan.written == "In" and call.is_onednns):
            told = 0 * told
        one = self._in_one_call(processor)
        return call.copies(processor) + (told if plan.pass_ != "forward" and not one else 0.0)

    def _in_one_call(self, processor: Processor) -> bool:
        """Whether the layer is one call of torch; see `runtime.layers.one_call`, `codegen.module.is_lean`."""
        d, plans = self.distribution, self.tiling.pass_plans
        passes = tuple(each.pass_ for each in plans)
        again = gathers(passes, plans[0].saves)["In"] > 1 and d.halo_axes("In")
        ours = any(plan.steps > 1 for plan in plans)
        cut, calls = any(getattr(d.grid, axis) > 1 for axis in SPATIAL), map(self._call, plans)
        ours_alone = self.layer_class.transposed and (
            cut or any(call.is_reversed(processor) or call.is_laid_out for call in calls)
        )
        return not (any(d.groups) or d.nest.turned or again or ours or ours_alone)
