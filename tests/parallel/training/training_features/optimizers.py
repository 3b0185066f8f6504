"""Clipping, optimizers, schedules, accumulation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn, optim
from torch.nn import utils

from training_features.table import Run, correct, train


def sgd(parameters: Any) -> optim.Optimizer:
    """SGD with momentum."""
    return optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def clipping(order: float) -> Any:
    """A feature that clips by a norm."""
    return lambda run: train(run, sgd, between=lambda ps: utils.clip_grad_norm_(list(ps), 0.3, order))


correct("clip_grad_norm_, p = 2")(clipping(2.0))
correct("clip_grad_norm_, p = inf")(clipping(math.inf))
correct("clip_grad_norm_, p = 1")(clipping(1.0))
correct("clip_grad_value_")(lambda run: train(run, sgd, between=lambda ps: utils.clip_grad_value_(ps, 0.02)))
correct("SGD with momentum")(lambda run: train(run, sgd))
# an optimizer that divides by the size of a gradient amplifies rounding in gradients that are nearly zero
EPS = 1e-3
correct("Adam")(lambda run: train(run, lambda ps: optim.Adam(ps, 0.01, eps=EPS)))
correct("AdamW, foreach")(lambda run: train(run, lambda ps: optim.AdamW(ps, 0.01, eps=EPS, foreach=True)))
correct("AdamW, fused")(lambda run: train(run, lambda ps: optim.AdamW(ps, 0.01, eps=EPS, fused=True)))
correct("AdamW, a loop over parameters")(
    lambda run: train(run, lambda ps: optim.AdamW(ps, 0.01, eps=EPS, foreach=False))
)
correct("AdamW with amsgrad")(lambda run: train(run, lambda ps: optim.AdamW(ps, 0.01, eps=EPS, amsgrad=True)))
correct("NAdam")(lambda run: train(run, lambda ps: optim.NAdam(ps, 0.01, eps=EPS)))
correct("RMSprop")(lambda run: train(run, lambda ps: optim.RMSprop(ps, 0.01, eps=0.1)))
correct("Adagrad")(lambda run: train(run, lambda ps: optim.Adagrad(ps, 0.01, eps=EPS)))
correct("Adadelta")(lambda run: train(run, lambda ps: optim.Adadelta(ps, 0.1, eps=EPS)))
correct("Adafactor")(lambda run: train(run, lambda ps: optim.Adafactor(ps, 0.01, eps=(EPS, EPS))))


@correct("AdamW with a cosine schedule and warm-up")
def schedule(run: Run) -> None:
    """The rate changes with every step."""
    optimizer = optim.AdamW(run.model.parameters(), 0.01, eps=EPS)
    warm = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    chain = optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])
    for _ in range(4):
        optimizer.zero_grad()
        run.loss().backward()
        optimizer.step()
        chain.step()
        run.note(optimizer.param_groups[0]["lr"])


class Lars(optim.Optimizer):
    """The rate of a tensor is proportional to |w| / (|g| + decay |w|) (You et al. 2017, eq. 6)."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for p in self.param_groups[0]["params"]:
            ratio = 0.02 * p.norm() / (p.grad.norm() + 1e-2 * p.norm() + 1e-9)
            p.sub_(ratio * (p.grad + 1e-2 * p))


