"""What is done with batches, outputs and losses."""

from __future__ import annotations

from typing import Any

import torch
from habits_table import CLASSES, Maps, Run, habit, sgd, steps
from torch import nn, optim
from torch.nn import functional


def loss_habit(name: str, refused: str = "") -> Any:
    """A habit that is one loss of an output of classes, in two steps."""

    def add(loss: Any) -> Any:
        def run(run: Run) -> None:
            model = run.classes()
            steps(run, model, sgd(model), loss=lambda out, y: loss(run, out, y))

        habit(name, refused)(run)
        return loss

    return add


@loss_habit("smoothed labels by hand")
def smoothed(run: Run, out: Any, y: Any) -> Any:
    target = torch.full((4, CLASSES), 0.1 / (CLASSES - 1)).double().scatter_(1, y[:, None], 0.9)
    return -(target * out.log_softmax(-1)).sum(1).mean()


@loss_habit("weights of samples")
def weighted(run: Run, out: Any, y: Any) -> Any:
    return (functional.cross_entropy(out, y, reduction="none") * run.randn(4).abs()).mean()


@loss_habit("hard examples: topk, a threshold")
def hard(run: Run, out: Any, y: Any) -> Any:
    each = functional.cross_entropy(out, y, reduction="none")
    return each.topk(2).values.mean() + each[each > each.detach().mean()].sum()


@loss_habit("focal loss")
def focal(run: Run, out: Any, y: Any) -> Any:
    p = out.softmax(1).gather(1, y[:, None]).squeeze(1)
    return (-((1 - p) ** 2) * p.log()).mean()


@loss_habit("margins of cosines (ArcFace)")
def arcface(run: Run, out: Any, y: Any) -> Any:
    cosine = functional.normalize(out, dim=1)
    hot = functional.one_hot(y, CLASSES).double()
    return functional.cross_entropy(8 * (cosine - 0.2 * hot), y)


@loss_habit("entropy and confidence penalties")
def entropy(run: Run, out: Any, y: Any) -> Any:
    p = out.softmax(1)
    return (
        functional.nll_loss(p.log(), y)
        + 0.1 * (p * p.log()).sum(1).mean()
        + 0.01 * out.logsumexp(1).pow(2).mean()
    )


@loss_habit("distributions: log_prob, entropy, kl_divergence")
def distributions(run: Run, out: Any, y: Any) -> Any:
    chosen = torch.distributions.Categorical(logits=out, validate_args=False)
    other = torch.distributions.Categorical(logits=run.randn(4, CLASSES), validate_args=False)
    kl = torch.distributions.kl_divergence(chosen, other).mean()
    return -(chosen.log_prob(y) * run.randn(4)).mean() - 0.1 * chosen.entropy().mean() + kl


@loss_habit("Q values: gather, max, clamp")
def q_values(run: Run, out: Any, y: Any) -> Any:
    chosen = out.gather(1, y[:, None])[:, 0]
    wanted = (run.randn(4) + 0.9 * out.detach().max(1)[0]).clamp(-1, 1)
    return functional.smooth_l1_loss(chosen, wanted)


@loss_habit("clipped ratios (PPO)")
def ppo(run: Run, out: Any, y: Any) -> Any:
    ratio = (out.log_softmax(1)[torch.arange(4), y] - run.randn(4)).exp()
    gain = run.randn(4)
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


@loss_habit("pairs of a batch: contrast, distances")
def contrast(run: Run, out: Any, y: Any) -> Any:
    z = functional.normalize(out, dim=1)
    near = torch.cdist(z, z) if False else (z[:, None] - z[None]).pow(2).sum(-1)
    return functional.cross_entropy(z @ z.t() / 0.5, torch.arange(4)) + near.mean()


@loss_habit("triplets")
def triplets(run: Run, out: Any, y: Any) -> Any:
    return functional.triplet_margin_loss(out[0:2], out[1:3], out[2:4]) + functional.cosine_embedding_loss(
        out[:2], out[2:], torch.tensor([1, -1])
    )


@loss_habit("ranks: sort, cumsum")
def ranked(run: Run, out: Any, y: Any) -> Any:
    return out.sort(1).values.diff(dim=1).relu().mean() + out.softmax(1).cumsum(1).pow(2).mean()


