"""A `DataLoader` of torch whose ranks load the samples of which they hold parts, and no others."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, StackDataset, default_collate

from synth.base.errors import UsageError
from synth.parallel.input.order import Epochs
from synth.parallel.input.samples import Rows, Samples
from synth.parallel.input.selection import Places, of_partition
from synth.runtime.comm.group_tree import combined
from synth.runtime.grid.boxes import within
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor

if TYPE_CHECKING:
    from synth.runtime.model.network import Network

Component = str | int  # of what a data set gives: the key in a dict, or the place in a tuple
KEPT = (
    *("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)


class LoaderFeed:
    """The batches of a `DataLoader`, partitioned for a network.

        data = StackDataset(synth.open_samples("x.zarr"), labels)       # or any map-style dataset
        loader = DataLoader(data, batch, sampler=synth.sampler(net, data), num_workers=4)
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for images, labels in synth.feed(net, loader): ...

    Each rank loads those samples of a batch of which it holds something, with the loader's own workers,
    `collate_fn` and prefetching. Of `Samples` alone, or in torch's `StackDataset` with the default
    `collate_fn`, a rank reads its own box. Of any other dataset it loads whole samples and keeps its box.

    In each batch, every tensor with one entry for each sample becomes a partitioned tensor: the first with
    the shape of an input of the network lies as this input, the others as the output that they are compared
    with (see `Places.label`). What is no such tensor stays: it is of the samples that this rank loads.

    While a sample is made, the generators of torch, numpy and random have one state on all ranks, so they
    draw the same augmentation. Ranks compare the samples that several of them load, in every batch.

    Raises `UsageError` for a sampler that gives other samples to ranks that compute them together, and for
    a loader whose ranks cannot choose samples.
    """

    def __init__(self, net: Network, loader: DataLoader[Any]) -> None:
        self.net, self.loader = net, loader
        _require_choice(loader, net.input_partition.shape[0])
        what = type(loader.dataset).__name__
        self.epochs = Epochs(loader.batch_sampler, net.ranks, what)  # type: ignore[arg-type]
        self._places = dict[int, Places]()
        self.keys = _Keys()
        whole = loader.collate_fn is default_collate
        self.boxes = _components(loader.dataset) if whole else {}
        options = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
        if not loader.num_workers:
            options.pop("prefetch_factor", None)
        self.draws = torch.Generator()  # of the seeds of workers
        self.inner = DataLoader(
            _Alike(loader.dataset, self.boxes),
            batch_sampler=self.keys,
            collate_fn=_WithDigests(loader.collate_fn),
            generator=self.draws,
            **options,
        )

    def __len__(self) -> int:
        """Batches of an epoch."""
        turns, size = self.net.ranks.replica_count, self.loader.batch_size
        if self.epochs.deals or turns == 1 or size is None:
            return len(self.loader.batch_sampler) // (1 if self.epochs.deals else turns)  # type: ignore[arg-type]
        return len(self.loader.sampler) // size // turns  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch. All ranks of all replicas iterate together."""
        ranks = self.net.ranks
        # as a DataLoader does; every rank draws, so that their generators stay alike
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator))
        batches = self.epochs.given_batches()
        seed = ranks.from_first(seed)
        self.draws.manual_seed(seed)
        spans = {size: self._of_size(size).samples() for size in dict.fromkeys(map(len, batches))}
        self.keys.batches = [
            self._keys(batch, spans[len(batch)][ranks.me], hash((seed, number)))
            for number, batch in enumerate(batches)
        ]
        for chosen, (given, digests) in zip(batches, self.inner, strict=True):
            self._compare(chosen, spans[len(chosen)], digests)
            yield self._partitioned(given, len(chosen), spans[len(chosen)][ranks.me])

    def _of_size(self, batch: int) -> Places:
        if batch not in self._places:
            self._places[batch] = Places(self.net, batch)
        return self._places[batch]

    def _keys(self, batch: Sequence[int], span: tuple[int, int], seed: int) -> list[_Key]:
        """What the workers make for this rank. seed: of the batch."""
        sizes = {name: file.sample_shape for name, file in self.boxes.items()}
        places = self._of_size(len(batch)).of(list(sizes.values()))
        rows = {name: of_partition(place).rows for name, place in zip(sizes, places, strict=True)}
        return [_Key(batch[place], hash((seed, place)) % 2**32, rows) for place in range(*_some(span))]

    def _compare(self, batch: Sequence[int], spans: Sequence[tuple[int, int]], digests: list[int]) -> None:
        """Raise `UsageError` on all ranks if two have loaded a sample with other values."""
        covered = sum(high - low for low, high in spans)
        if covered == max(high for _, high in spans) or not any_whole(self.boxes, self.loader.dataset):
            return
        ranks = self.net.ranks
        low, _ = _some(spans[ranks.me])
        own = {place: (ranks.rank, digest) for place, digest in enumerate(digests, low)}
        apart = combined(ranks, (own, None), _both, lambda told: told[1])
        if apart is not None:
            place, one, other = apart
            raise UsageError(
                f"{self.epochs.what}: rank {other} has loaded sample {batch[place]} with other values"
                f" than rank {one}; draw augmentations from the generators of torch, numpy or random"
            )

    def _partitioned(self, given: Any, batch: int, span: tuple[int, int]) -> Any:
        """A collated batch with partitioned tensors. span: the samples of the batch that this rank loaded."""
        low, high = _some(span)
        flat, spec = _pytree.tree_flatten_with_path(given)
        tensors = {
            number: leaf
            for number, (_, leaf) in enumerate(flat)
            if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == high - low
        }
        files = {number: self.boxes.get(_component(flat[number][0])) for number in tensors}
        shapes = [
            tuple(leaf.shape[1:]) if file is None else file.sample_shape
            for leaf, file in zip(tensors.values(), files.values(), strict=True)
        ]
        leaves = [leaf for _, leaf in flat]
        for (number, leaf), place in zip(tensors.items(), self._of_size(batch).of(shapes), strict=True):
            leaves[number] = _cut(leaf, place, low, whole=files[number] is None)
        return _pytree.tree_unflatten(leaves, spec)


