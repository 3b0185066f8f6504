"""What four ranks of the replica tests do: replicas of a network train, save, load and differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from replica_pair import PLANS, Model, Pair, mesh_of, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from training_features.table import Small, sizes_of

import synth
from synth.runtime.model.network import Network


def trains(rows: int, word: str, optimizer: str) -> dict[str, float]:
    """Three steps."""
    pair = Pair(rows, word, optimizer)
    for _ in range(3):
        pair.backward(pair.losses())
        pair.step()
    return pair.state()


def buckets(rows: int, word: str) -> dict[str, float]:
    """Any size of buckets, also where one has a layer's weight and what is used before it."""
    found, sent = {"error": 0.0}, list[int]()
    for size in (0, 300, 1500, 6000):
        pair = Pair(rows, word, bucket_bytes=size, ahead=2)
        pair.backward(pair.losses())
        pair.step()
        found["error"] = max(found["error"], *pair.state().values())
        sent.append(pair.net.program.buckets.messages)
    assert sent[0] > sent[1] > sent[3]
    return found


def accumulates(rows: int, word: str) -> dict[str, float]:
    """Two batches for a step, of which the first is not averaged; then two that both are."""
    pair = Pair(rows, word)
    for later in (True, False):
        messages = pair.net.program.buckets.messages
        if later:
            with pair.net.no_sync():
                pair.backward(pair.losses())
            assert pair.net.program.buckets.messages == messages
        else:
            pair.backward(pair.losses())
        pair.backward(pair.losses())
        pair.step()
    return pair.state()


def clips(rows: int, word: str) -> dict[str, float]:
    """The norm is that of the averaged gradients."""
    pair = Pair(rows, word)
    for _ in range(2):
        pair.backward(pair.losses())
        pair.average()
        norms = [nn.utils.clip_grad_norm_(each.parameters(), 0.1) for each in pair.models]
        pair.near("norm", norms[0], norms[1])
        pair.step()
    return pair.state()


def gradients(rows: int, word: str) -> dict[str, float]:
    """`autograd.grad` of all parameters, and of one; a penalty; two passes for one loss."""
    pair = Pair(rows, word)
    for names in ([name for name, _ in pair.net.named_parameters()], ["conv.weight", "bn.bias"]):
        found = []
        for model, loss in zip(pair.models, pair.losses(), strict=True):
            found.append(torch.autograd.grad(loss, [model.get_parameter(name) for name in names]))
        for own, *others in zip(*found, strict=True):
            pair.near("autograd.grad", own, torch.stack(others).mean(0))
    losses = [one + 2 * other for one, other in zip(pair.losses(), pair.losses(), strict=True)]
    penalties = [sum(p.square().sum() for p in model.parameters()) for model in pair.models]
    pair.backward([loss + 0.1 * penalty for loss, penalty in zip(losses, penalties, strict=True)])
    pair.step()
    return pair.state()


def freezes(rows: int, word: str) -> dict[str, float]:
    """Layers are frozen, trained again, and evaluated; statistics that do not change stay."""
    pair = Pair(rows, word)
    for frozen in (True, False):
        for model in pair.models:
            model.get_submodule("conv").requires_grad_(not frozen)
            model.get_submodule("norm").requires_grad_(not frozen)
            model.get_submodule("bn").train(not frozen)
        pair.backward(pair.losses())
        pair.step()
    for model in pair.models:
        model.eval()
    losses = pair.losses()
    pair.near("evaluation", losses[0], losses[1 + pair.me])
    return pair.state()


