"""Models whose forward leaves losses, features and numbers in attributes, on ranks and in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import synth

SHAPE, OTHER = (4, 3, 8, 6), (4, 3, 4, 6)


class Expert(nn.Module):
    """A convolution whose channels a gate weighs; the balance of the gate is an auxiliary loss."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body, self.gate = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(before, after, 1)
        self.aux_loss: Any = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The weighed channels."""
        weights = torch.softmax(self.gate(x), 1)
        self.aux_loss = 0
        for each in weights.mean((0, 2, 3)), weights.square().mean((0, 2, 3)):
            self.aux_loss = self.aux_loss + each.square().sum()
        return torch.tanh(self.body(x)) * weights


class Mixture(nn.Module):
    """Two of them; in checkpoints if asked."""

    def __init__(self, checkpoints: bool = False) -> None:
        super().__init__()
        self.first, self.second = Expert(3, 6), Expert(6, 4)
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the second."""
        for each in self.first, self.second:
            x = checkpoint(each, x, use_reentrant=False) if self.checkpoints else each(x)
        return x


class Posterior:
    """A distribution by its mean and the logarithm of its variance."""

    def __init__(self, mean: torch.Tensor, log: torch.Tensor) -> None:
        self.mean, self.log = mean, log

    def divergence(self) -> torch.Tensor:
        """From the standard normal one."""
        return 0.5 * (self.mean.square() + self.log.exp() - 1 - self.log).mean()


class Autoencoder(nn.Module):
    """A variational one, which leaves its divergence, and its posterior as an object and as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)
        self.kl: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The reconstruction from the means."""
        mean, log = self.encoder(x).chunk(2, 1)
        self.posterior, self.pair = Posterior(mean, log), (mean, log.detach())
        self.kl = self.posterior.divergence()
        made: torch.Tensor = self.decoder(mean)
        return made


class Quantized(nn.Module):
    """Leaves the distance of what it computes from what is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)
        self.commitment: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the rounded map, with the gradient of the other one."""
        y = self.encoder(x)
        rounded = torch.round(y * 4) / 4
        self.commitment = nn.functional.mse_loss(y, rounded.detach())
        made: torch.Tensor = self.decoder(y + (rounded - y).detach())
        return made


class Features(nn.Module):
    """Leaves features in dicts and lists, of which it makes some anew."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 1)
        self.cache: dict[str, Any] = {"scale": 2.0, "last": None}
        self.every: list[Any] = []
        self.losses: list[Any] = [7.0]
        self.ends: list[Any] = [0.0, 3.0]
        self.extents: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output; all else is left."""
        y = torch.tanh(self.body(x)) * self.cache["scale"]
        self.features = {"x": x, "body": y}
        self.cache["last"], self.extents = y.abs(), tuple(x.shape[2:])
        self.every.append(y.mean())
        self.losses.clear()
        self.losses.append(y.square().mean())
        self.losses.append(y.square())
        self.ends[0] = y.exp()
        self.out: torch.Tensor = self.head(y)
        return self.out


class InTraining(nn.Module):
    """Leaves a loss in training only, and a number in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)
        self.loss: Any = None
        self.state = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output."""
        y = torch.tanh(self.body(x))
        self.state = "trained" if self.training else "evaluated"
        if self.training:
            self.loss = y.square().mean()
        return y


class Case(NamedTuple):
    """A model, what of it a loss adds, and the tensors that it leaves."""

    make: Callable[[], nn.Module]
    more: Callable[[Any], torch.Tensor]
    left: Callable[[Any], list[Any]]


CASES = {
    "mixture": Case(
        Mixture,
        lambda m: m.first.aux_loss + m.second.aux_loss,
        lambda m: [m.first.aux_loss, m.second.aux_loss],
    ),
    "autoencoder": Case(
        Autoencoder,
        lambda m: m.kl + m.posterior.divergence() + m.pair[0].square().mean(),
        lambda m: [m.kl, m.posterior.mean, m.posterior.log, *m.pair],
    ),
    "quantized": Case(Quantized, lambda m: 5 * m.commitment, lambda m: [m.commitment]),
    "features": Case(
        Features,
        lambda m: (
            m.every[-1] + m.losses[0] + m.losses[1].mean() + m.cache["last"].mean() + m.features["body"].sum()
        ),
        lambda m: [*m.features.values(), m.cache["last"], *m.every, *m.losses, m.ends[0], m.out],
    ),
    "in training": Case(InTraining, lambda m: 3 * m.loss, lambda m: [m.loss]),
    "checkpoints": Case(
        lambda: Mixture(checkpoints=True),
        lambda m: m.first.aux_loss + 2 * m.second.aux_loss,
        lambda m: [m.first.aux_loss, m.second.aux_loss],
    ),
}


