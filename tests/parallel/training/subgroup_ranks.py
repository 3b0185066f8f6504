"""What four ranks of the tests of sub-groups do: networks on some of them, several in one job."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from beside_one_process import sgd_steps, three_steps
from network_words import words_as_planned
from replica_copies import mesh_of
from small_networks import MODELS
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from zoo import Drops, Partly, own

import synth
from synth.base.errors import UsageError
from synth.runtime.comm import process_groups
from synth.runtime.grid.heartbeats import sign_of
from synth.runtime.grid.seals import read_now
from synth.runtime.model.checks.training_watch import TrainingWatch
from synth.runtime.model.network import Network

SHAPE = (4, 4, 8, 8)


def groups_of(*parts: Sequence[int]) -> list[Any]:
    """torch's groups of some ranks. All ranks of the job make all of them."""
    return [dist.new_group(list(ranks)) for ranks in parts]


def refusal(run: Callable[[], Any]) -> str:
    """The sentence with which an argument is refused; "" where it is not."""
    try:
        run()
    except UsageError as fault:
        return str(fault)
    return ""


def trained(case: str, group: Any) -> Network:
    """A network of its model after three SGD steps as in one process, and a step with the planned words.

    case: a model, maybe with the only axes that are cut.
    """
    torch.manual_seed(0)
    name, *axes = case.split()
    kind, shape = MODELS[name]
    whole = kind().double()
    plan = synth.plan_model(whole, shape, group.size(), axes="".join(axes))
    net = synth.parallelize(whole, shape, group, plan if axes else None)
    sgd_steps(net, whole, shape, 3)
    words_as_planned(plan, net, shape)
    assert net.received() > 0
    return net


def two_models() -> list[int]:
    """Ranks 0 and 1 train one model, ranks 2 and 3 another one: the members of the own network."""
    low, high = groups_of((0, 1), (2, 3))
    net = trained("residual", low) if dist.get_rank() < 2 else trained("cosmo", high)
    return list(net.ranks.members)


def some_ranks(case: str, *members: int) -> list[int]:
    """Some ranks train a model while the others do nothing."""
    (group,) = groups_of(members)
    return list(trained(case, group).ranks.members) if dist.get_rank() in members else []


def zoo_models() -> dict[str, Any]:
    """By model, three steps on ranks 1 and 3 compared with those in one process."""
    (group,) = groups_of((1, 3))
    torch.manual_seed(0)
    models = {**own(), "partly": (Partly(), SHAPE)}
    if dist.get_rank() not in (1, 3):
        return {}
    return {name: three_steps(*built, None, group) for name, built in models.items()}


def sub_meshes() -> list[list[int]]:
    """A network on a row of a mesh, then one on a column: their members."""
    mesh = mesh_of(2)
    nets = trained("residual", mesh["synth"]), trained("odd", mesh["replicate"])
    return [list(net.ranks.members) for net in nets]


def overlapping() -> int:
    """Two networks share ranks 1 and 2: steps in turn, then each once more. The number of networks here."""
    parts = (0, 1, 2), (1, 2, 3)
    mine = [
        (trained("residual", group), ranks)
        for group, ranks in zip(groups_of(*parts), parts, strict=True)
        if dist.get_rank() in ranks
    ]
    for _ in range(2):
        for net, ranks in mine:
            torch.manual_seed(len(ranks))
            shape = net.program.layouts[net.program.input].whole
            batch = torch.randn(shape, dtype=net.program.dtype)
            out = net.gather(net(net.scatter(batch)))
            out.square().sum().backward()
            assert torch.isfinite(out).all()
    return len(mine)


def refused() -> list[str]:
    """What is said to wrong ranks, and to a rank that is no member of a group, and of a mesh."""
    (group,) = groups_of((0, 1))
    model, rank = nn.Conv2d(4, 4, 1), dist.get_rank()
    few = DeviceMesh("cpu", [0, 1])
    cube = DeviceMesh("cpu", [[[0], [1]], [[2], [3]]], mesh_dim_names=("a", "b", "c"))
    found = [refusal(lambda wrong=wrong: synth.parallelize(model, SHAPE, wrong)) for wrong in (3, cube)]
    if rank > 1:
        found += [
            refusal(lambda wrong=wrong: synth.parallelize(model, SHAPE, wrong)) for wrong in (group, few)
        ]
    return found


