"""What the ranks of the tests of streams do: chunks whose state stays on the ranks, beside one process."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from stream_models import Causal, Decoder, Recurrent, caches, film
from torch import nn

import synth
from synth.runtime.grid.allocation_counter import live_bytes
from synth.runtime.model.network import Network

CHUNK = (1, 2, 4, 9, 6)


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder().double().eval().requires_grad_(False)


def network(begin: Any = None, **options: Any) -> Network:
    """A decoder on all ranks, planned for a state of zeros, or for none."""
    given = (CHUNK, caches() if begin is None else begin)
    model = decoder()
    return synth.parallelize(model, given, mode="inference", state="cache", check=False, **options)


def whole(given: Any) -> torch.Tensor:
    made: torch.Tensor = given.full_tensor() if hasattr(given, "full_tensor") else given
    return made


def streamed(chunks: list[int], begin: str) -> dict[str, Any]:
    """A film in chunks: the distance from one process, and the words of each call."""
    model, latents, net = decoder(), film(sum(chunks)), network()
    right, _ = model(latents)
    cache: Any = caches() if begin == "zeros" else None
    frames, words, still, start = [], [], [], 0
    for count in chunks:
        before, chunk = net.received(), latents[:, :, start : start + count]
        made, cache = net(chunk, cache)
        words.append(net.received() - before)
        takes = [*net.program.input_partitions.values()][1:]
        still.append(all(each._partition == place for each, place in zip(cache, takes, strict=True)))
        frames.append(whole(made))
        start += count
    apart = (torch.cat(frames, 2) - right).abs().max()
    me = dist.get_rank()
    planned = [net.planned_words({"chunk": (*CHUNK[:2], n, *CHUNK[3:])}).forward[me] for n in chunks]
    return {"error": float(apart), "words": words, "planned": planned, "still": still}


def interleaved() -> list[float]:
    """Two films at once, one of them in a batch of two and whole outputs; distances from one process."""
    model, net = decoder(), network(outputs="whole")
    films = [film(8, 1), torch.cat([film(8, 2), film(8, 3)])]
    right = [model(each)[0] for each in films]
    state: list[Any] = [None, None]
    made: list[list[torch.Tensor]] = [[], []]
    for start in (0, 4):
        for number, each in enumerate(films):
            frames, state[number] = net(each[:, :, start : start + 4], state[number])
            assert type(frames) is torch.Tensor
            made[number].append(frames)
    assert all(type(each) is not torch.Tensor for parts in state for each in parts)
    return [float((torch.cat(m, 2) - r).abs().max()) for m, r in zip(made, right, strict=True)]


def memory() -> list[int]:
    """Bytes of living tensors after each chunk of a film, without what the ranks give out."""
    net, cache, found = network(), caches(), []
    latents = film(4)
    for _ in range(6):
        _, cache = net(latents, cache)
        found.append(live_bytes())
    held = sum(each.to_local().untyped_storage().nbytes() for each in cache)
    assert held == sum(each.to_local().nbytes for each in cache), "a state keeps a larger tensor"
    return found


def recurrent(training: bool) -> dict[str, float]:
    """A cell with a state in a dict: results of three steps, and gradients through all of them."""
    torch.manual_seed(1)
    model = Recurrent().double()
    begin = {"h": torch.zeros(2, 4, 7, 5).double(), "mean": torch.zeros(()).double()}
    steps = torch.randn(3, 2, 1, 7, 5, dtype=torch.float64)
    options: dict[str, Any] = {"mode": "inference"} if not training else {"objective": "words"}
    given = copy.deepcopy(model) if training else copy.deepcopy(model).eval()
    net = synth.parallelize(given, {"x": (2, 1, 7, 5), "state": begin}, state="state", check=False, **options)
    found = []
    for each in (model, net):
        state, total = begin, torch.zeros((), dtype=torch.float64)
        for x in steps:
            y, state = each(x, state)
            total = total + y.square().sum()
        total = total + state["h"].square().sum()
        if training:
            total.backward()
        found.append((whole(y), whole(state["h"]), whole(state["mean"]), whole(total)))
    apart = {str(n): float((a - b).detach().abs().max()) for n, (a, b) in enumerate(zip(*found, strict=True))}
    for (name, one), other in zip(model.named_parameters(), net.parameters(), strict=True):
        if training:
            assert one.grad is not None
            apart[name] = float((one.grad - whole(other.grad)).detach().abs().max())
    return apart


class NoState(nn.Module):
    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return x + cache


class Other(nn.Module):
    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return x, cache[:1]


def refused() -> dict[str, str]:
    """What is said of states that do not fit, by case."""
    net, other = network(), network()
    chunk = film(4)
    _, first = net(chunk, caches())
    _, second = net(chunk, caches())
    _, strange = other(chunk, caches())
    longer = [torch.zeros(1, 2, 3, 9, 6).double(), *caches()[1:]]
    mine = first if dist.get_rank() else second
    small, x = (2, 3), (1, 2, 6, 6)
    cases: dict[str, Any] = {
        "network": lambda: net(chunk, strange),
        "sessions": lambda: net(chunk, [first[0], *second[1:]]),
        "order": lambda: net(chunk, [first[0], first[2], first[1]]),
        "shape": lambda: net(chunk, longer),
        "size": lambda: net(film(4, size=(5, 6)), first),
        "ranks": lambda: net(chunk, mine),
        "name": lambda: synth.parallelize(decoder(), CHUNK, mode="inference", state="caches"),
        "nothing": lambda: synth.parallelize(NoState(), (x, x), mode="inference", state="cache"),
        "parts": lambda: synth.parallelize(Other(), (small, [small] * 2), mode="inference", state="cache"),
        "afterwards": lambda: str(float((whole(net(chunk, second)[0]) - whole(net(chunk, first)[0])).sum())),
    }
    found = {}
    for name, case in cases.items():
        try:
            found[name] = case() if name == "afterwards" else f"accepted: {case()}"
        except (ValueError, RuntimeError) as error:
            found[name] = str(error)
    return found


def planned() -> list[bool]:
    """Whether the words of a plan without ranks are those that ranks count."""
    model, where = Causal(2, 4).double().eval().requires_grad_(False), (1, 2, 2, 9, 6)
    plan = synth.plan_model(model, (CHUNK, where), dist.get_world_size(), mode="inference", state="cache")
    net = synth.parallelize(model, (CHUNK, where), mode="inference", state="cache", check=False)
    _, state = net(film(4), film(2))
    before = net.received()
    _, state = net(film(4), state)
    return [plan.words.forward[dist.get_rank()] == net.received() - before]