def both(name: str, **options: Any) -> tuple[Any, nn.Module, nn.Module]:
    """The network, the model that was given for it, and a copy for one process."""
    torch.manual_seed(0)
    model = CASES[name].make().double()
    alone = copy.deepcopy(model)
    return synth.parallelize(model, SHAPE, **options), model, alone


def batch(number: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """A batch, the same on all ranks."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def whole(values: Any) -> torch.Tensor:
    """All words, without gradients."""
    found = values.full_tensor() if hasattr(values, "full_tensor") else values
    return found.detach()


def apart(net: Any, alone: Any, name: str) -> float:
    """The largest difference of what is left; infinite for other numbers of tensors."""
    mine, right = CASES[name].left(net), CASES[name].left(alone)
    if len(mine) != len(right) or [each.shape for each in mine] != [each.shape for each in right]:
        return float("inf")
    pairs = zip(mine, right, strict=True)
    return max(float((whole(a) - b.detach()).abs().max()) for a, b in pairs)


def step(model: Any, name: str, given: torch.Tensor, reads: bool = True) -> None:
    """A step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(given).square().mean()
    if reads:
        loss = loss + CASES[name].more(model)
    loss.backward()
    optimizer.step()


def weights_apart(net: Any, alone: nn.Module) -> float:
    """The largest difference of parameters."""
    state = net.full_state_dict()
    return max(float((state[key] - each).abs().max()) for key, each in alone.state_dict().items())


def trained(name: str, plan: str, options: dict[str, Any]) -> dict[str, Any]:
    """Two steps, another shape, a pass without gradients, one in evaluation, and a copy."""
    net, model, alone = both(name, plan=plan, **options)
    errors, program = [], net.program
    for number in range(2):
        for each in net, alone:
            step(each, name, batch(number))
        errors += [apart(net, alone, name), apart(model, alone, name), weights_apart(net, alone)]
    same = net.program is program
    kinds = {type(each).__name__ for each in CASES[name].left(net) if each.ndim}
    for each in net, alone:
        step(each, name, batch(2, OTHER))
    errors += [apart(net, alone, name), weights_apart(net, alone)]
    copied = copy.deepcopy(net)
    errors.append(apart(copied, alone, name))
    recorded = [each.requires_grad for each in CASES[name].left(net)]
    right = [each.requires_grad for each in CASES[name].left(alone)]
    with torch.no_grad():
        for each in net, alone:
            each(batch(3))
    errors.append(apart(net, alone, name))
    none = [each.requires_grad for each in CASES[name].left(net)[-1:]]
    for each in net.eval(), alone.eval():
        each(batch(4))
    errors.append(apart(net, alone, name))
    return {
        "error": max(errors),
        "same": same,
        "kinds": kinds,
        "recorded": recorded == right,
        "none": not any(none),
        "copied": copied.program is net.program,
    }


def unread(name: str) -> dict[str, Any]:
    """A step whose loss reads nothing of what is left, and its words."""
    net, _, alone = both(name, plan="spatial")
    plain = synth.parallelize(Mute(CASES[name].make().double()), SHAPE, plan="spatial")
    planned = net.planned_words()
    before = net.received()
    for each in net, alone:
        step(each, name, batch(0), reads=False)
    received = net.received() - before
    return {
        "error": weights_apart(net, alone),
        "planned": planned.step[dist.get_rank()],
        "received": received,
        "plain": plain.planned_words().step[dist.get_rank()],
    }


class Mute(nn.Module):
    """The same calls of `Features`, of which nothing is left."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.body, self.head = model.body, model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output."""
        made: torch.Tensor = self.head(torch.tanh(self.body(x)) * 2.0)
        return made


def modes() -> dict[str, Any]:
    """What is left in one mode only."""
    net, _, alone = both("in training", plan="data")
    found = []
    for model in net, alone:
        texts = [model.state]
        model.eval()(batch(0))
        texts += [model.state, model.loss is None]
        model.train()(batch(1))
        loss = model.loss
        texts += [model.state]
        model.eval()(batch(2))
        found.append([*texts, model.state, model.loss is loss, round(float(loss), 9)])
    return {"mine": found[0], "right": found[1], "calls": len(net._programs.calls)}


def changed() -> dict[str, Any]:
    """What a user changes between passes: no plan anew for what passes write, one for what forward reads."""
    net, _, alone = both("features", plan="data")
    programs, errors = [net.program], []
    for model in net, alone:
        model(batch(0))
        model.features, model.extents, model.cache["last"] = 0.0, None, batch(9)
        model.every.clear()
        model.ends[0] = None
        model(batch(1))
    programs.append(net.program)
    errors += [apart(net, alone, "features"), float(net.extents != alone.extents)]
    for model in net, alone:
        model.cache["scale"] = 3.0
        model(batch(2))
    errors.append(apart(net, alone, "features"))
    programs.append(net.program)
    return {
        "same": programs[0] is programs[1],
        "anew": programs[1] is not programs[2],
        "error": max(errors),
        "lengths": (len(net.every), len(net.losses), net.ends[1]),
    }


class Refused(nn.Module):
    """Leaves what ranks do not give, or give otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)
        self.before: Any = None
        self.penalty: Any = 0.0
        self.pair: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output."""
        y = torch.tanh(self.body(x))
        self.penalty = self.body.weight.square().sum()
        self.before = y[:, :2]
        self.pair = (y.mean(), self.penalty)
        y.mul_(2)
        self.after = y
        return y + 1

    def regularizer(self) -> Any:
        """A method that reads what a pass left."""
        return 2 * self.penalty

    def compared(self, x: torch.Tensor) -> torch.Tensor:
        """A method that is planned, and reads it, too."""
        made: torch.Tensor = self.body(x) + self.after
        return made


def said(read: Callable[[], Any]) -> str:
    """What reading raises; "" for nothing."""
    try:
        read()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def refused() -> dict[str, Any]:
    """What reading raises of what ranks do not compute, on the network, the given model and a copy."""
    torch.manual_seed(0)
    model = Refused().double()
    alone = copy.deepcopy(model)
    net = synth.parallelize(model, SHAPE, plan="data")
    net(batch(0))
    alone(batch(0))
    reads: dict[str, Callable[[], Any]] = {
        "penalty": lambda: 1 + net.penalty,
        "before": lambda: torch.stack([net.before]),
        "pair": lambda: net.pair[1].item(),
        "penalty by a method": net.regularizer,
        "penalty of the model": lambda: float(model.penalty),
        "penalty of a copy": lambda: copy.deepcopy(net).penalty * 2,
        "after by a planned method": lambda: net.compared(batch(0)),
    }
    errors = [whole(net.after) - alone.after, net.pair[0] - alone.pair[0]]
    again = synth.parallelize(model, SHAPE, plan="data", check=False)
    again(batch(0))
    errors.append(whole(again.after) - alone.after)
    return {
        "found": {name: said(read) for name, read in reads.items()},
        "error": max(float(each.detach().abs().max()) for each in errors),
    }


class Scaled(nn.Module):
    """Training leaves a number of a map, by which evaluation divides, and a method, too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.kind = nn.Conv2d(3, 4, 3, padding=1), kind
        self.scale: Any = {"tensor": torch.full((), 2.0), "none": None, "number": 1}.get(kind)
        self.held: dict[str, Any] = {"scale": 2.0}
        self.every: list[Any] = []
        if kind == "absent":
            del self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The map, divided in evaluation."""
        y = torch.tanh(self.body(x))
        if not self.training:
            return y / self.divisor()
        size = y.detach().abs().mean()
        if self.kind == "dict":
            self.held["scale"] = size
        elif self.kind == "new dict":
            self.held = {"scale": size}
        elif self.kind == "list":
            self.every.append(size)
        elif self.kind == "number":
            self.scale = 3
        elif self.kind == "weights":
            self.scale = self.body.weight.detach().abs().sum()
        else:
            self.scale = size
        return y

    def divisor(self) -> Any:
        """What training has left."""
        if self.kind == "list":
            return sum(self.every, 1.0)
        scale = self.held["scale"] if "dict" in self.kind else getattr(self, "scale", None)
        return 1.0 if scale is None else scale

    def divided(self, x: torch.Tensor) -> torch.Tensor:
        """The same of another map."""
        made: torch.Tensor = self.body(x) / self.divisor()
        return made


def set_by_user(model: Any, kind: str, number: float, inside: bool = False) -> None:
    """Set what evaluation divides by. inside: not the attribute or the part, but the words that it has."""
    held = {"list": model.every, "dict": model.held, "new dict": model.held}.get(kind)
    if kind == "list":
        held[:] = [number]
    elif kind == "new dict" and not inside:
        model.held = {"scale": number}
    elif held is not None:
        held["scale"] = number
    elif inside:
        model.scale.fill_(number)
    else:
        model.scale = torch.full((), number, dtype=torch.float64)


def read_later(kind: str, first: str) -> dict[str, Any]:
    """Calls that read what training leaves: before that, after it, and once the user has set it."""
    torch.manual_seed(0)
    model = Scaled(kind).double()
    alone = copy.deepcopy(model)
    net = synth.parallelize(model.train(first == "training"), SHAPE, plan="spatial", check=False)
    errors, texts = list[float](), list[str]()

    def compare(*calls: Callable[[Any], torch.Tensor], refused: bool = False) -> None:
        for call in calls:
            made = list[torch.Tensor]()
            if refused:
                texts.append(said(partial(lambda call, made: made.append(call(net)), call, made)))
            else:
                made.append(call(net))
            errors.extend(float((whole(each) - call(alone).detach()).abs().max()) for each in made)

    reads = (lambda m: m.eval()(batch(2))), (lambda m: m.divided(batch(2)))
    if first == "evaluation":
        compare(*reads)
    elif kind == "dict":  # which no pass has filled
        for number in (5.0, 6.0):
            for each in net, alone:
                set_by_user(each, kind, number)
            compare(*reads)
    for number in range(2):
        compare(lambda m, number=number: m.train()(batch(number)))
        compare(*reads, refused=True)
    for number in (3.0, 4.0) if kind != "number" else ():
        for each in net, alone:
            set_by_user(each, kind, number)
        compare(*reads)
        if kind not in ("none", "absent"):
            for each in net, alone:
                set_by_user(each, kind, number + 1, inside=True)
            compare(*reads)
        compare(lambda m: m.train()(batch(3)))
        compare(*reads, refused=True)
    return {"error": max(errors), "said": texts}


class Masked(nn.Module):
    """Makes a mask once, in a dict by extents or as an attribute that is not there before."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.kind, self.gain = nn.Conv2d(3, 4, 3, padding=1), kind, 2.0
        self.masks: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A map with its mask."""
        return torch.tanh(self.body(x)) * self.masked(x.shape[3]) * self.gain

    def added(self, x: torch.Tensor) -> torch.Tensor:
        """Another call with it."""
        made: torch.Tensor = self.body(x) + self.masked(x.shape[3])
        return made

    def masked(self, width: int) -> torch.Tensor:
        """The mask."""
        if self.kind == "absent":
            if not hasattr(self, "mask"):
                self.mask = torch.arange(width, dtype=torch.float64) / width
            return self.mask
        if width not in self.masks:
            self.masks[width] = torch.arange(width, dtype=torch.float64) / width
        return self.masks[width]


def cached(kind: str) -> float:
    """The largest difference of calls after others have made the mask: a method, a shape, a change."""
    torch.manual_seed(0)
    model = Masked(kind).double()
    alone = copy.deepcopy(model)
    net, errors = synth.parallelize(model, SHAPE, plan="spatial"), list[float]()
    for number, (shape, gain) in enumerate([(SHAPE, 2.0), (OTHER, 2.0), (SHAPE, 3.0)]):
        given = batch(number, shape)
        net.gain = alone.gain = gain
        for mode in True, False:
            pairs = [(each.train(mode)(given), each.added(given)) for each in (net, alone)]
            errors += [float((whole(a) - b.detach()).abs().max()) for a, b in zip(*pairs, strict=True)]
    return max(errors)


def compiled() -> dict[str, Any]:
    """Steps that are compiled, and a network that is one operator of compiled code."""
    net, _, alone = both("mixture", plan="data")
    net.compile(backend="aot_eager")
    for each in net, alone:
        step(each, "mixture", batch(0))
    errors = [apart(net, alone, "mixture"), weights_apart(net, alone)]
    net, _, alone = both("mixture", plan="data", outputs="whole")
    torch.compile(net, backend="aot_eager", fullgraph=True)(batch(0))
    return {"error": max(errors), "said": said(lambda: float(net.second.aux_loss))}


def checked() -> list[str]:
    """What the comparison with one process says of each model."""
    return [str(synth.check(CASES[name].make(), SHAPE)) for name in CASES]


class ScaledOnce(Scaled):
    """Evaluation is as training before that has left its number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The map, divided in evaluation."""
        y = torch.tanh(self.body(x))
        if self.training:
            self.scale = y.detach().abs().mean()
        return y if self.training or self.scale is None else y / self.scale


def left_out() -> str:
    """What it says of a model whose evaluation reads what its training leaves."""
    return str(synth.check(ScaledOnce("none"), SHAPE))
