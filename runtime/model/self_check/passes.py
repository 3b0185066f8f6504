"""One pass of a model, and the same pass of its network on one process."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.model.execute import Region
from synth.runtime.model.network import Network
from synth.runtime.model.self_check.deadline import Deadline
from synth.runtime.model.self_check.forced_draws import Drawn
from synth.runtime.model.self_check.twins import Twins
from synth.runtime.model.self_check.witness import Witness
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tensor.partitioned import own_words, whole_words
from synth.runtime.tracing.generators import generators_of
from synth.runtime.tracing.inputs import Arguments
from synth.runtime.tracing.left_values import Left, now_left, tensors_left
from synth.runtime.tracing.modes import MODES
from synth.runtime.tracing.outputs import Structure
from synth.runtime.tracing.surroundings import Kept
from synth.runtime.tracing.unsupported import plain_copies

SEED = 0
Values = dict[str, torch.Tensor | None]


@dataclass
class Pass:
    """What a pass gives, whole, by names; also what it leaves in attributes.

    gradients: of parameters and inputs, of one number that all outputs go into; None
    for what it does not depend on. state: of buffers after the forward pass. later: of
    those that checkpoints may change again, after the backward pass. values, slopes: of
    calls, by their nodes, and the gradients of these values, if they were looked at.
    """

    outputs: Values
    gradients: Values
    state: Values
    later: Values = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    slopes: Values = field(default_factory=dict)

    def look(self, name: str, made: torch.Tensor) -> None:
        """Keep a value, and its gradient once that is there."""
        self.values[name] = made.detach().clone()
        if made.requires_grad:

            def keep(gradient: torch.Tensor) -> None:
                before = self.slopes.get(name)
                self.slopes[name] = gradient if before is None else before + gradient

            made.register_hook(keep)  # type: ignore[no-untyped-call]


class Pair:
    """A model and its network on one process, which run side by side.

    model: whose parameters the network has copied. graph: of the model. inputs: values
    for its arguments. training: whether passes have gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        network: Network,
        graph: fx.Graph,
        arguments: Arguments,
        inputs: Sequence[torch.Tensor],
        gradients: bool = True,
    ) -> None:
        self.model, self.network, self.graph = model, network, graph
        self.arguments, self.inputs, self.gradients = arguments, inputs, gradients
        self.start = {
            n: whole_words(each).clone() for n, each in network.named_buffers()
        }

    def _seed(self, model: nn.Module) -> None:
        """Let a pass of the model, or of its network, draw what all passes draw."""
        for _, generator in generators_of(model, self.arguments.values):
            generator.manual_seed(SEED)

    def set_modes(self, mode: bool) -> None:
        """Put both in a mode. Raises `ValueError` where that has another graph."""
        self.network.train(mode)
        self.model.train(mode)
        reason = self.network._programs.calls[0].refused(self.network)
        if reason:
            word = MODES[mode]
            raise ValueError(
                f"{reason}; synth.check compares a model that is in {word}"
            )

    def of_network(self, looked: bool = False) -> tuple[Drawn, Pass]:
        """A pass of the network, and what it drew.

        looked: whether the values of all calls are kept.
        """
        made = Pass({}, {}, {})
        with Drawn(self.network) as drawn:
            self._run_network(made, looked)
        return drawn, made

    def of_model(
        self, drawn: Drawn, looked: bool = False, noise: float = 0.0
    ) -> tuple[Witness, Pass]:
        """The same pass of the model, which draws what the network drew.

        noise: relative change of parameters and inputs.
        """
        model, inputs = twin_of(self.model), self.inputs
        if noise:
            model, inputs = shaken(model, inputs, noise)
        again = twin_of(model) if self._checkpoints() else None
        torch.manual_seed(SEED)  # other draws are alike in all passes
        self._seed(model)
        made, twins = Pass({}, {}, {}), Twins(self.graph, self._made)
        witness = Witness(model, twins, drawn, made.look if looked else None)

        def call(*args: Any, **kwargs: Any) -> Any:
            return witness.run(model, args, kwargs)

        seen = self.network.program.attributes
        around = Kept(model, seen.outside)
        run_model(
            model, call, self.arguments, inputs, self.gradients, made, self._left()
        )
        around.note_changes(seen)  # with values it may write what it does not on "meta"
        if again is not None:
            self._follow_checkpoints(again, inputs, drawn, made)
        for name in twins.unsure() if looked else ():
            made.values.pop(name, None)
            made.slopes.pop(name, None)
        return witness, made

    def _checkpoints(self) -> bool:
        """Whether the backward pass computes calls again, which may change buffers."""
        parts = self.network.program.schedules[self.network.training]
        return self.gradients and any(isinstance(each, Region) for each in parts)

    def _follow_checkpoints(
        self, model: nn.Module, inputs: Sequence[torch.Tensor], drawn: Drawn, made: Pass
    ) -> None:
        """Write into `made` what a step gives in which checkpoints are followed.

        The model then draws other numbers than the network: counters are alike alone.
        """
        step, draws = Pass({}, {}, {}), any(drawn.parts.values())
        self._seed(model)
        run_model(model, model, self.arguments, inputs, True, step, self._left())
        if not draws:
            made.gradients = step.gradients
        made.later = {
            name: each
            for name, each in step.state.items()
            if each is not None and not (draws and is_trainable(each))
        }

    def _left(self) -> list[Left]:
        """What a pass leaves in the modes of now."""
        return [*now_left(self.network._shown, self.network.program.left)]

    def _made(self, node: fx.Node) -> bool:
        """Whether the network makes a call in its mode."""
        return not getattr(self.network.program.steps[node.name], "passes", False)

    def _run_network(self, made: Pass, looked: bool) -> None:
        """Write into `made` a pass of the network, from the buffers at the start."""
        net = self.network
        with torch.no_grad():
            for name, each in net.named_buffers():
                own_words(each).copy_(self.start[name].reshape(own_words(each).shape))
        self._seed(net._shown)
        hooks = list[Any]()
        if looked:
            hooks = [
                step.register_forward_hook(_hook(name, made))
                for name, step in net.program.steps.items()
            ]
        leaves = leaves_of(self.inputs, self.gradients)
        try:
            args, kwargs = self.arguments.filled(_used(leaves))
            given = net(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        names, tensors = _given(given, net._shown, self._left())
        wholes = [whole_words(each) for each in tensors]
        made.outputs = _detached(zip(names, wholes, strict=True))
        made.state = {n: whole_words(each).clone() for n, each in net.named_buffers()}
        loss = weighted(wholes) if self.gradients else None
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        if self._checkpoints():
            made.later = {n: whole_words(b).clone() for n, b in net.named_buffers()}
        found = [
            *net.named_parameters(),
            *zip(self.arguments.names, leaves, strict=True),
        ]
        made.gradients = {
            name: None if each.grad is None else whole_words(each.grad).detach().clone()
            for name, each in found
            if each.requires_grad
        }
        for _, each in found:
            each.grad = None


def run_model(
    model: nn.Module,
    call: Any,
    arguments: Arguments,
    inputs: Sequence[torch.Tensor],
    gradients: bool,
    made: Pass,
    left: Sequence[Left] = (),
) -> None:
    """Write into `made` what a model gives and leaves, which `call` runs."""
    leaves = leaves_of(inputs, gradients)
    args, kwargs = arguments.filled(_used(leaves))
    with torch.set_grad_enabled(gradients):
        given = call(*args, **kwargs)
    names, tensors = _given(given, model, left)
    made.outputs = _detached(zip(names, tensors, strict=True))
    loss = weighted(tensors) if gradients else None
    found = [*model.named_parameters(), *zip(arguments.names, leaves, strict=True)]
    trained = {name: each for name, each in found if each.requires_grad}
    made.gradients = dict.fromkeys(trained)
    if loss is not None and trained:
        each = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        made.gradients = dict(zip(trained, each, strict=True))
    made.state = {n: b.detach().clone() for n, b in model.named_buffers()}


def _given(
    given: Any, model: nn.Module, left: Sequence[Left]
) -> tuple[list[str], list[torch.Tensor]]:
    """The tensors that a pass gives and leaves, behind their names."""
    outs, more = Structure(given), [*tensors_left(model, left)]
    names = [*outs.names, *(name for name, _ in more)]
    return names, [*outs.tensors, *(values for _, values in more)]


def measured(
    model: nn.Module,
    arguments: Arguments,
    inputs: Sequence[torch.Tensor],
    gradients: bool,
    deadline: Deadline,
) -> tuple[bool, float]:
    """Whether a pass of a model gives finite numbers, and the seconds that it takes."""
    begin, made, model = deadline.passed, Pass({}, {}, {}), twin_of(model)
    run_model(model, model, arguments, inputs, gradients, made)
    seconds = deadline.passed - begin
    kept = [*made.outputs.values(), *made.gradients.values()]
    shares = (torch.isfinite(v).double().mean() for v in kept if v is not None)
    return all(bool(share > 0.5) for share in shares), seconds


def twin_of(model: nn.Module) -> nn.Module:
    """A copy with buffers of its own and the same parameters."""
    memo: dict[int, Any] = {id(each): each for each in model.parameters()}
    return copy.deepcopy(model, {**plain_copies(model), **memo})


def shaken(
    model: nn.Module, inputs: Sequence[torch.Tensor], noise: float
) -> tuple[nn.Module, list[torch.Tensor]]:
    """A model and its inputs whose words are changed by a relative `noise`."""
    model = copy.deepcopy(model, plain_copies(model))
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1 + noise * torch.randn_like(each.detach()))
    return model, [
        each * (1 + noise * torch.randn_like(each)) if is_trainable(each) else each
        for each in inputs
    ]


def weighted(outputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One number that all outputs go into; None where no gradient passes through.

    Weights are fixed, of moderate size and differ between words.
    """
    total: torch.Tensor | None = None
    for each in outputs:
        if not each.requires_grad:
            continue
        place = torch.arange(each.numel(), dtype=torch.float64, device=each.device)
        weights = torch.sin(place * 1.7 + 0.6).reshape(each.shape)
        real = torch.view_as_real(each).sum(-1) if each.is_complex() else each
        part = (real * weights.to(real.dtype)).sum()
        total = part if total is None else total + part
    return total


def leaves_of(inputs: Sequence[torch.Tensor], gradients: bool) -> list[torch.Tensor]:
    """Inputs that keep their gradients."""
    return [
        each.detach().clone().requires_grad_(gradients and is_trainable(each))
        for each in inputs
    ]


def _used(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs that a model may change in place."""
    return [each.clone() for each in leaves]


def _hook(name: str, made: Pass) -> Any:
    def keep(step: nn.Module, given: Any, value: torch.Tensor) -> None:
        made.look(name, value)

    return keep


def _detached(pairs: Any) -> Values:
    return {name: each.detach().clone() for name, each in pairs}