def scales(rows: int, word: str) -> dict[str, float]:
    """An overflow in one replica's loss, or in a gradient of one rank, skips the step of all."""
    pair = Pair(rows, word)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = pair.net.full_state_dict()
    last = dist.get_rank() >= 4 - 4 // rows
    for overflow in ("loss", "gradient", ""):
        loss = pair.losses()[0] * (torch.inf if overflow == "loss" and last else 1.0)
        scaler.scale(loss).backward()
        if overflow == "gradient" and dist.get_rank() == 3:
            pair.net.get_parameter("bn.bias").grad._local.fill_(torch.inf)
        scaler.step(pair.optimizers[0])
        scaler.update()
        pair.optimizers[0].zero_grad()
        after = pair.net.full_state_dict()
        names = [name for name, _ in pair.net.named_parameters()]
        same = all(torch.equal(before[name], after[name]) for name in names)
        assert same == bool(overflow)
    synth.check_replicas(pair.net)
    return {"scale": scaler.get_scale() - 2.0}


def messages(word: str) -> list[tuple[int, int, int]]:
    """What is sent on a mesh of four ranks, with one replica and without replicas."""
    found = []
    for mesh in (mesh_of(1), mesh_of(1)["synth"]):
        torch.manual_seed(0)
        sizes = sizes_of(word)
        net = synth.parallelize(Model(*sizes[1:]), sizes.batch, mesh, PLANS[4][word])
        net(torch.ones(sizes.batch)).square().sum().backward()
        assert net.ranks.replicas is None
        found.append((net.program.buckets.messages, net.program.buckets.words, net.received()))
    return found


