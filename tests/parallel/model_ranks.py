"""What the ranks of the model tests do: run as a program, it imports once and then forks four ranks.

argv: a free port, a folder for what the ranks print, and functions with their arguments: "train=tiny free".
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from zoo import Drops, as_they_are, own, tiny

import synth
import synth.parallel.parallelize

RANKS = 4
GRIDS: dict[str, Any] = {"free": None, "rows_channels": {"h": 2, "c": 2}}


def near(one: torch.Tensor, other: torch.Tensor) -> None:
    """The same up to rounding."""
    torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


def three_steps(whole: nn.Module, shape: tuple[int, ...], plan: Any) -> None:
    """Forward and three SGD steps give the losses and the state of one process; the state moves on."""
    net = synth.parallelize(whole, shape, RANKS, plan)
    before = net.received()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9) for m in (net, whole)]
    for _ in range(3):
        batch = torch.randn(shape)
        right = whole(batch)
        right = getattr(right, "logits", right)
        target = torch.randn(right.shape)
        out = net.gather(net(net.scatter(batch)))
        near(out, right)
        losses = [nn.functional.mse_loss(each, target) for each in (out, right)]
        near(losses[0], losses[1])
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state, expected = net.full_state_dict(), whole.state_dict()
    assert list(state) == list(expected)
    for key, values in expected.items():
        near(state[key], values)
    assert net.received() > before


def train(case: str) -> None:
    """Every model of a zoo with a plan: "names plan"."""
    names, plan = case.split()
    torch.manual_seed(0)
    known = own() if names in ("own", *own()) else tiny()
    for name in known if names in ("own", "tiny") else names.split(","):
        print("model", name, flush=True)
        whole, shape = known[name]
        three_steps(whole, shape, GRIDS.get(plan, plan))


def moves(case: str) -> None:
    """What one grid saved, another loads and gives the same outputs; other states are refused."""
    torch.manual_seed(0)
    for whole, shape in own().values():
        nets = [synth.parallelize(whole, shape, plan=plan) for plan in ("filter", "spatial")]
        batch = torch.randn(shape)
        (nets[0].gather(nets[0](nets[0].scatter(batch)))).square().sum().backward()
        with torch.no_grad():
            for parameter in nets[0].parameters():
                parameter += 0.1
        saved = nets[0].full_state_dict()
        nets[1].load_full_state_dict(saved)
        whole.load_state_dict(saved)
        for model in (*nets, whole):
            model.eval()
        for net in nets:
            near(net.gather(net(net.scatter(batch))), whole(batch))
    state = nets[0].full_state_dict()
    wrong = [
        {key: values for key, values in state.items() if key != "norm.bias"},
        {**state, "conv.weight": torch.zeros(3, 3, 1, 1)},
        {**state, "more.weight": torch.zeros(1)},
        {f"module.{key}": values for key, values in state.items()},
    ]
    for each in wrong:
        try:
            nets[0].load_full_state_dict(each)
        except ValueError as error:
            print("refused:", error)
        else:
            raise AssertionError("a state of another model was taken")


def stays(case: str) -> None:
    """What is frozen, evaluated or detached stays so, and may change; the rest trains as in one process."""
    for name, whole in as_they_are().items():
        for plan in case.split(","):
            print("model", name, plan, flush=True)
            torch.manual_seed(0)
            stays_with(copy.deepcopy(whole).double(), GRIDS.get(plan, plan), name)


def stays_with(whole: nn.Module, plan: Any, name: str) -> None:
    """The same for one model and plan."""
    net = synth.parallelize(whole, (4, 4, 8, 8), plan=plan)
    pair = net, whole
    options: Any = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}
    for step in range(6):
        if step == 2:
            assert net.training == whole.training
            net.load_full_state_dict(net.full_state_dict())
        if step == 3:
            for model in pair:
                model.train()
                model.requires_grad_(True)
        if step == 5:
            for model in pair:
                model.requires_grad_(False)
            key = {"partly": "last.weight", "functions": "one.weight"}.get(name, "3.weight")
            net.steps[net.entries[key][0]].module.weight.requires_grad_(True)
            whole.get_parameter(key).requires_grad_(True)
        if step in (0, 3, 5):
            optimizers = [torch.optim.SGD(model.parameters(), **options) for model in pair]
        batch, target = torch.randn(2, 4, 4, 8, 8, dtype=torch.float64)
        sums = net.buckets.messages
        losses = [(net(net.scatter(batch, "input")) - net.scatter(target, "output")).square().sum() / 100]
        losses.append((whole(batch) - target).square().sum() / 100)
        for loss, model, optimizer in zip(losses, pair, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for each in model.parameters():
                assert each.requires_grad or each.grad is None
        together = losses[0].detach().clone()
        dist.all_reduce(together)
        torch.testing.assert_close(together, losses[1].detach(), msg=f"step {step}")
        assert step != 5 or net.buckets.messages == sums
        state = net.full_state_dict()
        for key, values in whole.state_dict().items():
            torch.testing.assert_close(state[key], values, msg=lambda said, key=key: f"{name}, {key}: {said}")


def modes(case: str) -> None:
    """Dropout functions follow the mode, whatever it was at first; what cannot follow it refuses."""
    batch = torch.ones(4, 4, 8, 8)
    for training in (True, False):
        whole = Drops().train(training)
        net = synth.parallelize(whole, (4, 4, 8, 8))
        assert net.training is training
        for mode in (training, not training, training):
            net.train(mode)
            zeros = (net.gather(net(net.scatter(batch, "input"))) == 0).double().mean()
            assert (0.3 < zeros < 0.7) if mode else zeros == 0

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x)
            return x if self.training else torch.sigmoid(x)

    class Always(Drops):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.conv(x), 0.5, True)

    for model, mode in ((Other(), False), (Other().eval(), True), (Always(), False)):
        net = synth.parallelize(model, (4, 4, 8, 8))
        try:
            net.train(mode)
        except ValueError as error:
            print("refused:", error)
        else:
            raise AssertionError(model)


def drops(case: str) -> None:
    """Dropout drops the same words on every grid, about as many as asked, and nothing in evaluation."""
    p = float(case)
    model = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.Dropout(p), nn.Dropout2d(p))
    nn.init.ones_(model[0].weight)
    batch, outs = torch.ones(4, 4, 16, 16), []
    for plan in ("data", "filter", "spatial"):
        torch.manual_seed(7)
        net = synth.parallelize(model, (4, 4, 16, 16), plan=plan)
        runs = [net.gather(net(net.scatter(batch))).detach() for _ in range(2)]
        assert not torch.equal(*runs)
        outs.append(torch.stack(runs))
        net.eval()
        near(net.gather(net(net.scatter(batch))).detach(), model[0](batch).detach())
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    channels = outs[0][0].flatten(2)
    alive = channels[channels.sum(2) > 0]  # channels that Dropout2d left
    assert 0 < len(alive) < 32
    kept = (alive > 0).double().mean()
    assert abs(float(kept) - (1 - p)) < 0.05
    near(alive.max(), torch.tensor(4 / (1 - p) ** 2))


def refused(case: str) -> None:
    """What has no single tensor or makes its own is refused in a sentence."""

    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, x - 1

    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(3, device=x.device)

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    for model, shape in ((Two(), (4, 3)), (Makes(), (4, 3)), (Asks(), (4, 3))):
        try:
            synth.parallelize(model, shape)
        except ValueError as error:
            print("refused:", error)
        else:
            raise AssertionError(model)


def fault(case: str) -> None:
    """An exception of rank 0's planner is raised on every rank."""

    def fails(*given: Any) -> Any:
        raise KeyError("no such axis")

    right, synth.parallel.parallelize.plan_network = synth.parallel.parallelize.plan_network, fails
    with pytest.raises(RuntimeError, match=r"rank 0 could not plan the model: KeyError\('no such axis'\)"):
        synth.parallelize(nn.Conv2d(4, 4, 1), (4, 4, 8, 8))
    synth.parallel.parallelize.plan_network = right