def same_everywhere() -> list[float]:
    """Dropout drops the same words on ranks 2 and 3 as on rank 1 alone, for one seed."""
    pair, alone = groups_of((2, 3), (1,))
    rank, outs = dist.get_rank(), torch.zeros(SHAPE)
    torch.manual_seed(3)
    model = Drops()
    if rank:
        torch.manual_seed(3 if rank < 3 else 4)  # that of the first member counts
        net = synth.parallelize(model, SHAPE, alone if rank == 1 else pair)
        outs = net.gather(net(net.scatter(torch.ones(SHAPE), "input"))).detach()
    return [float(outs.eq(0).double().mean()), float(outs.sum())]


def not_finite() -> str:
    """What ranks 1 and 3 are told where rank 3 has a NaN."""
    (group,) = groups_of((1, 3))
    if dist.get_rank() not in (1, 3):
        return ""
    net = synth.parallelize(nn.Conv2d(4, 4, 1), SHAPE, group, check_finite=True)
    shard = net.scatter(torch.zeros(SHAPE), "input")
    if dist.get_rank() == 3:
        shard.to_local().fill_(torch.nan)
    try:
        net(shard)
    except FloatingPointError as fault:
        return str(fault)
    return ""


def fed(folder: str) -> None:
    """The ranks of a sub-group read a file once together."""
    (group,) = groups_of((1, 3))
    kind, shape = MODELS["residual"]
    if dist.get_rank() not in (1, 3):
        return
    torch.manual_seed(0)
    batches, file = torch.randn(2, *shape), Path(folder, "samples.npy")
    if dist.get_rank() == 1:
        np.save(file, batches.flatten(0, 1).numpy())
    dist.barrier(group)
    net = synth.parallelize(kind(), shape, group)
    feed = synth.feed(net, file)
    for shard, batch in zip(feed, batches, strict=True):
        assert torch.equal(shard, net.scatter(batch))
    read = torch.tensor(feed.samples.bytes_read)
    dist.all_reduce(read, group=group)
    assert read == 4 * batches.numel()


def collected() -> tuple[list[str], list[str], list[str]]:
    """What goes wrong while the collector frees a network where no thread can start, what the store has of
    ranks that have left, and the threads of its watch that are left.
    """
    faults: list[str] = []
    gc.collect()
    net = synth.parallelize(nn.Sequential(nn.Conv2d(4, 4, 3)), (4, 4, 8, 8))
    watches = (each for each in gc.get_objects() if type(each) is TrainingWatch)
    watch = max(watches, key=lambda each: each.born)

    def refuse(*_: Any) -> None:
        faults.append("a thread is started or waited for")

    thread = threading.Thread
    with mock.patch.object(thread, "start", refuse), mock.patch.object(thread, "join", refuse):
        del net
        gc.collect()
    torch_own: Any = dist.distributed_c10d
    store, states, threads = torch_own._get_default_store(), ["here"], [watch.thread, watch.courier]
    for _ in range(100):
        texts = [read_now(store, watch.key(rank)) for rank in range(watch.size)]
        signs = [None if text is None else sign_of(text) for text in texts]
        states = ["gone" if sign is None else sign.state for sign in signs]
        left = [str(each) for each in threads if each and each.is_alive()]
        if set(states) == {"gone"} and not left:
            break
        time.sleep(0.1)
    return faults, states, left


def groups_of_torch() -> list[int]:
    """How many process groups torch has after each of five networks, of which each is right.

    The first ones are collected at once, the third on some ranks only.
    """
    torch_own: Any = dist.distributed_c10d
    counts, kept = [], []
    process_groups.left_groups().clear()
    for turn in range(5):
        net = trained("residual h", dist.group.WORLD)
        counts.append(len(torch_own._world.pg_names))
        if turn == 2 and dist.get_rank() == 1:
            kept.append(net)
        del net
        gc.collect()
    return counts
