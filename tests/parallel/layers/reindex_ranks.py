"""What the ranks of the tests of moved rows do: models on several plans, compared with one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from shared_plan import shared_plan
from torch import nn
from torch.nn import functional

import synth

Built = tuple[nn.Module, tuple[int, ...]]
PLANS: dict[str, Any] = {
    "samples": "data",
    "space": "spatial",
    "channels": "channel",
    "filters": "filter",
    "mixed": {"h": 2, "c": 2},
    "free": None,
    "frames": {"d": 2, "w": 2},
}


class Between(nn.Module):
    """Some calls between two convolutions, on tensors of `channels` and of `made` channels."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor], channels: int, made: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(made, 5, 3)
        self.norm = nn.BatchNorm2d(made)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.call(self.first(x)))))


def circular(x: torch.Tensor) -> torch.Tensor:
    """Longitude wraps, latitude is reflected."""
    return functional.pad(functional.pad(x, (2, 1, 0, 0), "circular"), (0, 0, 1, 3), "reflect")


def gated(x: torch.Tensor) -> torch.Tensor:
    """One half of the channels times the other."""
    one, other = x.chunk(2, 1)
    return one * torch.sigmoid(other)


def quarters(x: torch.Tensor) -> torch.Tensor:
    """Every second row and column, four times, one beside the other (patch merging, Focus)."""
    parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
    return torch.cat(parts, 1)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """A shift and back, around something."""
    y = torch.roll(x, (-2, -1), (2, 3))
    return torch.roll(torch.tanh(y) * y, (2, 1), (2, 3)) + x.flip(3)


def positions(x: torch.Tensor) -> torch.Tensor:
    """One row and one channel, spread over all."""
    row = x[:, :, 3:4].expand(-1, -1, x.shape[2], -1)
    one = x.select(1, 2).unsqueeze(1)
    return x + row * one


def crop(x: torch.Tensor) -> torch.Tensor:
    """A crop beside what was repeated and cropped."""
    wide = x.repeat_interleave(2, dim=2).repeat(1, 1, 1, 2)
    return torch.cat([x[:, :, 1:-2, 2:], wide.narrow(2, 3, x.shape[2] - 3)[..., 5 : x.shape[3] + 3]], 1)