def _both(own: Any, child: Any) -> Any:
    """Samples that two subtrees have loaded, and one that two ranks have with other values, if any.

    A sample: its place -> a rank that has loaded it, and the digest of its values there.
    """
    samples, apart = dict(own[0]), own[1] or child[1]
    for place, (rank, digest) in child[0].items():
        one, known = samples.setdefault(place, (rank, digest))
        if known != digest and apart is None:
            apart = place, one, rank
    return samples, apart


def _require_choice(loader: DataLoader[Any], batch: int) -> None:
    """Raise `UsageError` for a loader of which a rank cannot load some samples alone."""
    if isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            f"{type(loader.dataset).__name__} is an IterableDataset, of which a rank cannot load its samples"
            " alone; feed a map-style dataset, or give net(...) whole batches, the same on all ranks"
        )
    if loader.batch_sampler is None:
        raise UsageError("the DataLoader makes no batches (batch_size=None); give it a batch_size")
    if loader.batch_size not in (None, batch):
        raise UsageError(
            f"the DataLoader makes batches of {loader.batch_size} samples, but the network is planned for"
            f" {batch} on all its ranks together; give batch_size={batch}"
        )


def _cut(loaded: torch.Tensor, place: Partition, low: int, whole: bool) -> torch.Tensor:
    """The own box of what was loaded: samples from `low` on, each the whole or its own box."""
    first, *rest = place.box
    frame = (low, low + loaded.shape[0])
    first = (first[0], first[1]) if first[1] > first[0] else (low, low)
    box = (first, *rest)
    held = (frame, *((0, extent) for extent in loaded.shape[1:])) if whole else (frame, *rest)
    return PartitionedTensor.from_local(loaded[within(box, held)].contiguous(), place)


def _some(span: tuple[int, int]) -> tuple[int, int]:
    """A rank without samples loads one, of which it keeps nothing."""
    return span if span[1] > span[0] else (0, 1)


# -- in the workers --------------------------------------------------------------------


@dataclass(frozen=True)
class _Key:
    """A sample to be made. rows: of each component of which a box is read."""

    sample: int
    seed: int
    rows: Mapping[Component, Sequence[Rows]]


class _Keys:
    """The batches of keys of the current epoch, as a batch sampler."""

    def __init__(self) -> None:
        self.batches = list[list[_Key]]()

    def __iter__(self) -> Iterator[list[_Key]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Alike(Dataset[Any]):
    """A data set whose samples are made with generators in one state on all ranks.

    boxes: the components of which a box is read.
    """

    def __init__(self, dataset: Any, boxes: Mapping[Component, Samples]) -> None:
        self.dataset, self.boxes = dataset, boxes

    def __getitem__(self, key: _Key) -> tuple[Any, int]:
        """A sample, and the digest of what does not differ between ranks."""
        with seeded(key.seed):
            if not self.boxes:
                transform: Any = getattr(self.dataset, "transform", None)
                if hasattr(transform, "set_random_state"):  # monai's have generators of their own
                    transform.set_random_state(seed=key.seed)
                made = self.dataset[key.sample]
                return made, digest_of(made)
            if isinstance(self.dataset, Samples):
                return self._box(0, key), 0
            parts = self.dataset.datasets
            names = list(parts) if isinstance(parts, dict) else range(len(parts))
            found = {
                name: self._box(name, key) if name in self.boxes else parts[name][key.sample]
                for name in names
            }
            digest = digest_of([each for name, each in found.items() if name not in self.boxes])
            return found if isinstance(parts, dict) else tuple(found.values()), digest

    def _box(self, name: Component, key: _Key) -> torch.Tensor:
        return torch.from_numpy(self.boxes[name].read(key.sample, key.rows[name]))[0]


class _WithDigests:
    """The user's collation of samples, and their digests."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, made: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
        return self.collate([sample for sample, _ in made]), [digest for _, digest in made]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Generators of torch (of the host), numpy and random with a seed; their states come back."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def digest_of(made: Any) -> int:
    """Of all numbers, words and arrays of a sample."""
    digest = 0
    for leaf in _pytree.tree_leaves(made):
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray):
            digest = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), digest)
        elif isinstance(leaf, str | int | float | bool):
            digest = zlib.crc32(repr(leaf).encode(), digest)
    return digest


def _components(dataset: Any) -> dict[Component, Samples]:
    """The components of a data set of which boxes can be read."""
    if isinstance(dataset, Samples):
        return {0: dataset}
    if not isinstance(dataset, StackDataset):
        return {}
    parts = dataset.datasets
    named = parts.items() if isinstance(parts, dict) else enumerate(parts)
    return {name: each for name, each in named if isinstance(each, Samples)}


def _component(path: tuple[Any, ...]) -> Component:
    """Of which component of a collated batch a leaf is a part."""
    if not path:
        return 0
    found: Component = getattr(path[0], "key", getattr(path[0], "idx", ""))
    return found


def any_whole(boxes: Mapping[Component, Samples], dataset: Any) -> bool:
    """Whether some component is loaded as whole samples."""
    return not boxes or (isinstance(dataset, StackDataset) and len(boxes) < len(dataset.datasets))
