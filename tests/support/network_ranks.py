"""What one rank of the whole-network tests does. Every function runs on all ranks and asserts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import print_facts
from torch import nn

import synth
from synth.base.errors import UsageError
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.planner.request import NetworkRequest
from synth.parallel.front_end import trace_model
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import Box
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.batch_norm import BatchNorm

STEPS = 10
PLANS: dict[str, Any] = {
    "free": None,
    "data": "data",
    "spatial": "spatial",
    "channel": "channel",
    "filter": "filter",
    "hybrid": {"b": 2, "k": 2},
    "rows_channels": {"h": 2, "c": 2},
    "mixed": {
        "stem": {"b": 4},
        "a.one": {"h": 2, "w": 2},
        "a.two": {"c": 4},
        "b.one": {"k": 4},
        "b.two": {"b": 2, "h": 2},
        "b.short": {"c": 2, "k": 2},
        "head": {"b": 2, "k": 2},
    },
    "volume": {"d": 2, "h": 2},
    "idle": None,  # see `some_idle`
}


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.short: nn.Module = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm2(self.two(self.relu(self.norm1(self.one(x)))))
        out += self.short(x)
        return self.relu(out)


class Residual(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.a, self.b = Block(8, 8, 1), Block(8, 12, 2)
        self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        x = self.mean(self.b(self.a(x)))
        return self.head(x.view(x.size(0), -1))


class Cosmo(nn.Module):
    """Like CosmoFlow: volumes, pooled until few values are left."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv3d(2, 4, 3, padding=1), nn.LeakyReLU(), nn.AvgPool3d(2)),
            *(nn.Conv3d(4, 6, 3, padding=1), nn.BatchNorm3d(6), nn.LeakyReLU(), nn.MaxPool3d(2)),
        )
        self.tail = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self.body(x))


class Odd(nn.Module):
    """Layers that cannot be cut, grouped convolutions, uneven everything."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, stride=2)
        self.depth, self.pairs = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 9, 3, groups=3)
        self.norm = nn.LayerNorm([9, 5, 4])
        self.pool = nn.AvgPool2d(2, padding=1, count_include_pad=False)
        self.last = nn.Conv2d(9, 5, 1, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pairs(torch.relu(self.depth(self.first(x))))
        return self.last(self.pool(self.norm(x))).mean((2, 3))


def biases() -> nn.Module:
    """Several layers whose biases ranks share."""
    convs = (nn.Conv2d(n, n + 4, 3, padding=1) for n in (3, 7, 11, 15))
    return nn.Sequential(*(each for conv in convs for each in (conv, nn.Tanh())))


class Decoder(nn.Module):
    """Layers with fewer output than input channels, of stride 1, 2 and transposed: cut by input rows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 12, 3, padding=1)
        self.down = nn.Conv2d(12, 4, 5, stride=2, padding=2)
        self.up = nn.ConvTranspose2d(4, 12, 4, stride=2, padding=1)
        self.head = nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.down(torch.relu(self.stem(x))))
        out: torch.Tensor = self.head(torch.relu(self.up(x)))
        return out


MODELS = {
    "decoder": (Decoder, (1, 2, 48, 40)),
    "decoder_by_channels": (Decoder, (1, 2, 32, 24)),
    "biases": (biases, (4, 3, 8, 8)),
    "residual": (Residual, (5, 3, 13, 13)),
    "cosmo": (Cosmo, (2, 2, 8, 8, 8)),
    "odd": (Odd, (3, 3, 15, 13)),
}


def near(one: torch.Tensor, other: torch.Tensor) -> float:
    """Checks that values are the same up to rounding; the largest difference, relative to values above 1."""
    torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)
    if not other.numel():
        return 0.0
    return float((one - other).abs().max() / other.abs().max().clamp(min=1))


def trains_as_torch(case: str) -> dict[str, float]:
    """Ten SGD steps on the ranks and in one process: by plan, the largest difference of losses, weights."""
    name, *plans = case.split()
    differences = {}
    for how in plans:
        print(name, how, flush=True)
        differences[how] = ten_steps(name, how)
    return differences


