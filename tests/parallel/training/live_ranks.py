"""What the ranks of `test_live` do: change a network after `parallelize`, and a model in one process."""

from __future__ import annotations

import copy
import functools
import gc
import types
from typing import Any

import torch
from live_changes import CHANGES, Model, batch, refusals
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_ as clip_norm
from torch.nn.utils import clip_grad_value_ as clip_value
from torch.optim.swa_utils import AveragedModel, update_bn

import synth

SHAPE = (4, 3, 8, 6)
PLANS: dict[str, Any] = {"samples": "data", "rows": {"h": 2}, "filters": {"k": 2}}
FAULTS = ValueError, RuntimeError, NotImplementedError, AttributeError


def whole(values: Any) -> torch.Tensor:
    """All words of a tensor."""
    return (values.full_tensor() if hasattr(values, "full_tensor") else values).detach()


def step(net: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """What a training step and an evaluation give."""
    net.zero_grad()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    out = net.train()(batch(seed))
    functional.silu(out).square().mean().backward()
    found = {"out": whole(out)}
    found |= {f"d{key}": whole(p.grad) for key, p in net.named_parameters() if p.grad is not None}
    optimizer.step()
    found["evaluated"] = whole(net.eval()(batch(seed + 1)))
    net.train()
    return found | {key: whole(values) for key, values in net.state_dict().items()}


def largest_error(net: nn.Module, model: nn.Module, seed: int) -> float:
    """The largest difference of a step, relative to the largest word of each tensor."""
    one, other = step(model, seed), step(net, seed)
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    shapes = {key: (values.shape, other[key].shape) for key, values in one.items()}
    assert all(mine == theirs for mine, theirs in shapes.values()), shapes
    return max(float((one[key] - other[key]).abs().max() / (1 + one[key].abs().max())) for key in one)


def pair(plan: str, before: Any = None) -> tuple[Any, Any]:
    """A network that has made a step, and the model in one process, likewise."""
    torch.manual_seed(0)
    model = Model().double()
    if before is not None:
        before(model)
    net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=PLANS[plan])
    assert largest_error(net, model, 0) < 1e-8
    return net, model


def changed(name: str, plan: str) -> tuple[float, bool]:
    """The largest error of the steps after a change. Whether the network was planned anew for it."""
    change = CHANGES[name]
    net, model = pair(plan, change.before)
    program = net.program
    for each in (net, model):
        torch.manual_seed(1)
        change.run(each)
    try:
        return max(largest_error(net, model, seed) for seed in (2, 4)), net.program is not program
    finally:
        if change.after is not None:
            change.after()


def learned(plan: str) -> float:
    """The error after steps of an optimizer that was made between a change and the first pass."""
    net, model = pair(plan)
    for each in (net, model):
        torch.manual_seed(1)
        each.head = nn.Conv2d(4, 3, 1).double()
        optimizer = torch.optim.Adam(each.parameters(), 0.1)
        for seed in range(3):
            optimizer.zero_grad()
            functional.silu(each(batch(seed))).square().mean().backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            optimizer.step()
    return largest_error(net, model, 5)


def other_shapes(plan: str) -> float:
    """Batches of other shapes before and after a change."""
    net, model = pair(plan)
    errors = []
    for each in (None, 6, 5):
        if each is not None:
            torch.manual_seed(each)
            new = nn.Conv2d(4, each, 1).double()
            net.head, model.head = copy.deepcopy(new), new
        for samples in (4, 3, 4):
            given = batch(samples)[:samples]
            errors.append(float((whole(net(given)) - model(given).detach()).abs().max()))
    return max(errors)


def averaged(plan: str) -> float:
    """The largest error of an averaged model whose statistics are computed anew."""
    found = list[torch.Tensor]()
    for net in pair(plan):
        mean = AveragedModel(net)
        step(net, 2)
        mean.update_parameters(net)
        update_bn([batch(seed) + seed for seed in range(3)], mean)
        assert net.bn.momentum == mean.module.bn.momentum == 0.1
        found.append(whole(mean.eval()(batch(9))))
    return float((found[0] - found[1]).abs().max())


