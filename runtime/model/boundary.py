"""Where a network takes tensors and gives them: global outside, local parts inside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from synth.runtime.comm.redistribute import sum_gradient
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.steps.held import local_part
from synth.runtime.model.checks.versions import Before
from synth.runtime.tensor import dtensor
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import FromLocal, PartitionedTensor, save_last

SHARED = "in the model, an input or another output has memory of it"


def entered(
    batches: Mapping[str, torch.Tensor],
    places: Mapping[str, Partition],
    ranks: Ranks,
    what: str,
) -> list[torch.Tensor]:
    """This rank's parts of the inputs, in their order.

    batches: by name, each the whole, a partitioned tensor, a DTensor, or the own part.
    places: the partitions in which the network reads them. what: the ranks are about to
    do, for messages.

    Raises `ValueError` for a batch of another shape or on other ranks, and
    `RuntimeError` on all ranks if they call other things or give other batches.
    """
    given = {name: _partitioned(batch, ranks) for name, batch in batches.items()}
    parts = {
        name: batch
        for name, batch in given.items()
        if _is_part(name, batch, places[name], ranks)
    }
    wholes = {
        name: batch
        for name, batch in given.items()
        if name not in parts and not isinstance(batch, PartitionedTensor)
    }
    for name, batch in wholes.items():
        ranks.note(f"batch{_as(name)}", batch)
    if wholes or not parts:
        ranks.require(what)
        what += ", its own parts"
    for name, batch in parts.items():
        if ranks.same(what, batch) and batch.detach().any():
            raise ValueError(
                f"all ranks were given the same batch of {tuple(batch.shape)}, but"
                f" the network is planned for {tuple(places[name].shape)}; give the"
                " whole batch, or on each rank its own part"
            )
    return [
        batch if name in parts else _cut(batch, places[name])
        for name, batch in given.items()
    ]


def _partitioned(batch: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The same tensor, partitioned where it was a DTensor."""
    if not isinstance(batch, DTensor):
        return batch
    place = dtensor.partition_of(batch, ranks)
    return PartitionedTensor.from_local(batch.to_local(), place)


def _is_part(name: str, batch: torch.Tensor, place: Partition, ranks: Ranks) -> bool:
    """Whether this is the part of one rank; `ValueError` if it is not the whole."""
    if batch.shape == place.shape:
        return False
    if batch.shape == place.local_shape and not isinstance(batch, PartitionedTensor):
        return True
    raise ValueError(
        f"rank {ranks.rank} was given a batch of {tuple(batch.shape)}{_as(name)}, but"
        f" the network is planned for {tuple(place.shape)}, of which this rank holds"
        f" {place.local_shape}; give the whole batch or `scatter(batch)`"
    )


def _as(name: str) -> str:
    return "" if name == "x" else f" as {name}"


def _cut(batch: torch.Tensor, place: Partition) -> torch.Tensor:
    """The own part of a whole or partitioned tensor.

    All ranks hold a single word, and each has a part of its gradient.
    """
    if isinstance(batch, PartitionedTensor):
        moved: Any = batch.redistribute(place)
        return _summed(local_part(moved), place)
    if batch.requires_grad and torch.is_grad_enabled():
        return _summed(local_part(PartitionedTensor.from_whole(batch, place)), place)
    own = place.cut(batch)
    return own if place.ranks.size == 1 else own.contiguous()


def _summed(own: torch.Tensor, place: Partition) -> torch.Tensor:
    if place.shape or not own.requires_grad or place.ranks.size == 1:
        return own
    return sum_gradient(own, place.ranks.group)


def left(
    made: Iterable[torch.Tensor],
    places: Iterable[Partition],
    before: Before,
    shared: Collection[int] = (),
    what: str = "",
) -> list[torch.Tensor]:
    """The outputs of the network from this rank's parts.

    before: what the ranks first do in the backward pass. A single number is a plain
    tensor, the same on all ranks. shared: places of outputs that may not be changed in
    place, since in the model they have memory of an input or of another output.
    what: the ranks have done, for messages.
    """
    outs = []
    for number, (part, place) in enumerate(zip(made, places, strict=True)):
        kind: Any = FromLocal if place.shape else Number
        words = part.resolve_conj().resolve_neg()  # not a view that says so by a flag
        named = place.named(f"output {number} of {what}")
        out: Any = kind.apply(words, named, partial(before, number))
        outs.append(out.copied(SHARED) if number in shared and place.shape else out)
    before.begins_at(outs)
    return outs


def with_zeros(
    made: torch.Tensor, leaves: Iterable[torch.Tensor | None]
) -> torch.Tensor:
    """An output whose gradient gives zeros to other tensors, too; no word moves."""
    trained = [each for each in leaves if each is not None and each.requires_grad]
    if not trained or not torch.is_grad_enabled():
        return made
    out: torch.Tensor = WithZeros.apply(made, *trained)  # type: ignore[no-untyped-call]
    return out


class WithZeros(torch.autograd.Function):
    """The same values, and a gradient of zeros to other tensors."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """The same values."""
        ctx.others = others
        return made.view_as(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gradient, and zeros."""
        return gradient, *map(torch.zeros_like, ctx.others)


def side_of(
    batch: torch.Tensor, sides: Mapping[str, Partition], like: str | None
) -> Partition:
    """The partition of a whole batch, or of whole targets.

    sides: of the inputs and outputs, by name. like: one of them; None for that which
    has the shape.

    Raises `ValueError` where none has it, or several lie differently.
    """
    if like is not None and like not in sides:
        names = " or ".join(sides)
        raise ValueError(f"a batch is like {names}, not like {like!r}")
    wanted = sides if like is None else {like: sides[like]}
    fits = {s: place for s, place in wanted.items() if place.shape == batch.shape}
    if not fits:
        shapes = " nor ".join(f"{s} of {tuple(wanted[s].shape)}" for s in wanted)
        more = "; give the network a batch of another shape as it is"
        more = "" if list(wanted) == ["output"] else more
        raise ValueError(f"a batch of {tuple(batch.shape)} is no {shapes}{more}")
    first = next(iter(fits.values()))
    if any(place != first for place in fits.values()):
        names = " or ".join(f"like={side!r}" for side in fits)
        raise ValueError(
            f"a batch of {tuple(batch.shape)} may be {' or '.join(fits)}, which lie"
            f" differently; add {names}"
        )
    return first


def whole_of(values: torch.Tensor, place: Partition | None) -> torch.Tensor:
    """All words of a partitioned tensor, or of a part in the box of a place."""
    if not isinstance(values, PartitionedTensor):
        if place is None or not place.shape:
            return values
        values = PartitionedTensor.from_local(values, place)
    whole: torch.Tensor = values.full_tensor()  # type: ignore[attr-defined]
    return whole


class Number(torch.autograd.Function):
    """A single number, which all ranks have; the first rank takes its gradient."""

    @staticmethod
    def forward(
        ctx: Any, number: torch.Tensor, place: Partition, before: Callable[[], None]
    ) -> torch.Tensor:
        """The same number."""
        ctx.ranks, ctx.before = place.ranks, before
        save_last(ctx, number)
        return number.view_as(number)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient on the first rank, zero on the others."""
        _ = ctx.saved_tensors
        ctx.ranks.note("gradient of an output", gradient)
        ctx.before()
        share = gradient if ctx.ranks.me == 0 else torch.zeros_like(gradient)
        return share, None, None
