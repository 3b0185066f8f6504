"""What the ranks of the state tests do: train, save, and go on with another plan or on other ranks."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import synth

SHAPE = (4, 4, 8, 8)
PLANS: dict[str, Any] = {
    "samples": {"n": 4},
    "space": {"h": 2, "w": 2},
    "channels": {"c": 2, "k": 2},
    "filters": {"k": 4},
    "mixed": {"first": {"h": 4}, "grouped": {"k": 2, "n": 2}, "flat": {"c": 4}, "": {"n": 2, "h": 2}},
}


class Model(nn.Module):
    """A grouped convolution, statistics, and a linear layer on a flat map: refined layouts."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, padding=1, bias=False)  # else its gradient is rounding
        self.norm = nn.BatchNorm2d(width)
        self.grouped = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, groups=3)
        self.down = nn.ConvTranspose2d(2 * width, 8, 2, stride=2, groups=2)
        self.flat = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.down(torch.relu(self.grouped(x))))
        return self.flat(x.flatten(1))


def made(seed: int, width: int = 12) -> tuple[Model, Any]:
    """A model of a seed and its optimizer."""
    torch.manual_seed(seed)
    model = Model(width)
    return model, adam(model)


def adam(model: nn.Module) -> Any:
    """The optimizer of the tests."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def steps(model: Any, optimizer: Any, first: int, count: int) -> None:
    """Some steps of the training, each with a batch of its own number."""
    for number in range(first, first + count):
        torch.manual_seed(100 + number)
        batch, labels = torch.randn(SHAPE), torch.randint(10, SHAPE[:1])
        out = model(batch)
        whole = out.full_tensor() if hasattr(out, "full_tensor") else out
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole, labels).backward()
        optimizer.step()


def group_of(members: tuple[int, ...]) -> Any:
    """A process group of some ranks; None for all."""
    return None if len(members) == dist.get_world_size() else dist.new_group(list(members))


def network(plan: str, seed: int, width: int = 12, group: Any = None) -> tuple[Any, Any]:
    """A network of a seed on some ranks, and its optimizer."""
    torch.manual_seed(seed)
    net = synth.parallelize(Model(width), SHAPE, group, plan=PLANS.get(plan))
    return net, adam(net)


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    """What is saved, with the model's own names."""
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }


def load(model: Any, optimizer: Any, folder: str, group: Any = None, **how: Any) -> None:
    """Read what any ranks saved into a model and its optimizer."""
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder, process_group=group, **how)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def wholes(value: Any) -> Any:
    """The same nest of dictionaries with whole tensors."""
    if isinstance(value, dict):
        return {key: wholes(each) for key, each in value.items()}
    if isinstance(value, list | tuple):  # torch makes lists of tuples
        return [wholes(each) for each in value]
    if isinstance(value, torch.Tensor):
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        return value.detach().clone().numpy()
    return value


def trains_and_saves(plan: str, folder: str) -> tuple[Any, Any]:
    """Two steps, a checkpoint, two more: the whole state at the checkpoint and at the end."""
    net, optimizer = network(plan, 0)
    steps(net, optimizer, 0, 2)
    state = state_of(net, optimizer)
    dcp.save(state, checkpoint_id=folder)
    saved = wholes(state)
    steps(net, optimizer, 2, 2)
    end = wholes(state_of(net, optimizer))
    return (saved, end) if dist.get_rank() == 0 else (None, None)


def resumes(plan: str, folder: str, members: tuple[int, ...]) -> tuple[Any, Any]:
    """A new network of other values loads a checkpoint, and makes two steps: both states."""
    group = group_of(members)
    if dist.get_rank() not in members:
        return None, None
    net, optimizer = network(plan, 1, group=group)
    load(net, optimizer, folder, group)
    loaded = wholes(state_of(net, optimizer))
    steps(net, optimizer, 2, 2)
    end = wholes(state_of(net, optimizer))
    return (loaded, end) if dist.get_rank() == members[0] else (None, None)


def refused(what: str, folder: str) -> tuple[list[str], bool]:
    """What is said to a network of another model; whether it kept its values.

    what: "shape", where a width differs, or "keys", where the file lacks the optimizer.
    """
    net, optimizer = network("channels", 1, 15 if what == "shape" else 12)
    before = net.full_state_dict()
    state = state_of(net, optimizer)
    if what == "keys":
        state["model"]["other.weight"] = state["model"].pop("flat.weight")
    try:
        dcp.load(state, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:
        said = [f"{type(fault[0]).__name__}: {fault[0]}" for fault in error.failures.values()]
        after = net.full_state_dict()
        return said, all(torch.equal(before[key], after[key]) for key in before)
    return ["loaded"], False


def flat(state: Any, name: str = "") -> dict[str, Any]:
    """The leaves of a nest of dictionaries."""
    if isinstance(state, dict):
        return {k: v for key, each in state.items() for k, v in flat(each, f"{name}/{key}").items()}
    return {name: state}


def whole_state(plan: str) -> dict[str, Any]:
    """Torch's functions with `full_state_dict=True`: what is refused, what another network then holds."""
    net, optimizer = network(plan, 0)
    steps(net, optimizer, 0, 2)
    full = StateDictOptions(full_state_dict=True)
    given = get_model_state_dict(net, options=full)
    moments = get_optimizer_state_dict(net, optimizer, options=full)
    said = []
    for attempt in (
        lambda: torch.save(given, io.BytesIO()),
        lambda: torch.save(moments, io.BytesIO()),
    ):
        try:
            attempt()
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    other, adam_of_other = network("free", 1)
    wanted = wholes(state_of(net, optimizer))
    set_model_state_dict(other, net.full_state_dict(), options=full)
    set_optimizer_state_dict(other, adam_of_other, whole_tensors(moments), options=full)
    plain = Model()
    plain.load_state_dict(given)
    return {
        "said": said,
        "wanted": wanted,
        "plain": wholes(plain.state_dict()),
        "found": wholes(state_of(other, adam_of_other)),
    }


def whole_tensors(value: Any) -> Any:
    """The same nest with whole tensors."""
    if isinstance(value, dict):
        return {key: whole_tensors(each) for key, each in value.items()}
    return value.full_tensor().detach() if hasattr(value, "full_tensor") else value


def saves_with_digests(folder: str) -> None:
    """A network after two steps, in a checkpoint with digests."""
    net, optimizer = network("mixed", 0)
    steps(net, optimizer, 0, 2)
    synth.save_checkpoint(state_of(net, optimizer), folder)


def reads_with_digests(plan: str, folder: str, check: bool = True) -> tuple[str, bool]:
    """What a rank raises when it loads into a network of other values; whether these are kept."""
    net, optimizer = network(plan, 1)
    before = net.full_state_dict()
    said = ""
    try:
        synth.load_checkpoint(state_of(net, optimizer), folder, check=check)
    except RuntimeError as error:
        said = str(error)
    after = net.full_state_dict()
    return said, all(torch.equal(before[key], after[key]) for key in before)
