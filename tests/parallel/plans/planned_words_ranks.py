"""Words of whole passes on real ranks, beside those that the plan says."""

from __future__ import annotations

from typing import Any

import torch
from shared_plan import shared_plan
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.planned_words import PlannedWords
from synth.runtime.model.step_graph import StepGraph


class Attention(nn.Module):
    """Heads over all positions of a map, after a group norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, 2, c // 2, h * w).transpose(-1, -2)
        heads = functional.scaled_dot_product_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2])
        return x + self.out(heads.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    """A small U-Net with group norms, attention, a concatenation, and a gathered call."""

    def __init__(self, norm: str = "group", checkpoints: bool = False) -> None:
        super().__init__()
        kinds: dict[str, Any] = {
            "group": lambda n: nn.GroupNorm(2, n),
            "instance": lambda n: nn.InstanceNorm2d(n, affine=True),
            "batch": nn.BatchNorm2d,
        }
        self.first, self.checkpoints = nn.Conv2d(3, 8, 3, padding=1), checkpoints
        self.norm, self.down = kinds[norm](8), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.inner, self.attention = kinds[norm](16), Attention(16)
        self.up, self.last = nn.Upsample(scale_factor=2), nn.Conv2d(24, 4, 3, padding=1)
        self.rows = nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.norm(self.first(x)))
        if self.checkpoints:
            low: torch.Tensor = checkpoint(self.deep, x, use_reentrant=False)
            checkpoint(self.deep, x, use_reentrant=False)  # nobody reads it, so it is not computed again
        else:
            low = self.deep(x)
        out = self.last(torch.cat([self.up(low), x], 1))
        return self.rows(out).sort(1).values

    def deep(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(functional.silu(self.inner(self.down(x))))


class Residual(nn.Module):
    """A block with batch norms, circular padding, one weight in two layers, and a class per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(8)
        self.conv, self.again = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.pool, self.mean, self.classes = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 6)
        self.gate = nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.stem(x)))
        y = functional.relu(self.again(self.conv(x)))
        y = self.pool(self.conv(y) * torch.sigmoid(self.gate) + x)
        logits: torch.Tensor = self.classes(self.mean(y).flatten(1))
        return logits


class Twins(nn.Module):
    """Two branches of the same modules, which begin at the input: no branch has parameters of its own.

    A buffer is read by calls whose results are cut in several ways.
    """

    mask: torch.Tensor

    def __init__(self, normed: bool) -> None:
        super().__init__()
        first = nn.BatchNorm2d(3) if normed else nn.Conv2d(3, 3, 3, padding=1)
        self.features = nn.Sequential(first, nn.ReLU(), nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8))
        self.last = nn.Conv2d(8, 4, 1)
        self.register_buffer("mask", torch.arange(12.0).remainder(2)[:, None] + torch.arange(12.0) / 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.features(x), self.features(x * x * (1 - self.mask))
        z: torch.Tensor = self.last(one * self.mask * other).transpose(2, 3) * self.mask
        return z


class Gates(nn.Module):
    """Reductions of positions: gates, means of rows, a mean of tokens, a sum, and a pooling to one row.

    A function has no derivative, so no gradient returns through it. A number is spread over a vector.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.pool, self.row = nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((1, None))
        self.down, self.up = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.along, self.tokens = nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 8)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        x = x * torch.sigmoid(self.up(functional.relu(self.down(self.pool(x)))))
        x = self.last(x)
        x = x * torch.sigmoid(x.mean((2, 3), keepdim=True)) + self.row(x)
        rows = self.along(x.mean(3)).sum(-1)
        tokens = self.tokens(x.flatten(2).transpose(1, 2)).mean(1)
        few = x - x.detach() + torch.round(2 * x.detach())  # many rows are equal
        tokens = tokens + functional.adaptive_max_pool2d(few, 1).flatten(1) - few.amin(2).amax(-1)
        tokens = tokens + torch.cat([x, few], 1).amax((2, 3))[:, 4:12]  # joined maps lie in two layouts
        tokens = tokens + torch.special.bessel_j0(self.tokens(tokens))
        logits: torch.Tensor = self.classes(rows + tokens + x.mean([-2, -1]))
        return logits + x.mean() * torch.ones(5, dtype=x.dtype)


class Windows(nn.Module):
    """Poolings to several outputs, of maps, of a concatenation and of the attention of a map."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 1),
            nn.Conv2d(8, 4, 1),
        )
        self.means, self.best = nn.AdaptiveAvgPool2d((3, 4)), nn.AdaptiveMaxPool2d((4, 3))
        self.pyramid, self.heads = nn.Conv2d(8, 4, 1), Attention(8)
        self.classes, self.more = nn.Linear(12, 5), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        few = x - x.detach() + torch.round(2 * x.detach())  # many rows are equal
        maps = self.pyramid(self.means(x)).transpose(2, 3) + self.pyramid(self.best(few))
        joined = functional.silu(torch.cat([self.left(x), self.right(x)], 1))
        out = self.classes(functional.adaptive_avg_pool2d(joined, 1).flatten(1)) + self.more(
            joined.mean((2, 3))
        )
        attended = functional.adaptive_max_pool2d(self.heads(x) - x, 2)
        logits: torch.Tensor = out * (maps.sum((1, 2, 3)) + attended.sum((1, 2, 3)))[:, None]
        return logits


