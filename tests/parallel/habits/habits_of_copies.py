"""What is kept beside a network: averages, other models, optimizers of parameters, functions of lists."""

from __future__ import annotations

import copy
from typing import Any

import torch
from habits_table import Classes, Run, habit, sgd, steps
from torch import nn, optim
from torch.nn import functional

averages = optim.swa_utils


@habit("averages by lists of tensors, and statistics of batches of them")
def averaged(run: Run) -> None:
    model = run.classes()
    mean = averages.AveragedModel(model, multi_avg_fn=averages.get_ema_multi_avg_fn(0.9))
    optimizer = sgd(model)
    for _ in range(2):
        steps(run, model, optimizer, 1)
        mean.update_parameters(model)
    averages.update_bn([(run.x(), run.y()), (run.x(3), run.y(3))], mean)
    run.note(mean.eval()(run.x()), *mean.state_dict().values())
    other = averages.AveragedModel(run.classes())
    other.load_state_dict(copy.deepcopy(mean.state_dict()))
    run.note(other.eval()(run.x()))
    model.load_state_dict(mean.module.state_dict())


@habit("averages by _foreach functions")
def averaged_lists(run: Run) -> None:
    model, mean = run.classes(), run.classes()
    mean.requires_grad_(False).eval()
    optimizer = sgd(model)
    for _ in range(2):
        steps(run, model, optimizer, 1)
        torch._foreach_lerp_([*mean.parameters()], [*model.parameters()], 0.3)
        own, its = ([b for b in each.buffers() if b.dim()] for each in (mean, model))
        torch._foreach_mul_(own, 0.7)
        torch._foreach_add_(own, its, alpha=0.3)
    run.note(mean(run.x()))


@habit("averages are put into p.data and taken out again")
def swapped(run: Run) -> None:
    model = run.classes()
    shadow = {name: p.data.clone() for name, p in model.named_parameters()}
    optimizer = sgd(model)
    steps(run, model, optimizer, 1)
    kept = {name: p.data for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.data = 0.5 * shadow[name] + 0.5 * p.data
    run.note(model.eval()(run.x()))
    for name, p in model.named_parameters():
        p.data = kept[name]
    steps(run, model.train(), optimizer, 1)


@habit("weights of a model in one process, and back")
def one_process(run: Run) -> None:
    model, one = run.classes(), Classes().double()
    steps(run, model, sgd(model))
    one.load_state_dict(model.full_state_dict() if run.on_ranks else model.state_dict())
    steps(run, one, sgd(one))
    with torch.no_grad():
        for p, q in zip(model.parameters(), one.parameters(), strict=True):
            p.lerp_(q, 0.25)
    steps(run, model, sgd(model), 1)
    words, begin = run.randn(sum(p.numel() for p in model.parameters())) / 10, 0
    for p in model.parameters():
        p.data = words[begin : begin + p.numel()].view(p.shape)
        begin += p.numel()
    steps(run, model, sgd(model), 1)


@habit("an optimizer for each parameter, in hooks of gradients")
def in_hooks(run: Run) -> None:
    model = run.classes()
    optimizers = {p: optim.SGD([p], 0.05) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_hook(lambda g: g * 0.5)
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        loss = functional.cross_entropy(model(run.x()), run.y())
        loss.backward()
        run.note(loss, all(p.grad is None for p in model.parameters()))


@habit("norms of gradients of every order, in lists and one by one")
def norms(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    for order in (0.0, 1.0, 3.0, float("inf")):
        optimizer.zero_grad()
        (10 * functional.cross_entropy(model(run.x()), run.y())).backward()
        given = [p.grad for p in model.parameters() if p.grad is not None]
        if order:  # how many words are zero depends on rounding
            for lists in (True, False):
                run.note(nn.utils.get_total_norm(given, order, foreach=lists))
        run.note(nn.utils.clip_grad_norm_(model.head.parameters(), 0.05, norm_type=order))
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, nn.utils.get_total_norm(given))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()


@habit("weights that are perturbed and restored (evolution, noise)")
def perturbed(run: Run) -> None:
    model, x, y = run.classes().eval(), run.x(), run.y()
    kept = [p.detach().clone() for p in model.parameters()]
    gradients = [torch.zeros_like(each) for each in kept]
    for _ in range(2):
        noise = [run.randn(*each.shape) for each in kept]
        with torch.no_grad():
            for p, own, e in zip(model.parameters(), kept, noise, strict=True):
                p.copy_(own + 0.05 * e)
            loss = functional.cross_entropy(model(x), y).item()
        for g, e in zip(gradients, noise, strict=True):
            g += loss * e
    torch.manual_seed(5)
    with torch.no_grad():
        for p, own, g in zip(model.parameters(), kept, gradients, strict=True):
            p.copy_(own - 0.01 * g).add_(torch.randn_like(p), alpha=0.01)
    run.note(model(x))


@habit("gradients for some parameters, and none for others")
def some_gradients(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)

    def loss() -> Any:
        return functional.cross_entropy(model(run.x()), run.y())

    loss().backward(inputs=[*model.head.parameters()])
    run.note(*(p.grad is None for p in model.parameters()))
    torch.autograd.backward(loss(), inputs=[model.conv.weight])
    optimizer.step()
    for number in range(4):
        model.conv.requires_grad_(number % 2 == 0)
        model.head.bias.requires_grad_(number > 1)
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=number == 1)
    model.requires_grad_(True)
    steps(run, model, optimizer, 1)


@habit("an optimizer's state and groups are changed between steps")
def edited(run: Run) -> None:
    model = run.classes()
    both = ([p for p in model.parameters() if (p.ndim > 1) == weights] for weights in (True, False))
    groups = [{"params": each, "weight_decay": 0.1 / (n + 1)} for n, each in enumerate(both)]
    optimizer = optim.Adam(groups, 0.01, eps=1e-3)
    for number in range(3):
        steps(run, model, optimizer, 1)
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
            group["betas"] = (0.8, 0.99)
        if number == 1:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()
                state["exp_avg_sq"].mul_(0.5)
    run.note(*(each for state in optimizer.state.values() for each in state.values()))


@habit("L-BFGS with a line search")
def lbfgs(run: Run) -> None:
    model, x, y = run.maps(), run.x(), run.randn(4, 3, 8, 6)
    optimizer = optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def again() -> Any:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        run.note(optimizer.step(again))


@habit("a state in place of parameters", refused="assign=True would replace partitioned parameters")
def assigned(run: Run) -> None:
    run.classes().load_state_dict(Classes().double().state_dict(), assign=True)


@habit("gradients of gradients of parameters", refused="layers on several ranks have no second derivative")
def second(run: Run) -> None:
    model = run.maps()
    loss = model(run.x()).square().mean()
    torch.autograd.grad(loss, [*model.parameters()], create_graph=True)


@habit("parameters in a flat tensor, which is changed", refused="set to was changed since")
def flattened(run: Run) -> None:
    model = run.classes()
    flat, begin = torch.cat([p.detach().flatten() for p in model.parameters()]), 0
    for p in model.parameters():
        p.data = flat[begin : begin + p.numel()].view_as(p)
        begin += p.numel()
    run.note(model(run.x()))
    flat.mul_(0.5)
    model(run.x())


@habit("data are a tensor, which is changed", refused="set to was changed since")
def lent(run: Run) -> None:
    model, words = run.classes(), run.randn(8, 3, 3, 3)
    model.conv.weight.data = words
    run.note(model(run.x()))
    words.mul_(0.5)
    model(run.x())