def no_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows that are repeated no times, and empty slices, as causal layers with a kernel of one frame have."""
    columns = torch.cat([x[..., :1].repeat(1, 1, 1, 0), x, x[..., 2:2].relu()], 3)
    return torch.cat([columns.narrow(1, 2, 0), columns], 1)


def windows(x: torch.Tensor) -> torch.Tensor:
    """Attention windows, normalized and softened each by itself, and back (Swin)."""
    b, c, h, w = x.shape
    y = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)
    y = torch.softmax(y, -1) * functional.normalize(y, dim=1)
    y = y.view(b, h // 2, w // 2, 2, 2, c).permute(0, 5, 1, 3, 2, 4)
    return y.reshape(b, c, h, w)


def shuffled(x: torch.Tensor) -> torch.Tensor:
    """Channels in another order, then to positions and back."""
    b, c, h, w = x.shape
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
    y = functional.pixel_shuffle(y, 2)
    return functional.pixel_unshuffle(torch.tanh(y), 2) + nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(x))


def blocks(x: torch.Tensor) -> torch.Tensor:
    """Channels to positions and back, with the factors before the channels, as TensorFlow has them."""
    b, c, h, w = x.shape
    y = x.view(b, 3, 2, c // 6, h, w).permute(0, 3, 4, 1, 5, 2).reshape(b, c // 6, 3 * h, 2 * w)
    y = torch.tanh(y).view(b, c // 6, h, 3, w, 2).permute(0, 5, 3, 1, 2, 4).reshape(b, c, h, w)
    return y + x


def means(x: torch.Tensor) -> torch.Tensor:
    """Shortcuts beside shuffles: channels that are repeated, and means of some (deep compression)."""
    y = functional.pixel_shuffle(x.repeat_interleave(2, 1), 2)
    return functional.pixel_unshuffle(torch.tanh(y), 2).unflatten(1, (-1, 4)).mean(dim=2)


def halves(x: torch.Tensor) -> torch.Tensor:
    """Two couplings, each of which changes some channels by the others."""
    y = torch.tanh(x)
    for split in ([4, 8], [6, 6]):
        one, other = torch.sigmoid(torch.cat([x, y], 1)).split(split, 1)
        x, y = one, other * one.mean(1, keepdim=True)
    return torch.cat([y, x], 1)


def put_together(x: torch.Tensor) -> torch.Tensor:
    """A shuffle of joined maps, of which two make a channel together."""
    return functional.pixel_shuffle(torch.relu(torch.cat([x, torch.tanh(x), x[:, :4]], 1)), 2)


def smaller(x: torch.Tensor) -> torch.Tensor:
    """Positions to channels, with zeros where these do not go up."""
    return functional.pixel_unshuffle(functional.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), 2)


def along(x: torch.Tensor) -> torch.Tensor:
    """Sums along channels and rows, a norm, and a scan."""
    y = functional.normalize(x) + functional.softmax(x, 1).cumsum(2)
    y = y * x.sum(1, keepdim=True).expand_as(x)
    return y + x.amax((2, 3), keepdim=True) + x.norm(dim=-1, keepdim=True)


def stacked(x: torch.Tensor) -> torch.Tensor:
    """Two tensors in a new dimension, of which one is taken back, and the mean of both."""
    y = torch.stack([x, torch.tanh(x)], 2)
    return y[:, :, 1] + y.mean(2) + torch.stack((x, x), dim=-1).unbind(-1)[1]


def adaptive(x: torch.Tensor) -> torch.Tensor:
    """Windows of several sizes, of means and of maxima that may be equal."""
    return functional.adaptive_avg_pool2d(x, (5, 7)) + functional.adaptive_max_pool2d(torch.relu(x), (5, 7))


CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int, int]] = {
    "causal": (lambda x: functional.pad(x, (2, 0, 3, 1)), 4, 4),
    "constant": (nn.ConstantPad2d((1, 2, 0, 3), 0.7), 4, 4),
    "circular": (circular, 4, 4),
    "replicate": (nn.ReplicationPad2d((3, 0, 1, 4)), 4, 4),
    "reflect": (nn.ReflectionPad2d(3), 6, 6),
    "cropped": (lambda x: functional.pad(x, (-2, 1, -1, -2)), 4, 4),
    "gated": (gated, 8, 4),
    "quarters": (quarters, 3, 12),
    "shifted": (shifted, 4, 4),
    "positions": (positions, 4, 4),
    "crop": (crop, 4, 8),
    "no_rows": (no_rows, 4, 4),
    "windows": (windows, 4, 4),
    "shuffled": (shuffled, 8, 8),
    "larger": (lambda x: functional.pixel_shuffle(x, 3), 45, 5),
    "smaller": (smaller, 4, 16),
    "blocks": (blocks, 12, 12),
    "means": (means, 8, 4),
    "halves": (halves, 6, 12),
    "put_together": (put_together, 6, 4),
    "along": (along, 4, 4),
    "stacked": (stacked, 4, 4),
    "adaptive": (adaptive, 4, 4),
}


class Causal(nn.Module):
    """Zeros before the frames alone, as causal video convolutions have them, with strides and groups."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv3d(3, 4, 3), nn.Conv3d(4, 4, (3, 3, 2), stride=(2, 1, 2), groups=2)
        self.last = nn.Conv3d(4, 3, (4, 1, 3), dilation=(1, 1, 2), padding=(0, 0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(functional.pad(x, (1, 1, 1, 1, 2, 0)))
        x = self.two(functional.pad(torch.relu(x), (0, 1, 1, 1, 2, 0)))
        return self.last(functional.pad(x, (0, 0, 0, 0, 3, 0)))


class Same(nn.Module):
    """As many zeros as keep the extent, the odd one behind, as TensorFlow pads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 4, 3, stride=2))
        self.same = nn.Conv2d(4, 6, (2, 4), padding="same", groups=2)
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.ZeroPad2d((0, 1, 0, 1)))
        self.two, self.last = nn.Conv2d(6, 3, 2), nn.Conv2d(6, 3, 2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(self.same(self.first(x)))  # two layers read the same zeros
        return self.two(wide) + self.last(wide)[..., 1:-1, 1:-1]


class Wrapped(nn.Module):
    """Longitude wraps in every layer; rows are reflected and repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular")
        self.two = nn.Conv2d(4, 4, 3, padding=1, stride=2, padding_mode="reflect", bias=False)
        self.last = nn.Conv2d(4, 3, 4, padding="same", padding_mode="replicate")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.two(torch.relu(self.one(x)))))


