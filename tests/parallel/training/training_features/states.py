"""States, copies and files."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn, optim
from torch.nn import functional, utils
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from training_features.optimizers import sgd
from training_features.table import Run, correct, refused, train


@correct("moving average by deepcopy")
def average(run: Run) -> None:
    """The copy is evaluated as a network."""
    copied = copy.deepcopy(run.model).requires_grad_(False)
    for _ in range(2):
        train(run, sgd, 1)
        with torch.no_grad():
            for slow, fast in zip(copied.parameters(), run.model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            for slow, fast in zip(copied.buffers(), run.model.buffers(), strict=True):
                slow.copy_(fast)
    run.noted_models.append(copied)
    run.note(copied.eval()(run.batch()))


@correct("a copy by deepcopy without gradients")
def copy_without_gradients(run: Run) -> None:
    """It goes on alone, and adds nothing to gradients of the first."""
    run.loss().backward()
    run.model = copy.deepcopy(run.model)
    run.note(sum(each.grad is not None for each in run.model.parameters()))
    run.loss().backward()
    run.grads()
    sgd(run.model.parameters()).step()
    run.noted_models[:] = [run.model]


@correct("AveragedModel")
def averaged_model(run: Run) -> None:
    """Equal weights of all steps."""
    mean = AveragedModel(run.model)
    for _ in range(3):
        train(run, sgd, 1)
        mean.update_parameters(run.model)
    run.noted_models.append(mean.module)
    run.note(mean(run.batch()))


@correct("AveragedModel, exponential")
def exponential_model(run: Run) -> None:
    """A moving average, by lists of tensors."""
    mean = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        train(run, sgd, 1)
        mean.update_parameters(run.model)
    run.noted_models.append(mean.module)


@correct("load_state_dict(state_dict())")
def loaded(run: Run) -> None:
    """A state is kept while the network trains, and taken back."""
    train(run, sgd, 1)
    kept = {key: values.clone() for key, values in run.model.state_dict().items()}
    train(run, sgd, 1)
    run.model.load_state_dict(kept)
    run.note(run.loss())


@correct("load_state_dict() of the whole model's state")
def loaded_whole(run: Run) -> None:
    """As from a file of one process."""
    state = {
        key: torch.zeros(values.shape).to(values.dtype) for key, values in run.model.state_dict().items()
    }
    for key, values in state.items():
        if values.dim():
            state[key] = run.randn(*values.shape).abs()
    run.model.load_state_dict(state)
    run.note(run.loss())


@correct("names of parameters, buffers and states")
def names(run: Run) -> None:
    """Those of the model, in its order, with its shapes."""
    named = [*run.model.named_parameters(), *run.model.named_buffers(), *run.model.state_dict().items()]
    for name, values in named:
        run.note([ord(letter) for letter in name], list(values.shape), values.numel())
    run.note(sum(p.numel() for p in run.model.parameters()))
    run.note(sum(p.numel() * p.element_size() for p in run.model.parameters()))


@correct("nn.init with equal generators")
def drawn(run: Run) -> None:
    """All ranks draw the words of one process."""
    torch.manual_seed(5)
    for module in run.model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -1, 1)
    nn.init.trunc_normal_(run.model.head.weight, std=0.1)
    nn.init.constant_(run.model.norm.weight, 0.5)
    run.note(run.loss())


@refused("nn.init with other generators on the ranks", "generators differ")
def drawn_apart(run: Run) -> None:
    """The ranks would draw words of different wholes."""
    torch.manual_seed(torch.distributed.get_rank())
    nn.init.normal_(run.model.head.weight)


@correct("a change of parameters under no_grad")
def changed(run: Run) -> None:
    """Noise, decay and norms."""
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(0.9).add_(run.randn(*parameter.shape), alpha=0.01)
            parameter /= 1 + parameter.norm()
    run.note(run.loss())


@correct("statistics of parameters for a log")
def statistics(run: Run) -> None:
    """Means, deviations, extrema, numbers of positive words.

    The gradient of a bias before batch norm is zero up to rounding, and its sign is arbitrary.
    """
    run.loss().backward()
    for p in run.model.parameters():
        run.note(
            p.mean(), p.std(), p.abs().max(), p.min(), (p.grad > 1e-12).sum(), p.grad.abs().mean().item()
        )
        run.note(torch.isfinite(p.grad).all(), torch.isnan(p).any())


@refused("torch.save(net)", "full_state_dict()")
def saved(run: Run) -> None:
    """A file would have one rank's words."""
    torch.save(run.model, io.BytesIO())


