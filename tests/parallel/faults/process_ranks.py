"""Networks that threads train, and networks in forked children: functions that run on all ranks."""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import synth

SHAPE = 4, 3, 8, 8


def model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Conv2d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 3, 3, padding=1)
    return nn.Sequential(*layers).double()


def net(whole: nn.Module, group: Any = None) -> Any:
    return synth.parallelize(copy.deepcopy(whole), SHAPE, group, plan={"h": 2}, check=False)


def trained(network: nn.Module, seed: int, steps: int) -> list[float]:
    """The losses of some steps."""
    optimizer, random = torch.optim.SGD(network.parameters(), 0.1), torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        batch = torch.randn(SHAPE, generator=random, dtype=torch.float64)
        loss = network(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def apart(networks: list[Any], wholes: list[nn.Module]) -> float:
    """How far parameters are from those of one process."""
    pairs = [
        (p.full_tensor(), q)
        for network, whole in zip(networks, wholes, strict=True)
        for p, q in zip(network.parameters(), whole.parameters(), strict=True)
    ]
    return max(float((p - q).abs().max()) for p, q in pairs)


def in_threads(number: int, steps: int) -> tuple[list[Any], list[list[float]], float]:
    """Networks on groups of their own, each trained by a thread: (losses, those of one process, how far off
    parameters are)."""
    groups = [dist.new_group() for _ in range(number)]
    wholes = [model(seed) for seed in range(number)]
    networks = [net(whole, group) for whole, group in zip(wholes, groups, strict=True)]
    expected = [trained(whole, seed, steps) for seed, whole in enumerate(wholes)]
    losses: list[Any] = [None] * number

    def train(seed: int) -> None:
        losses[seed] = trained(networks[seed], seed, steps)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(number)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return losses, expected, apart(networks, wholes)


def in_child(call: Callable[[], Any]) -> tuple[int, Any]:
    """A forked child, and where to read what a call says there."""
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        return child, os.fdopen(out)
    signal.alarm(20)
    try:
        call()
        told = "nothing"
    except BaseException as fault:
        told = f"{type(fault).__name__}: {fault}"
    os.write(into, told.encode())
    os._exit(0)


def with_children(steps: int) -> tuple[list[str], float]:
    """Ranks that train while forked children use the network: (what the children say, how far off the ranks'
    parameters are)."""
    whole = model(0)
    network = net(whole)
    trained(network, 0, 1)
    trained(whole, 0, 1)
    loss = network(torch.ones(SHAPE, dtype=torch.float64)).square().mean()
    calls: list[Callable[[], Any]] = [
        lambda: network(torch.ones(SHAPE, dtype=torch.float64)),
        loss.backward,
        lambda: trained(network, 1, 1),
        lambda: net(model(1)),
        network.full_state_dict,
    ]
    children = [in_child(call) for call in calls]
    trained(network, 1, steps)
    trained(whole, 1, steps)
    said = []
    for child, out in children:
        said.append(out.read())
        out.close()
        os.waitpid(child, 0)
    return said, apart([network], [whole])


class Made(Dataset[torch.Tensor]):
    """Batches that a network makes."""

    def __init__(self, maker: nn.Module) -> None:
        self.maker = maker

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return self.maker(torch.full(SHAPE, float(index), dtype=torch.float64))


def with_workers() -> tuple[str, float]:
    """What is said where workers of a loader make batches with a network of ranks, and how far off the
    parameters of a network are that is trained then."""
    wholes = [model(seed) for seed in range(2)]
    networks = [net(whole) for whole in wholes]
    said = "nothing"
    try:
        list(DataLoader(Made(networks[1]), None, num_workers=1, multiprocessing_context="fork", timeout=20))
    except RuntimeError as fault:
        said = str(fault)
    for each in (*networks, *wholes):
        trained(each, 2, 3)
    return said, apart(networks, wholes)


def alone_in_child() -> str:
    """What a child says that uses a network of one process."""
    own = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    network = synth.parallelize(model(0), SHAPE, own, check=False)
    child, out = in_child(lambda: network(torch.ones(SHAPE, dtype=torch.float64)))
    said = str(out.read())
    out.close()
    os.waitpid(child, 0)
    return said