class Series(nn.Module):
    """Dilated causal convolutions of a series with gates and skips, as WaveNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.skip = nn.Conv1d(3, 4, 1), nn.Conv1d(4, 3, 1)
        self.layers = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**i) for i in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            one, other = layer(functional.pad(x, (layer.dilation[0], 0))).chunk(2, 1)
            x = x + torch.tanh(one) * torch.sigmoid(other)
        return self.skip(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "causal": (Causal, (2, 3, 5, 6, 7)),
    "same": (Same, (3, 3, 10, 8)),
    "wrapped": (Wrapped, (3, 3, 9, 8)),
    "series": (Series, (3, 3, 13)),
}


def padded(plan: str) -> dict[str, dict[str, float]]:
    """Model -> errors, as `compared` gives them, of convolutions with padding of all kinds."""
    found = {}
    for name, (kind, shape) in MODELS.items():
        torch.manual_seed(0)
        found[name] = two_steps(kind().double(), PLANS[plan], shape)
    return found


def compared(names: list[str], plan: str, shape: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Model -> errors of the output and of the states after two steps; refuses what would be gathered."""
    return {name: _compared(*CALLS[name], PLANS[plan], shape) for name in names}


def _compared(call: Any, channels: int, made: int, plan: Any, shape: tuple[int, ...]) -> dict[str, float]:
    torch.manual_seed(0)
    return two_steps(Between(call, channels, made).double(), plan, shape)


def two_steps(whole: nn.Module, plan: Any, shape: tuple[int, ...]) -> dict[str, float]:
    """The errors of the output and of the states of two training steps."""
    net = synth.parallelize(copy.deepcopy(whole), shape, plan=plan, refuse=True, input_gradient=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (net, whole)]
    errors = {"forward": 0.0, "state": 0.0}
    for _ in range(2):
        batch = torch.randn(shape, dtype=torch.float64)
        right = whole(batch)
        outs = [net(batch).full_tensor(), right]
        errors["forward"] = max(errors["forward"], _error(*outs))
        for out, optimizer in zip(outs, optimizers, strict=True):
            optimizer.zero_grad()
            (out * torch.arange(out.numel()).reshape(out.shape).sin()).sum().backward()
            optimizer.step()
    state = net.full_state_dict()
    errors["state"] = max(_error(state[key], values) for key, values in whole.state_dict().items())
    return errors


def _error(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max().detach() / (1 + other.abs().max().detach()))


def words(names: list[str], axes: str, shape: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Model -> words that this rank receives between layers, there and back, and those of the plan."""
    found = {}
    for name in names:
        torch.manual_seed(0)
        model = Between(*CALLS[name]).double()
        plan = shared_plan(model, shape, axes=axes, input_gradient=True)
        net = synth.parallelize(model, shape, plan=plan)
        batch = net.scatter(torch.randn(shape, dtype=torch.float64)).requires_grad_()
        net.program.context.traffic.steps.clear()
        out = net(batch)
        there = _moved(net)
        out.square().sum().backward()
        back = {what: count - there.get(what, 0) for what, count in _moved(net).items()}
        found[name] = {"there": there, "back": back, "planned": _planned(plan)}
    return found


def _moved(net: Any) -> dict[str, int]:
    steps = net.program.context.traffic.steps.items()
    return {name: count for (phase, _, name), count in steps if phase.strip() == "move"}


def _planned(plan: Any) -> dict[str, int]:
    """What words are moved for -> words, there and back."""
    network, found = plan.network, dict[str, int]()
    parts, nodes = network.parts, network.nodes.values()
    for edge, count in plan.edge_words.items():
        ends = (edge.target, edge.target_path), (edge.source, edge.source_path)
        if edge.moves_rows:
            what = [edge.target_path[-1].name]
        elif edge.role == "in":
            read = network.nodes[edge.target].inputs[0]
            while network.nodes[read].kind in ("relu", "batchnorm"):
                read = network.nodes[read].inputs[0]
            last = edge.source_path[-1].name if edge.source_path else edge.source
            what = [f"{read} <- {last}" if network.nodes[read].kind == "cat" else edge.target]
        else:
            homes = {n.name: [(parts[i][0].node, parts[i][0].path) for i in n.inputs] for n in nodes}
            what = [name for name, home in homes.items() if home == list(ends)]
        assert len(what) == 1, (edge, what)
        found[what[0]] = found.get(what[0], 0) + count
    return found
