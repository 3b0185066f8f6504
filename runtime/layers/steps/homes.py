"""Parameters that several steps use: held in one partition, moved to the others.

The home of a parameter is where the optimizer finds it. A step that wants other words
gets them before it computes, and its gradients travel back.
"""

from __future__ import annotations

import torch

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.exchanges import (
    Exchange,
    Words,
    added,
    moved,
    none,
    summed,
)
from synth.runtime.comm.layout import Layout, one_owner, replicated, split_copies
from synth.runtime.comm.messages import all_reduce
from synth.runtime.comm.redistribute import Count, add_boxes, fetch_boxes
from synth.runtime.grid.boxes import within
from synth.runtime.grid.scatter_gather import gather_shards
from synth.runtime.grid.spans import waiting
from synth.runtime.layers.steps.expression import counted_once
from synth.runtime.layers.steps.held import Held
from synth.runtime.tensor.partition import Partition


def is_at_home(use: Held, home: Held) -> bool:
    """Whether a step uses a parameter as it is held. The same on all ranks.

    It then uses the very tensor, which it may change, if it is a buffer.
    """
    if use.partition is None or home.partition is None:
        return use.partition is home.partition
    alike = use.is_buffer or use.copies == home.copies
    return use.partition == home.partition and alike


def fetched(values: torch.Tensor, home: Held, use: Held, count: Count) -> torch.Tensor:
    """The words that a step uses, from the ranks that hold them; differentiable."""
    if home.partition is None:  # whole on every rank, and not trained
        return values if use.partition is None else use.partition.cut(values)
    source, target = home.partition, use.partition
    assert target is not None
    return with_adjoint(
        values,
        lambda own: moved_words(own, source, target, count),
        lambda gradient: _gradient_at_home(gradient, home, use, count),
    )


def write_back(
    values: torch.Tensor, own: torch.Tensor, home: Held, use: Held, count: Count
) -> None:
    """Copy a buffer that a step may have changed to where it is held."""
    if home.partition is None or use.partition is None:
        return
    own.copy_(moved_words(values, use.partition, home.partition, count))


def _gradient_at_home(
    gradient: torch.Tensor, home: Held, use: Held, count: Count
) -> torch.Tensor:
    """The gradient as its home wants it: whole, or in parts to be added there."""
    place, used = home.partition, use.partition
    assert place is not None
    assert used is not None
    part, held = counted_once(gradient, use), used.layout
    if held.whole != place.layout.whole:  # other refinements of one shape
        whole = part.new_zeros(held.whole)
        whole[within(used.box, used.frame)] = part
        part = whole.reshape(place.layout.whole)
        held = replicated(place.layout.whole, held.ranks)
    return _at_home(part.contiguous(), held, home, count)


def _at_home(
    part: torch.Tensor, held: Layout, home: Held, count: Count
) -> torch.Tensor:
    """The sum of parts: on all ranks that hold a word, or on one if they are added."""
    place = home.partition
    assert place is not None
    if not place.layout.whole:
        if held.ranks.size > 1:
            with waiting("wait for a sum"):
                all_reduce(part, held.ranks.group).wait()
        return part if not home.copies or held.ranks.me == 0 else part * 0
    owned = one_owner(place.layout)
    total = add_boxes(part, held, owned, count)
    if not home.copies:
        return fetch_boxes(total, owned, place.layout, count)
    own = total.new_zeros(place.local_shape)
    own[within(owned.mine, place.box)] = total
    return own


def moved_words(
    values: torch.Tensor, source: Partition, target: Partition, count: Count
) -> torch.Tensor:
    """The words of the target's box, from those that hold them."""
    layout = source.layout
    if source.replicated:
        whole = values.reshape(source.shape)
    elif source.disjoint:
        owned, direct = split_copies(layout), layout.whole == target.layout.whole
        own = values[within(owned.mine, source.box)].contiguous()
        if direct:
            return fetch_boxes(own, owned, target.layout, count)
        every = replicated(layout.whole, layout.ranks)
        whole = fetch_boxes(own, owned, every, count).reshape(source.shape)
    else:
        boxes, ranks = layout.boxes, layout.ranks
        whole = gather_shards(values, boxes, layout.whole, ranks).reshape(source.shape)
    return target.cut(whole).clone(memory_format=torch.contiguous_format)


# -- the words of all ranks, from their boxes ------------------------------------------


def planned_words(source: Partition, target: Partition) -> Words:
    """What `moved_words` counts. Boxes that overlap in part are not counted."""
    layout = source.layout
    if source.replicated or not source.disjoint:
        return none(layout)
    direct = layout.whole == target.layout.whole
    wanted = target.layout if direct else replicated(layout.whole, layout.ranks)
    found = moved(split_copies(layout), wanted)
    return found[0].forward if found else none(layout)


def planned_fetch(home: Held, use: Held) -> list[Exchange]:
    """What ranks receive in `fetched`, and when the gradient travels back."""
    place, used = home.partition, use.partition
    if place is None or used is None:  # whole on every rank
        return []
    back = [none(place.layout)]
    if place.layout.whole:
        held, owned = used.layout, one_owner(place.layout)
        if held.whole != place.layout.whole:
            held = replicated(place.layout.whole, held.ranks)
        back += [each.forward for each in summed(held, owned)]
        if not home.copies:
            back += [each.forward for each in moved(owned, place.layout)]
    return [Exchange(planned_words(place, used), added(back), (use.name,))]