def ten_steps(name: str, how: str) -> float:
    """The largest difference with one plan, of losses, weights and the output in evaluation."""
    torch.manual_seed(0)
    kind, shape = MODELS[name]
    whole = kind().double()  # in float32 a word near zero falls on either side of a ReLU
    plan = some_idle(whole, shape) if how == "idle" else PLANS[how]
    net = synth.parallelize(whole, shape, dist.get_world_size(), plan)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (net, whole)]
    differences = []
    for _ in range(STEPS):
        batch = torch.randn(shape).double()
        right = whole(batch)
        target = torch.randn(right.shape).double()
        out = net.gather(net(net.scatter(batch)))
        losses = [nn.functional.mse_loss(each, target) for each in (out, right)]
        differences.append(near(losses[0].detach(), losses[1].detach()))
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state = net.full_state_dict()
    assert state.keys() == whole.state_dict().keys()
    for key, values in whole.state_dict().items():
        differences.append(near(state[key].double(), values.double()))
    print("words", net.received())
    net.load_full_state_dict(state)
    for model in (net, whole):
        model.eval()
    differences.append(near(net.gather(net(net.scatter(batch))).detach(), whole(batch).detach()))
    return max(differences)


def some_idle(whole: nn.Module, shape: tuple[int, ...]) -> NetworkPlan:
    """A plan that leaves ranks idle in layers with weights where it need not."""
    procs = dist.get_world_size()
    network = trace_model(whole, shape).network
    found = plan_network(network, NetworkRequest(procs, training=True, balance=0.3))
    assert min(placed.grid.size for placed in found.placed_grids) < procs
    return found


def groups(_: str) -> dict[str, float]:
    """Ranks that are in different numbers of groups make one together, for each purpose one: sums of ones."""
    me, groups, sums = dist.get_rank(), ProcessGroups(), {}
    for ranks in ((0, 1), (1, 2), (0, 1, 2), (0, 2)):
        if me in ranks:
            made = [groups.of(ranks, purpose=purpose) for purpose in ("", "other", "")]
            assert made[0] is made[2] is not made[1]
            total = torch.ones(())
            dist.all_reduce(total, group=made[1])
            sums[" ".join(map(str, ranks))] = float(total)
    return sums


def sharded_loss(case: str) -> dict[str, float]:
    """A sum over a partitioned output is that of all words: differences of the gradients of biases."""
    torch.manual_seed(0)
    kind, shape = MODELS[case]
    whole, batch = kind(), torch.randn(shape)
    net = synth.parallelize(whole, shape, plan="filter")
    net(net.scatter(batch)).square().sum().backward()
    whole(batch).square().sum().backward()
    biases = {name: each for name, each in whole.named_parameters() if name.endswith("bias")}
    return {
        name: near(net.get_parameter(name).grad.full_tensor(), each.grad) for name, each in biases.items()
    }


def refusals(case: str) -> None:
    """Wrong arguments are refused in a sentence."""
    kind, shape = MODELS[case]
    for arguments in ({"refuse": True}, {"plan": {"nothing": "data"}}, {"plan": "best"}, {"procs": 3}):
        try:
            synth.parallelize(kind(), shape, **arguments)
        except (ValueError, UsageError) as error:
            print("refused:", error)
        else:
            raise AssertionError(arguments)