def words(rows: int, word: str) -> tuple[int, int, int]:
    """Words that this rank has received in a step, those that are planned, and those of sums among them."""
    torch.manual_seed(0)
    sizes = sizes_of(word)
    net = synth.parallelize(Model(*sizes[1:]), sizes.batch, mesh_of(rows), PLANS[4 // rows][word])
    net(torch.ones(sizes.batch)).square().sum().backward()
    planned, me = net.planned_words(), net.ranks.me
    return net.received(), planned.step[me], planned.sums[me]


def steps(net: Any, optimizer: Any, first: int, count: int, rows: int, me: int) -> None:
    """Some steps with batches of their own numbers, on replicas or in one process as on all of them."""
    for number in range(first, first + count):
        torch.manual_seed(100 + number)
        sizes = sizes_of("samples")
        batch = torch.randn(rows, *sizes.batch, dtype=torch.float64)[me]
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    """What is saved."""
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def flat(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nest of dictionaries, whole."""
    if isinstance(state, dict):
        for key, each in state.items():
            yield from flat(each, f"{name}/{key}")
    elif isinstance(state, torch.Tensor):
        yield name, whole(state).clone().numpy()
    else:
        yield name, str(state)


def saves(folder: str) -> tuple[dict[str, Any], list[int]]:
    """Two replicas train and save: the state, and how often each word of the parameters is written."""
    pair = Pair(2, "space", "AdamW", Small)
    steps(pair.net, pair.optimizers[0], 0, 2, 2, pair.me)
    state = state_of(pair.net, pair.optimizers[0])
    dcp.save(state, checkpoint_id=folder)
    written = []
    for name, values in pair.net.named_parameters():
        items = values.__create_write_items__(name, values)
        words = sum(item.tensor_data.chunk.sizes.numel() for item in items)
        count = torch.tensor(words)
        dist.all_reduce(count)
        written.append(int(count) - values.numel())
    return dict(flat(state)), written


def loads(folder: str, rows: int, word: str) -> dict[str, Any]:
    """A new network on other replicas reads what was saved."""
    pair = Pair(rows, word, "AdamW", Small)
    steps(pair.net, pair.optimizers[0], 0, 1, rows, pair.me)
    state = state_of(pair.net, pair.optimizers[0])
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(pair.net, state["model"])
    set_optimizer_state_dict(pair.net, pair.optimizers[0], state["optimizer"])
    synth.check_replicas(pair.net)
    return dict(flat(state_of(pair.net, pair.optimizers[0])))


class Dividing(Small):
    """The small model, which refuses samples of zeros."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1 // (2 * x.amax()).long()


def refused(what: str) -> str:
    """What this rank is told where the second of two replicas does something else."""
    odd = dist.get_rank() > 1
    sizes = sizes_of("space")
    torch.manual_seed(0)
    model, given = (Dividing if what == "words" else Small)(*sizes[1:]).double(), {"plan": "data"}
    shape, mesh = sizes.batch, mesh_of(2)
    if odd and what == "model":
        model.grouped = nn.Conv2d(sizes.width, sizes.width, 3, padding=1, groups=4, bias=False)
    if odd and what == "plan":
        given["plan"] = "filter"
    if odd and what == "input":
        shape = (8, *shape[1:])
    if what == "three dimensions":
        mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("a", "b", "c"))
    try:
        net = synth.parallelize(model, shape, mesh, **given)
        passes(net, what, odd)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 4
    return ""


def passes(net: Network, what: str, odd: bool) -> None:
    """A pass, and another one before which or after which something differs."""
    batch = torch.ones(sizes_of("space").batch, dtype=torch.float64)
    net(batch).square().mean().backward()
    if odd and what == "evaluation":  # needs no other replica
        with torch.no_grad():
            for _ in range(3):
                net.eval()(batch)
        net.train()
    if odd and what == "parameters":
        with torch.no_grad():
            net.get_parameter("conv.weight").mul_(1.001)
    if odd and what == "frozen":
        net.get_submodule("conv").requires_grad_(False)
    if odd and what == "forward":
        net(batch)
    if odd and what == "words":
        batch = batch * 0
    out = net(batch)
    if odd and what == "no_sync":
        with net.no_sync():
            out.square().mean().backward()
    out.square().mean().backward()
    if what == "drawn":
        torch.manual_seed(1 + odd)
        nn.init.normal_(net.get_parameter("conv.weight"))
    if odd and what == "check":
        with torch.no_grad():
            net.get_parameter("conv.weight")._local.view(-1)[-1:] += 1e-9
    if what == "check":
        synth.check_replicas(net)


def dropped() -> tuple[list[float], list[float]]:
    """Which words a dropout keeps in each replica, where all generators have one state."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Dropout(0.5))
    nn.init.ones_(model[0].weight)
    net = synth.parallelize(model, (2, 1, 4, 4), mesh_of(2))
    out = net(torch.ones(2, 1, 4, 4))
    local = out.full_tensor().detach().view(-1)
    return local.tolist(), [float(out.sum())]


def parts_of_a_job() -> list[int]:
    """Replicas on ranks 1 and 3 alone, then on all ranks in another order: the ranks of the own replica."""
    some, crossed = DeviceMesh("cpu", [[1], [3]]), DeviceMesh("cpu", [[0, 2], [1, 3]])
    found = list[int]()
    for mesh, members in ((some, (1, 3)), (crossed, (0, 1, 2, 3))):
        if dist.get_rank() not in members:
            continue
        torch.manual_seed(0)
        sizes = sizes_of("space")
        net = synth.parallelize(Small(*sizes[1:]).double(), sizes.batch, mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        replicas = net.ranks.replicas
        assert replicas is not None
        steps(net, optimizer, 0, 2, 2, replicas.me)
        synth.check_replicas(net)
        found += net.ranks.members
    return found


def as_dtensors() -> list[bool]:
    """Whether parameters of a replica, as DTensors on its ranks, have the same words."""
    net = Pair(2, "space", model=Small).net
    shown = [p.detach().to_dtensor() for p in net.parameters() if not p.partition.refined]
    assert all(each.device_mesh.mesh.flatten().tolist() == list(net.ranks.members) for each in shown)
    kept = [whole(p) for p in net.parameters() if not p.partition.refined]
    return [torch.equal(one.full_tensor(), other) for one, other in zip(shown, kept, strict=True)]


def fed(file: str) -> list[list[float]]:
    """The first word of each sample that replicas are fed, and the bytes that were read."""
    net = synth.parallelize(nn.Conv2d(1, 1, 1), (2, 1, 2, 2), mesh_of(2), {"b": 2})
    given = synth.feed(net, file, order=[8, 7, 6, 5, 4, 3, 2, 1, 0])
    found = [each.full_tensor()[:, 0, 0, 0].tolist() for each in given]
    return [*found, [float(given.samples.bytes_read)]]