class Lamb(optim.Optimizer):
    """Adam's step with the trust ratio |w| / |step| (You et al. 2020, algorithm 2)."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state |= {"first": torch.zeros_like(p), "second": torch.zeros_like(p)}
            state["first"].lerp_(p.grad, 0.1)
            state["second"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            update = state["first"] / (state["second"].sqrt() + EPS) + 1e-2 * p
            norm = p.norm()
            ratio = torch.where(norm > 0, norm / update.norm(), torch.ones_like(norm))
            p.sub_(0.01 * ratio * update)


correct("LARS")(lambda run: train(run, Lars))
correct("LAMB")(lambda run: train(run, Lamb))


@correct("Muon")
def muon(run: Run) -> None:
    """It multiplies a weight by itself as a matrix."""
    optimizer = torch.optim.Muon([run.model.head.weight], lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        run.note(loss)
        optimizer.step()


@correct("LBFGS")
def lbfgs(run: Run) -> None:
    """It flattens all gradients into one vector."""
    optimizer = optim.LBFGS(run.model.parameters(), lr=0.1, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        return loss

    run.note(optimizer.step(closure))


@correct("state_dict of an optimizer, loaded again")
def optimizer_state(run: Run) -> None:
    """The second optimizer goes on as the first would."""
    first = optim.AdamW(run.model.parameters(), 0.01, eps=EPS)
    run.loss().backward()
    first.step()
    second = optim.AdamW(run.model.parameters(), 0.5)
    second.load_state_dict(first.state_dict())
    run.loss().backward()
    second.step()


@correct("accumulation of gradients")
def accumulation(run: Run) -> None:
    """Several backward passes before a step."""
    optimizer = sgd(run.model.parameters())
    for _ in range(2):
        for _ in range(3):
            (run.loss() / 3).backward()
        run.grads()
        optimizer.step()
        optimizer.zero_grad()


@correct("accumulation in no_sync()")
def accumulation_without_sums(run: Run) -> None:
    """Sums over the ranks only in the last backward pass."""
    optimizer = sgd(run.model.parameters())
    if run.on_ranks:
        with run.model.no_sync():
            run.loss().backward()
            run.loss().backward()
    else:
        run.loss().backward()
        run.loss().backward()
    run.loss().backward()
    run.grads()
    optimizer.step()


@correct("groups of parameters by name")
def groups(run: Run) -> None:
    """No weight decay for biases and normalizations."""
    named = list(run.model.named_parameters())
    free = [p for name, p in named if name.endswith("bias") or "norm" in name or "bn" in name]
    rest = [p for name, p in named if all(p is not other for other in free)]
    run.note(len(free), len(rest))
    decayed = [{"params": rest, "weight_decay": 0.1}, {"params": free, "lr": 0.01}]
    train(run, lambda _: optim.AdamW(decayed, 0.02, eps=EPS))


@correct("an optimizer inside the backward pass")
def in_backward(run: Run) -> None:
    """A hook after each gradient makes the step and frees the gradient."""
    for parameter in run.model.parameters():
        optimizer = optim.SGD([parameter], 0.1)

        def update(p: torch.Tensor, optimizer: optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        loss = run.loss()
        loss.backward()
        run.note(loss)


@correct("hooks on gradients of parameters")
def gradient_hooks(run: Run) -> None:
    """A hook sees the whole gradient and changes it."""
    for parameter in run.model.parameters():
        parameter.register_hook(lambda g: g * 2 / (1 + g.norm()))
    train(run, sgd)
    run.grads()


@correct("clamping of weights")
def clamping(run: Run) -> None:
    """As in a Wasserstein GAN."""
    train(run, sgd, 2)
    for parameter in run.model.parameters():
        parameter.data.clamp_(-0.05, 0.05)
    run.note(run.loss())


@correct("the norm of all gradients by hand")
def norm_by_hand(run: Run) -> None:
    """The square root of the sum of squares."""
    run.loss().backward()
    squares = [p.grad.pow(2).sum() for p in run.model.parameters()]
    run.note(
        torch.stack(squares).sum().sqrt(), utils.get_total_norm([p.grad for p in run.model.parameters()])
    )


@correct("zero_grad(set_to_none=False)")
def zeroed(run: Run) -> None:
    """Gradients stay tensors."""
    run.loss().backward()
    run.model.zero_grad(set_to_none=False)
    run.grads()
    run.loss().backward()
    run.grads()


@correct("GradScaler")
def scaler(run: Run) -> None:
    """The loss is scaled, gradients are unscaled and clipped."""
    scale, optimizer = torch.amp.GradScaler("cpu", init_scale=1024.0), sgd(run.model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        scale.scale(run.loss()).backward()
        scale.unscale_(optimizer)
        run.note(nn.utils.clip_grad_norm_(run.model.parameters(), 0.5))
        scale.step(optimizer)
        scale.update()
        run.note(scale.get_scale())


@correct("GradScaler, an overflow on one rank")
def overflow(run: Run) -> None:
    """All ranks skip the step and halve the scale."""
    scale, optimizer = torch.amp.GradScaler("cpu", init_scale=1024.0), sgd(run.model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        scale.scale(run.loss()).backward()
        gradient = run.model.head.weight.grad
        if step == 1 and run.on_ranks and torch.distributed.get_rank() == 0:
            gradient.to_local().view(-1)[0] = math.inf
        elif step == 1 and not run.on_ranks:
            gradient.view(-1)[0] = math.inf
        scale.step(optimizer)
        scale.update()
        run.note(scale.get_scale())
