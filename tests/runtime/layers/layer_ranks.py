"""What the ranks of the tests of single layers do: functions that return what a test looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from cases import CASES
from torch import nn

from synth.codegen.module import distributed_conv
from synth.planning.plan import Plan


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


def refusal(run: Callable[[], Any]) -> str:
    """The sentence with which something is refused; "" where it is not."""
    try:
        run()
    except (ValueError, RuntimeError, FloatingPointError) as error:
        return str(error)
    return ""


def refusal_of_a_gradient(name: str) -> str:
    """How a layer refuses a gradient that its plan does not make."""
    plan = CASES[name]
    model = distributed_conv(plan)
    shard = torch.zeros(tuple(high - low for low, high in model.input.mine)).requires_grad_()
    model.weight.requires_grad_()
    said = refusal(lambda: model(shard))
    if "Ker" in plan.gradients:  # without that gradient the layer works
        model(shard.detach().requires_grad_("In" in plan.gradients))
    return said


def moved_state(name: str, other: str) -> bool:
    """Whether the state of a layer, loaded on the grid of another plan of the layer, has the same words."""
    first, second = distributed_conv(CASES[name]), distributed_conv(CASES[other])
    state = first.full_state_dict()
    second.load_full_state_dict(state)
    first.load_state_dict(first.state_dict())
    found = second.full_state_dict()
    return found.keys() == state.keys() and all(torch.equal(found[key], state[key]) for key in state)


def refusals_of_state(name: str, other_plan: str, other_layer: str) -> tuple[str, str]:
    """How the whole state of another layer is refused, and the shards of another plan."""
    mine, same_layer, stranger = (distributed_conv(CASES[each]) for each in (name, other_plan, other_layer))
    return (
        refusal(lambda: stranger.load_full_state_dict(mine.full_state_dict())),
        refusal(lambda: same_layer.load_state_dict(mine.state_dict())),
    )


def report_of_nan(name: str) -> str:
    """What all ranks raise for a NaN in the gradient of rank 1."""
    plan = CASES[name]
    model = distributed_conv(plan, check_finite=True)
    shard = torch.zeros(model.scatter(torch.zeros(plan.layer.input)).shape, requires_grad=True)
    out = model(shard)
    gradient = torch.ones_like(out)
    if dist.get_rank() == 1:
        gradient.view(-1)[0] = torch.nan
    return refusal(lambda: out.backward(gradient))


def dtensors(name: str) -> dict[str, Any]:
    """A step with a DTensor as input, placed as the layer owns In.

    difference: of the output from that of one process. out, gradient: their classes. refused: a DTensor that
    every rank has whole.
    """
    from torch.distributed.tensor import Replicate, distribute_tensor

    plan = CASES[name]
    torch.manual_seed(0)
    model, whole = distributed_conv(plan), plain(plan)
    model.load_full_state_dict(whole.state_dict())
    inputs = torch.randn(plan.layer.input)
    mesh, places = model.placements("In")
    given = distribute_tensor(inputs, mesh, places)
    out = model(given.requires_grad_())
    difference = near(out.full_tensor().detach(), whole(inputs).detach())
    out.sum().backward()
    replicated = distribute_tensor(inputs, mesh, [Replicate()] * mesh.ndim)
    return {
        "difference": difference,
        "out": type(out).__name__,
        "gradient": type(given.grad).__name__,
        "refused": refusal(lambda: model(replicated)),
    }


def refusal_of_a_shape(name: str) -> str:
    """How a layer refuses a shard of another shape."""
    model = distributed_conv(CASES[name])
    return refusal(lambda: model(torch.zeros(1, 1)))


def one_wrong_shard(name: str) -> None:
    """One rank gives values of another dtype; no rank goes on."""
    plan = CASES[name]
    model = distributed_conv(plan)
    shard = model.scatter(torch.zeros(plan.layer.input))
    out = model(shard.double() if dist.get_rank() == 1 else shard)
    out.sum().backward()
    print("went on")
