"""What the ranks of the tests of whole networks do: functions that return what a test looks at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from small_networks import MODELS, PLANS, near, some_idle
from torch import nn

import synth
from synth.base.errors import UsageError
from synth.runtime.comm.process_groups import ProcessGroups

STEPS = 10


def difference_after_training(model: str, plan: str) -> float:
    """Ten SGD steps on the ranks and in one process: the largest difference of losses, weights and outputs.

    Outputs are those in evaluation, after the state was loaded again. Differences are relative to the largest
    value of a tensor, if that is above 1.
    """
    torch.manual_seed(0)
    make, shape = MODELS[model]
    whole = make().double()  # in float32 a word near zero falls on either side of a ReLU
    chosen = some_idle(whole, shape) if plan == "idle" else PLANS[plan]
    net = synth.parallelize(whole, shape, dist.get_world_size(), chosen)
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
    net.load_full_state_dict(state)
    for each in (net, whole):
        each.eval()
    differences.append(near(net.gather(net(net.scatter(batch))).detach(), whole(batch).detach()))
    return max(differences)


def differences_of_bias_gradients(model: str) -> dict[str, float]:
    """Of a sum over a partitioned output, beside one process: bias -> the difference of its gradient."""
    torch.manual_seed(0)
    make, shape = MODELS[model]
    whole, batch = make(), torch.randn(shape)
    net = synth.parallelize(whole, shape, plan="filter")
    net(net.scatter(batch)).square().sum().backward()
    whole(batch).square().sum().backward()
    biases = {name: each for name, each in whole.named_parameters() if name.endswith("bias")}
    return {
        name: near(net.get_parameter(name).grad.full_tensor(), each.grad) for name, each in biases.items()
    }


def sums_over_groups(*members: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Group -> the sum of a one of every member, for the groups of this rank, which are made in this order.

    A group is the same object for the same purpose, and another one for another purpose.
    """
    me, groups, sums = dist.get_rank(), ProcessGroups(), {}
    for ranks in members:
        if me in ranks:
            made = [groups.of(ranks, purpose=purpose) for purpose in ("", "other", "")]
            assert made[0] is made[2] is not made[1]
            total = torch.ones(())
            dist.all_reduce(total, group=made[1])
            sums[ranks] = float(total)
    return sums


def refusal(model: str, arguments: dict[str, Any]) -> str:
    """The sentence with which `parallelize` refuses arguments; "" where it does not."""
    make, shape = MODELS[model]
    try:
        synth.parallelize(make(), shape, **arguments)
    except (ValueError, UsageError) as error:
        return str(error)
    return ""


# -- NaN -------------------------------------------------------------------------------------------------


class Poison(torch.autograd.Function):
    """Passes values on and turns their gradient into NaN."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.nan


def report_of_nan(model: str, layer: str) -> str:
    """What a backward pass raises in which rank 2 meets NaN in the gradient of a layer; "" if nothing.

    Of a planned layer the gradient is dKer; of another one, that of its output.
    """
    make, shape = MODELS[model]
    net = synth.parallelize(make(), shape, 4, check_finite=True)
    key = net.program.owners[layer]
    program = getattr(net.program.steps[key].module, "program", None)
    (user,) = [step for step, sources in net.program.calls if key in sources]
    with pytest.MonkeyPatch.context() as patched:
        if dist.get_rank() == 2 and program:
            emitted = program.function.forward.__globals__  # names of the emitted module
            right = emitted["backward_filter"]
            patched.setitem(emitted, "backward_filter", lambda *given: right(*given) * torch.nan)
        elif dist.get_rank() == 2:
            net.program.steps[user].register_forward_pre_hook(lambda _, given: (Poison.apply(*given),))
        out = net.gather(net(net.scatter(torch.randn(shape))))
        try:
            out.square().sum().backward()
        except FloatingPointError as error:
            return str(error)
    return ""