@refused("torch.save(net.state_dict())", "full_state_dict()")
def saved_state(run: Run) -> None:
    """A file would have one rank's words."""
    torch.save(run.model.state_dict(), io.BytesIO())


@refused("torch.save of an optimizer's state", "torch.distributed.checkpoint")
def saved_optimizer(run: Run) -> None:
    """The same."""
    optimizer = optim.Adam(run.model.parameters())
    run.loss().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), io.BytesIO())


@correct("full_state_dict() in a file")
def saved_whole(run: Run) -> None:
    """One process loads it."""
    file = io.BytesIO()
    train(run, sgd, 1)
    torch.save(run.model.full_state_dict() if run.on_ranks else run.model.state_dict(), file)
    file.seek(0)
    run.note(*torch.load(file).values())


@correct("parameters_to_vector")
def vector(run: Run) -> None:
    """A flat vector of all parameters."""
    run.note(utils.parameters_to_vector(run.model.parameters()))


@correct("a parameter replaced by a plain one")
def replaced(run: Run) -> None:
    """It is partitioned as the one before, and trained."""
    run.model.head.weight = nn.Parameter(run.randn(*run.model.head.weight.shape))
    train(run, sgd, 2)


class Positive(nn.Module):
    """Weights above zero."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Computed from any words."""
        return functional.softplus(values) / 8

    def right_inverse(self, values: torch.Tensor) -> torch.Tensor:
        """Words for which the weights are about the given ones."""
        return torch.log(torch.expm1(8 * values.abs() + 0.1))


class Product(nn.Module):
    """What no part of a matrix tells; torch asks for it when the layer is called."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """A matrix product."""
        return values @ values.mT


@correct("a pointwise parametrization of weights")
def parametrized(run: Run) -> None:
    """Of a planned layer, a grouped one and a linear one."""
    for layer in (run.model.conv, run.model.grouped, run.model.head):
        parametrize.register_parametrization(layer, "weight", Positive())
    train(run, sgd, 2)
    run.note(run.model.conv.weight)
    parametrize.remove_parametrizations(run.model.conv, "weight")
    train(run, sgd, 1)


@correct("parametrizations.weight_norm")
def weight_normed(run: Run) -> None:
    """A direction and a length for each filter."""
    for layer in (run.model.conv, run.model.head):
        parametrizations.weight_norm(layer)
    train(run, sgd, 2)


@correct("weight_norm of a grouped layer")
def weight_normed_groups(run: Run) -> None:
    """Its weight is stored by groups."""
    parametrizations.weight_norm(run.model.grouped)
    train(run, sgd, 2)


@correct("a parametrization before parallelize()")
def parametrized_before(run: Run) -> None:
    """Every rank computes the layer from the whole."""
    run.model = run.made(lambda model: parametrizations.spectral_norm(model.grouped))
    run.noted_models[:] = [run.model]
    train(run, sgd, 2)


@refused("an unsafe parametrization by a matrix product", "Small has no graph")
def parametrized_by_product(run: Run) -> None:
    """A weight of another shape."""
    parametrize.register_parametrization(run.model.head, "weight", Product(), unsafe=True)
    run.loss()


@correct("parametrizations.spectral_norm")
def spectral_normed(run: Run) -> None:
    """Products of the weight and a vector."""
    parametrizations.spectral_norm(run.model.conv)
    train(run, sgd, 2)


@correct("parametrizations.orthogonal")
def orthogonal(run: Run) -> None:
    """Factors of the weight."""
    parametrizations.orthogonal(run.model.conv)
    train(run, sgd, 2)


@correct("utils.weight_norm, by a hook")
def weight_normed_by_hook(run: Run) -> None:
    """The older form."""
    utils.weight_norm(run.model.conv)
    train(run, sgd, 2)


@correct("pruning")
def pruned(run: Run) -> None:
    """A mask of the smallest weights."""
    prune.l1_unstructured(run.model.conv, "weight", 0.3)
    train(run, sgd, 2)
