"""Parallel input: every rank reads its shard of every batch, and nothing else.

    for shard in synth.feed(net, "volumes.npy"):          # or a file.h5 with dataset="x", or raw words
        loss = criterion(net.gather(net(shard)), ...)

A file holds samples as torch has them, (samples, channels, *spatial). `.npy` and raw files are mapped into
memory, of HDF5 files the hyperslab is read, so a rank needs memory for its own words only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from synth.base.errors import InputError, UsageError
from synth.base.units import show_bytes
from synth.layer.axes import SPATIAL, Tensor
from synth.layer.intervals import Interval
from synth.layer.nest import Nest
from synth.planning.plan import Plan

if TYPE_CHECKING:
    import torch

    from synth.runtime.model.network import Network
    from synth.runtime.tensor.partition import Partition

PROGRESS_SECONDS = 5.0  # the first rank reports the progress of a slow batch this often
Rows = Sequence[slice]  # along one dimension: what to read, in order


@dataclass
class Samples:
    """An open file of samples; `bytes_read` counts what was taken out of it."""

    name: str
    values: Any  # sliced like an array
    bytes_read: int = field(default=0, init=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, *spatial)."""
        return tuple(self.values.shape)

    def read(self, sample: int, rows: Sequence[Rows]) -> NDArray[Any]:
        """Some rows of one sample, as (1, channels, *spatial)."""
        part = self._along((slice(sample, sample + 1),), rows)
        self.bytes_read += part.nbytes
        return part

    def _along(self, chosen: tuple[slice, ...], rest: Sequence[Rows]) -> NDArray[Any]:
        if not rest:
            return np.array(self.values[chosen])
        first, *others = rest
        parts = [self._along((*chosen, each), others) for each in first]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=len(chosen))


def open_samples(
    file: str | os.PathLike[str],
    *,
    dataset: str | None = None,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Samples:
    """A `.npy` file, the `dataset` of an HDF5 file, or raw words of a `shape` and `dtype` in row-major order.

    Raises `InputError` for a file that cannot be read so, `UsageError` for contradicting arguments.
    """
    name = os.fspath(file)
    if not os.path.isfile(name):
        raise InputError(f"{name}: no such file, or not a plain one; name a file of samples")
    if dataset is not None:
        return Samples(name, _hdf5(name, dataset))
    if (shape is None) is not (dtype is None):
        raise UsageError(f"{name}: give shape and dtype of a raw file, or neither of another one")
    try:
        if shape is not None and dtype is not None:
            words = np.memmap(name, np.dtype(dtype), "r")
            return Samples(name, words[: int(np.prod(shape))].reshape(tuple(shape)))
        return Samples(name, np.load(name, mmap_mode="r", allow_pickle=False))
    except (ValueError, TypeError, OSError, EOFError) as fault:
        raise InputError(
            f"{name}: {fault}; "
            "it must be an .npy file, or hold the words of shape and dtype, or name a dataset"
        ) from fault


def _hdf5(name: str, dataset: str) -> Any:
    try:
        import h5py
    except ImportError as fault:
        raise UsageError(f"{name}: HDF5 files need h5py; install it, or write an .npy file") from fault
    try:
        return h5py.File(name, "r")[dataset]
    except (OSError, KeyError) as fault:
        raise InputError(
            f"{name}: dataset {dataset} cannot be read ({fault}); name one of its datasets"
        ) from fault


@dataclass(frozen=True)
class ShardSelection:
    """What a rank reads of every batch: which of its samples, and which rows of each."""

    batch: int
    samples: Interval
    rows: tuple[Rows, ...]  # of channels and spatial dimensions
    whole: tuple[int, ...]  # of a sample

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, *spatial) of the shard."""
        sizes = (sum(len(range(*each.indices(n))) for each in rows)
                 for rows, n in zip(self.rows, self.whole, strict=True))  # fmt: skip
        return (self.samples[1] - self.samples[0], *sizes)


def of_network(net: Network) -> ShardSelection:
    """What this rank owns of the input of a parallel network."""
    layout = net.program.layouts[net.program.input]
    samples, *rest = layout.mine
    return ShardSelection(layout.whole[0], samples, tuple((slice(*each),) for each in rest), layout.whole[1:])


def of_plan(plan: Plan, rank: int, halo: bool = False) -> ShardSelection:
    """What a rank owns of In, or with `halo` the rows that its block reads of the channels that it owns.

    Rows that a stride skips are not read. What a transposed layer is given is Out of its nest, without halo.
    """
    if plan.layer.kind == "matmul":
        raise UsageError(f"{plan.layer.name} is a matrix product; feed convolutions")
    at = plan.distribution.at(rank)
    given: Tensor = "Out" if plan.layer.transposed else "In"
    box = plan.distribution.carried(given, at) if halo else plan.distribution.owned(given, at)
    samples, group, channel, *spatial = box
    n = plan.nest.extents
    width = n.k if plan.layer.transposed else n.c
    channels = [slice(g * width + channel[0], g * width + channel[1]) for g in range(*group)]
    rows = [
        (slice(*interval),) if plan.layer.transposed else _runs(plan.nest, axis, interval)
        for axis, interval in zip(SPATIAL, spatial, strict=True)
        if axis in plan.layer.spatial_axes
    ]
    return ShardSelection(plan.layer.input[0], samples, (channels, *rows), plan.layer.input[1:])


def _runs(nest: Nest, axis: str, interval: Interval) -> Rows:
    """The user's rows that an interval of the rows that are read stands for."""
    rows = [nest.windows[axis].source(row) for row in range(*interval)]
    if not rows:
        return (slice(0, 0),)
    steps = {after - before for before, after in pairwise(rows)}
    if len(steps) <= 1:
        return (slice(rows[0], rows[-1] + 1, steps.pop() if steps else 1),)
    ends = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1]
    return [slice(rows[i], rows[j - 1] + 1) for i, j in zip([0, *ends], [*ends, len(rows)], strict=True)]


