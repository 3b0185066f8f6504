"""Which samples each batch of an epoch has: the same on all ranks that hold parts of a batch."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DistributedSampler

from synth.base.errors import UsageError

if TYPE_CHECKING:
    from synth.runtime.grid.ranks import Ranks
    from synth.runtime.model.network import Network

Batches = list[list[int]]


def sampler(net: Network, dataset: Any, **options: Any) -> DistributedSampler[Any]:
    """torch's `DistributedSampler` for a network: it deals samples to replicas, not to ranks.

    All ranks of a replica compute each sample together, so they need the same samples in the same order. One
    replica gets the whole data set. options: shuffle, seed and drop_last of `DistributedSampler`.
    """
    number = 0 if net.ranks.replicas is None else net.ranks.replicas.me
    return DistributedSampler(dataset, net.ranks.replica_count, number, **options)


def require_dealt_to_replicas(given: Any, ranks: Ranks) -> bool:
    """Whether an order is one of torch's `DistributedSampler`, which deals samples to replicas.

    Raises `UsageError` if it deals them to ranks that compute samples together.
    """
    if not (hasattr(given, "num_replicas") and hasattr(given, "rank")):
        return False
    count, number = ranks.replica_count, 0 if ranks.replicas is None else ranks.replicas.me
    if (given.num_replicas, given.rank) != (count, number):
        raise UsageError(
            f"the sampler gives rank {ranks.rank} share {given.rank} of {given.num_replicas}, but the ranks"
            f" {list(ranks.members)} compute each sample together and need share {number} of {count}; use"
            " synth.sampler(net, dataset)"
        )
    return True


class Epochs:
    """The orders of samples, epoch after epoch.

    order: a sequence, or a sampler of torch, which gives another order in each epoch. Every rank of all
    replicas has the same one; R replicas take turns: each is given every R-th batch, and all as many.
    A `DistributedSampler` gives each replica its own samples; see `sampler`.

    Raises `UsageError` for a `DistributedSampler` over ranks that compute samples together.
    """

    def __init__(self, order: Iterable[Any], ranks: Ranks, what: str) -> None:
        self.order, self.ranks, self.what = order, ranks, what
        self.deals = require_dealt_to_replicas(getattr(order, "sampler", order), ranks)

    def batches(self, size: int, drop_last: bool) -> Batches:
        """The batches of this rank's replica in the next epoch. All ranks of all replicas call this.

        Without `drop_last`, the last batch has the rest.

        Raises `UsageError` on all ranks if the order of samples differs between them.
        """
        order = [int(each) for each in self.order]
        self._require_alike(order)
        turns = 1 if self.deals else self.ranks.replica_count
        return dealt(order, size, turns, _number(self.ranks), drop_last)

    def given_batches(self) -> Batches:
        """The same where the order gives whole batches, as a `BatchSampler` does.

        Where replicas take turns, they get batches of one size; a smaller one at the end is left out.
        """
        given = [[int(each) for each in batch] for batch in self.order]
        self._require_alike([each for batch in given for each in (-len(batch), *batch)])
        if self.deals:
            return given
        turns = self.ranks.replica_count
        rounds = [given[first : first + turns] for first in range(0, len(given) // turns * turns, turns)]
        return [each[_number(self.ranks)] for each in rounds if len(set(map(len, each))) == 1]

    def _require_alike(self, order: Sequence[int]) -> None:
        """Raise `UsageError` on all ranks if they have other orders."""
        ranks, digest = self.ranks, zlib.crc32(np.asarray(order, np.int64).tobytes())
        from synth.runtime.comm.group_tree import combined
        from synth.runtime.grid.rank_tree import Said

        ranks.require_all(f"an epoch of {self.what}")
        row, everyone = _number(ranks) if self.deals else 0, ranks.everyone
        lengths = len(order), self._shuffle()
        own = {row: Said(repr((digest, *lengths)), everyone.me)}
        told, lengths_told = combined(everyone, (own, Said(repr(lengths), everyone.me)), _both, _apart)
        if told is not None:  # among ranks with equal samples
            one, other = (everyone.members[place] for place in (told.rank, told.other))
            raise UsageError(
                f"{self.what}: rank {other} has another order of samples than rank {one}; shuffle alike"
                " on all ranks, as by sampler=synth.sampler(net, dataset, seed=0)"
            )
        if lengths_told.other >= 0:
            raise UsageError(
                f"{self.what}: replicas have samplers of other lengths, seeds or epochs; give all the same,"
                " and call set_epoch on all"
            )

    def _shuffle(self) -> tuple[Any, ...]:
        source = getattr(self.order, "sampler", self.order)
        return tuple(getattr(source, name, None) for name in ("shuffle", "seed", "epoch"))


def _both(own: Any, child: Any) -> Any:
    """What two subtrees say: by replica, and of lengths."""
    rows = dict(own[0])
    for row, said in child[0].items():
        rows[row] = rows[row].with_child(said) if row in rows else said
    return rows, own[1].with_child(child[1])


def _apart(told: Any) -> Any:
    """The first replica of which two ranks differ, if any, and lengths."""
    rows = (said for _, said in sorted(told[0].items()) if said.other >= 0)
    return next(rows, None), told[1]


def dealt(order: Sequence[int], size: int, turns: int, mine: int, drop_last: bool = True) -> Batches:
    """Every `turns`-th batch, the first of which has the number `mine`; and an equal part of the rest.

    Where the rest does not divide by `turns`, its last samples are left out.
    """
    rounds = len(order) // (size * turns)
    firsts = [(each * turns + mine) * size for each in range(rounds)]
    found = [list(order[first : first + size]) for first in firsts]
    rest = (len(order) - rounds * turns * size) // turns
    if rest and not drop_last:
        first = rounds * turns * size + mine * rest
        found.append(list(order[first : first + rest]))
    return found


def count_of_batches(samples: int, size: int, turns: int, drop_last: bool) -> int:
    """How many batches `dealt` gives of so many samples."""
    rounds = samples // (size * turns)
    return rounds + (not drop_last and (samples - rounds * turns * size) >= turns)


def _number(ranks: Ranks) -> int:
    return 0 if ranks.replicas is None else ranks.replicas.me