class Poison(torch.autograd.Function):
    """Passes values on and turns their gradient into NaN."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.nan


def nan_is_named(case: str) -> None:
    """NaN in rank 2's gradient, of a planned weight or of what another layer gives, is named on all ranks."""
    name, layer = case.split()
    kind, shape = MODELS[name]
    net = synth.parallelize(kind(), shape, 4, check_finite=True)
    key = net.program.owners[layer]
    program = getattr(net.program.steps[key].module, "program", None)
    (user,) = [step for step, sources in net.program.calls if key in sources]
    if dist.get_rank() == 2 and program:
        emitted = program.function.forward.__globals__  # names of the emitted module
        right = emitted["backward_filter"]
        emitted["backward_filter"] = lambda *given: right(*given) * torch.nan
    elif dist.get_rank() == 2:
        net.program.steps[user].register_forward_pre_hook(lambda _, given: (Poison.apply(*given),))
    out = net.gather(net(net.scatter(torch.randn(shape))))
    try:
        out.square().sum().backward()
    except FloatingPointError as error:
        print("found:", error)
    else:
        raise AssertionError("NaN went unnoticed")


LAYOUTS: dict[str, tuple[Box, ...]] = {  # of (6, 8, 5) on four ranks
    "samples": tuple(((low, high), (0, 8), (0, 5)) for low, high in ((0, 2), (2, 4), (4, 5), (5, 6))),
    "channels": tuple(((0, 6), (2 * r, 2 * r + 2), (0, 5)) for r in range(4)),
    "overlapping": (((0, 3), (0, 5), (0, 5)), ((3, 6), (0, 3), (0, 5)), ((3, 6), (3, 8), (0, 5)),
                    ((0, 3), (5, 8), (0, 5))),
    "idle": (((0, 6), (0, 4), (0, 5)), ((0, 6), (4, 8), (0, 2)), ((0, 6), (4, 8), (2, 5)),
             ((0, 0), (0, 0), (0, 0))),
}  # fmt: skip


def bind(made: BatchNorm, whole: nn.Module) -> None:
    """Let a batch normalization of shards use the own words of one of wholes."""
    for name, place in made.held_tensors().items():
        values = getattr(whole, name)
        own = values.detach() if place.partition is None else place.partition.cut(values.detach())
        place.bind(own.clone().requires_grad_(values.requires_grad))


def norms(name: str) -> None:
    """Batch normalization on shares, however they are cut, is torch's on the whole."""
    lies = Layout((6, 8, 5), LAYOUTS[name], Ranks.world())
    mine = tuple(slice(*interval) for interval in lies.mine)
    for far, how in ((0, {}), (0, {"affine": False}), (0, {"momentum": None}),
                     (0, {"track_running_stats": False}), (1e5, {})):  # fmt: skip
        torch.manual_seed(0)
        whole: Any = nn.BatchNorm1d(8, **how).double()
        if whole.affine:
            nn.init.uniform_(whole.weight, 0.5, 2)
            nn.init.uniform_(whole.bias)
        made = BatchNorm(whole, lies, ProcessGroups())
        bind(made, whole)
        for training in (True, True, False):
            whole.train(training)
            made.train(training)
            batch, dout = torch.randn(6, 8, 5).double() + far, torch.randn(6, 8, 5).double()
            given = batch.clone().requires_grad_()
            share = batch[mine].clone().requires_grad_()
            right, out = whole(given), made(share)
            right.backward(dout)
            made.train()
            made(batch[mine] + 1)  # another pass before the way back
            out.backward(dout[mine])
            near(out.detach(), right.detach()[mine])
            near(share.grad, given.grad[mine])
            if whole.affine:
                near(made.weight.grad, whole.weight.grad[mine[1]])
                near(made.bias.grad, whole.bias.grad[mine[1]])
            bind(made, whole)
            whole.zero_grad()
    one = BatchNorm(
        nn.BatchNorm1d(8),
        Layout((1, 8), tuple(((0, 1), box[1]) for box in LAYOUTS["channels"]), Ranks.world()),
        ProcessGroups(),
    )
    with pytest.raises(ValueError, match="one value per channel"):
        one(torch.zeros(1, 2))


def main() -> None:
    """argv: function, its argument, folder."""
    dist.init_process_group("gloo")
    print_facts(globals()[sys.argv[1]](sys.argv[2]))
    Path(sys.argv[3], f"done-{dist.get_rank()}").write_text(json.dumps(dist.get_rank()))
    dist.barrier()
    dist.destroy_process_group()