def copies(plan: str) -> list[float]:
    """A copy and its network are changed apart, one of them before it is copied. The largest errors."""
    net, model = pair(plan)
    new = nn.Conv2d(4, 3, 1).double()
    net.head, model.head = copy.deepcopy(new), copy.deepcopy(new)
    copied, other = copy.deepcopy(net), copy.deepcopy(model)
    for each in (copied, other):
        each.bn.momentum, each.act.negative_slope, each.blocks[0].scale = 0.5, 0.9, 3.0
    return [largest_error(*each, seed) for seed in (2, 4) for each in ((copied, other), (net, model))]


def refused(name: str, plan: str) -> tuple[str, float]:
    """With which sentence a network refuses a change, and its error once the change is taken back."""
    net, model = pair(plan)
    undo = refusals[name](net)
    said = sentence_of(net)
    assert sentence_of(net) == said  # as long as it is there
    undo()
    return said, largest_error(net, model, 2)


def sentence_of(net: nn.Module) -> str:
    """What a pass is refused with."""
    try:
        net(batch(1))
    except FAULTS as fault:
        return str(fault)
    return ""


def on_one_rank(plan: str) -> tuple[list[str], float]:
    """Changes on the first rank only, taken back after each. The error afterwards."""
    net, model = pair(plan)
    said, first = list[str](), torch.distributed.get_rank() == 0
    for each in (net, model):
        each(batch(3))
    for module, name, value in (
        ("act", "negative_slope", 0.5),
        ("head", "stride", (2, 2)),
        ("bn", "training", False),
    ):
        holder = net.get_submodule(module)
        kept = getattr(holder, name)
        setattr(holder, name, value if first else kept)
        said.append(sentence_of(net))
        setattr(holder, name, kept)
    return said, largest_error(net, model, 2)


def originals(plan: str) -> tuple[list[str], float]:
    """Changes of the model that was given to parallelize. What a pass says, and the error at the end."""
    torch.manual_seed(0)
    model = Model().double()
    net, given = synth.parallelize(model, SHAPE, plan=PLANS[plan]), model
    alone = copy.deepcopy(model)
    said = [sentence_of(net)]
    given(batch(1))  # which stores what it made
    said.append(sentence_of(net))
    for module, name, value in (
        ("", "head", nn.Linear(2, 2)),
        ("act", "negative_slope", 0.5),
        ("blocks.0", "scale", 2.0),
        ("", "training", False),
    ):
        holder = given.get_submodule(module)
        kept = getattr(holder, name)
        setattr(holder, name, value)
        said.append(sentence_of(net))
        setattr(holder, name, kept)
    net.drop.p = given.drop.p = alone.drop.p = 1.0
    said.append(sentence_of(net))
    net.eval(), given.eval(), net.train()
    said.append(sentence_of(net))
    for _ in range(said.count("")):
        alone(batch(1))
    return said, largest_error(net, alone, 2)


def values_of_original(plan: str) -> tuple[list[str], float]:
    """Values of the model that was given to parallelize. What a pass says, and the error at the end."""
    torch.manual_seed(0)
    model = Model().double()
    net, said = synth.parallelize(model, SHAPE, plan=PLANS[plan]), list[str]()
    alone = copy.deepcopy(model)
    model.load_state_dict({key: values * 1.5 for key, values in model.state_dict().items()})
    said.append(sentence_of(net))
    net.load_full_state_dict(model.state_dict())
    alone.load_state_dict(model.state_dict())
    said.append(sentence_of(net))
    model.head.requires_grad_(False)
    said.append(sentence_of(net))
    for each in (net, alone):
        each.head.requires_grad_(False)
    said.append(sentence_of(net))
    kept = model.conv.weight.data
    model.conv.weight.data = torch.zeros_like(kept)
    said.append(sentence_of(net))
    model.conv.weight.data = kept.clone()
    said.append(sentence_of(net))
    with torch.no_grad():
        model.tail[0].bias.mul_(2 if torch.distributed.get_rank() == 0 else 1)
    said.append(sentence_of(net))
    with torch.no_grad():
        model.tail[0].bias.div_(2 if torch.distributed.get_rank() == 0 else 1)
    said.append(sentence_of(net))
    for _ in range(said.count("")):
        alone(batch(1))
    for each in (net, alone, model):  # which is trained alike
        step(each, 2)
    return said, largest_error(net, alone, 4)


