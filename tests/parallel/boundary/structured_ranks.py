"""Models with several inputs and outputs on ranks, beside one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from beside_one_process import refusal
from torch import nn

import synth

Made = dict[str, Any]
IMAGE, TIMES, WORDS = (2, 4, 8, 8), torch.tensor([3, 7]), (2, 5, 6)


@dataclass
class Denoised:
    """What `Denoiser` gives."""

    sample: torch.Tensor
    steps: int = 1


class Denoiser(nn.Module):
    """A diffusion model in small: a time step as integers, words by attention, a dataclass or a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 8))
        self.words = nn.Linear(6, 8)
        self.register_buffer("waves", torch.rand(6))

    def forward(
        self,
        sample: torch.Tensor,
        timestep: torch.Tensor,
        words: torch.Tensor | None = None,
        scale: float = 1.0,
        return_dict: bool = True,
    ) -> Any:
        """(b, 4, h, w)"""
        time = self.time(torch.sin(timestep[:, None] * self.waves))
        hidden = self.first(sample) + time[:, :, None, None]
        if words is not None:
            hidden = hidden * torch.sigmoid(self.words(words).mean(1))[:, :, None, None]
        made = self.last(nn.functional.silu(hidden)) * scale
        return Denoised(made) if return_dict else (made,)


class Pair(NamedTuple):
    """What `Fused` gives: a map, a loss and how they were made."""

    map: torch.Tensor
    loss: torch.Tensor
    name: str


class Fused(nn.Module):
    """Two images of other sizes; a single number, and a name, among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(1, 8, 2, stride=2)
        self.norm, self.last = nn.BatchNorm2d(16), nn.Conv2d(16, 2, 1)

    def forward(self, images: dict[str, torch.Tensor], unused: torch.Tensor) -> Pair:
        """(b, 2, h, w)"""
        both = torch.cat([self.left(images["left"]), self.right(images["right"])], 1)
        made = self.last(torch.relu(self.norm(both)))
        return Pair(made, made.square().mean(), "fused")


class Auxiliary(nn.Module):
    """Two maps and their mean, as segmentation networks with an auxiliary head give them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(4, 8, 3, padding=1)
        self.heads = nn.ModuleList([nn.Conv2d(8, 2, 1), nn.Conv2d(8, 4, 3, stride=2, padding=1)])

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        """Several sizes."""
        x = torch.relu(self.body(x))
        out, aux = (head(x) for head in self.heads)
        return {"out": out, "aux": [aux, out + 1], "in": x, "none": None}


