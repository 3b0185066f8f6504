"""Losses, metrics and penalties."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from training_features.table import Run, correct, refused

Loss = Callable[[Run, torch.Tensor], torch.Tensor]


def loss(name: str) -> Callable[[Loss], Loss]:
    """A feature that trains by a loss of the output."""

    def add(function: Loss) -> Loss:
        def run_it(run: Run) -> None:
            optimizer = torch.optim.SGD(run.model.parameters(), 0.1)
            for _ in range(2):
                optimizer.zero_grad()
                value = function(run, run.model(run.batch()))
                value.backward()
                run.note(value)
                run.grads()
                optimizer.step()

        correct(name)(run_it)
        return function

    return add


def weights(run: Run) -> torch.Tensor:
    """A weight for each class."""
    return torch.arange(1.0, 1 + run.sizes.classes, dtype=torch.float64)


loss("cross_entropy with labels")(lambda run, out: functional.cross_entropy(out, run.labels()))
loss("cross_entropy, a sum")(lambda run, out: functional.cross_entropy(out, run.labels(), reduction="sum"))
loss("cross_entropy with weights of classes")(
    lambda run, out: functional.cross_entropy(out, run.labels(), weights(run))
)
loss("cross_entropy with label smoothing")(
    lambda run, out: functional.cross_entropy(out, run.labels(), label_smoothing=0.1)
)
loss("cross_entropy with smoothing and weights")(
    lambda run, out: functional.cross_entropy(out, run.labels(), weights(run), label_smoothing=0.1)
)
loss("cross_entropy with probabilities")(
    lambda run, out: functional.cross_entropy(out, run.targets().softmax(1))
)


@loss("cross_entropy with ignore_index")
def ignored(run: Run, out: torch.Tensor) -> torch.Tensor:
    """Some samples have no label."""
    labels = run.labels()
    labels[1] = -100
    return functional.cross_entropy(out, labels)


loss("binary_cross_entropy_with_logits")(
    lambda run, out: functional.binary_cross_entropy_with_logits(out, run.targets().sigmoid())
)
loss("binary_cross_entropy_with_logits with pos_weight")(
    lambda run, out: functional.binary_cross_entropy_with_logits(
        out, run.targets().sigmoid(), pos_weight=weights(run)
    )
)
loss("mse_loss")(lambda run, out: functional.mse_loss(out, run.targets()))
loss("l1_loss")(lambda run, out: functional.l1_loss(out, run.targets()))
loss("smooth_l1_loss")(lambda run, out: functional.smooth_l1_loss(out, run.targets()))
loss("huber_loss")(lambda run, out: functional.huber_loss(out, run.targets()))
loss("kl_div")(
    lambda run, out: functional.kl_div(
        out.log_softmax(1), run.targets().log_softmax(1), reduction="batchmean", log_target=True
    )
)
loss("a loss of full_tensor()")(
    lambda run, out: functional.cross_entropy(out.full_tensor() if run.on_ranks else out, run.labels())
)
loss("targets of scatter()")(
    lambda run, out: functional.mse_loss(
        out, run.model.scatter(run.targets(), "output") if run.on_ranks else run.targets()
    )
)


@loss("activations of an output")
def activations(run: Run, out: torch.Tensor) -> torch.Tensor:
    """All pointwise activations of torch."""
    f = functional
    several = (f.relu, f.leaky_relu, f.elu, f.selu, f.celu, f.gelu, f.silu, f.mish, f.softplus, f.logsigmoid)
    more = (f.hardtanh, f.hardswish, f.hardsigmoid, f.softsign, f.tanhshrink, torch.sigmoid, torch.tanh)
    return torch.stack([act(out).square().mean() for act in (*several, *more)]).sum()


@loss("Dice loss")
def dice(run: Run, out: torch.Tensor) -> torch.Tensor:
    """Its sums run over the samples."""
    p, t = out.softmax(1), run.targets().softmax(1)
    return 1 - ((2 * (p * t).sum(0) + 1) / (p.sum(0) + t.sum(0) + 1)).mean()


@loss("mean over a mask")
def masked(run: Run, out: torch.Tensor) -> torch.Tensor:
    """A sum over some words, divided by their number."""
    mask = run.targets() > 0
    return ((out - run.targets()).square() * mask).sum() / mask.sum()


@loss("mean over a mask of the output")
def masked_by_output(run: Run, out: torch.Tensor) -> torch.Tensor:
    """The mask is partitioned, too."""
    mask = (out > 0).double()
    return (out.square() * mask).sum() / mask.sum().clamp(min=1)


@loss("squares of parameters in the loss")
def penalty(run: Run, out: torch.Tensor) -> torch.Tensor:
    """A penalty on weights."""
    squares = [p.square().sum() for p in run.model.parameters()]
    return functional.cross_entropy(out, run.labels()) + 0.1 * torch.stack(squares).sum()


@loss("norms and absolute values of parameters in the loss")
def other_penalties(run: Run, out: torch.Tensor) -> torch.Tensor:
    """A group lasso."""
    lasso = sum(p.norm() + 0.1 * p.abs().sum() for p in run.model.parameters())
    return functional.cross_entropy(out, run.labels()) + 0.01 * lasso


@correct("accuracy by argmax and top k")
def accuracy(run: Run) -> None:
    """Numbers of samples."""
    run.model.eval()
    with torch.no_grad():
        out, labels = run.model(run.batch()), run.labels()
        run.note((out.argmax(1) == labels).sum(), (out.argmax(1) == labels).double().mean())
        found = out.topk(2, 1).indices == labels[:, None]
        run.note(found.any(1).sum(), out.softmax(1).max(), out.max(1).values, out.mean().item())


@refused("a gradient of a gradient (create_graph)", "second derivative")
def gradient_penalty(run: Run) -> Any:
    """The gradient of the batch in the loss."""
    batch = run.batch().requires_grad_()
    (gradient,) = torch.autograd.grad(run.model(batch).sum(), batch, create_graph=True)
    (gradient.norm() - 1).square().backward()


@refused("a loss on one rank only", "rank")
def on_one_rank(run: Run) -> None:
    """The other ranks go on."""
    out = run.model(run.batch())
    if torch.distributed.get_rank() == 0:
        out.full_tensor().sum().backward()
    run.loss().backward()


@refused("the largest word on one rank only", "rank")
def extremum_on_one_rank(run: Run) -> None:
    """The other ranks go on."""
    out = run.model(run.batch())
    if torch.distributed.get_rank() == 0:
        out.detach().max()
    run.loss().backward()


@refused("another loss on each rank", "rank")
def other_losses(run: Run) -> None:
    """A factor differs."""
    whole = run.model(run.batch()).full_tensor()
    (whole.square().sum() * (1 + torch.distributed.get_rank())).backward()


@refused("other targets on the ranks", "rank")
def other_targets(run: Run) -> None:
    """As each rank would draw them."""
    out = run.model(run.batch())
    torch.manual_seed(torch.distributed.get_rank())
    functional.mse_loss(out, torch.randn(out.shape, dtype=out.dtype)).backward()


@refused("another factor of the loss on each rank", "rank")
def other_factors(run: Run) -> None:
    """The loss is a plain number, so that the ranks meet it in the backward pass."""
    (run.model(run.batch()).square().sum() * (1 + torch.distributed.get_rank())).backward()


@refused("a step between forward and backward pass", "inplace operation")
def step_between(run: Run) -> None:
    """The weights are no more those of the forward pass."""
    run.loss().backward()
    loss = run.loss()
    torch.optim.SGD(run.model.parameters(), lr=0.1).step()
    loss.backward()


@refused("other batches on the ranks", "rank")
def other_batches(run: Run) -> None:
    """As a sampler per rank would give them."""
    run.model(run.batch() + torch.distributed.get_rank())


@refused("two networks in another order on the ranks", "of network ")
def another_order(run: Run) -> None:
    """Each of them is called on every rank."""
    for each in (run.model, run.images)[:: 1 if torch.distributed.get_rank() else -1]:
        each(run.batch())


@refused("a network and its copy in another order on the ranks", "of deepcopy 1")
def copy_in_another_order(run: Run) -> None:
    """As a moving average of weights, which has the same steps. So it is with their tensors."""
    step, copies = 1 if torch.distributed.get_rank() else -1, [copy.deepcopy(run.model) for _ in range(2)]
    copies[1].load_state_dict(run.model.state_dict())
    weights = [each.conv.weight for each in (*copies, run.model)]
    weights[0].detach().lerp_(weights[2].detach(), 0.5)
    for each in copies:
        each(run.batch()).sum().backward()
    for pair in (weights[1:], weights[:2], [each.grad for each in weights[:2]]):
        with pytest.raises(RuntimeError, match="of deepcopy 2"):
            [each.detach().norm() for each in pair[::step]]
    with pytest.raises(RuntimeError, match="of a deepcopy"):
        [each.full_tensor() for each in [run.model.conv.weight, copy.deepcopy(run.model.conv).weight][::step]]
    for each in [run.model, copies[0]][::step]:
        each(run.batch())


@refused("parameters, gradients or outputs of one shape in another order on the ranks", "others in the order")
def tensors_in_another_order(run: Run) -> None:
    """As a set of them has it. What one norm and one loss are of is another tensor on some ranks."""
    step = 1 if torch.distributed.get_rank() else -1
    outs = [run.model(run.batch()), run.model(run.batch())]
    with pytest.raises(RuntimeError, match="of output 0 of forward pass"):
        [each.square().mean() for each in outs[::step]]
    pair = [run.model.conv.bias, run.model.bn.weight]
    with pytest.raises(RuntimeError, match=r"of (conv\.bias|bn\.weight) "):
        [each.detach().square().sum() for each in pair[::step]]
    sum(each.sum() for each in outs).backward()
    torch._foreach_norm([each.grad for each in pair[::step]])


@correct("the last, smaller batch")
def last_batch(run: Run) -> None:
    """It is planned when it comes."""
    run.note(run.model(run.batch()[:-1]))
    run.loss().backward()
