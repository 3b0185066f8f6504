"""Random numbers of passes: they follow torch's generator, as in one process."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth

SHAPE = (4, 3, 8, 8)


class Dropped(nn.Module):
    """Two dropouts, one of whole channels; noise that all ranks draw; a region that is computed again."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.drop, self.channels, self.again = nn.Dropout(0.4), nn.Dropout2d(0.3), again

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.channels(torch.tanh(self.drop(x)))
        return y + torch.rand(8, 1, 1, dtype=y.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.middle, x, use_reentrant=False) if self.again else self.middle(x)
        return self.last(x)  # type: ignore[no-any-return]


def networks(plan: Any, *agains: bool) -> list[Any]:
    torch.manual_seed(0)
    whole = Dropped().double()
    found = []
    for again in agains:
        model = copy.deepcopy(whole)
        model.again = again
        found.append(synth.parallelize(model, SHAPE, plan=plan))
    return found


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 768, dtype=torch.float64).reshape(SHAPE)


def passes(plan: Any) -> dict[str, torch.Tensor]:
    """Outputs of passes, by what stands before them."""
    (net,) = networks(plan, False)
    found = {}

    def run(name: str) -> None:
        found[name] = net(batch()).full_tensor().detach()

    torch.manual_seed(5)
    run("seeded")
    run("next")
    state = torch.get_rng_state()
    run("behind a state")
    torch.set_rng_state(state)
    run("behind the state again")
    torch.manual_seed(5)
    run("seeded again")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        run("seeded in fork_rng")
    run("next again")
    torch.manual_seed(6)
    run("another seed")
    return found


def gradients(plan: Any) -> float:
    """How far gradients are from those of a network that keeps what a checkpoint computes again."""
    found = []
    for net in networks(plan, True, False):
        torch.manual_seed(7)
        loss = net(batch()).square().mean()
        net(batch() + 1).sum().detach()  # draws other numbers in between
        loss.backward()
        found.append([p.grad.full_tensor() for p in net.parameters()])
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))


def other_generators(plan: Any) -> tuple[list[str], float]:
    """What is said where ranks have other generators, and how far the result is from rank 0's."""
    (net,) = networks(plan, False)
    torch.manual_seed(0)
    expected = net(batch()).full_tensor()
    torch.manual_seed(dist.get_rank())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = net(batch()).full_tensor()
        net(batch())
    return [str(each.message) for each in told], float((found - expected).abs().max())


def untouched(plan: Any) -> list[bool]:
    """Whether the generator stays as it was: where nothing draws, in evaluation, while a network is made."""
    found = []
    torch.manual_seed(3)
    before = torch.get_rng_state()
    net = synth.parallelize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5)), SHAPE, plan=plan)
    torch.manual_seed(3)
    for mode in (False, True):
        net.train(mode)
        net(torch.ones(SHAPE))
        found.append(torch.equal(before, torch.get_rng_state()))
    torch.manual_seed(3)
    model = nn.Conv2d(3, 4, 3)
    before = torch.get_rng_state()
    net = synth.parallelize(model, SHAPE, plan=plan)
    net(torch.ones(SHAPE)).sum().backward()
    found.append(torch.equal(before, torch.get_rng_state()))
    return found


class InTraining(nn.Module):
    """Two functions that every rank computes whole, of which evaluation makes none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return functional.alpha_dropout(functional.feature_alpha_dropout(x, 0.5, True), 0.5, True)


def several_whole(plan: Any) -> float:
    """The sum of what these functions leave."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), InTraining())
    net = synth.parallelize(model, SHAPE, plan=plan, check=False)
    return float(net(torch.ones(SHAPE)).sum())


NOISE: dict[str, Any] = {
    "randn": lambda y, g: y + torch.randn(y.shape, generator=g, dtype=y.dtype),
    "uniform_": lambda y, g: y + torch.empty_like(y).uniform_(generator=g),
    "normal": lambda y, g: torch.normal(y, 0.1, generator=g),
    "bernoulli": lambda y, g: y * torch.bernoulli(y.sigmoid(), generator=g),
    "randperm": lambda y, g: y[:, torch.randperm(8, generator=g)],
    "multinomial": lambda y, g: y[:, torch.multinomial(y.mean((0, 2, 3)).softmax(0), 8, generator=g)],
}


class Noisy(nn.Module):
    """Draws from a generator that it has, in training, and from one that it is given."""

    def __init__(self, how: str = "randn") -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.how, self.own = how, seeded(4)

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        y = self.first(x)
        if self.training:
            y = NOISE[self.how](y, self.own)
        if generator is not None:
            y = NOISE[self.how](y, generator)
        return self.last(y)  # type: ignore[no-any-return]


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def given_generators(plan: Any) -> dict[str, float]:
    """How far passes are from one process that draw from given generators, and their later numbers."""
    found = {}
    for how in NOISE:
        torch.manual_seed(0)
        model = Noisy(how).double()
        net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan)
        made = [drawn(each) for each in (model, net)]
        found[how] = max(float((a - b).abs().max()) for a, b in zip(*made, strict=True))
    return found


def drawn(model: Any) -> list[torch.Tensor]:
    """A step, passes with generators in several places, states and modes; numbers drawn behind them."""
    one, other = seeded(5), seeded(6)
    model(batch(), generator=one).square().sum().backward()
    made = [whole(each.grad) for each in model.parameters()]
    made += [model(batch(), one), model(batch()), model(batch(), generator=other)]
    model.own.manual_seed(9)
    made.append(model(batch()))
    model.own = one
    made += [model(batch()), copy.deepcopy(model)(batch()), model.eval()(batch(), model.own)]
    return [*map(whole, made), *(torch.randn(3, generator=each) for each in (one, other))]


def whole(values: Any) -> torch.Tensor:
    return values.full_tensor().detach() if hasattr(values, "full_tensor") else values.detach()


class Elsewhere(nn.Module):
    """Draws from generators that a pass could not follow."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.how, self.own = nn.Conv2d(3, 4, 1), how, seeded(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "checkpoint":
            return checkpoint(self.noise, self.conv(x), self.own, use_reentrant=False)  # type: ignore[no-any-return]
        if self.how == "seeded":
            self.own.manual_seed(3)
        return self.noise(self.conv(x), seeded(3) if self.how == "made" else self.own)

    def noise(self, y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return y + torch.randn(y.shape, generator=generator)


def refused_generators(plan: Any) -> dict[str, str]:
    """What is said of them, and of a generator that differs between ranks, whose network stays usable."""
    said = {}
    for how in ("made", "seeded", "checkpoint"):
        try:
            synth.parallelize(Elsewhere(how), SHAPE, plan=plan)
        except ValueError as error:
            said[how] = str(error).partition(" (draw_ranks.py")[0]
    torch.manual_seed(0)
    model = Noisy().double().eval()
    net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan)
    try:
        net(batch(), seeded(dist.get_rank()))
    except RuntimeError as error:
        said["differs"] = str(error).partition(": ")[2].partition(" (")[0]
    apart = whole(net(batch(), seeded(7))) - model(batch(), seeded(7))
    said["later"] = "right" if float(apart.abs().max()) < 1e-12 else "wrong"
    return said
