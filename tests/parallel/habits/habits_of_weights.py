"""What is done to weights, gradients and optimizers around a step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from habits_table import Run, habit, sgd, steps
from torch import nn, optim
from torch.nn import functional


@habit("learning rate finder")
def finder(run: Run) -> None:
    model = run.classes()
    start, optimizer = copy.deepcopy(model.state_dict()), sgd(model, 1e-4)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 2.0)
    for _ in range(3):
        steps(run, model, optimizer, 1)
        schedule.step()
    model.load_state_dict(start)
    steps(run, model, sgd(model))


@habit("gradient noise")
def noise(run: Run) -> None:
    model = run.classes()

    def add() -> None:
        for p in model.parameters():
            p.grad.add_(0.01 * run.randn(*p.shape))

    steps(run, model, sgd(model), between=add)


@habit("gradient centralization")
def centralized(run: Run) -> None:
    model = run.classes()

    def center() -> None:
        for p in model.parameters():
            if p.dim() > 1:
                p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True))

    steps(run, model, sgd(model), between=center)


@habit("adaptive gradient clipping")
def adaptive(run: Run) -> None:
    model = run.classes()

    def clip() -> None:
        for p in model.parameters():
            axes = tuple(range(1, p.dim()))
            norm = (lambda t, axes=axes: t.norm(2, dim=axes, keepdim=True)) if axes else torch.abs
            most = norm(p.detach()).clamp_(min=1e-3) * 0.05
            found = norm(p.grad)
            p.grad.copy_(torch.where(found > most, p.grad * (most / found.clamp(min=1e-6)), p.grad))

    steps(run, model, sgd(model), between=clip)


@habit("sharpness-aware minimization")
def sam(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    for _ in range(2):
        x, y = run.x(), run.y()
        functional.cross_entropy(model(x), y).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        moved = {}
        with torch.no_grad():
            for p in model.parameters():
                moved[p] = p.grad * (0.05 / (norm + 1e-12))
                p.add_(moved[p])
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(moved[p])
        optimizer.step()
        optimizer.zero_grad()
        run.note(norm)


@habit("lookahead")
def lookahead(run: Run) -> None:
    model = run.classes()
    slow, optimizer = [p.detach().clone() for p in model.parameters()], sgd(model)
    for _ in range(2):
        steps(run, model, optimizer, 2)
        with torch.no_grad():
            for p, s in zip(model.parameters(), slow, strict=True):
                s.lerp_(p, 0.5)
                p.copy_(s)


@habit("proximal step of L1")
def proximal(run: Run) -> None:
    model = run.classes()
    steps(run, model, sgd(model), 1)
    for p in model.parameters():
        p.data = p.data.sign() * functional.relu(p.data.abs() - 0.01)
    steps(run, model, sgd(model), 1)


@habit("weight clipping")
def clipped(run: Run) -> None:
    model, optimizer = run.classes(), None
    optimizer = optim.RMSprop(model.parameters(), 0.01)
    for _ in range(2):
        steps(run, model, optimizer, 1)
        for p in model.parameters():
            p.data.clamp_(-0.1, 0.1)


@habit("lottery ticket: masks of weights and gradients")
def lottery(run: Run) -> None:
    model = run.classes()
    masks = [(p.detach().abs() > p.detach().abs().mean()).double() for p in model.parameters()]

    def mask() -> None:
        for p, m in zip(model.parameters(), masks, strict=True):
            p.grad.mul_(m)

    with torch.no_grad():
        for p, m in zip(model.parameters(), masks, strict=True):
            p.mul_(m)
    steps(run, model, sgd(model), between=mask)


@habit("gradients set to zero by a condition")
def conditional(run: Run) -> None:
    model = run.classes()

    def zero() -> None:
        for p in model.parameters():
            p.grad[p.grad.abs() < 1e-3] = 0
            p.grad.nan_to_num_()

    steps(run, model, sgd(model), between=zero)


@habit("steps by hand: p -= lr * p.grad")
def by_hand(run: Run) -> None:
    model = run.classes()
    momenta = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(3):
        functional.cross_entropy(model(run.x()), run.y()).backward()
        with torch.no_grad():
            for p, v in zip(model.parameters(), momenta, strict=True):
                v.mul_(0.9).add_(p.grad)
                p -= 0.05 * v
                p.sub_(p, alpha=0.001)
        model.zero_grad(set_to_none=False)


@habit("steps by hand: foreach")
def foreach(run: Run) -> None:
    model = run.classes()
    for _ in range(2):
        functional.cross_entropy(model(run.x()), run.y()).backward()
        with torch.no_grad():
            torch._foreach_add_([*model.parameters()], [p.grad for p in model.parameters()], alpha=-0.05)
        for p in model.parameters():
            p.grad = None


@habit("sign of gradients")
def signed(run: Run) -> None:
    model = run.classes()
    functional.cross_entropy(model(run.x()), run.y()).backward()
    for p in model.parameters():
        if p.dim() > 1:  # the gradient of a bias before a norm is rounding
            p.data.add_(torch.sign(p.grad), alpha=-0.01)


@habit("no decay of biases and norms")
def groups(run: Run) -> None:
    model = run.classes()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for n, p in model.named_parameters() if p.ndim <= 1 or n.endswith("bias")]
    given = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    steps(run, model, optim.AdamW(given, 0.01))


@habit("gradual unfreezing with add_param_group")
def unfreezing(run: Run) -> None:
    model = run.classes()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = sgd(model.head)
    steps(run, model, optimizer, 1)
    model.grouped.weight.requires_grad = True
    optimizer.add_param_group({"params": [model.grouped.weight], "lr": 0.01})
    steps(run, model, optimizer, 2)
    run.note(sum(p.numel() for p in model.parameters() if p.requires_grad))


@habit("rates by layer and a warm-up")
def rates(run: Run) -> None:
    model = run.classes()
    given = [
        {"params": [*m.parameters()], "lr": 0.1 / (n + 1)}
        for n, m in enumerate(model.children())
        if [*m.parameters()]
    ]
    optimizer = optim.SGD(given, 0.1)
    warm = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    later = optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    schedule = optim.lr_scheduler.SequentialLR(optimizer, [warm, later], [2])
    for _ in range(4):
        steps(run, model, optimizer, 1)
        schedule.step()
        run.note(*schedule.get_last_lr())


@habit("one cycle, and a plateau of the loss")
def plateau(run: Run) -> None:
    model = run.classes()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    cycle = optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=5)
    for _ in range(3):
        steps(run, model, optimizer, 1)
        cycle.step()
    lower = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
    for _ in range(3):
        steps(run, model, optimizer, 1)
        lower.step(run.notes[-1])
    run.note(optimizer.param_groups[0]["lr"])


@habit("uneven accumulation with zero_grad(set_to_none=False)")
def accumulated(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    for number in range(5):
        (functional.cross_entropy(model(run.x()), run.y()) / 2).backward()
        if number in (1, 4):
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


@habit("steps without a finite loss are left out")
def skipped(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    for number in range(3):
        x = run.x()
        if number == 1:
            x[0, 0, 0, 0] = float("inf")
        loss = functional.cross_entropy(model.eval()(x), run.y())
        optimizer.zero_grad()
        if not torch.isfinite(loss):
            continue
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        run.note(norm)
        optimizer.step()


@habit("the best state is kept and restored")
def best(run: Run) -> None:
    model = run.classes()
    kept, least, optimizer = {}, float("inf"), sgd(model, 0.5)
    for _ in range(4):
        loss = functional.cross_entropy(model(run.x()), run.y())
        if loss.item() < least:
            least, kept = loss.item(), {k: v.clone() for k, v in model.state_dict().items()}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.load_state_dict(kept)
    run.note(least)


@habit("model and optimizer are restored from copies")
def restored(run: Run) -> None:
    model = run.classes()
    optimizer = optim.Adam(model.parameters(), 0.01)
    steps(run, model, optimizer)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    steps(run, model, optimizer)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    other = optim.Adam(model.parameters(), 0.5)
    other.load_state_dict(kept[1])
    steps(run, model, other)


@habit("a part of a pretrained state")
def pretrained(run: Run) -> None:
    model, other = run.classes(), run.classes()
    steps(run, other, sgd(other))
    state = {k: v for k, v in other.state_dict().items() if not k.startswith("head")}
    found = model.load_state_dict(state, strict=False)
    run.note(len(found.missing_keys), len(found.unexpected_keys))
    steps(run, model, sgd(model))


@habit("weights of one model are copied into another, interpolated")
def soup(run: Run) -> None:
    one, two = run.classes(), run.classes()
    steps(run, two, sgd(two))
    mixed = {
        k: 0.3 * v + 0.7 * two.state_dict()[k] if v.is_floating_point() else v
        for k, v in one.state_dict().items()
    }
    one.load_state_dict(mixed)
    steps(run, one, sgd(one))


@habit("mean teacher: parameters by lerp_, buffers by copy_")
def teacher(run: Run) -> None:
    model, mean = run.classes(), run.classes()
    mean.requires_grad_(False)
    optimizer = sgd(model)
    for _ in range(2):
        x = run.x()
        with torch.no_grad():
            wanted = mean(x).softmax(1)
        loss = functional.kl_div(model(x).log_softmax(1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        (loss + functional.cross_entropy(model(x), run.y())).backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), mean.parameters(), strict=True):
                q.lerp_(p, 0.1)
            for p, q in zip(model.buffers(), mean.buffers(), strict=True):
                q.copy_(p)


@habit("initialization by apply()")
def initialized(run: Run) -> None:
    model = run.classes()

    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 0.1)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.ones_(module.weight)

    model.apply(init)
    steps(run, model, sgd(model))


@habit("reset_parameters of all modules")
def reset(run: Run) -> None:
    model = run.classes()
    torch.manual_seed(7)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    steps(run, model, sgd(model))


@habit("words of weights are assigned by index")
def indexed(run: Run) -> None:
    model = run.classes()
    with torch.no_grad():
        model.conv.weight[0] = 0.5
        model.conv.weight[1:3].zero_()
        model.conv.weight[:, 1].mul_(2)
        model.conv.weight[3, :, 0, 0] = run.randn(3)
        model.head.bias[-1] += 1
        nn.init.dirac_(model.grouped.weight)
    for weight in (model.conv.weight, model.head.weight):  # single words, also where rows move
        weight.data[1, -2] = 0.25
        weight.data[(-1, 2, 0, 1)[: weight.dim()]].mul_(3)
    functional.cross_entropy(model(run.x()), run.y()).backward()
    for weight in (model.conv.weight, model.head.weight):
        weight.grad[(0, 1, 2, 0)[: weight.dim()]] = 0.5
        weight.grad[(3, -1, 0, 2)[: weight.dim()]] += weight.grad.abs().max()
    sgd(model).step()
    steps(run, model, sgd(model))


@habit("words of weights in a view of another shape", refused="would change a copy")
def viewed(run: Run) -> None:
    with torch.no_grad():
        for p in run.classes().parameters():
            p.view(p.shape[0], -1)[:, 0] = 0.25


@habit("words of weights in a flat view")
def flat(run: Run) -> None:
    model = run.classes()
    places = torch.tensor([3, 50, 1])
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.view(-1)[places] = 0.25
                p.flatten().clamp_(-0.2, 0.3)
                rows = p.view(len(p), -1)
                rows.mul_(2)
                rows.add_(0.01)
                mask = torch.ones_like(p)
                mask.view(-1)[p.abs().view(-1).topk(9).indices] = 0
                p.mul_(mask)
    steps(run, model, sgd(model))


@habit("views are read and changed after their weights")
def viewed_later(run: Run) -> None:
    model = run.classes()
    with torch.no_grad():
        for p in model.parameters():
            first, parts, flat = p[0], p.unbind(0), p.view(-1)
            turned, slices = p.transpose(0, -1), p.split(3)
            p.mul_(2)
            run.note(first, parts[-1], flat, turned, slices[0])
            flat.add_(0.01)
            run.note(first, parts[-1], flat[1:5], turned.sum(0), slices[-1])
            p.add_(p)
            run.note(flat, parts[1].sum(), slices[0])
        for p in run.made(lambda: nn.Sequential(nn.Conv2d(3, 1, 3), nn.Conv2d(1, 3, 2))).parameters():
            flat, first = p.view(-1), p[0]  # of few words, of which some ranks have none
            p.add_(1)
            flat.mul_(2)
            run.note(first.sum())
            p.data.mul_(1.5)
            run.note(flat, first.mean())
        weight = model.conv.weight
        flat, row = weight.view(-1), weight[1]
        weight.data = weight.data * 3  # which torch's views do not see
        weight.add_(1)
        run.note(flat, row, weight.view(-1))
    out = run.maps()(run.x())
    flat, channel, turned = out.flatten(1), out[:, 1], out.permute(1, 0, 3, 2)
    with torch.no_grad():
        out.clamp_(-0.1, 0.1)
    run.note(flat.sum(1), channel.norm(), turned.mean((1, 2)))
    (flat.square().sum() + channel.mean() + turned[0].sum()).backward()


@habit("statistics of weights")
def statistics(run: Run) -> None:
    model = run.classes()
    for p in model.parameters():
        run.note(p.mean(), p.std(), p.abs().max(), p.norm(1), p.median(), torch.quantile(p.detach(), 0.3))
        run.note((p == 0).sum(), p.min().item(), p.var(unbiased=False), p.argmax(), p.sum().item())
    run.note(torch.stack([p.detach().norm() for p in model.parameters()]).norm())


@habit("penalties: orthogonality, spectral norm, group lasso")
def penalties(run: Run) -> None:
    model = run.classes()
    optimizer, v = sgd(model), run.randn(27)

    def loss(out: Any, y: Any) -> Any:
        w = model.conv.weight.flatten(1)
        u = functional.normalize(w @ v, dim=0)
        spectral = u @ (w @ functional.normalize(w.t() @ u, dim=0))
        orthogonal = (w @ w.t() - torch.eye(8).double()).pow(2).sum()
        lasso = sum(p.flatten(1).norm(dim=1).sum() for p in model.parameters() if p.dim() > 1)
        return functional.cross_entropy(out, y) + 0.1 * spectral + 0.01 * orthogonal + 1e-3 * lasso

    steps(run, model, optimizer, loss=loss)


@habit("gradients are logged and accumulated by name")
def logged(run: Run) -> None:
    model = run.classes()
    found = dict[str, Any]()

    def log() -> None:
        for name, p in model.named_parameters():
            found[name] = found.get(name, 0) + p.grad.detach().clone()
            run.note(p.grad.norm().item())

    steps(run, model, sgd(model), between=log)
    run.note(*found.values())


@habit("gradients are swapped: two losses projected (PCGrad)")
def projected(run: Run) -> None:
    model = run.classes()
    x, y, z = run.x(), run.y(), run.y()
    out = model(x)
    one = torch.autograd.grad(functional.cross_entropy(out, y), [*model.parameters()], retain_graph=True)
    two = torch.autograd.grad(functional.cross_entropy(out, z), [*model.parameters()])
    dot = sum((a * b).sum() for a, b in zip(one, two, strict=True))
    norm = sum((b * b).sum() for b in two)
    for p, a, b in zip(model.parameters(), one, two, strict=True):
        p.grad = a - torch.minimum(dot, torch.zeros(()).double()) / norm * b
    sgd(model).step()
    run.note(dot)


@habit("a frozen batch normalization in training")
def frozen(run: Run) -> None:
    model = run.classes()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.weight.requires_grad_(False)
            module.bias.requires_grad = False
    steps(run, model, optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1))


@habit("statistics of batch normalizations are reset and recomputed")
def recomputed(run: Run) -> None:
    model = run.classes()
    steps(run, model, sgd(model))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for _ in range(3):
            model.train()(run.x())
    run.note(model.eval()(run.x()))


@habit("copies are trained apart")
def apart(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    steps(run, model, optimizer)
    other = copy.deepcopy(model)
    run.models.append(other)
    steps(run, other, sgd(other))
    steps(run, model, optimizer)


@habit("parameters_to_vector and back")
def vectors(run: Run) -> None:
    model = run.classes()
    vector = nn.utils.parameters_to_vector(model.parameters())
    run.note(vector.norm())
    steps(run, model, sgd(model), 1)
    nn.utils.vector_to_parameters(0.9 * vector.detach(), model.parameters())
    steps(run, model, sgd(model), 1)


@habit("averages with buffers, and their schedule")
def swa(run: Run) -> None:
    model = run.classes()
    mean = optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = sgd(model)
    schedule = optim.swa_utils.SWALR(optimizer, 0.01, anneal_epochs=2)
    for _ in range(3):
        steps(run, model, optimizer, 1)
        mean.update_parameters(model)
        schedule.step()
    run.note(mean.eval()(run.x()), *mean.module.state_dict().values())


@habit("gradients of a loss twice, then a step")
def twice(run: Run) -> None:
    model = run.classes()
    loss = functional.cross_entropy(model(run.x()), run.y())
    loss.backward(retain_graph=True)
    loss.backward()
    sgd(model).step()


@habit("a closure of SGD")
def closure(run: Run) -> None:
    model = run.classes()
    optimizer, x, y = sgd(model), run.x(), run.y()

    def again() -> Any:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        run.note(optimizer.step(again))


@habit("memory format and dtype of the loop")
def formats(run: Run) -> None:
    model = run.classes().to(memory_format=torch.channels_last)
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(model(run.x().to(memory_format=torch.channels_last)), run.y()).backward()
        optimizer.step()


@habit("functional_call of the network with plain weights")
def fast_weights(run: Run) -> None:
    """Weights of another network (hypernetworks), or after some steps (MAML); then its own ones again."""
    model = run.maps()
    fast = {name: run.randn(*each.shape).requires_grad_() for name, each in model.named_parameters()}
    batch, few = run.x(), {"first.weight": run.randn(*model.first.weight.shape)}
    for _ in range(2):
        out = torch.func.functional_call(model, fast, (batch,))
        gradients = torch.autograd.grad(out.square().mean(), list(fast.values()))
        run.note(out, *gradients)
        fast = {name: each - 0.1 * g for (name, each), g in zip(fast.items(), gradients, strict=True)}
    run.note(torch.func.functional_call(model, few, (batch,)))
    steps(run, model, sgd(model), 1, loss=lambda out, _: out.square().mean())
