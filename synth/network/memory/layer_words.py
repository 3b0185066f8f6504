"""Words of one planned layer on every rank: what it owns, gathers, saves, and its kernels need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from synth.layer.axes import Tensor
from synth.layer.interval_arrays import lengths
from synth.layer.nest import Nest
from synth.network.graph import Node
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.memory.timeline import Words
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import Gather, Loop, Reduce, Rows, Tree, lowered
from synth.search.tiling_search import TilingChoice

BLOCK, THIN = 16, 3  # channels of oneDNN's blocks; those that it reads without blocks


@dataclass(frozen=True)
class PassWords:
    """Words of one pass of a layer on every rank, beside the shards of its tensors.

    gathered: tensor -> words of the buffer with its slice, where it is no shard.
    halo: of the widened shard of In, where rows are fetched and a gather follows.
    kernel: at most, of the kernel's result, of panels, and of the copies in the kernel's own layout.
    result: of the sums that the kernel makes. reduced: whether these are reduced or their rows returned.
    pooled: of messages, which the network's buffer pool keeps.
    """

    gathered: dict[Tensor, Words]
    halo: Words
    kernel: Words
    result: Words
    reduced: bool
    pooled: Words


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
        halo = pooled = panels = nothing
        reduced = False
        for each in tree.top():
            match each:
                case Rows(direction="fetch"):
                    gathered[each.tensor] = self._vector(self.boxes.summed(each.tensor)[0])
                    if self._gathers(tree, each.tensor):  # else the widened shard is the slice
                        halo = halo + gathered[each.tensor]
                case Gather():
                    slice_ = self.slice(each.tensor)
                    pooled = pooled + np.maximum(slice_ - self.own(each.tensor), 0)
                    gathered[each.tensor] = slice_
                case Loop():
                    for inner in each.gathers:
                        panels = panels + 2 * self._vector(self.footprints.tile(inner.tensor, plan))
                    if each.reduces:
                        reduced, pooled = True, pooled + self._in_transit(plan)
                case Reduce():
                    reduced, pooled = True, pooled + self._in_transit(plan)
                case Rows():
                    reduced = True
        result = self._result(plan)
        copies = self._copies(plan) if plan.steps == 1 else nothing
        if self.nest.turned:  # the kernel lays zeros around the block
            copies = copies + self._vector(self.footprints.padded(plan))
        return PassWords(gathered, halo, panels + result + copies, result, reduced, pooled)

    def _gathers(self, tree: Tree, tensor: Tensor) -> bool:
        return any(gather.tensor == tensor for gather in tree.gathers)

    def _in_transit(self, plan: PassPlan) -> Words:
        """Words of partial sums sent and received."""
        own, slice_ = self.own(plan.written), self.slice(plan.written)
        members = self.distribution.group_size(plan.written)
        return np.maximum(slice_ - own, 0) + (members - 1) * own if members > 1 else np.zeros(self.ranks)

    def _result(self, plan: PassPlan) -> Words:
        return self.slice(plan.written)

    def _copies(self, plan: PassPlan) -> Words:
        """Words beside the result that torch's kernel needs at most, on a CPU.

        oneDNN copies tensors into blocks of 16 channels, and the result out of them; with groups the blocks
        are not filled up. It reads an In of up to
        three channels, and the kernels of one position, as they are. Strided dIn is made without blocks, in
        two copies. A gradient's shape is told by an empty tensor. For other words than float32 torch copies
        every window. Products of matrices and poolings copy nothing.
        """
        nest, nothing = self.nest, np.zeros(self.ranks)
        if not self.node.weighted or (self.node.kind in ("linear", "matmul") and nest.taps == 1):
            return nothing
        in_, out = self.slice("In"), self.slice("Out")
        shape_only = nothing if plan.pass_ == "forward" else self._result(plan)
        if nest.word_bytes != 4:
            return shape_only + out / max(1, nest.extents.k) * nest.extents.c * nest.taps
        if nest.taps == 1:
            return shape_only
        wide_in, wide_out = in_, out
        if nest.extents.g == 1:
            wide_in, wide_out = _in_blocks(in_, nest.extents.c), _in_blocks(out, nest.extents.k)
        read_in = wide_in if nest.extents.c > THIN else nothing
        strided = any(max(window.stride, window.divisor) > 1 for window in nest.windows.values())
        match plan.pass_:
            case "forward":
                copies = np.maximum(read_in + wide_out - out, wide_out)
            case "backward-data" if strided:
                copies = np.maximum(2 * wide_out, 2 * in_)
            case "backward-data":
                copies = np.maximum(wide_out + wide_in - in_, wide_in)
            case _:
                copies = read_in + wide_out
        return copies + shape_only


def _in_blocks(words: Words, channels: int) -> Words:
    """Words of a tensor in blocks of channels."""
    return words * (-(-channels // BLOCK) * BLOCK / max(1, channels))
