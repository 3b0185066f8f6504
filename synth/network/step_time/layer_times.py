"""Seconds of one class of layers on many placed grids at once, in parts that overlap differently.

A pass computes, and moves the slices of In and Out: alone, or in panels while it computes. Ker of the next
layer is gathered while a layer computes, and the sums of dKer travel while the layer before computes its
gradients. So the seconds of Ker stand apart: what of them is hidden depends on the neighbouring layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.base.array_kinds import kinds_of
from synth.layer.axes import AXES, DIMS, LACKS, SPATIAL, TENSORS, X_AXES, Axis, PerAxis, Tensor
from synth.layer.passes import Pass, reads, reuse_intervals
from synth.machine import layer_time
from synth.machine.collectives import Op
from synth.machine.layer_time import OPS, along, compute_seconds, travels, walked
from synth.machine.many_groups import Groups, Loads, ManyGroups
from synth.network.grids.layer_class import LayerClass
from synth.network.step_time.buckets import bucket_bytes
from synth.runtime.grid.rules.shared_rounds import NUMBERS, in_one_round
from synth.schedule.distribution import Distribution
from synth.schedule.halo_rows import tile_rows
from synth.schedule.pass_plan import THINNEST, Structure
from synth.schedule.pass_program import Gather, Reduce, Rows
from synth.search import tiling_search

if TYPE_CHECKING:
    from synth.network.grids.owned_boxes import PlacedGrid
    from synth.network.request import NetworkRequest
    from synth.network.step_time.between import Between

Seconds = NDArray[np.float64]
PANELS = tuple(n for n in layer_time.PANELS if n <= tiling_search.PANELS)
UPDATE = 8  # accesses of an update by SGD with momentum: scale it (2), add the gradient (3), add it (3)


class LayerTimes(NamedTuple):
    """Seconds by placed grid.

    forward, backward: computing, and what of the moves of In and Out nothing hides. halo, halo_backward: the
    exchanges of rows therein, and of Ker that a backward pass gathers again. computing_forward,
    computing_backward: the computing therein, which may hide moves of Ker of neighbouring layers.
    gathered: Ker, before the layer's turn. reduced: the sums of dKer, after it. averaged: the part of dKer in
    the all-reduces of buckets, if every rank holds whole slices of Ker. fills: its bytes as a part of a full
    bucket. update, update_whole: of the weights;
    shards also take the calls that move them.
    norm, group_norm, layer_norm: one exchange of the statistics of a normalization of the output: of a batch
    normalization, of a group or instance normalization, of a layer normalization over its channels. touch:
    one access of the output. fresh: the pages of a new tensor of its size.
    """

    forward: Seconds
    backward: Seconds
    computing_forward: Seconds
    computing_backward: Seconds
    gathered: Seconds
    reduced: Seconds
    averaged: Seconds
    fills: Seconds
    update: Seconds
    update_whole: Seconds
    norm: Seconds
    group_norm: Seconds
    layer_norm: Seconds
    touch: Seconds
    fresh: Seconds
    halo: Seconds
    halo_backward: Seconds

    def at(self, rows: Sequence[int] | NDArray[np.intp] | slice) -> LayerTimes:
        """The seconds of some of the placed grids."""
        return LayerTimes(*(each[rows] for each in self))

    def with_margins(self, call: Seconds, in_buckets: bool) -> LayerTimes:
        """The same, if rows of others are known, and every rank has the whole weights.

        call: what a layer takes to start exchanges. in_buckets: whether gradients of weights travel there.
        """
        first, back = (call * (each > 0) for each in (self.halo, self.halo_backward))
        return self._replace(
            forward=self.forward - self.halo - first,
            backward=self.backward - self.halo_backward - back,
            computing_forward=self.computing_forward - first,
            computing_backward=self.computing_backward - back,
            gathered=0 * self.gathered,
            reduced=0 * self.reduced,
            averaged=in_buckets * self.averaged,
            update=self.update_whole,
            halo=0 * self.halo,
            halo_backward=0 * self.halo,
        )


def layer_times(
    layer_class: LayerClass,
    request: NetworkRequest,
    placed: Sequence[PlacedGrid],
    followed: Between | None = None,
) -> LayerTimes:
    """The parts of the seconds of a layer on some placed grids.

    followed: what follows layers of the class; exchanges of statistics that do not are 0. None prices all.
    """
    turned = dict.fromkeys(each.turned for each in placed)
    if len(turned) == 1:
        return _Timer(layer_class, request, placed, followed).times()
    kinds = [[i for i, each in enumerate(placed) if each.turned == axes] for axes in turned]
    parts = [_Timer(layer_class, request, [placed[i] for i in some], followed).times() for some in kinds]
    order = np.argsort(np.concatenate([np.array(some, np.intp) for some in kinds]))
    joined = LayerTimes(*map(np.concatenate, zip(*parts, strict=True)))
    return joined.at(order)


class _Timer:
    """The seconds of placed grids with the same turned axes, of which blocks are cut by input rows."""

    def __init__(
        self,
        layer_class: LayerClass,
        request: NetworkRequest,
        placed: Sequence[PlacedGrid],
        followed: Between | None,
    ) -> None:
        assert request.machine is not None
        self.followed = followed
        self.kind, self.request, self.machine = layer_class, request, request.machine
        turned = placed[0].turned if placed else ()
        self.nest = layer_class.nest.turn(turned)
        self.grids = np.array([each.grid for each in placed], np.int64).reshape(len(placed), len(AXES))
        self.groups = ManyGroups(self.machine, self.grids, [each.order for each in placed])
        self.work = -(-np.array(self.nest.extents, np.int64) // self.grids)
        self.of_tensor = {tensor: self.groups.of(LACKS[tensor]) for tensor in TENSORS}
        self.slices = {tensor: self._slice(tensor) * self.nest.word_bytes for tensor in TENSORS}
        self.fills = self.slices["Ker"] / bucket_bytes(self.machine, request.procs)
        self.crowded: Seconds = self.machine.crowded(self.grids.prod(axis=1).astype(np.float64))
        self._computed: dict[Pass, Seconds] = {}
        self._loads: dict[Tensor, Loads] = {}
        self._known: dict[tuple[Tensor, Op, int], Seconds] = {}
        self._halos: dict[tuple[Tensor, str], Seconds] = {}
        self._shared: dict[Tensor, NDArray[np.int64]] = {}

    def _parts(self, axis: Axis) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.grids[:, AXES.index(axis)]
        return column

    def _block(self, *axes: Axis) -> Seconds:
        found: Seconds = self.work[:, [AXES.index(axis) for axis in axes]].prod(axis=1).astype(np.float64)
        return found

    def _rows(self, axis: Axis) -> Seconds:
        """The most rows of the framed tensor that a block touches along a spatial axis."""
        window, extent = self.nest.windows[axis], getattr(self.nest.extents, axis)
        parts, index = np.unique(self._parts(axis), return_inverse=True)
        rows = np.array([tile_rows(window, extent, int(each), 1) for each in parts], np.float64)
        return rows[index.reshape(-1)]

    def _slice(self, tensor: Tensor) -> Seconds:
        """Words of the largest slice."""
        if tensor == "Ker":
            return self._block("g", "c", "k") * self.nest.taps
        framed = self.nest.framed(tensor)
        rows = np.prod(
            [self._rows(axis) if axis in framed else self._block(axis) for axis in SPATIAL], axis=0
        )
        words: Seconds = self._block("b", "g", "c" if tensor == "In" else "k") * rows
        return words

    def _computing(self, pass_: Pass) -> Seconds:
        """Seconds of a pass of the most loaded rank; see `compute_seconds`."""
        if pass_ not in self._computed:
            rows: dict[str, Any] = {axis: self._rows(axis) for axis in self.nest.turned}  # as `LayerTimer`
            work = PerAxis(*self.work.T.astype(np.float64))._replace(**rows)
            found = compute_seconds(self.machine, self.nest, work, self.kind.weighted, pass_)
            self._computed[pass_] = found * self.crowded
        return self._computed[pass_]

    def _pooling(self) -> Seconds:
        """Seconds of the words that windows of a pooling read in the forward pass, from a cache."""
        reads = 0 if self.kind.weighted else self.nest.taps
        words = self.work.astype(np.float64).prod(axis=1)
        found: Seconds = self.machine.compute.tap * reads * words * self.crowded
        return found

    @cached_property
    def _cuts(self) -> tuple[list[Distribution], NDArray[np.intp], NDArray[np.intp]]:
        """(distributions of the grids that differ, of each the first placed grid, placed grid -> its own)."""
        first, index = kinds_of(self.grids.T)
        cuts = [Distribution(self.nest, PerAxis(*grid)) for grid in self.grids[first].tolist()]
        return cuts, first, index

    def _halo(self, tensor: Tensor, direction: str) -> Seconds:
        """Seconds of one exchange of a halo: rows of a tensor are fetched, or sums return to their owners."""
        if (tensor, direction) in self._halos:
            return self._halos[tensor, direction]
        axes = self.nest.framed(tensor)
        split = 2 * (self.grids[:, [AXES.index(axis) for axis in axes]] > 1).sum(axis=1)
        sizes = self._halo_words(tensor, direction == "return") * self.nest.word_bytes
        found = self._halos[tensor, direction] = self.groups.messages(sizes, self.groups.of(axes), split)
        return found

    def _halo_words(self, tensor: Tensor, returns: bool) -> Seconds:
        """`Distribution.halo_words` of the placed grids. Of those that cut rows alike, one is looked at."""
        dims, framed = DIMS[tensor], self.nest.framed(tensor)
        if not framed:
            return np.zeros(len(self.grids))
        cuts, own, index = self._cuts
        shares = self._shares(tensor)
        rows = [self.grids[own, AXES.index(axis)] for axis in framed]
        rows += [shares[:, dims.index(axis)] for axis in framed]
        first, kind = kinds_of(rows)
        words = np.array([cuts[at].beyond(tensor, returns) for at in first.tolist()])[kind]
        for at, dim in enumerate(dims):
            if dim not in framed:
                words = words * -(-self.work[own, AXES.index(dim)] // shares[:, at])
        return words[index].astype(np.float64)

    def _shares(self, tensor: Tensor) -> NDArray[np.int64]:
        """The parts into which a slice is cut among its group, by distinct grid and dimension of a tensor."""
        if tensor not in self._shared:
            dims, found = DIMS[tensor], np.ones((len(self._cuts[0]), len(DIMS[tensor])), np.int64)
            for at, each in enumerate(self._cuts[0]):
                for dim, parts in each.shard_cut(tensor):
                    found[at, dims.index(dim)] = parts
            self._shared[tensor] = found
        return self._shared[tensor]

    def _walked(
        self, pass_: Pass, reused: frozenset[Tensor], stationary: Tensor = "In", panels: int = 1
    ) -> tuple[tuple[Rows, ...], tuple[Gather | Reduce, ...]]:
        """Of the schedule tree of a grid that cuts all axes; what another one does not move takes no time."""
        loops = (along(stationary),) if panels > 1 else ()
        plan = Structure(pass_, stationary, loops, reused, frozenset())
        return walked(plan, tuple(LACKS[tensor] for tensor in TENSORS), SPATIAL, self.nest.turned)

    def _rows_moved(self, pass_: Pass, reused: frozenset[Tensor]) -> Seconds:
        """Seconds of the exchanges of halos in a pass."""
        halos = (self._halo(node.tensor, node.direction) for node in self._walked(pass_, reused)[0])
        return sum(halos, np.zeros(len(self.grids)))

    # -- the moves ------------------------------------------------------------------------------------

    def _collective(self, tensor: Tensor, op: Op, panels: int = 1) -> Seconds:
        key = tensor, op, panels
        if key not in self._known:
            if tensor not in self._loads:
                self._loads[tensor] = self.of_tensor[tensor].loads(self.slices[tensor])
            self._known[key] = self.groups.seconds(op, self._loads[tensor], panels)
        return self._known[key]

    def _exposed(self, pass_: Pass, reused: frozenset[Tensor]) -> Seconds:
        """Seconds of the moves of In and Out in a pass that its own computing does not hide."""
        best = np.full(len(self.grids), np.inf)
        for stationary in TENSORS:
            most = self._block(along(stationary))
            if stationary != "Ker":
                most = np.maximum(1, most // THINNEST)
            for panels in PANELS:
                found = self._panelled(pass_, reused, stationary, panels)
                best = np.minimum(best, np.where(panels <= most, found, np.inf))
        return best + self._rows_moved(pass_, reused)

    def _panelled(self, pass_: Pass, reused: frozenset[Tensor], stationary: Tensor, panels: int) -> Seconds:
        """Seconds of moves that computing does not hide, if two tensors are streamed in some panels."""
        alone, streamed = np.zeros(len(self.grids)), np.zeros(len(self.grids))
        for node in self._walked(pass_, reused, stationary, panels)[1]:
            if node.tensor == "Ker" or not travels(self.nest, self.kind.weighted, node.tensor):
                continue
            pieces = panels if node.scope == "panel" else 1
            seconds = self._collective(node.tensor, OPS[type(node)], pieces)
            alone, streamed = (alone, streamed + seconds) if pieces > 1 else (alone + seconds, streamed)
        hidden = self.machine.overlap * np.minimum(self._computing(pass_), streamed) * (panels - 1) / panels
        return alone + streamed - hidden + (panels - 1) * self.machine.compute.overhead

    # -- all parts ------------------------------------------------------------------------------------

    def times(self) -> LayerTimes:
        passes, saves = self.kind.passes(self.request.training), self.request.saves
        lives = {t: ends for t, ends in reuse_intervals(passes).items() if t in saves}
        zero = np.zeros(len(self.grids))
        reused = {each: frozenset(t for t, (_, last) in lives.items() if last == each) for each in passes}
        pass_seconds = [self._computing(each) + self._exposed(each, reused[each]) for each in passes]
        gathers = sum("Ker" in reads(each) for each in passes) - ("Ker" in lives)
        moves = self.kind.weighted and not self.request.resident_weights
        gathered = self._collective("Ker", "all_gather") if moves and "Ker" in reads(passes[0]) else zero
        trained = "backward-filter" in passes
        update, update_whole = self._updates() if trained else (zero, zero)
        compute = self.machine.compute
        call, exchange = (each * self.crowded for each in (compute.dispatch, compute.exchange))
        halos = self._halo("In", "fetch") + (self._halo("Out", "return") if self.nest.turned else zero)
        exchanges = (halos > 0) | (self._parts("k") > 1) | (self._parts("c") > 1)
        call = call + np.where(exchanges, exchange, 0.0)
        first, back = self._pooling() + call, call * (len(passes) > 1)
        again = max(0, gathers - 1) * gathered
        return LayerTimes(
            forward=pass_seconds[0] + first,
            backward=sum(pass_seconds[1:], back) + again,
            computing_forward=self._computing(passes[0]) + first,
            computing_backward=sum((self._computing(each) for each in passes[1:]), zero) + back,
            gathered=gathered,
            reduced=self._collective("Ker", "reduce_scatter") if trained else zero,
            averaged=self._averaged() if trained else zero,
            fills=self.fills,
            update=update,
            update_whole=update_whole,
            norm=self._norm() if self._followed_by("norms") else zero,
            group_norm=self._group_norm() if self._followed_by("group_norms") else zero,
            layer_norm=self._layer_norm() if self._followed_by("layer_norms") else zero,
            touch=self._touch(),
            fresh=self._fresh(),
            halo=self._rows_moved(passes[0], frozenset()),
            halo_backward=sum((self._rows_moved(each, reused[each]) for each in passes[1:]), again),
        )

    def _followed_by(self, norms: str) -> bool:
        return self.followed is None or getattr(self.followed, norms) > 0

    def _updates(self) -> tuple[Seconds, Seconds]:
        """Seconds of the update of the shard of Ker, and of its whole slice.

        Shards are gathered and summed in calls, which nothing hides.
        """
        bandwidth = self.machine.compute.bandwidth
        whole = UPDATE * self.slices["Ker"] / bandwidth if bandwidth else np.zeros(len(self.grids))
        shared = self.of_tensor["Ker"].sizes
        calls = 2 * self.machine.compute.exchange * self.crowded
        return whole / shared + np.where(shared > 1, calls, 0.0), whole

    def _averaged(self) -> Seconds:
        """Seconds of a slice of dKer in all-reduces of full buckets."""
        full = np.full(len(self.grids), float(bucket_bytes(self.machine, self.request.procs)))
        found: Seconds = self.groups.seconds("all_reduce", self.of_tensor["Ker"].loads(full)) * self.fills
        return found

    def _output(self) -> tuple[Seconds, Groups, Seconds, Axis]:
        """(bytes of a slice of the output, the group that shares it, its channels, its lacking axis)."""
        tensor = self.kind.output_tensor
        lacked: Axis = "c" if tensor == "Out" else "k"
        channels = self._block("g", "k" if tensor == "Out" else "c")
        size = self.slices[tensor]
        if self.nest.turned:  # a slice has rows of neighbours, which are no output of the rank
            size = (
                self._block("b") * channels * np.prod(self._owned_rows(tensor), axis=0) * self.nest.word_bytes
            )
        return size, self.of_tensor[tensor], channels, lacked

    def _owned_rows(self, tensor: Tensor) -> list[Seconds]:
        """The most rows of a tensor that a rank owns along each spatial axis."""
        sizes = zip(SPATIAL, self.nest.shapes[tensor][3:], strict=True)
        return [np.ceil(size / self._parts(axis)) for axis, size in sizes]

    def _touch(self) -> Seconds:
        size, group, _, _ = self._output()
        rate = self.machine.compute.bandwidth or self.machine.compute.rate
        touch: Seconds = self.crowded * size / group.sizes / rate
        return touch

    def _fresh(self) -> Seconds:
        size, group, _, _ = self._output()
        return self.machine.compute.new(size / group.sizes)

    def _norm(self) -> Seconds:
        """Seconds in which ranks that hold words of a channel send each other two words per channel.

        With local statistics these are the ranks that hold parts of the same samples. Shards of the output
        are cut along channels where their number allows it; otherwise the ranks of its group share channels.
        """
        _, group, channels, lacked = self._output()
        axes: tuple[Axis, ...] = X_AXES if self.request.batch_norm == "global" else SPATIAL
        apart = channels % group.sizes == 0
        result = np.zeros(len(self.grids))
        for cut, columns in ((apart, axes), (~apart, (*axes, lacked))):
            if cut.any():
                ranks = self.groups.of(columns)
                held = np.where(apart, channels / group.sizes, channels)
                result = np.where(cut, self._in_one_round(2.0 * held * self.nest.word_bytes, ranks), result)
        return result

    def _group_norm(self) -> Seconds:
        """Seconds of an exchange of two numbers per own sample and group, among the ranks of a sample.

        Groups that channels of several ranks share are not known here.
        """
        _, group, channels, lacked = self._output()
        held = np.where(channels % group.sizes == 0, channels / group.sizes, channels)
        if self.followed is not None and self.followed.group_norms:
            held = np.ceil(held * self.followed.groups / self.followed.group_norms)
        return self._shared_parts(self._block("b") * held, self.groups.of((*SPATIAL, lacked)))

    def _layer_norm(self) -> Seconds:
        """Seconds of an exchange of two numbers per own position, among the ranks that share its channels."""
        axes: tuple[Axis, ...] = ("k", "c")
        sharing = self.groups.of(axes)
        positions = self._block("b") * np.prod(self._owned_rows("Out"), axis=0)
        found = self._shared_parts(positions, sharing)
        return np.where(sharing.sizes > 1, found, 0.0)

    def _shared_parts(self, values: Seconds, ranks: Groups) -> Seconds:
        """Seconds of combining two numbers per value on all ranks that have parts of it.

        In one round; or in two, as an all-reduce, where one round would move many words.
        """
        once = in_one_round(values, values / ranks.sizes, ranks.sizes)
        size: Seconds = NUMBERS * values * self.nest.word_bytes
        two_rounds = self.groups.seconds("all_reduce", ranks.loads(size))
        return np.where(once, self._in_one_round(size, ranks), two_rounds)

    def _in_one_round(self, size: Seconds, ranks: Groups) -> Seconds:
        """Seconds in which each rank of a group sends the same `size` bytes to all others.

        All messages leave at once, so they take one latency, and a call each. An all-gather takes a latency
        per step, which is less on many ranks. What ranks compute for it counts, too.
        """
        gathered = self.groups.seconds("all_gather", ranks.loads(size * ranks.sizes))
        shared = np.where(ranks.sizes > 1, self.machine.compute.shared * self.crowded, 0.0)
        others = ranks.sizes - 1
        direct = self.groups.messages(size * others, ranks, np.ones_like(ranks.sizes))
        direct = direct + others * self.machine.compute.overhead
        return np.asarray(np.minimum(direct, gathered) + shared)
