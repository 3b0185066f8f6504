"""Where the words of a global tensor are: the box that each rank holds.

A partition may hold copies: several ranks with equal or overlapping boxes. Its layout
may refine the shape: Ker of a grouped convolution has the shape (k, c, r, s), and its
boxes are intervals of (group, k of the group, c, r, s).
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.comm.layout import (
    Layout,
    disjoint,
    even,
    replicated,
    split_copies,
)
from synth.runtime.comm.messages import all_reduce
from synth.runtime.comm.redistribute import add_boxes, fetch_boxes
from synth.runtime.grid.boxes import Box, outside, shape, volume, within
from synth.runtime.grid.scatter_gather import gather_shards
from synth.runtime.grid.spans import waiting
from synth.runtime.grid.transport import transport_of
from synth.runtime.rules.access import aligned
from synth.runtime.rules.local_forms import fitting, whole_along
from synth.runtime.rules.pointwise import expanded
from synth.runtime.rules.rule import needed

NAME = 64  # characters of a name; of longer ones a digest tells them apart


class Partition:
    """How a global tensor is divided: its shape, and the box that each rank holds.

    layout: the boxes, as intervals along the dimensions of `layout.whole`.
    shape: that of the tensor for the user, with the words of `layout.whole` in the same
        order; None if it is `layout.whole`.
    of: what the tensor is, or was computed from, by which ranks see that they call the
        same on tensors of one shape; "" if that is not known. Partitions that differ in
        it alone are equal.
    """

    def __init__(
        self, layout: Layout, shape: Sequence[int] | None = None, of: str = ""
    ) -> None:
        self.of = of
        self.layout = layout
        self.shape = torch.Size(layout.whole if shape is None else shape)
        self.ranks, self.box = layout.ranks, layout.mine
        self.refined = tuple(self.shape) != tuple(layout.whole)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Partition)
            and self.shape == other.shape
            and self.layout.whole == other.layout.whole
            and self.layout.boxes == other.layout.boxes
            and self.ranks.members == other.ranks.members
        )

    def named(self, of: str) -> Partition:
        """The same partition, of another tensor."""
        if of == self.of:
            return self
        made = copy.copy(self)
        made.of = of
        return made

    def lies_as(self, other: Partition) -> bool:
        """Whether this is another one, or that under another name.

        It is quick, and finds not all that are equal.
        """
        if self is other:
            return True
        return self.layout is other.layout and self.shape == other.shape

    @property
    def said(self) -> str:
        """The shape of the tensor, and what it is, for messages of limited length."""
        name = self.of
        if len(name) > NAME:
            name = f"{name[:NAME]}... ({zlib.crc32(name.encode()):x})"
        return f"{tuple(self.shape)}{name and f' of {name}'}"

    def __hash__(self) -> int:
        return hash((self.shape, self.box))

    def __deepcopy__(self, memo: Any) -> Partition:
        return self  # it never changes

    def __repr__(self) -> str:
        return f"Partition({tuple(self.shape)}, box={self.box})"

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The extents of the own box."""
        return shape(self.box)

    @property
    def local_words(self) -> int:
        """The words of the own box."""
        return volume(self.box)

    @cached_property
    def frame(self) -> Box:
        """The box of the whole tensor."""
        return tuple((0, extent) for extent in self.layout.whole)

    @cached_property
    def replicated(self) -> bool:
        """Whether every rank holds the whole."""
        return all(box == self.frame for box in self.layout.boxes)

    @cached_property
    def disjoint(self) -> bool:
        """Whether any two boxes are equal or share no word."""
        return self.replicated or disjoint(self.layout.boxes)

    @cached_property
    def counted(self) -> tuple[Box, ...]:
        """The parts of the own box of which no rank before this one has a copy.

        Over all ranks, these boxes contain every word once.
        """
        parts: list[Box] = [self.box] if volume(self.box) else []
        for other in dict.fromkeys(self.layout.boxes[: self.ranks.me]):
            parts = [piece for part in parts for piece in outside(part, other)]
        return tuple(parts)

    @cached_property
    def cut_dims(self) -> frozenset[int]:
        """The dimensions of the layout along which some box is not the whole.

        The box of a rank that takes no part is (0, 0) along all; it does not count.
        """
        nothing = ((0, 0),) * len(self.frame)
        boxes = [box for box in self.layout.boxes if box != nothing]
        return frozenset(
            dim
            for dim, whole in enumerate(self.frame)
            if any(box[dim] != whole for box in boxes)
        )

    # -- values ---------------------------------------------------------------------

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """The own words of a whole tensor, as a view where that is possible."""
        if self.refined:
            whole = whole.reshape(self.layout.whole)
        return whole[within(self.box, self.frame)]

    def gather(self, local: torch.Tensor) -> torch.Tensor:
        """The whole tensor on every rank. All ranks must call this."""
        if self.replicated:
            return local.reshape(self.shape).clone()
        self.ranks.require(f"full tensor of {self.said}")
        if self.disjoint:
            target = replicated(self.layout.whole, self.ranks)
            return self._fetched(local, target).reshape(self.shape)
        whole = gather_shards(local, self.layout.boxes, self.layout.whole, self.ranks)
        return whole.reshape(self.shape)

    def move(self, local: torch.Tensor, target: Partition) -> torch.Tensor:
        """The words of `target`'s box, from the ranks that hold them.

        Raises `ValueError` if the two are of other shapes or ranks.
        """
        if self == target:
            return local
        if self.layout.whole != target.layout.whole:
            return target.cut(self.gather(local))
        require_same_ranks(self, target)
        if self.replicated:
            return local[within(target.box, self.frame)].contiguous()
        if not self.disjoint:
            return target.cut(self.gather(local)).contiguous()
        self.ranks.require(f"redistribution of {self.said}")
        return self._fetched(local, target.layout)

    def _fetched(self, local: torch.Tensor, target: Layout) -> torch.Tensor:
        """The words of a target's box; each is sent by one of its holders."""
        owned = split_copies(self.layout)
        own = local[within(owned.mine, self.box)]
        return fetch_boxes(own.contiguous(), owned, target)

    def all_reduce(
        self,
        values: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        all_replicas: bool = False,
    ) -> None:
        """Reduce values over the ranks, or over those of all replicas, in place."""
        ranks = self.ranks.everyone if all_replicas else self.ranks
        if ranks.size > 1:
            agree = self.ranks.require_all if all_replicas else self.ranks.require
            agree(f"sum over ranks of {self.said}")
            with waiting("wait for a sum"):
                all_reduce(values, ranks.group, op).wait()

    def all_gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """The values of all ranks, which have one shape."""
        if self.ranks.size == 1:
            return [values]
        self.ranks.require(f"values of all ranks of {self.said}")
        values = values.contiguous()
        told = [torch.empty_like(values) for _ in range(self.ranks.size)]
        carried = transport_of(self.ranks.group, values.device).carried
        with waiting("wait for values"):
            parts = list(map(carried, told))
            dist.all_gather(parts, carried(values), group=self.ranks.group)
        return told

    def add(self, partial: torch.Tensor, owned: Layout) -> torch.Tensor:
        """Partial sums of the words of the own box, added at their owners."""
        self.ranks.require(f"sum at owners of {self.said}")
        return add_boxes(partial, self.layout, owned)

    # -- partitions made from this one ------------------------------------------------

    def with_boxes(self, whole: Sequence[int], boxes: Sequence[Box]) -> Partition:
        """Another tensor on the same ranks."""
        layout = Layout(tuple(whole), tuple(boxes), self.ranks)
        return Partition(layout, of=self.of)

    def without(self, dims: Sequence[int], keepdim: bool) -> Partition:
        """The partition of a reduction over dimensions that are not cut."""

        def kept(entries: Sequence[Any], one: Any) -> tuple[Any, ...]:
            pairs = enumerate(entries)
            if keepdim:
                return tuple(one if dim in dims else entry for dim, entry in pairs)
            return tuple(entry for dim, entry in pairs if dim not in dims)

        boxes = [kept(box, (0, 1)) for box in self.layout.boxes]
        return self.with_boxes(kept(self.shape, 1), boxes)

    def operand(self, wanted: Sequence[int]) -> Partition:
        """What each rank needs of a tensor of shape `wanted` that is broadcast to this.

        Dimensions align at the last one. A dimension of extent 1 is on all ranks.
        """
        if tuple(wanted) == tuple(self.shape):
            return self
        layout = needed(self.layout, wanted, aligned(wanted, self.shape))
        return Partition(layout, of=self.of)

    def expanded(self, wanted: Sequence[int]) -> Partition:
        """This, broadcast to a larger shape: all ranks hold the new extents."""
        return self.with_boxes(wanted, expanded(self.layout, wanted).boxes)

    def uncut_along(self, dims: Sequence[int]) -> Partition:
        """A partition in which some dimensions are not cut; this one if that is so.

        All ranks have the whole where no dimension is left to be cut.
        """
        whole = tuple(self.shape)
        if len(set(dims)) == len(whole):
            return Partition(replicated(whole, self.ranks), of=self.of)
        layout = even(whole, self.ranks) if self.refined else self.layout
        form = whole_along(whole, dims, whole, range(len(whole)))
        return Partition(fitting(layout, form), of=self.of)


def require_same_ranks(one: Partition, other: Partition) -> None:
    """Raise `ValueError` if two tensors lie on other ranks."""
    if one.ranks.members != other.ranks.members:
        raise ValueError(
            f"one tensor is on ranks {list(one.ranks.members)}, the other on"
            f" {list(other.ranks.members)}; gather one with full_tensor()"
        )