class Spreads(nn.Module):
    """Deviations, norms and logarithms of sums along positions or channels; of equal or complex rows, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        x = x / (1 + x.std((2, 3), keepdim=True)) + x.logsumexp(1, keepdim=True)
        x = self.last(x) * x.var(1, unbiased=False, keepdim=True)
        x = x + x.norm(dim=2, keepdim=True) + torch.var(x, 3, correction=2, keepdim=True)
        found = torch.logsumexp(x, (2, 3)) + x.norm(3, (2, 3)) + functional.relu(x - 99).std((2, 3))
        turned = torch.complex(x, x.flip(2))
        found = found + turned.norm(dim=(2, 3)) + turned.std((2, 3))
        logits: torch.Tensor = self.classes(found + x[..., :2].var(3, False).mean(2))
        return logits


MODELS: dict[str, Any] = {
    "gates": Gates,
    "spreads": Spreads,
    "windows": Windows,
    "group norms": lambda: UNet(),
    "instance norms": lambda: UNet("instance"),
    "batch norms": lambda: UNet("batch"),
    "checkpoint": lambda: UNet(checkpoints=True),
    "residual": Residual,
    "twins": lambda: Twins(normed=False),
    "twins of norms": lambda: Twins(normed=True),
    "heads": lambda: nn.Sequential(nn.Conv1d(6, 8, 3, padding=1), nn.LayerNorm(12), Rows()),
}


class Rows(nn.Module):
    """Attention of torch's own layer, over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        out: torch.Tensor = self.heads(x, x, x, need_weights=False)[0]
        return out


def shape_of(name: str) -> tuple[int, ...]:
    shapes = {"heads": (4, 6, 12), "gates": (2, 3, 7, 3), "spreads": (2, 3, 7, 5), "windows": (2, 3, 7, 9)}
    return shapes.get(name, (4, 3, 12, 12))


def trained(name: str, axes: str, batch_norm: Any = "global", freeze: bool = False) -> dict[str, Any]:
    """A training step: counted words of this rank, those of the plan, and those of the network."""
    torch.manual_seed(0)
    model, shape = MODELS[name]().double(), shape_of(name)
    if freeze:
        next(model.children()).requires_grad_(False)
    plan = shared_plan(model, shape, axes=axes, batch_norm=batch_norm)
    net = synth.parallelize(model, shape, plan=plan, batch_norm=batch_norm)
    net(torch.randn(shape).double()).square().sum().backward()
    return {**found(net, net.program, plan.words, plan.words.step), "again": net.planned_words().step}


class Between(nn.Module):
    """A call between two convolutions, on rows of 16 channels."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(2, 16, 3, padding=1), nn.Conv1d(16, 4, 3, padding=1)
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.first(x).transpose(1, 2)
        if isinstance(self.inner, nn.MultiheadAttention):
            rows = self.inner(rows, rows, rows)[0]
        else:
            rows = self.inner(rows)
        out: torch.Tensor = self.last(rows.transpose(1, 2))
        return out


def heads(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(16, 2, batch_first=True, **options)


INNER: dict[str, Any] = {
    "attention": heads,
    "attention with biases of keys": lambda: heads(add_bias_kv=True),
    "attention with zeros": lambda: heads(add_bias_kv=True, add_zero_attn=True),
    "linear": lambda: nn.Linear(16, 16),
    "layer norm": lambda: nn.LayerNorm(16),
    "prelu": nn.PReLU,
}
GRIDS = ({"w": 4}, {"k": 4}, {"b": 2, "w": 2})


def every_pass(name: str) -> dict[str, tuple[int, int]]:
    """Counted and planned words of this rank: training, frozen parts, evaluation, gradients of the input."""
    kinds = {"all": "", "frozen": "inner", "first": "inner last", "none": "first inner last"}
    found, shape = dict[str, tuple[int, int]](), (4, 2, 8)
    for grid in GRIDS:
        for kind, frozen in kinds.items():
            for asked in (False, True) if kind != "none" else (True,):
                torch.manual_seed(0)
                model = Between(INNER[name]()).double()
                for part in frozen.split():
                    model.get_submodule(part).requires_grad_(False)
                net = synth.parallelize(model, shape, plan=grid, input_gradient=asked)
                x = torch.randn(shape).double().requires_grad_(asked)
                net(x).square().sum().backward()
                words = net.planned_words(input_gradient=asked)
                found[f"{grid}, {kind}, {asked}"] = net.received(), words.step[net.ranks.me]
        net.eval()
        before = net.received()
        with torch.no_grad():
            net(x)
        found[f"{grid}, evaluation"] = net.received() - before, net.planned_words().forward[net.ranks.me]
    return found


class Detached(Between):
    """Its last layer has two inputs in turn, one without a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.inner(self.first(x).transpose(1, 2)).transpose(1, 2)
        return self.last(rows) + self.last(rows.detach())  # type: ignore[no-any-return]