def feed(
    target: Network | Plan,
    file: str | os.PathLike[str] | Samples,
    *,
    order: Sequence[int] | None = None,
    rank: int | None = None,
    halo: bool = False,
    dataset: str | None = None,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Feed:
    """The shards of this rank, batch after batch, of a file of samples.

    target: a network of `parallelize`, or the plan of one layer: then for `rank` (this one), with its `halo`.
    order: samples in the order of the epoch, alike on all ranks; as they lie in the file by default. A rest
        that fills no batch is left out. R replicas take turns: each is fed every R-th batch, and all as many.
    dataset, shape, dtype: see `open_samples`.

    Raises `InputError` where the file does not hold samples of the target's shape.
    """
    samples = (
        file if isinstance(file, Samples) else open_samples(file, dataset=dataset, shape=shape, dtype=dtype)
    )
    if isinstance(target, Plan):
        selection = of_plan(target, _rank() if rank is None else rank, halo)
        word = target.nest.dtype
    else:
        if halo or rank is not None:
            raise UsageError("halo and rank are for the plan of one layer; a network fetches its own halo")
        selection, word = of_network(target), str(target.program.dtype).removeprefix("torch.")
    if samples.shape[1:] != selection.whole:
        raise InputError(
            f"{samples.name}: samples are {samples.shape[1:]}, but {selection.whole} are planned; "
            "plan for this shape"
        )
    places = range(samples.shape[0]) if order is None else order
    turns = 1 if isinstance(target, Plan) else target.ranks.replica_count
    if len(places) < selection.batch * turns:
        each = f" for each of {turns} replicas" if turns > 1 else ""
        raise InputError(
            f"{samples.name}: {len(places)} samples fill no batch of {selection.batch}{each}; plan fewer"
        )
    if isinstance(target, Plan):
        return Feed(samples, selection, places, word, reports=_rank() == 0)
    ranks = target.ranks
    if ranks.replicas is not None:
        places = turn_of(places, selection.batch, turns, ranks.replicas.me)
    return Feed(samples, selection, places, word, ranks.reports, target.input_partition)


def turn_of(order: Sequence[int], batch: int, turns: int, mine: int) -> list[int]:
    """The samples of every `turns`-th batch, the first of which has the number `mine`."""
    rounds = len(order) // (batch * turns)
    firsts = [(each * turns + mine) * batch for each in range(rounds)]
    return [order[first + place] for first in firsts for place in range(batch)]


def _partitioned(shard: torch.Tensor, partition: Partition) -> torch.Tensor:
    from synth.runtime.tensor.partitioned import PartitionedTensor

    return PartitionedTensor.from_local(shard, partition)


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


@dataclass
class Feed:
    """Shards, one for each whole batch; the next one is read while this one is used."""

    samples: Samples
    selection: ShardSelection
    order: Sequence[int]
    dtype: str
    reports: bool  # whether this rank reports progress
    partition: Partition | None = None  # of a network's input

    def __len__(self) -> int:
        """Batches."""
        return len(self.order) // self.selection.batch

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Batches in torch's own layout, (samples, channels, *spatial).

        For a network they are partitioned tensors, for the plan of a layer shards.
        """
        with ThreadPoolExecutor(1) as reader:
            next_batch = reader.submit(self.shard, 0) if len(self) else None
            for step in range(len(self)):
                assert next_batch is not None
                shard = next_batch.result()
                next_batch = reader.submit(self.shard, step + 1) if step + 1 < len(self) else None
                yield shard if self.partition is None else _partitioned(shard, self.partition)

    def shard(self, step: int) -> torch.Tensor:
        """This rank's shard of one batch."""
        import torch

        low, high = (step * self.selection.batch + end for end in self.selection.samples)
        result = torch.empty(self.selection.shape, dtype=getattr(torch, self.dtype))
        begin = last_report = time.monotonic()
        for place, index in enumerate(range(low, high)):
            part = self.samples.read(self.order[index], self.selection.rows)
            result[place] = torch.from_numpy(part)[0]
            if time.monotonic() - last_report > PROGRESS_SECONDS and self.reports:
                last_report = time.monotonic()
                progress = (
                    f"{place + 1} of {high - low} samples, {show_bytes(self.samples.bytes_read)} in all"
                )
                print(
                    f"{self.samples.name}: batch {step}: {progress}, {last_report - begin:.0f} s",
                    file=sys.stderr,
                )
        return result