def optimizers_of_original(plan: str) -> dict[str, str]:
    """What the steps of optimizers say that were made of the given model's parameters, or of others."""

    def begun(before: Any = None) -> tuple[Any, nn.Module, Any]:
        torch.manual_seed(0)
        model = Model().double()
        made = before(model.parameters()) if before is not None else None
        return synth.parallelize(model, SHAPE, plan=PLANS[plan]), model, made

    def steps(
        net: Any, optimizer: Any, closure: Any = None, term: Any = None, clip: Any = None, by: Any = clip_norm
    ) -> str:
        try:
            for _ in range(2):
                optimizer.zero_grad()
                loss = functional.silu(net(batch(1))).square().mean()
                (loss if term is None else term() + loss).backward()
                if clip is not None:
                    by(clip, 0.1)
                optimizer.step(closure) if closure is not None else optimizer.step()
        except ValueError as fault:
            return str(fault)
        return ""

    said, sgd = dict[str, str](), functools.partial(torch.optim.SGD, lr=0.1)
    net, _, made = begun(torch.optim.Adam)
    said["before"] = steps(net, made)
    net, model, _ = begun()
    said["after"] = steps(net, sgd(model.parameters()))
    said["a part"] = steps(net, sgd(model.head.parameters()))
    own = nn.Linear(2, 2)
    own(torch.ones(2)).sum().backward()
    optimizer = sgd([*model.parameters(), *own.parameters()])
    optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
    said["beside others"] = steps(net, optimizer)
    del model
    model, _, made = begun(sgd)
    gc.collect()
    said["the model is gone"] = steps(model, made)
    net, model, _ = begun()
    optimizer = torch.optim.LBFGS(model.parameters())

    def loss() -> Any:
        value = net(batch(1)).square().mean()
        value.backward()
        return value

    said["a closure"] = steps(net, optimizer, loss)
    said["of the network"] = steps(net, sgd(net.parameters()))
    net, model, _ = begun()
    step = sgd(net.parameters())
    weights = [*model.parameters()]
    said["clipped"] = steps(net, step, clip=weights)
    said["values clipped"] = steps(net, step, clip=iter(weights), by=clip_value)
    said["values clipped, of the network"] = steps(net, step, clip=[*net.parameters()], by=clip_value)
    said["clipped, one"] = steps(net, step, clip=model.head.weight)
    said["a term"] = steps(net, step, term=lambda: 0.1 * sum(each.square().sum() for each in weights))
    said["a term of the network"] = steps(
        net, step, term=lambda: 0.1 * sum(each.square().sum() for each in net.parameters())
    )
    said["clipped, of the network"] = steps(net, step, clip=[*net.parameters()])
    again = synth.parallelize(model, SHAPE, plan=PLANS[plan])
    said["a second network"] = steps(again, sgd(again.parameters()))
    del again
    model(batch(1)).sum().backward()
    said["clipped, trained by itself"] = steps(net, step, clip=weights)
    said["of a model that is trained by itself"] = steps(model, sgd(model.parameters()))
    return said


def forgotten() -> bool:
    """Whether a network keeps the model that it was made of alive."""
    kept = list[bool]()
    for mode in ("training", "inference"):
        model = Model().double().train(mode == "training")
        net = synth.parallelize(model, SHAPE, plan="data", mode=mode)
        assert net._original.watch is not None
        del model
        kept.append(net._original.watch is not None)
    return not any(kept)


def no_probability() -> str:
    """What a network says of a dropout that drops more than all."""
    net, _ = pair("rows")
    net.drop.p = 1.5
    said = sentence_of(net)
    net.drop.p = 0.0
    net(batch(1))
    return said


def unnoticed() -> bool:
    """Whether a counter that nobody reads leaves the network as it is."""
    net, _ = pair("rows")
    program = net.program
    for number in range(3):
        net.count = net.blocks[0].steps = number
        net(batch(1))
    assert net.count == 2
    assert isinstance(net.describe, types.FunctionType)
    return net.program is program