@loss_habit("variance and covariance of features (VICReg)")
def vicreg(run: Run, out: Any, y: Any) -> Any:
    centered = out - out.mean(0)
    cov = centered.T @ centered / 3
    apart = cov.flatten()[:-1].view(CLASSES - 1, CLASSES + 1)[:, 1:].pow(2).sum()
    return functional.relu(1 - out.std(0)).mean() + apart / CLASSES


@loss_habit("einsum with prototypes, a mask, where")
def prototypes(run: Run, out: Any, y: Any) -> Any:
    score = torch.einsum("nc,kc->nk", out, run.randn(CLASSES, CLASSES))
    mask = run.randn(4, CLASSES) > 0
    return torch.where(mask, score, score.detach() * 0.5).masked_fill(~mask, 0.1).pow(2).mean()


@habit("metrics: counts, confusion, running means")
def metrics(run: Run) -> None:
    model = run.classes()
    confusion, total, right = torch.zeros(CLASSES, CLASSES), 0.0, 0
    with torch.no_grad():
        for _ in range(3):
            x, y = run.x(), run.y()
            out = model.eval()(x)
            total += functional.cross_entropy(out, y).item() * len(x)
            right += (out.argmax(1) == y).sum().item()
            run.note(out.topk(2, 1)[1].eq(y[:, None]).any(1).float().mean(), *out.softmax(1).max(1))
            found = out.argmax(dim=1)
            found = found.full_tensor() if hasattr(found, "full_tensor") else found
            confusion += torch.bincount(y * CLASSES + found, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    run.note(confusion, total, right)


@habit("mixup and cutmix")
def mixup(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    for number in range(2):
        x, y, order, part = run.x(), run.y(), torch.tensor([2, 0, 3, 1]), 0.3
        if number:
            x[:, :, 2:5, 1:4] = x[order, :, 2:5, 1:4]
        else:
            x = part * x + (1 - part) * x[order]
        out = model(x)
        loss = part * functional.cross_entropy(out, y) + (1 - part) * functional.cross_entropy(out, y[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@habit("two views in one batch (SimCLR, siamese)")
def views(run: Run) -> None:
    model = run.maps()
    a, b = run.x(), run.x()
    one, two = model(torch.cat([a, b])).chunk(2)
    one, two = (functional.normalize(z.flatten(1), dim=1) for z in (one, two))
    loss = functional.cross_entropy(torch.cat([one, two]) @ torch.cat([two, one]).T, torch.arange(8))
    loss.backward()
    sgd(model).step()


@habit("a queue of features, and a momentum encoder (MoCo)")
def queue(run: Run) -> None:
    model, keys = run.classes(), run.classes()
    kept, optimizer = functional.normalize(run.randn(6, CLASSES), dim=1), sgd(model)
    for _ in range(2):
        q = functional.normalize(model(run.x()), dim=1)
        with torch.no_grad():
            for p, k in zip(model.parameters(), keys.parameters(), strict=True):
                k.data = k.data * 0.9 + p.data * 0.1
            k = functional.normalize(keys(run.x()), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ kept.T], 1)
        optimizer.zero_grad()
        functional.cross_entropy(logits / 0.2, torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()
        new = k.full_tensor() if hasattr(k, "full_tensor") else k
        kept = torch.cat([kept, new])[-6:]
    run.note(kept)


@habit("predictors and stopped gradients (SimSiam)")
def siamese(run: Run) -> None:
    model, head = run.classes(), nn.Linear(CLASSES, CLASSES).double()
    with torch.no_grad():
        head.weight.copy_(run.randn(CLASSES, CLASSES))
        head.bias.zero_()
    a, b = model(run.x()), model(run.x())
    loss = -sum(functional.cosine_similarity(head(p), z.detach()).mean() for p, z in ((a, b), (b, a)))
    loss.backward()
    run.note(head.weight.grad, head.bias.grad)
    sgd(model).step()


@habit("one sample at a time")
def single(run: Run) -> None:
    model = run.maps()
    x, optimizer = run.x(), sgd(model)
    losses = [model(x[i : i + 1]).square().mean() for i in range(4)]
    torch.stack(losses).mean().backward()
    optimizer.step()
    for each in x:
        model(each[None]).sum().backward()
    optimizer.step()


@habit("batches of other sizes, the last one of one sample")
def uneven(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    for samples in (4, 3, 6, 1):
        optimizer.zero_grad()
        functional.cross_entropy(model(run.x(samples)), run.y(samples)).backward()
        optimizer.step()


@habit("images of other extents")
def extents(run: Run) -> None:
    model = run.maps()
    optimizer = sgd(model)
    for rows, columns in ((8, 6), (10, 8), (5, 12)):
        x = run.randn(2, 3, rows, columns)
        optimizer.zero_grad()
        functional.mse_loss(model(x), x).backward()
        optimizer.step()


@habit("augmented evaluation, patches that overlap")
def augmented(run: Run) -> None:
    model, x = run.maps().eval(), run.x()
    with torch.no_grad():
        run.note((model(x) + model(x.flip(-1)).flip(-1)) / 2)
        total = torch.zeros(4, 3, 8, 6).double()
        for top in (0, 2, 4):
            patch = model(x[:, :, top : top + 4])
            total[:, :, top : top + 4] += patch.full_tensor() if hasattr(patch, "full_tensor") else patch
    run.note(total)


@habit("adversarial batches (FGSM, PGD)")
def adversarial(run: Run) -> None:
    model, optimizer = run.classes(), None
    optimizer = sgd(model)
    x, y = run.x(), run.y()
    near = x.clone()
    for _ in range(2):
        near = near.detach().requires_grad_()
        functional.cross_entropy(model(near), y).backward()
        near = x + (near + 0.02 * near.grad.sign() - x).clamp(-0.03, 0.03)
    optimizer.zero_grad()
    functional.cross_entropy(model(near.detach()), y).backward()
    optimizer.step()
    run.note(near)


@habit("an image that is optimized")
def dream(run: Run) -> None:
    model = run.maps().eval()
    for p in model.parameters():
        p.requires_grad_(False)
    x = run.x().requires_grad_()
    optimizer = optim.Adam([x], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        out = model(x)
        gram = out.flatten(2) @ out.flatten(2).transpose(1, 2)
        (-out[:, 1].mean() + gram.pow(2).mean() + (out[..., 1:] - out[..., :-1]).abs().mean()).backward()
        optimizer.step()
    run.note(x)


@habit("saliency by autograd.grad, hooks on batches and outputs")
def saliency(run: Run) -> None:
    model, x = run.classes(), run.x().requires_grad_()
    x.register_hook(lambda g: g * 2)
    out = model(x)
    out.register_hook(lambda g: g + 0.1)
    out.retain_grad()
    out[:, 1].sum().backward(retain_graph=True)
    run.note(x.grad, out.grad)
    (found,) = torch.autograd.grad(out.max(), x)
    run.note(found)


@habit("hooks of the network take features")
def hooked(run: Run) -> None:
    model, found = run.classes(), list[Any]()
    one = model.register_forward_hook(lambda module, given, made: found.append(made.detach().mean()))
    two = model.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    three = model.register_full_backward_hook(lambda module, gi, go: found.append(go[0].abs().sum()))
    steps(run, model, sgd(model))
    for each in (one, two, three):
        each.remove()
    run.note(*found)
    steps(run, model, sgd(model), 1)


class Reverse(torch.autograd.Function):
    """The gradient with the other sign."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return -ctx.factor * gradient, None


@habit("a reversed gradient behind the network")
def reversal(run: Run) -> None:
    model, head = run.classes(), nn.Linear(CLASSES, 2).double()
    with torch.no_grad():
        head.weight.copy_(run.randn(2, CLASSES))
        head.bias.zero_()
    out = model(run.x())
    domain = head(Reverse.apply(out, 0.3))
    loss = functional.cross_entropy(out, run.y()) + functional.cross_entropy(
        domain, torch.tensor([0, 1, 1, 0])
    )
    loss.backward()
    run.note(head.weight.grad)


@habit("losses with learned weights, a learned temperature")
def learned(run: Run) -> None:
    model, optimizer = run.classes(), None
    scales = nn.Parameter(torch.zeros(3).double())
    optimizer = optim.SGD([*model.parameters(), scales], 0.1)
    for _ in range(2):
        out = model(run.x()) * scales[2].exp()
        losses = functional.cross_entropy(out, run.y()), out.pow(2).mean()
        total = sum(torch.exp(-s) * each + s for s, each in zip(scales[:2], losses, strict=True))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    run.note(scales)


@habit("a gradient for each output: backward(gradient), autograd.backward of several")
def backwards(run: Run) -> None:
    model = run.maps()
    out = model(run.x())
    out.backward(run.randn(*out.shape))
    out = model(run.x())
    torch.autograd.backward([out.mean(), out.square().mean()])
    out, grad = model(run.x()), torch.ones(4, 3, 8, 6).double()
    torch.autograd.backward([out, out.sum()], [grad, None])


@habit("two passes, backward in the other order, an evaluation between")
def order(run: Run) -> None:
    model = run.classes()
    one, two = (functional.cross_entropy(model(run.x()), run.y()) for _ in range(2))
    with torch.no_grad():
        model.eval()
        run.note(model(run.x()))
        model.train()
    two.backward()
    one.backward()


@habit("several losses with retain_graph")
def several(run: Run) -> None:
    model = run.maps()
    x = run.x()
    out = model(x)
    functional.mse_loss(out, x).backward(retain_graph=True)
    functional.l1_loss(out, x).backward(retain_graph=True)
    (out - x)[:, 0].pow(4).mean().backward()


@habit("a penalty on gradients", refused="no second derivative")
def penalty(run: Run) -> None:
    model, x = run.classes(), run.x().requires_grad_()
    (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    grad.norm().backward()


@habit("a penalty on gradients by finite differences")
def differences(run: Run) -> None:
    model, x = run.classes().eval(), run.x()
    y = x + 1e-3 * functional.normalize(run.randn(*x.shape).flatten(1), dim=1).view(x.shape)
    ((model(y) - model(x)).norm(dim=1) / 1e-3 - 1).pow(2).mean().backward()


@habit("a critic and a generator, in turns")
def gan(run: Run) -> None:
    makes, judges = run.maps(), run.classes()
    one, two = optim.Adam(makes.parameters(), 0.01, (0.5, 0.9)), optim.Adam(judges.parameters(), 0.01)
    for _ in range(2):
        for p in judges.parameters():
            p.requires_grad_(True)
        with torch.no_grad():
            fake = makes(run.x())
        loss = judges(fake).mean() - judges(run.x()).mean()
        two.zero_grad()
        loss.backward()
        two.step()
        for p in judges.parameters():
            p.requires_grad_(False)
        one.zero_grad()
        made = judges(makes(run.x()))
        functional.binary_cross_entropy_with_logits(made, torch.ones_like(made)).backward()
        one.step()


@habit("a teacher of another kind, softened (distillation)")
def distilled(run: Run) -> None:
    model, teacher = (
        run.classes(),
        run.made(lambda: nn.Sequential(nn.Conv2d(3, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())),
    )
    teacher.eval().requires_grad_(False)
    for _ in range(2):
        x = run.x()
        soft = functional.kl_div(
            (model(x) / 4).log_softmax(1), (teacher(x) / 4).softmax(1), reduction="batchmean"
        )
        soft.backward()
    sgd(model).step()


@habit("a linear probe of frozen features")
def probe(run: Run) -> None:
    model, head = run.maps().eval(), nn.Linear(3, CLASSES).double()
    with torch.no_grad():
        head.weight.copy_(run.randn(CLASSES, 3))
        head.bias.zero_()
        features = model(run.x()).mean((2, 3))
    functional.cross_entropy(head(features.detach()), run.y()).backward()
    run.note(head.weight.grad, features)


@habit("phases by set_grad_enabled")
def phases(run: Run) -> None:
    model = run.classes()
    optimizer = sgd(model)
    for phase in ("train", "val", "train"):
        model.train(phase == "train")
        with torch.set_grad_enabled(phase == "train"):
            loss = functional.cross_entropy(model(run.x()), run.y())
            run.note(loss)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


@habit("maps: dice, total variation, deep supervision")
def maps(run: Run) -> None:
    model = run.maps()
    out, target = model(run.x()), (run.x() > 0).double()
    p = out.sigmoid()
    dice = 1 - (2 * (p * target).sum((2, 3)) + 1) / (p.sum((2, 3)) + target.sum((2, 3)) + 1)
    small = functional.interpolate(out, scale_factor=0.5, mode="bilinear", align_corners=False)
    deep = functional.mse_loss(small, functional.avg_pool2d(target, 2))
    edges = functional.conv2d(out, torch.tensor([[[[-1.0, 1.0]]]]).double().expand(3, 1, 1, 2), groups=3)
    (
        dice.mean()
        + deep
        + edges.abs().mean()
        + functional.pixel_shuffle(out.repeat(1, 4, 1, 1), 2).pow(2).mean()
    ).backward()
    run.note(functional.max_pool2d(out, 2), out.amax((2, 3)), functional.unfold(out, 2))


@habit("sequences: CTC")
def ctc(run: Run) -> None:
    model = run.maps()
    words = model(run.x()).mean(2).permute(2, 0, 1).log_softmax(2)
    labels = torch.tensor([[1, 2], [2, 1], [1, 1], [2, 2]])
    functional.ctc_loss(words, labels, torch.full((4,), 6), torch.full((4,), 2)).backward()


@habit("outputs are changed in place")
def in_place(run: Run) -> None:
    model = run.maps()
    out = model(run.x())
    out = out * 1
    out[:, 0] = 0
    out[..., 1:3] *= 2
    out.clamp_(-0.5, 0.5)
    out += run.x()
    out.pow(2).mean().backward()


@habit("feature maps of one network go into the next, trained apart")
def stages(run: Run) -> None:
    one, two = run.maps(), run.classes()
    middle = one(run.x())
    cut = middle.detach().requires_grad_()
    functional.cross_entropy(two(cut), run.y()).backward()
    middle.backward(cut.grad)
    sgd(one).step()
    sgd(two).step()


@habit("wrapped in a larger module")
def wrapped(run: Run) -> None:
    class Around(nn.Module):
        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body, self.scale = body, nn.Parameter(torch.ones(3, 1, 1).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(functional.pad(x, (1, 1))[..., 1:-1] * self.scale) + x

    around = Around(run.of(Maps))
    run.models.append(around)
    optimizer = optim.AdamW(around.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        x = run.x()
        functional.mse_loss(around(x), x.flip(0)).backward()
        nn.utils.clip_grad_norm_(around.parameters(), 0.5)
        optimizer.step()


REFUSED: dict[str, Any] = {  # of an output, what it likes best, and a one in its last place
    "cross_entropy": lambda out, best, last: functional.cross_entropy(out, best + 3 * last),
    "binary_cross_entropy": lambda out, best, last: functional.binary_cross_entropy(
        out.sigmoid(), 2 * last[:, None].expand_as(out).double()
    ),
    "one_hot": lambda out, best, last: functional.one_hot(best + 3 * last, 3),
    "one_hot of negative labels": lambda out, best, last: functional.one_hot(input=best - 3 * last),
    "gather": lambda out, best, last: out.gather(1, (best + 3 * last)[:, None]),
    "an index": lambda out, best, last: out.mean((2, 3))[torch.arange(4), (best + 3 * last)[:, 7, 5]],
    "a quotient": lambda out, best, last: best // (1 - last),
}


@habit("what torch refuses of words of one rank is caught, and training goes on")
def refused_words(run: Run) -> None:
    model = run.maps()
    optimizer = sgd(model)
    last = torch.zeros(4, 8, 6, dtype=torch.int64)
    last[3, 7, 5] = 1
    for name, refused in REFUSED.items():
        out = model(run.x()).detach()
        try:
            run.note(refused(out, out.argmax(1), last))
            raise AssertionError(f"{name} was not refused")
        except (IndexError, RuntimeError):  # on ranks without such words it is the latter
            run.note(1.0)
    steps(run, model, optimizer, 1, loss=lambda out, _: out.square().mean())