class Views(nn.Module):
    """A map, views of it, another map, and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """(b, 4, h, w)"""
        y = self.conv(x)
        return {"map": y, "part": y[:, :2], "flat": y.flatten(1), "own": y + 1, "twice": y, "in": x}


def changed_outputs() -> dict[str, str]:
    """What is said of a change in place of each output of `Views`."""
    net: Any = synth.parallelize(Views(), IMAGE, plan={"h": 2}, check=False)
    said = dict.fromkeys(made := net(torch.ones(IMAGE)), "")
    for name, each in made.items():
        try:
            each.mul_(2)
        except RuntimeError as fault:
            said[name] = str(fault)
    return said


CASES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "by name": (Denoiser, {"sample": IMAGE, "timestep": TIMES, "words": WORDS}),
    "by position": (Denoiser, (IMAGE, TIMES)),
    "both": (Denoiser, synth.Inputs(IMAGE, TIMES, scale=0.5, return_dict=False)),
    "nested": (Fused, ({"left": (2, 3, 8, 8), "right": (2, 1, 16, 16)}, (2, 3))),
    "outputs": (Auxiliary, IMAGE),
}


def batch(name: str, number: int) -> tuple[Any, dict[str, Any]]:
    """Arguments for a case, the same on all ranks."""
    torch.manual_seed(number)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64)

    times = TIMES + number
    return {
        "by name": ((normal(*IMAGE),), {"timestep": times, "words": normal(*WORDS)}),
        "by position": ((normal(*IMAGE), times), {}),
        "both": ((), {"timestep": times, "sample": normal(*IMAGE), "scale": 0.5, "return_dict": False}),
        "nested": (({"left": normal(2, 3, 8, 8), "right": normal(2, 1, 16, 16)},), {"unused": normal(2, 3)}),
        "outputs": ((normal(*IMAGE),), {}),
    }[name]


def tensors(made: Any) -> list[torch.Tensor]:
    """All tensors of an output, whole."""
    match made:
        case torch.Tensor():
            return [made.full_tensor() if hasattr(made, "full_tensor") else made]
        case Denoised():
            return tensors(made.sample)
        case dict():
            return [each for part in made.values() for each in tensors(part)]
        case tuple() | list():
            return [each for part in made for each in tensors(part)]
    return []


def trained(name: str, plan: Any) -> Made:
    """error: of outputs and state in two steps. kinds: the types of what both give."""
    make, inputs = CASES[name]
    torch.manual_seed(0)
    whole = make().double()
    net = synth.parallelize(copy.deepcopy(whole), inputs, plan=plan)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (net, whole)]
    errors, kinds = list[float](), list[Any]()
    for number in range(2):
        args, kwargs = batch(name, number)
        outs = [each(*args, **kwargs) for each in (net, whole)]
        kinds = [[type(each).__name__, getattr(each, "name", ""), len(tensors(each))] for each in outs]
        lists = [tensors(each) for each in outs]
        errors += [float((one - other).abs().max()) for one, other in zip(*lists, strict=True)]
        for every, optimizer in zip(lists, optimizers, strict=True):
            optimizer.zero_grad()
            sum(each.square().mean() for each in every).backward()
            optimizer.step()
    state = net.full_state_dict()
    errors += [float((state[key] - values).abs().max()) for key, values in whole.state_dict().items()]
    return {"error": max(errors), "kinds": kinds}


def placed() -> Made:
    """Partitioned inputs and targets, and the partitions of several inputs and outputs."""
    torch.manual_seed(0)
    whole = Denoiser().double()
    plan = {"first": {"b": 2, "h": 2}, "last": {"h": 4}}
    net = synth.parallelize(copy.deepcopy(whole), (IMAGE, TIMES), plan=plan)
    image = torch.randn(IMAGE, dtype=torch.float64)
    shared = net.scatter(image, like="sample")
    out = net(shared, TIMES)
    error = float((out.sample.full_tensor() - whole(image, TIMES).sample).abs().max())
    loss = (out.sample - net.scatter(image, like="output.sample")).square().mean()
    right = (whole(image, TIMES).sample - image).square().mean()
    return {"error": error + float((loss - right).abs()), "refused": refusal(lambda: net.scatter(image))}


def refused() -> list[str]:
    """What is said to other arguments than those that were planned; no rank hangs."""
    net = synth.parallelize(Denoiser(), (IMAGE, TIMES))
    image = torch.randn(IMAGE)
    return [
        refusal(lambda: net(image, TIMES, scale=torch.ones(1).numpy())),
        refusal(lambda: net(image, TIMES.float())),
        refusal(lambda: net(image, 3)),
        refusal(lambda: net(image, TIMES, torch.randn(WORDS).numpy())),
        refusal(lambda: net(image[:1, :3], TIMES)),
        refusal(lambda: synth.parallelize(Denoiser(), IMAGE)),
        refusal(lambda: synth.parallelize(Denoiser(), {"sample": IMAGE, "time": TIMES})),
        refusal(lambda: synth.parallelize(Denoiser(), 3)),
        refusal(lambda: synth.parallelize(Denoiser(), {"sample": IMAGE, "timestep": 3})),
    ]


def other_times() -> str:
    """What all ranks are told where one was given another time step."""
    import torch.distributed as dist

    net = synth.parallelize(Denoiser(), (IMAGE, TIMES))
    try:
        net(torch.ones(IMAGE), TIMES + (dist.get_rank() == 2))
    except RuntimeError as error:
        return str(error)
    return ""
