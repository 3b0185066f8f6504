"""What one rank of the module tests does. Every function runs on all ranks and asserts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import CASES
from ranks import print_facts
from torch import nn

from synth.codegen.module import distributed_conv
from synth.planning.plan import Plan
from synth.runtime.grid.boxes import within


def plain(plan: Plan, bias: bool = True) -> nn.Module:
    """torch's own layer."""
    layer = plan.layer
    if layer.kind == "matmul":
        return nn.Linear(layer.nest.extents.c, layer.nest.extents.k, bias)
    kinds = {"conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d}
    steps: Any = layer.stride, layer.padding, layer.dilation
    kernel: Any = layer.kernel
    ends = layer.input[1], layer.out_channels
    if layer.transposed:
        back = {"conv1d": nn.ConvTranspose1d, "conv2d": nn.ConvTranspose2d, "conv3d": nn.ConvTranspose3d}
        more: Any = layer.output_padding
        return back[layer.kind](*ends, kernel, *steps[:2], more, layer.groups, bias, layer.dilation[0])
    return kinds[layer.kind](*ends, kernel, *steps, layer.groups, bias)


def near(one: torch.Tensor, other: torch.Tensor) -> float:
    """Checks that values are the same up to rounding; the largest difference, relative to values above 1."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    if not other.numel():
        return 0.0
    return float((one - other).abs().max() / other.abs().max().clamp(min=1))


def steps_as_torch(name: str) -> dict[str, Any]:
    """Three SGD steps on the ranks and in one process: received words, the largest difference of values."""
    plan = CASES[name]
    torch.manual_seed(0)
    model, whole = distributed_conv(plan), plain(plan)
    model.load_full_state_dict(whole.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (model, whole)]
    shape = plan.layer.input if plan.layer.kernel else (plan.nest.extents.b, plan.nest.extents.c)
    inputs = torch.randn(shape)
    differences = []
    for step in range(3):
        share = model.scatter(inputs).requires_grad_("In" in plan.gradients)
        given = inputs.clone().requires_grad_()
        out, right = model(share), whole(given)
        differences.append(near(model.gather(out.detach()).reshape(right.shape), right.detach()))
        for made in (out, right):  # the gradient of a plain sum is one word, expanded
            ((made if step == 1 else made.square()).sum() / right.numel()).backward()
        if "In" in plan.gradients:
            differences.append(near(share.grad, model.scatter(given.grad)))
        if "Ker" not in plan.gradients:
            whole.weight.grad = None
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for key, values in model.full_state_dict().items():
        differences.append(near(values, whole.state_dict()[key]))
    return {"words": model.traffic.received()["total"], "difference": max(differences)}


def one_gradient(names: str) -> None:
    """A gradient that the plan does not make is refused when it is asked for, on every rank alike."""
    for name in names.split():
        plan = CASES[name]
        model = distributed_conv(plan)
        share = torch.zeros(tuple(high - low for low, high in model.input.mine)).requires_grad_()
        model.weight.requires_grad_()
        try:
            model(share)
        except ValueError as error:
            print("refused:", error)
        model(share.detach().requires_grad_("In" in plan.gradients)) if "Ker" in plan.gradients else None


def state_moves(names: str) -> None:
    """A state saved on one grid is loaded on another; wrong ones are refused by name."""
    first, second, other = (distributed_conv(CASES[name]) for name in names.split())
    state = first.full_state_dict()
    second.load_full_state_dict(state)
    for key, values in second.full_state_dict().items():
        assert torch.equal(values, state[key])
    first.load_state_dict(first.state_dict())
    for attempt in (lambda: other.load_full_state_dict(state), lambda: refused_shares(first, second)):
        try:
            attempt()
        except (ValueError, RuntimeError) as error:
            print("refused:", error)
        else:
            raise AssertionError("a wrong state was taken")


def refused_shares(first: nn.Module, second: nn.Module) -> None:
    """Shares of one plan are not those of another."""
    second.load_state_dict(first.state_dict())


def nan_is_named(name: str) -> None:
    """A NaN in one rank's gradient is told on every rank."""
    plan = CASES[name]
    model = distributed_conv(plan, check_finite=True)
    share = torch.zeros(model.scatter(torch.zeros(plan.layer.input)).shape, requires_grad=True)
    out = model(share)
    gradient = torch.ones_like(out)
    if dist.get_rank() == 1:
        gradient.view(-1)[0] = torch.nan
    try:
        out.backward(gradient)
    except FloatingPointError as error:
        print("found:", error)
    else:
        raise AssertionError("NaN went unnoticed")


def dtensors(name: str) -> None:
    """DTensors go in and out where their placements say who owns what."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    plan = CASES[name]
    torch.manual_seed(0)
    model, whole = distributed_conv(plan), plain(plan)
    model.load_full_state_dict(whole.state_dict())
    inputs = torch.randn(plan.layer.input)
    mesh, places = model.placements("In")
    given = distribute_tensor(inputs, mesh, places)
    out = model(given.requires_grad_())
    assert isinstance(out, DTensor)
    near(out.full_tensor().detach(), whole(inputs).detach())
    out.sum().backward()
    assert isinstance(given.grad, DTensor)
    try:
        model(distribute_tensor(inputs, mesh, [Replicate()] * mesh.ndim))
    except ValueError as error:
        print("refused:", error)
    else:
        raise AssertionError("a replicated input was taken for shares")


def wrong_inputs(name: str) -> None:
    """A share of another shape is refused with the names of layer and rank."""
    model = distributed_conv(CASES[name])
    box = model.program.owned_in(model.at)
    assert within(box, box)
    try:
        model(torch.zeros(1, 1))
    except ValueError as error:
        print("refused:", error)
    else:
        raise AssertionError("a wrong share was taken")


def one_wrong_share(name: str) -> None:
    """One rank gives values of another dtype; no rank goes on."""
    plan = CASES[name]
    model = distributed_conv(plan)
    share = model.scatter(torch.zeros(plan.layer.input))
    out = model(share.double() if dist.get_rank() == 1 else share)
    out.sum().backward()
    print("went on")


def main() -> None:
    """argv: function, its argument, folder."""
    dist.init_process_group("gloo")
    print_facts(globals()[sys.argv[1]](sys.argv[2]))
    Path(sys.argv[3], f"done-{dist.get_rank()}").write_text(json.dumps(dist.get_rank()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
