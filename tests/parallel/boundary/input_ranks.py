"""What the ranks of the input tests do. Every function gives what a test looks at."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from small_networks import MODELS
from small_networks import PLANS as OF_MODELS
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, StackDataset

import synth
from synth.base.errors import SynthError
from synth.runtime.model.network import Network

SHAPE, COUNT = (4, 2, 8, 6), 14  # of a batch; samples
PLANS: dict[str, Any] = {"mixed": {"b": 2, "h": 2}, "space": {"h": 2, "w": 2}, "samples": {"b": 4}}


class Segments(nn.Module):
    """Scores of three classes for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, h, w) -> (b, 3, h, w)."""
        scores: torch.Tensor = self.body(x)
        return scores


class Classes(Segments):
    """Scores of three classes for each image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 2, h, w) -> (b, 3)."""
        return super().forward(x).mean((2, 3))


def values() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images, masks of classes, and the class of each image."""
    random_numbers = torch.Generator().manual_seed(1)
    images = torch.randn(COUNT, *SHAPE[1:], generator=random_numbers, dtype=torch.float64)
    masks = torch.randint(3, (COUNT, *SHAPE[2:]), generator=random_numbers)
    return images, masks, torch.randint(3, (COUNT,), generator=random_numbers)


def pair(model: type[nn.Module], plan: str) -> tuple[nn.Module, Network]:
    """A model in one process and on the ranks."""
    torch.manual_seed(0)
    whole = model().double()
    return whole, synth.parallelize(whole, SHAPE, dist.get_world_size(), PLANS[plan])


class Images(Dataset[Any]):
    """Images that are scaled by a random number, with masks, classes and names."""

    def __init__(self, scale: Callable[[], float] = lambda: 1.0) -> None:
        self.images, self.masks, self.classes = values()
        self.scale, self.loaded = scale, list[int]()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.loaded.append(index)
        image = self.images[index] * self.scale()
        return {"name": f"{index}", "image": image, "mask": self.masks[index], "class": self.classes[index]}


class Stream(IterableDataset[Any]):
    """Images one after another."""

    def __iter__(self) -> Any:
        return iter(values()[0])


def drawn() -> float:
    """A number of all three generators."""
    return 2 + float(torch.rand(())) + float(np.random.rand()) + random.random()


def files(folder: str, plan: str) -> dict[str, Any]:
    """Two epochs of a file with masks, shuffled, with a smaller batch at the end, beside one process."""
    images, masks, _ = values()
    if dist.get_rank() == 0:
        np.save(Path(folder, "images.npy"), images.numpy())
        np.save(Path(folder, "masks.npy"), masks.numpy())
    dist.barrier()
    whole, net = pair(Segments, plan)
    order = synth.sampler(net, images, seed=3)
    alone = DistributedSampler(images, 1, 0, seed=3)
    feed = synth.feed(
        net, Path(folder, "images.npy"), labels=Path(folder, "masks.npy"), order=order, drop_last=False
    )
    errors, sizes, words = list[float](), list[int](), 0
    for epoch in range(2):
        order.set_epoch(epoch)
        alone.set_epoch(epoch)
        right = DataLoader(StackDataset(images, masks), SHAPE[0], sampler=alone)
        for (x, y), (image, mask) in zip(feed, right, strict=True):
            words += x.to_local().numel() + y.to_local().numel()
            assert torch.equal(x.full_tensor(), image)
            assert torch.equal(y.full_tensor(), mask)
            losses = [
                nn.functional.cross_entropy(net(x), y),
                nn.functional.cross_entropy(whole(image), mask),
            ]
            errors.append(float(abs(losses[0] - losses[1])))
            sizes.append(len(x))
    read = sum(each.bytes_read for each in feed.files)
    return {"error": max(errors), "sizes": sizes, "length": len(feed), "read": read, "words": words}


def loader(plan: str, workers: int) -> dict[str, Any]:
    """An epoch of a loader over samples that are drawn: what the ranks have together."""
    whole, net = pair(Classes, plan)
    data = Images(drawn)
    before = torch.get_rng_state()
    given = DataLoader(data, SHAPE[0], sampler=synth.sampler(net, data), num_workers=workers)
    feed = synth.feed(net, given)
    assert len(feed) == len(given) == 4
    scales, classes, errors = list[torch.Tensor](), list[int](), list[float]()
    order = list(given.sampler)
    for place, batch in enumerate(feed):
        chosen = order[place * SHAPE[0] :][: SHAPE[0]]
        image = batch["image"].full_tensor()
        assert torch.equal(batch["mask"].full_tensor(), data.masks[chosen])
        scales.append(image / data.images[chosen])
        classes += batch["class"].full_tensor().tolist()
        ours = nn.functional.cross_entropy(net(batch["image"]), batch["class"])
        errors.append(float(abs(ours - nn.functional.cross_entropy(whole(image), data.classes[chosen]))))
    factors = torch.cat(scales).flatten(1)
    return {
        "spread": float((factors.amax(1) - factors.amin(1)).max()),
        "different": len(set(factors[:, 0].tolist())),
        "classes": classes == data.classes[order].tolist(),
        "error": max(errors),
        "loaded": len(data.loaded),
        "drawn": not torch.equal(before, torch.get_rng_state()),
    }