def sides(case: str) -> None:
    """A batch that may be input or output, where the two lie differently, is not guessed to be either."""
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    net = synth.parallelize(model, (4, 4, 8, 8), plan={"0": {"b": 4}, "1": {"h": 4}})
    whole = torch.randn(4, 4, 8, 8)
    assert torch.equal(net.scatter(whole, "input"), whole[dist.get_rank()].unsqueeze(0))
    assert torch.equal(net.scatter(whole, like="output"), whole[:, :, 2 * dist.get_rank() :][:, :, :2])
    for batch, like in ((whole, None), (whole, "target"), (whole[1:], None), (whole[1:], "output")):
        try:
            net.scatter(batch, like)
        except ValueError as error:
            print("refused:", error)
        else:
            raise AssertionError(like)


def rank_main(rank: int, argv: list[str]) -> None:
    """Be one rank."""
    port, folder, *jobs = argv
    with open(Path(folder, f"log-{rank}"), "w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for function, argument in (job.split("=") for job in jobs):
        globals()[function](argument)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if any(job.startswith("train=tiny") for job in sys.argv[3:]):
        tiny()  # import the libraries before the ranks are forked
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_main, args=(rank, sys.argv[1:])) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    sys.exit(max(abs(each.exitcode or 0) for each in ranks))
