"""Steps of a network that `Network.compile` has compiled: a forward pass is one graph.

AOTAutograd traces the steps with their gradients; see `comm.traced` for exchanges.
Before that, each rank makes a pass without words, and all compare what they exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from synth.runtime.comm.traced import Trace, enter, first_apart, register, traceable
from synth.runtime.compiled.steps import Pass, compiled
from synth.runtime.grid.log import first_line
from synth.runtime.grid.word_counter import TrafficCounter
from synth.runtime.kernels.autocast import autocast_dtype, no_autocast, uncached
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.steps.draws import Draws
from synth.runtime.layers.steps.held import local_part
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.model.execute import Region
from synth.runtime.model.reached import connected
from synth.runtime.model.step_forms import StepForms
from synth.runtime.model.step_graph import StepGraph
from synth.runtime.model.undisturbed import saved_as_they_are
from synth.runtime.rules.rule import Together

MOST = 32  # compiled passes that are kept
REMEDY = (
    "; call net.compile(disable=True), and compile a module around the network, in"
    " which it is one operator where it was parallelized with outputs='whole'"
)
REFUSED = f"which steps that net.compile() has compiled do not{REMEDY}"
LATER = f"gradients are added up in no_sync(), {REFUSED}"
Key = tuple[Any, ...]


class Words:
    """The counters of a network. While a pass is traced, they count nothing."""

    def __init__(self, program: StepGraph) -> None:
        layers = (m for m in program.modules() if isinstance(m, DistributedLayer))
        found = program.context.traffic, *(each.traffic for each in layers)
        self.counters: Sequence[TrafficCounter] = found
        self.hold()

    def hold(self) -> None:
        """Remember what they have."""
        self.before: list[dict[Any, int]] = [dict(each.steps) for each in self.counters]

    def restore(self) -> list[tuple[dict[Any, int], Any, int]]:
        """Take back what was counted since then, and return it."""
        found = []
        for counter, before in zip(self.counters, self.before, strict=True):
            steps = counter.steps
            for key in [
                key for key, words in steps.items() if words != before.get(key)
            ]:
                found.append((steps, key, steps[key] - before.get(key, 0)))
                steps[key] = before.get(key, 0)
        return found


def _count(words: Sequence[tuple[dict[Any, int], Any, int]]) -> None:
    for steps, key, each in words:
        steps[key] = steps.get(key, 0) + each


class Begin(torch.autograd.Function):
    """What a pass is given. Its backward pass is the last one of the pass."""

    @staticmethod
    def forward(
        ctx: Any, steps: CompiledPass, after: torch.Tensor, *given: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The same values."""
        ctx.steps, ctx.trace = steps, steps.trace
        ctx.set_materialize_grads(False)
        return tuple(each.view_as(each) for each in given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """The same gradients, behind all exchanges."""
        ctx.steps.leave()
        return None, ctx.trace.after, *gradients


class End(torch.autograd.Function):
    """What a pass gives. Its backward pass is the first one."""

    @staticmethod
    def forward(
        ctx: Any, steps: CompiledPass, *made: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The same values, behind all exchanges."""
        ctx.steps, ctx.trace = steps, steps.trace
        ctx.set_materialize_grads(False)
        return ctx.trace.after.clone(), *(each.view_as(each) for each in made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, after: torch.Tensor, *gradients: Any) -> tuple[Any, ...]:
        """The same gradients, before all exchanges."""
        if after is not None:  # it makes the exchanges part of the backward pass
            ctx.trace.after = after
        ctx.steps.enter(ctx.trace)
        return None, *gradients


class CompiledPass:
    """A forward pass in one mode, with its backward pass.

    keys: of the tensors that steps use, behind the shards of the inputs. Behind them is
    the seed of the pass, if it draws random numbers.
    names: of the exchanges, as the first trace has them. reach: place of an output ->
    the places of what the pass is given that its gradient reaches; empty if each
    reaches all.
    """

    def __init__(
        self,
        program: StepGraph,
        keys: Sequence[str],
        training: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.program, self.keys, self.training = program, keys, training
        self.words, self.trace = Words(program), Trace(torch.zeros(()))
        self.counted: list[Any] = []  # of the last phase that was traced
        self.forward_words: list[Any] = []
        self.backward_words: list[Any] = []
        self.names: list[str] | None = None
        self.reach: dict[int, frozenset[int]] = {}
        self.ends: dict[int, torch.Tensor] = {}  # outputs with gradients, while traced
        self.read: set[str] | None = None
        self._pass = Pass(self.run)
        self._call = compiled(self._pass, **options)

    # -- what is traced ----------------------------------------------------------------

    def enter(self, trace: Trace) -> None:
        """Trace from here on."""
        self.words.hold()
        enter(trace)

    def leave(self) -> None:
        """Trace no more."""
        enter(None)
        self.counted = self.words.restore()

    def run(self, after: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
        """The steps: what the last exchange gave, and the own parts of the outputs."""
        mode: Any = detect_fake_mode(given)
        if mode is not None:  # steps have constants, which are real
            mode.allow_non_fake_inputs = True
        trace = self.trace = Trace(after)
        every, number = list(given), len(self.program.inputs)
        trained = [place for place, each in enumerate(given) if _trained(each)]
        if trained:
            begun: Any = Begin.apply(self, after, *(given[n] for n in trained))  # type: ignore[no-untyped-call]
            for place, each in zip(trained, begun, strict=True):
                every[place] = each
        own = every[number : number + len(self.keys)]
        tensors, seeds = dict(zip(self.keys, own, strict=True)), self.program.seeds
        if seeds.draws_now:
            seeds.give(every[-1])
        self.enter(trace)
        try:
            made = self.program.run(every[:number], tensors, self.training, self.read)
        finally:
            self.leave()
            seeds.give(seeds.now)
        self.ends = {at: each for at, each in enumerate(made) if _trained(each)}
        if not self.ends:
            return [trace.after, *made]
        ended: Any = End.apply(self, *self.ends.values())  # type: ignore[no-untyped-call]
        after, *behind = ended
        for place, each in zip(self.ends, behind, strict=True):
            made[place] = each
        return [after, *made]

    # -- what runs ---------------------------------------------------------------------

    def prepare(self, given: Sequence[torch.Tensor], read: set[str] | None) -> None:
        """A pass without words, on all ranks. read: see `StepGraph.run`.

        Raises `ValueError` on all ranks for steps that have no traceable form.
        """
        ranks, said = self.program.ranks.everyone, ""
        self.read = read
        try:
            self._dry(given)
        except Exception as error:  # of torch, and of steps
            self.leave()
            what = f"has no form that a compiler can trace ({first_line(error)})"
            said = f"{self.at} {what}{REMEDY}"
        self.read, self.ends = None, {}
        told = ranks.gathered((said, self.trace.exchanges))
        said = next((each for each, _ in told if each), "")
        pairs = zip(ranks.members, (each for _, each in told), strict=True)
        apart = "" if said else first_apart(dict(pairs))
        if apart:
            said = f"{apart}, has no counterpart in compiled steps{REMEDY}"
        if said:
            raise ValueError(said)
        self.names = self.trace.names

    @property
    def at(self) -> str:
        """The step that is being traced."""
        name = self.program.running
        return self.program.names.get(name, name) or "the backward pass"

    def _dry(self, given: Sequence[torch.Tensor]) -> None:
        mode, device = FakeTensorMode(allow_non_fake_inputs=True), given[0].device
        # not saved as a checkpoint around does
        with traceable(), mode, saved_as_they_are(), _Miscompiled():
            fakes = [_alike(mode, each) for each in (self._start(given), *given)]
            with uncached(device):
                made = self.run(*fakes)
            self.forward_words = self.counted
            asked = [each for each in fakes if _trained(each)]
            outs = [each for each in made if each.requires_grad]
            if not asked:
                return
            with no_autocast(device):
                like = [torch.ones_like(each) for each in outs]
                torch.autograd.grad(outs, asked, like, True, allow_unused=True)
                self.backward_words = self.counted
                self._note_reach(fakes[1:])

    def _note_reach(self, given: Sequence[torch.Tensor]) -> None:
        """A backward pass from each output alone, whose exchanges are not noted."""
        trace, reach = self.trace, dict[int, frozenset[int]]()
        exchanges, names = [*trace.exchanges], [*trace.names]
        trained = [place for place, each in enumerate(given) if _trained(each)]
        asked = [given[place] for place in trained]
        for place, each in self.ends.items() if asked else ():
            self.enter(trace)
            like = torch.ones_like(each)
            found = torch.autograd.grad(each, asked, like, True, allow_unused=True)
            self.leave()
            pairs = zip(trained, found, strict=True)
            reach[place] = frozenset(at for at, grad in pairs if grad is not None)
        trace.exchanges, trace.names = exchanges, names
        every = {frozenset(trained)}
        self.reach = {} if every == {*reach.values()} else reach

    def _start(self, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the first exchange takes. It has a gradient where the pass has some."""
        after = torch.zeros((), device=given[0].device)
        return after.requires_grad_(any(map(_trained, given)))

    def __call__(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The own parts of the outputs."""
        after, before = self._start(given), self.trace

        def back(gradient: torch.Tensor | None = None) -> None:
            _count(self.backward_words)

        def call(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            try:
                with traceable():
                    return self._call(after, *tensors)[1:]
            except torch._dynamo.exc.BackendCompilerFailed as error:
                said = first_line(error.inner_exception)
                raise ValueError(
                    f"torch cannot compile steps ({said}){REMEDY}"
                ) from error

        if self.reach:
            made = connected(self.reach, given, call, back)
        else:
            if after.requires_grad:
                after.register_hook(back)  # type: ignore[no-untyped-call]
            made = [*call(given)]
        self.ends = {}
        if self.trace is not before:
            trace, self.trace = self.trace, before
            if trace.names != (self.names or [])[: len(trace.names)]:
                raise RuntimeError("compiled steps make other exchanges than steps")
        _count(self.forward_words)
        return made


def _trained(values: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and values.requires_grad


def _alike(mode: FakeTensorMode, values: torch.Tensor) -> torch.Tensor:
    """A tensor without words."""
    return mode.from_tensor(values.detach()).requires_grad_(values.requires_grad)


class CompiledSteps:
    """The compiled passes of a network. options: of `torch.compile`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        register()
        self.options = dict(options)
        self.forms = StepForms()
        self.passes: dict[Key, CompiledPass] = {}

    def run(
        self,
        program: StepGraph,
        shards: Sequence[torch.Tensor],
        tensors: Mapping[str, torch.Tensor],
        training: bool,
        read: set[str] | None,
    ) -> list[torch.Tensor]:
        """What `StepGraph.run` gives.

        Raises `ValueError` on all ranks for what cannot be compiled.
        """
        require_traceable(program, training)
        given, seeds = [*shards, *map(local_part, tensors.values())], program.seeds
        if seeds.draws_now:
            given.append(torch.tensor(seeds.now, device=shards[0].device))
        kinds = tuple((each.dtype, _trained(each)) for each in given)
        modes = torch.is_grad_enabled(), autocast_dtype(shards[0].device)
        key = id(program), self.forms.of(program), modes, kinds
        found = self.passes.get(key)
        if found is None:
            found = CompiledPass(program, [*tensors], training, self.options)
            found.prepare(given, read)
            if len(self.passes) >= MOST:
                self.passes.pop(next(iter(self.passes)))
            self.passes[key] = found
        return found(given)


class _Miscompiled(TorchFunctionMode):
    """Refuses functions to which torch's compiler gives other values (torch 2.13)."""

    margin = functional.multilabel_margin_loss, torch._C._nn.multilabel_margin_loss

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in self.margin:
            raise ValueError("torch compiles labels behind -1 as if they counted")
        return func(*args, **(kwargs or {}))


def require_traceable(program: StepGraph, training: bool) -> None:
    """Raise `ValueError`, on all ranks alike, for what compiled steps would not do."""
    grads = torch.is_grad_enabled()
    schedule = program.schedules[training if grads else None]
    said = ""
    if program.check_finite:
        said = "check_finite=True looks at words between steps"
    elif program.context.tuner.enabled:
        said = "kernels are measured (synth.tune)"
    elif drawing := _drawing_whole(program):
        said = f"{drawing} draws from torch's generator, whose order a compiler changes"
    elif refusing := _refusing(program):
        said = f"torch may refuse the words of one rank in {refusing}"
    elif any(isinstance(each, Region) for each in schedule):
        said = "the model has regions of torch.utils.checkpoint"
    if said:
        raise ValueError(f"{said}, {REFUSED}")


def _refusing(program: StepGraph) -> str:
    """The first call that ranks end together; "" for none."""
    steps = (step for each in program.steps.values() for step in each.modules())
    pulled = (each.rule.combined for each in steps if isinstance(each, Pulled))
    return next((each.name for each in pulled if isinstance(each, Together)), "")


def _drawing_whole(program: StepGraph) -> str:
    """The first call that draws from a generator of torch; "" for none."""
    for name, step in program.steps.items():
        if any(isinstance(each, Draws) for each in step.modules()):
            return program.names.get(name, name)
    return ""
