"""Parallel input: every rank reads its shard of every batch, and nothing else.

    for shard in synth.feed(net, "volumes.npy"):      # or x.h5, x.zarr with dataset="x", or raw words
        loss = criterion(net(shard), ...)

A file holds samples as torch has them, (samples, channels, *spatial). `.npy` and raw files are mapped into
memory, of HDF5 and zarr arrays the box is read, so a rank needs memory for its own words only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from synth.base.errors import InputError, UsageError
from synth.base.units import show_bytes
from synth.parallel.input.loader import LoaderFeed
from synth.parallel.input.order import Batches, Epochs, count_of_batches, dealt
from synth.parallel.input.samples import Rows, Samples, samples_of
from synth.parallel.input.selection import Places, ShardSelection, of_partition, of_plan
from synth.planning.plan import Plan
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor

if TYPE_CHECKING:
    from synth.runtime.model.network import Network

PROGRESS_SECONDS = 5.0  # the first rank reports the progress of a slow batch this often
Placed = tuple[ShardSelection, Partition | None]


def feed(
    target: Network | Plan,
    data: Any,
    *,
    order: Iterable[int] | None = None,
    labels: Any = None,
    drop_last: bool = True,
    rank: int | None = None,
    halo: bool = False,
    dataset: str | None = None,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Feed | LoaderFeed:
    """The shards of this rank, batch after batch, of a file of samples or a `DataLoader` of torch.

    target: a network of `parallelize`, or the plan of one layer: then for `rank` (this one), with its `halo`.
    data: a file, an open array such as `zarr.Array`, what `open_samples` gives, or a `DataLoader` over a
        map-style dataset; see `LoaderFeed` for the latter.
    order: samples in the order of the epoch, alike on all ranks; as they lie in the file by default. R
        replicas take turns: each is fed every R-th batch, and all as many. A sampler of torch gives another
        order in each epoch; `synth.sampler` makes a fitting `DistributedSampler`.
    labels: a file, array or `Samples` with as many samples. Each batch is then a pair. Of a network, labels
        are partitioned like the output that has their shape, with or without its channels.
    drop_last: leave out a rest that fills no batch. Else it is a smaller batch, planned on first use.
    dataset, shape, dtype: of the file; see `open_samples`.

    Raises `InputError` where the file does not hold samples of the target's shape, and `UsageError` for a
    sampler that gives other samples to ranks that compute them together.
    """
    if isinstance(data, DataLoader):
        others = (order, labels, rank, dataset, shape, dtype)
        if isinstance(target, Plan) or halo or any(each is not None for each in others):
            raise UsageError("a DataLoader brings its own order and labels; feed(net, loader) takes no more")
        return LoaderFeed(target, data)
    samples = samples_of(data, dataset=dataset, shape=shape, dtype=dtype)
    if isinstance(target, Plan):
        if labels is not None or not drop_last:
            raise UsageError("labels and drop_last=False are for a network, not for the plan of one layer")
        return _of_plan(target, samples, order, _rank() if rank is None else rank, halo)
    if halo or rank is not None:
        raise UsageError("halo and rank are for the plan of one layer; a network fetches its own halo")
    return _of_network(target, samples, None if labels is None else samples_of(labels), order, drop_last)


def _of_plan(plan: Plan, samples: Samples, order: Iterable[int] | None, rank: int, halo: bool) -> Feed:
    selection = of_plan(plan, rank, halo)
    places = range(len(samples)) if order is None else list(order)
    _require_shapes(samples, selection.whole, selection.batch, len(places), 1)
    batches = dealt(places, selection.batch, 1, 0)
    dtype = getattr(torch, plan.nest.dtype)
    return Feed([samples], dtype, lambda _: [(selection, None)], lambda: batches, len(batches), _rank() == 0)


def _of_network(
    net: Network, samples: Samples, labels: Samples | None, order: Iterable[int] | None, drop_last: bool
) -> Feed:
    ranks, place = net.ranks, net.input_partition
    batch, *whole = place.shape
    places: Any = range(len(samples)) if order is None else order
    if not hasattr(places, "__len__"):
        places = list(places)  # which would be empty in the second epoch
    epochs = Epochs(places, ranks, samples.name)
    turns = 1 if epochs.deals else ranks.replica_count
    _require_shapes(samples, tuple(whole), batch, len(places), turns if drop_last else 0)
    files = [samples] if labels is None else [samples, labels]
    if labels is not None and len(labels) != len(samples):
        raise InputError(
            f"{labels.name}: {len(labels)} labels for {len(samples)} samples of {samples.name}; give as many"
        )

    def placed(size: int) -> list[Placed]:
        found = Places(net, size).of([each.sample_shape for each in files])
        return [(of_partition(each), each) for each in found]

    count = count_of_batches(len(places), batch, turns, drop_last)
    epoch = lambda: epochs.batches(batch, drop_last)  # noqa: E731
    return Feed(files, net.program.dtype, placed, epoch, count, ranks.reports)


def _require_shapes(samples: Samples, whole: tuple[int, ...], batch: int, count: int, turns: int) -> None:
    """Raise `InputError` for samples of another shape, or too few. turns: 0 if any number will do."""
    if samples.sample_shape != whole:
        raise InputError(
            f"{samples.name}: samples are {samples.sample_shape}, but {whole} are planned;"
            " plan for this shape"
        )
    if count < batch * turns:
        each = f" for each of {turns} replicas" if turns > 1 else ""
        raise InputError(f"{samples.name}: {count} samples fill no batch of {batch}{each}; plan fewer")


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class Feed:
    """Shards, batch after batch; the next one is read while this one is used.

    files: of samples, and of labels if there are any. dtype: in which samples are given; labels keep theirs.
    placed: what of each file this rank reads of a batch of some number of samples, and how it is partitioned.
    epoch: gives the batches of the next epoch. count: of these. reports: whether this rank reports progress.
    """

    def __init__(
        self,
        files: Sequence[Samples],
        dtype: torch.dtype,
        placed: Callable[[int], list[Placed]],
        epoch: Callable[[], Batches],
        count: int,
        reports: bool,
    ) -> None:
        self.files, self.dtype, self.reports = files, dtype, reports
        self._placed, self._epoch, self._count = placed, epoch, count

    @property
    def samples(self) -> Samples:
        """The file of samples."""
        return self.files[0]

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._count

    def __iter__(self) -> Iterator[Any]:
        """Batches in torch's own layout, (samples, channels, *spatial); with labels, pairs.

        For a network they are partitioned tensors, for the plan of a layer shards.
        """
        batches = self._epoch()
        placed = {size: self._placed(size) for size in dict.fromkeys(map(len, batches))}
        with ThreadPoolExecutor(1) as reader:

            def read(step: int) -> Any:
                return reader.submit(self._read, step, batches[step], placed[len(batches[step])])

            coming = read(0) if batches else None
            for step, batch in enumerate(batches):
                assert coming is not None
                parts = coming.result()
                coming = read(step + 1) if step + 1 < len(batches) else None
                pairs = zip(parts, placed[len(batch)], strict=True)
                made = [_partitioned(part, place) for part, (_, place) in pairs]
                yield made[0] if len(made) == 1 else tuple(made)

    def _read(self, step: int, batch: Sequence[int], placed: Sequence[Placed]) -> list[torch.Tensor]:
        """This rank's shards of one batch."""
        found = []
        for file, (selection, _) in zip(self.files, placed, strict=True):
            dtype = self.dtype if file is self.samples else file.dtype
            shard = torch.empty(selection.shape, dtype=dtype)
            self._fill(shard, step, file, batch[slice(*selection.samples)], selection.rows)
            found.append(shard)
        return found

    def _fill(
        self, shard: torch.Tensor, step: int, file: Samples, chosen: Sequence[int], rows: Sequence[Rows]
    ) -> None:
        begin = last_report = time.monotonic()
        for place, sample in enumerate(chosen):
            shard[place] = torch.from_numpy(file.read(sample, rows))[0]
            if time.monotonic() - last_report > PROGRESS_SECONDS and self.reports:
                last_report = time.monotonic()
                progress = f"{place + 1} of {len(chosen)} samples, {show_bytes(file.bytes_read)} in all"
                seconds = f"{last_report - begin:.0f} s"
                print(f"{file.name}: batch {step}: {progress}, {seconds}", file=sys.stderr)


def _partitioned(part: torch.Tensor, place: Partition | None) -> torch.Tensor:
    return part if place is None else PartitionedTensor.from_local(part, place)
