"""Several passes, several networks, precision, freezing, hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from training_features.optimizers import sgd
from training_features.table import Run, correct, refused, train


@correct("two forward passes, one backward pass")
def two_forwards(run: Run) -> None:
    """The losses of two batches are added."""
    optimizer = sgd(run.model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        (run.loss() + 2 * run.loss()).backward()
        run.grads()
        optimizer.step()


@correct("two backward passes (retain_graph)")
def twice(run: Run) -> None:
    """One graph, two losses."""
    out = run.model(run.batch())
    functional.mse_loss(out, run.targets()).backward(retain_graph=True)
    run.grads()
    functional.cross_entropy(out, run.labels()).backward()
    run.grads()


@correct("autograd.grad of parameters")
def of_parameters(run: Run) -> None:
    """Gradients that are not accumulated."""
    found = torch.autograd.grad(run.loss(), list(run.model.parameters()))
    run.note(*found)


@correct("autograd.grad of one parameter")
def of_one_parameter(run: Run) -> None:
    """Of the last weight alone."""
    run.note(*torch.autograd.grad(run.loss(), [run.model.head.weight]))


@correct("autograd.backward with inputs")
def some_inputs(run: Run) -> None:
    """Only some gradients are accumulated."""
    run.loss().backward(inputs=[run.model.conv.weight, run.model.bn.bias])
    run.grads()


@correct("the gradient of a whole batch")
def of_the_batch(run: Run) -> None:
    """As for adversarial examples."""
    batch = run.batch().requires_grad_()
    functional.cross_entropy(run.model(batch), run.labels()).backward()
    run.note(batch.grad)


@correct("GAN, D(G(x)) with other plans")
def gan(run: Run) -> None:
    """D is trained with a detached image, then G through D."""
    run.noted_models.append(run.images)
    d, g = sgd(run.model.parameters()), sgd(run.images.parameters())
    for _ in range(2):
        fake = run.images(run.batch())
        d.zero_grad()
        loss = functional.softplus(-run.model(run.batch())).mean()
        loss = loss + functional.softplus(run.model(fake.detach())).mean()
        loss.backward()
        run.note(loss)
        d.step()
        g.zero_grad()
        loss = functional.softplus(-run.model(fake)).mean()
        loss.backward()
        run.grads(run.images)
        g.step()


@correct("autoencoder, decoder(encoder(x))")
def autoencoder(run: Run) -> None:
    """Two networks, one optimizer, a residual around them."""
    run.noted_models.append(run.images)
    optimizer = sgd([*run.images.parameters(), *run.model.parameters()])
    for _ in range(2):
        optimizer.zero_grad()
        batch = run.batch()
        loss = functional.mse_loss(run.model(run.images(batch) + batch), run.targets())
        loss.backward()
        run.note(loss)
        optimizer.step()


@correct("perceptual loss through a frozen network")
def perceptual(run: Run) -> None:
    """The classifier is frozen; gradients pass through it."""
    run.model.requires_grad_(False)
    run.model.eval()
    run.noted_models.append(run.images)
    optimizer = sgd(run.images.parameters())
    for _ in range(2):
        batch = run.batch()
        optimizer.zero_grad()
        with torch.no_grad():
            right = run.model(batch)
        functional.mse_loss(run.model(run.images(batch)), right).backward()
        run.grads(run.images)
        optimizer.step()


@correct("torch.utils.checkpoint inside the model")
def recomputed(run: Run) -> None:
    """The model computes a region again in the backward pass."""
    run.model = run.checkpointed()
    run.noted_models[:] = [run.model]
    train(run, sgd, 2)


@correct("frozen and unfrozen layers")
def frozen(run: Run) -> None:
    """A layer is frozen for a step, then trained."""
    for frozen in (True, False, True):
        run.model.conv.requires_grad_(not frozen)
        run.model.head.bias.requires_grad_(frozen)
        train(run, sgd, 1)
        run.grads()
        run.model.zero_grad()


@correct("frozen batch norm by net.bn.eval()")
def frozen_norm(run: Run) -> None:
    """Running statistics are used and stay."""
    train(run, sgd, 1)
    run.model.bn.eval()
    train(run, sgd, 2)
    run.model.train()
    train(run, sgd, 1)


@correct("train() and eval()")
def modes(run: Run) -> None:
    """An evaluation between two steps."""
    for _ in range(2):
        train(run, sgd, 1)
        run.model.eval()
        with torch.no_grad():
            run.note(run.model(run.batch()))
        run.model.train()


@correct("torch.no_grad()")
def without_gradients(run: Run) -> None:
    """No graph is made."""
    with torch.no_grad():
        out = run.model(run.batch())
    run.note(out, out.requires_grad)


@correct("torch.inference_mode()")
def inference(run: Run) -> None:
    """Values without version counters."""
    run.model.eval()
    with torch.inference_mode():
        out = run.model(run.batch())
        run.note(out, out.argmax(1))


@correct("a forward hook on the network")
def hook_on_network(run: Run) -> None:
    """It sees the input and the output, and may replace that."""
    run.model.register_forward_hook(lambda _, given, out: out * 2 + given[0].mean())
    run.model.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    train(run, sgd, 2)


@refused("hooks on modules inside the network", "has hooks")
def hook_inside(run: Run) -> None:
    """The ranks compute parts of the module's output."""
    run.model.conv.register_forward_hook(lambda *_: None)
    run.loss()


@refused("backward hooks on modules inside the network", "has hooks")
def backward_hook_inside(run: Run) -> None:
    """The same of gradients."""
    run.model.bn.register_full_backward_hook(lambda *_: None)
    run.loss()


@refused("DistributedDataParallel(net)", "do not wrap it in DistributedDataParallel")
def wrapped(run: Run) -> Any:
    """The network sums its gradients itself."""
    return torch.nn.parallel.DistributedDataParallel(run.model)


@correct("autocast to bfloat16", 0.05)
def autocast(run: Run) -> None:
    """Layers compute in bfloat16."""
    run.model.float()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            out = run.model(run.batch().float())
            run.note(out.dtype == torch.bfloat16)
            loss = functional.cross_entropy(out.float(), run.labels())
        loss.backward()
        run.note(loss)


@correct("net.to(bfloat16)", 0.05)
def halved(run: Run) -> None:
    """Parameters and buffers of half precision."""
    run.model.to(torch.bfloat16)
    out = run.model(run.batch().to(torch.bfloat16))
    loss = functional.cross_entropy(out.float(), run.labels())
    loss.backward()
    run.note(out, loss, out.dtype == torch.bfloat16)


@correct("net.float(), then net.double()")
def there_and_back(run: Run) -> None:
    """Values are rounded once."""
    run.model.float().double()
    train(run, sgd, 2)
