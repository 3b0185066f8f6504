"""Inputs of several kinds, and what has no meaning on parts."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional

from synth.runtime.tensor.partitioned import PartitionedTensor
from training_features.optimizers import sgd
from training_features.table import Run, correct, refused


def train_on(run: Run, given: Any) -> None:
    """Two steps; `given` brings a whole batch to another form on the ranks."""
    optimizer = sgd(run.model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        batch = run.batch()
        out = run.model(given(batch) if run.on_ranks else batch)
        loss = functional.cross_entropy(out, run.labels())
        loss.backward()
        run.note(out, loss)
        optimizer.step()


@correct("input: a DTensor")
def from_dtensor(run: Run) -> None:
    """Cut along the samples."""
    mesh = init_device_mesh("cpu", (4,))
    train_on(run, lambda batch: distribute_tensor(batch, mesh, [Shard(0)]))


@correct("input: scatter()")
def scattered(run: Run) -> None:
    """In the layout of the network."""
    train_on(run, lambda batch: run.model.scatter(batch, "input"))


@correct("input: the own part")
def own_part(run: Run) -> None:
    """As a reader of boxes gives it."""
    train_on(run, lambda batch: run.model.input_partition.cut(batch).contiguous())


@correct("input: a tensor of another layout")
def other_layout(run: Run) -> None:
    """It moves."""
    train_on(run, lambda batch: run.images.scatter(batch, "input"))


@correct("input: changed by pointwise functions")
def changed(run: Run) -> None:
    """Noise and a norm per channel."""
    mean, optimizer = torch.arange(3.0, dtype=torch.float64).view(1, 3, 1, 1), sgd(run.model.parameters())
    batch = run.batch()
    given = run.model.scatter(batch, "input") if run.on_ranks else batch
    loss = functional.cross_entropy(run.model((given * 2 + mean).clamp(-3, 3) / 2 - mean / 2), run.labels())
    loss.backward()
    run.note(loss)
    optimizer.step()


@refused("numpy() of an output", "full_tensor()")
def array(run: Run) -> Any:
    """An array is a whole."""
    with torch.no_grad():
        return run.model(run.batch()).numpy()


@refused("tolist() of an output", "full_tensor()")
def values(run: Run) -> Any:
    """A list is a whole."""
    with torch.no_grad():
        return run.model(run.batch()).tolist()


@correct("a torch layer on a partitioned output")
def layer(run: Run) -> None:
    """Every rank computes it from the whole."""
    with warnings.catch_warnings(action="ignore"):
        made = functional.conv2d(run.images(run.batch()), run.randn(3, 3, 3, 3))
        made.square().mean().backward()
    run.note(made)
    run.grads(run.images)


@refused("all_reduce of a gradient", "already hold one global tensor")
def reduced(run: Run) -> None:
    """The gradient is complete."""
    run.loss().backward()
    torch.distributed.all_reduce(run.model.head.weight.grad)


@refused("a batch of another type", "converts it")
def other_type(run: Run) -> None:
    """Single precision for a network in double precision."""
    run.model(run.batch().float())


@correct("values written into p.data")
def written(run: Run) -> None:
    """Whole values, as from another framework's file."""
    for parameter in run.model.parameters():
        parameter.data.copy_(run.randn(*parameter.shape))
    run.note(run.loss())


@correct("partitioned labels")
def partitioned_labels(run: Run) -> None:
    """Labels made from another network's output."""
    with torch.no_grad():
        labels = run.model(run.batch()).argmax(1)
    loss = functional.cross_entropy(run.model(run.batch()), labels)
    loss.backward()
    run.note(labels, loss)
    run.grads()


@correct("full_tensor(), to_local() and redistribute()")
def converted(run: Run) -> None:
    """Each gives the words that the tensor has."""
    out = run.images(run.batch())
    if run.on_ranks:
        assert isinstance(out, PartitionedTensor)
        moved = out.redistribute(run.images.input_partition)
        run.note(moved, PartitionedTensor.from_local(out.to_local(), out.partition), out.full_tensor())
    else:
        run.note(out, out, out)
