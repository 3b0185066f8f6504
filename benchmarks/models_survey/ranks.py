"""A model on ranks beside the same model in one process: forward pass, and two steps of SGD."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.utils import _pytree

import synth
from benchmarks.models_survey.entry import Entry
from benchmarks.models_survey.look import gathered_in, sentence
from benchmarks.models_survey.table import STEPS
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.layers.steps.gathered_step import GatheredStep
from synth.runtime.model.network import Network
from synth.runtime.tracing.inputs import Arguments, Inputs
from synth.runtime.tracing.unsupported import plain_copies

RATE = 1e-3
SEEDS = 2, 3  # of the batches of two steps


def compare(entry: Entry) -> dict[str, Any]:
    """What every rank finds; all ranks run this.

    forward: the error of the outputs in evaluation, relative to the largest word. steps: that of the state
    after two steps of SGD; None for a model that is not trained. rounding: where that is not small, what the
    last bit of the inputs changes in one process. planned, received: words of the first step, of the rank
    where they differ most. gathered: share of the operations by name. float32: whether the model computes in
    it by itself. refused, or "refused in training": the sentence.
    """
    whole = _model(entry)
    found: dict[str, Any] = {}
    start = time.perf_counter()
    net, model = None, whole
    try:
        if entry.trains:
            net = _in_training(model, entry, found)
        model.eval()
        both = net is not None and not _refused(lambda: net.eval())
        if not both:  # forward does otherwise in evaluation
            net = synth.parallelize(copy.deepcopy(model, plain_copies(model)), entry.input)
        found["forward"] = _forward(net, model, entry.input)
        if entry.trains and both:
            found |= _two_steps(net.train(), model.train(), entry.input)
            if (found["steps"] or 0) > STEPS:
                found["rounding"] = _rounding(_model(entry).train(), model, entry.input)
    except ValueError as error:
        return {**found, "refused": sentence(error)}
    if dist.get_rank():
        return found
    model.eval()
    gathered = [name for name, step in net.program.steps.items() if isinstance(step, GatheredStep)]
    traced = trace_model(model, entry.input)
    found |= gathered_in(traced, model, gathered)
    found["float32"] = makes_float32(traced)
    return {**found, "seconds": time.perf_counter() - start}


def makes_float32(traced: fx.GraphModule) -> bool:
    """Whether a model makes tensors in float32, whatever its parameters are."""
    made = (node.meta.get("value") for node in traced.graph.nodes)
    return any(isinstance(v, torch.Tensor) and v.dtype == torch.float32 for v in made)


def _model(entry: Entry) -> nn.Module:
    """The model in float64; in float32 if it makes tensors of that dtype and torch refuses both together.

    Weights that begin as zeros are random here: zeros would hide what they multiply.
    """
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        torch.set_default_dtype(dtype)
        model = _without_chance(entry.make().to(dtype)).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1 and not parameter.any():
                nn.init.normal_(parameter, std=1e-3)
        args, kwargs = _batch(model, entry.input, 0)
        try:
            with torch.no_grad():
                copy.deepcopy(model, plain_copies(model))(*args, **kwargs)
            break
        except RuntimeError:  # if float32 fails, too, `parallelize` says why
            continue
    return model


def _in_training(model: nn.Module, entry: Entry, found: dict[str, Any]) -> Network | None:
    """The network of the model in training; None if it is refused.

    Where it cannot be put into evaluation, it is trained at once.
    """
    try:
        net = synth.parallelize(copy.deepcopy(model.train(), plain_copies(model)), entry.input)
    except ValueError as error:
        found["refused in training"] = sentence(error)
        return None
    if _refused(lambda: copy.deepcopy(net, plain_copies(net)).eval()):
        found |= _two_steps(net, copy.deepcopy(model, plain_copies(model)), entry.input)
    return net


def _refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False


def _without_chance(model: nn.Module) -> nn.Module:
    """The model without dropout, stochastic depth and noise: ranks draw other numbers than one process."""
    torch.randn_like = _no_noise  # of the samples of variational autoencoders
    for module in model.modules():
        for name in (
            "p",
            "drop_prob",
            "drop_p",
            "drop_rate",
            "dropout",
            "attn_drop",
            "dropout_p",
            "drop_connect_rate",
        ):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def _no_noise(like: torch.Tensor, **rest: Any) -> torch.Tensor:
    return torch.zeros_like(like, **rest)


def _batch(model: nn.Module, input: Any, seed: int, noise: float = 0.0) -> tuple[Any, dict[str, Any]]:
    """Arguments for the model: random numbers in the shapes, and the examples themselves.

    noise: relative change of the numbers.
    """
    torch.manual_seed(seed)
    arguments = Arguments(model, Inputs.of(input))
    examples = iter(_examples(input))
    made = [
        torch.randn(each.shape) if each.dtype is None or each.dtype.is_floating_point else next(examples)
        for each in arguments.specs
    ]
    if noise:
        made = [
            each * (1 + noise * torch.randn(each.shape)) if each.is_floating_point() else each
            for each in made
        ]
    return arguments.filled(made)


def _examples(input: Any) -> list[torch.Tensor]:
    leaves = _pytree.tree_leaves(input)
    return [each for each in leaves if isinstance(each, torch.Tensor) and not each.is_floating_point()]


def _outputs(made: Any) -> list[torch.Tensor]:
    """All floating-point tensors that a model gives."""
    from synth.runtime.tracing.outputs import Structure

    return [each for each in Structure(made).tensors if each.is_floating_point()]


def _whole(values: torch.Tensor) -> torch.Tensor:
    return values.full_tensor() if hasattr(values, "full_tensor") else values


def _forward(net: Network, model: nn.Module, input: Any) -> float | None:
    """The error of all outputs, without gradients; on rank 0, which alone runs the model in one process."""
    args, kwargs = _batch(model, input, 1)
    with torch.no_grad():
        ours = [_whole(each) for each in _outputs(net(*args, **kwargs))]
        return None if dist.get_rank() else error(ours, _outputs(model(*args, **kwargs)))


def _two_steps(net: Network, model: nn.Module, input: Any) -> dict[str, Any]:
    """steps: the error of the state after two steps of both, on rank 0. planned, received: of the first step.

    steps is None where no parameter gets a gradient.
    """
    if not all(any(p.requires_grad for p in each.parameters()) for each in (net, model)):
        return {"steps": None}
    before = [values.clone() for values in model.state_dict().values()]
    batches = [_batch(model, input, seed) for seed in SEEDS]
    planned, received = _worst_words(net, batches[0])
    found: dict[str, Any] = {"steps": None, "planned": planned, "received": received}
    _train(net, batches)
    ours = net.full_state_dict()
    if dist.get_rank():
        return found
    _train(model, batches)
    return {**found, "steps": _changed_otherwise(ours, model.state_dict(), before)}


def _worst_words(net: Network, batch: tuple[Any, dict[str, Any]]) -> tuple[int, int]:
    """Planned and received words of a pass forward and back, of the rank where they differ most.

    The network is as before, but for gradients.
    """
    buffers = [(held, held.clone()) for held in net.buffers()]
    args, kwargs = batch
    planned, before = net.planned_words().step[dist.get_rank()], net.received()
    torch.autograd.backward(_loss(_outputs(net(*args, **kwargs))))
    own = planned, net.received() - before
    with torch.no_grad():
        for held, values in buffers:
            held.copy_(values)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return max(every, key=lambda pair: abs(pair[0] - pair[1]))


def _rounding(first: nn.Module, trained: nn.Module, input: Any) -> float:
    """The error of one process against itself, if the last bit of its inputs changes.

    first: the model before two steps. trained: after them.
    """
    before = [values.clone() for values in first.state_dict().values()]
    noise = torch.finfo(torch.get_default_dtype()).eps / 2
    _train(first, [_batch(first, input, seed, noise) for seed in SEEDS])
    return _changed_otherwise(first.state_dict(), trained.state_dict(), before)


def _train(model: nn.Module, batches: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """A step of SGD for each batch."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE, momentum=0.9)
    for args, kwargs in batches:
        loss = _loss(_outputs(model(*args, **kwargs)))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def _loss(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """One number that all outputs go into; those of a network as they are, partitioned."""
    return torch.stack([out.square().mean() for out in outputs]).sum()


def _changed_otherwise(ours: Mapping[str, Any], theirs: Mapping[str, Any], before: Sequence[Any]) -> float:
    """The error of what training changed. before: the state of both, in the order of theirs."""
    pairs = zip(theirs.items(), before, strict=True)
    changes = [(ours[key] - old, values - old) for (key, values), old in pairs if values.is_floating_point()]
    return error(*zip(*changes, strict=True))


def error(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """The largest difference, relative to the largest word of all."""
    if len(ours) != len(theirs):
        return math.inf
    size = max((float(each.abs().max()) for each in theirs if each.numel()), default=0.0)
    pairs = zip(ours, theirs, strict=True)
    found = [float((one - other).abs().max()) for one, other in pairs if other.numel()]
    worst = max(found, default=0.0)
    return worst / size if size else worst