def boxes(folder: str) -> int:
    """Bytes that a rank reads of an array through a loader, and of labels that are no samples."""
    images, masks, classes = values()
    file = Path(folder, "stacked.npy")
    if dist.get_rank() == 0:
        np.save(file, images.numpy())
    dist.barrier()
    _, net = pair(Segments, "mixed")
    opened = synth.open_samples(file)
    data = StackDataset(opened, masks, classes)

    def shuffled(data: Any) -> DataLoader[Any]:
        draws = torch.Generator().manual_seed(5)
        return DataLoader(data, SHAPE[0], shuffle=True, generator=draws, drop_last=True)

    given, alone = shuffled(data), shuffled(StackDataset(images, masks, classes))
    feed = synth.feed(net, given)
    for _ in range(2):
        for batch, right in zip(feed, alone, strict=True):
            assert all(torch.equal(one.full_tensor(), other) for one, other in zip(batch, right, strict=True))
            assert batch[1].to_local().shape == (2, 4, 6)  # as the output
    return opened.bytes_read


def wrong_uses() -> list[str]:
    """The sentences with which wrong uses are refused."""
    _, net = pair(Segments, "mixed")
    data, mine = Images(), np.random.default_rng(dist.get_rank())
    own = Images(lambda: float(mine.random()))
    apart = torch.Generator().manual_seed(dist.get_rank())
    wrong = {
        "sharded": lambda: synth.feed(net, DataLoader(data, 4, sampler=DistributedSampler(data))),
        "order": lambda: synth.feed(net, data.images, order=DistributedSampler(data)),
        "shuffled": lambda: list(synth.feed(net, DataLoader(data, 4, shuffle=True, generator=apart))),
        "drawn": lambda: list(synth.feed(net, DataLoader(own, 4))),
        "stream": lambda: synth.feed(net, DataLoader(Stream(), 4)),
        "small": lambda: synth.feed(net, DataLoader(data, 2)),
        "alone": lambda: synth.feed(net, DataLoader(data, None)),
        "twice": lambda: synth.feed(net, DataLoader(data, 4), order=[1]),
        "few labels": lambda: synth.feed(net, data.images, labels=data.masks[:3]),
    }
    found = []
    for name, use in wrong.items():
        try:
            use()
        except SynthError as error:
            found.append(f"{name}: {error}")
    return found


def replicas() -> list[list[int]]:
    """The classes of the samples that this rank's replica is given: by a sampler, then by turns."""
    net = synth.parallelize(
        Segments().double(), SHAPE, DeviceMesh("cpu", torch.arange(4).reshape(2, 2)), {"h": 2}
    )
    data = StackDataset(values()[0], torch.arange(COUNT))
    found = []
    for sampler in (synth.sampler(net, data, seed=2), None):
        given = synth.feed(net, DataLoader(data, SHAPE[0], sampler=sampler))
        batches = [number.full_tensor().tolist() for _, number in given]
        assert len(batches) == len(given)
        found.append([each for batch in batches for each in batch])
    turns = synth.feed(net, values()[0], labels=torch.arange(COUNT), drop_last=False)
    found.append([each for _, number in turns for each in number.full_tensor().tolist()])
    return found


def fed(model: str, folder: str) -> None:
    """Every rank reads its own part of a file; together they read the file once."""
    kind, shape = MODELS[model]
    torch.manual_seed(0)
    batches = torch.randn(3, *shape)
    file = Path(folder, "samples.npy")
    if dist.get_rank() == 0:
        np.save(file, batches.flatten(0, 1).numpy())
    dist.barrier()
    for how in ("data", "rows_channels"):
        net = synth.parallelize(kind(), shape, plan=OF_MODELS[how])
        feed = synth.feed(net, file)
        for share, batch in zip(feed, batches, strict=True):
            assert torch.equal(share, net.scatter(batch))
            net(share).sum().backward()
        read = torch.tensor(feed.samples.bytes_read)
        assert read == 3 * 4 * net.scatter(batches[0]).to_local().numel()
        dist.all_reduce(read)
        assert read == 4 * batches.numel()