def without_gradients() -> dict[str, tuple[int, int]]:
    """Counted and planned words where inputs of layers get no gradient, which their plans have."""
    found, shape = dict[str, tuple[int, int]](), (4, 2, 8)
    for grid in GRIDS:
        for kind in (Detached, Between):
            net = synth.parallelize(kind(nn.PReLU()).double(), shape, plan=grid)
            for part in ("inner", "first") if kind is Between else ():
                net.get_submodule(part).requires_grad_(False)
            net(torch.randn(shape).double()).square().sum().backward()
            found[f"{grid}, {kind}"] = net.received(), net.planned_words().step[net.ranks.me]
    return found


def inferred(name: str, axes: str) -> dict[str, Any]:
    """A forward pass with resident weights."""
    torch.manual_seed(0)
    model, shape = MODELS[name]().double().eval(), shape_of(name)
    plan = shared_plan(model, shape, axes=axes, mode="inference")
    net = synth.parallelize(model, shape, plan=plan, mode="inference")
    net(torch.randn(shape).double())
    return {**found(net, net.program, plan.words, plan.words.forward), "again": net.planned_words().step}


def as_one_process(name: str, axes: str, mode: str) -> dict[str, float]:
    """The largest differences of the output and of the gradients from those of one process."""
    torch.manual_seed(0)
    model, shape = MODELS[name]().double(), shape_of(name)
    plan = shared_plan(model, shape, axes=axes, mode=mode)
    net = synth.parallelize(model.train(mode == "training"), shape, plan=plan, mode=mode)
    x = torch.randn(shape).double()
    pairs = {"out": (net(x), model(x))}
    if mode == "training":
        for made in pairs["out"]:
            made.square().sum().backward()
        grads = dict(net.named_parameters())
        pairs |= {key: (grads[key].grad, each.grad) for key, each in model.named_parameters()}
    return {key: float((one.full_tensor() - other).abs().max()) for key, (one, other) in pairs.items()}


def timed(mode: str) -> dict[str, Any]:
    """A plan for time whose head is cut by input rows: words, and the largest difference to one process."""
    torch.manual_seed(0)
    shape = (1, 3, 24, 26)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 2, 5, padding=2)).double()
    plan = shared_plan(model, shape, objective="time", machine="lassen", mode=mode, axes="hw")
    assert [bool(placed.turned) for placed in plan.placed_grids] == [False, True]
    net = synth.parallelize(model.train(mode == "training"), shape, plan=plan, mode=mode)
    x = torch.randn(shape).double()
    outs, planned = (net(x), model(x)), plan.words.forward
    pairs = [(outs[0].full_tensor(), outs[1])]
    if mode == "training":
        planned = plan.words.step
        for made in outs:
            made.square().sum().backward()
        grads = dict(net.named_parameters())
        pairs += [(grads[key].grad.full_tensor(), each.grad) for key, each in model.named_parameters()]
    counted = net.received()
    difference = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
    return {"words": (counted, planned[net.ranks.me]), "difference": difference}


def other_shape(name: str, other: tuple[int, ...], mode: str) -> dict[str, Any]:
    """A pass with another shape, whose layers want other words of the weights than the ranks hold."""
    torch.manual_seed(0)
    model = MODELS[name]().double().train(mode == "training")
    memory = 60_000 if mode == "inference" else None  # else every rank has all weights
    net = synth.parallelize(model, shape_of(name), 4, memory=memory, mode=mode)
    words = net.planned_words(other)
    out = net(torch.randn(other).double())
    if mode == "training":
        out.square().sum().backward()
    return found(net, net._programs.forward(net).of_shapes(other, net), words, words.step)


def found(net: Any, program: StepGraph, words: PlannedWords, planned: Any) -> dict[str, Any]:
    """What this rank counted and what is planned; by name, for messages and the words of weights."""
    me, layers = net.ranks.me, (m for m in program.modules() if isinstance(m, DistributedLayer))
    here = {layer.name: layer.traffic.received()["total"] for layer in layers}
    for (_, _, what), number in program.context.traffic.steps.items():
        here[what] = here.get(what, 0) + number
    said = {name: (pair[0][me], pair[1][me]) for name, pair in words.calls.items() if any(map(any, pair))}
    return {
        "words": (net.received(), planned[me]),
        "counted": here,
        "said": said,
        "all": words.step,
        "weights": sum(number for what, number in here.items() if what.startswith("weights of")),
    }
