"""Steps between two exchanges as one compiled call, where ranks measure it as faster.

A chain ends in a value that others read; nobody else reads its other values. Its form
for `torch.compile` is traced by AOTAutograd, with gradients. All ranks together decide
which chains are compiled: words that several of them compute stay the same.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from synth.runtime.compiled.steps import Pass, compiled
from synth.runtime.grid.log import LOG, first_line
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.spans import span
from synth.runtime.kernels.autocast import autocast_dtype
from synth.runtime.layers.norms.batch_norm import BatchNorm
from synth.runtime.layers.steps.draws import Drawing, Draws
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.step import OnShards, Step
from synth.runtime.model.execute import Region, Schedule, Scheduled
from synth.runtime.model.step_forms import StepForms

if TYPE_CHECKING:
    from synth.runtime.model.step_graph import StepGraph

FASTER = 0.95  # of the seconds of the steps one by one, at most, for a compiled chain
MOST = 32  # modes and settings of which chains are kept
TIMES = 7  # that each form of a chain is measured
Form = Callable[..., tuple[torch.Tensor, ...]]


class Chain:
    """Calls of which others read the result of the last one alone.

    calls: in order. sources: the values from outside that they read.
    """

    def __init__(self, graph: StepGraph, calls: Sequence[Scheduled]) -> None:
        self.calls = tuple(each.name for each in calls)
        read = dict.fromkeys(name for each in calls for name in each.sources)
        self.sources = tuple(name for name in read if name not in self.calls)
        self.names = " + ".join(graph.names.get(each, each) for each in self.calls)
        self.reads = [each.sources for each in calls]
        steps = [graph.steps[name] for name in self.calls]
        self.steps: list[Callable[..., torch.Tensor]] = [
            each.local if isinstance(each, Pulled) else each for each in steps
        ]
        last = steps[-1]
        self.ends_in_view = isinstance(last, Pulled) and last.takes_views
        self.uses = [use for name in self.calls for use in graph.uses[name]]
        self.traced = Pass(self.run)
        self.form: Form = self._trial
        self.compiled: Form | None = None
        self.seconds = 0.0, 0.0  # of the steps one by one, and compiled
        self.failed = ""  # why there is no compiled form

    def run(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The calls, one by one. given: the sources, and what the steps use."""
        values = dict(zip(self.sources, given, strict=False))
        bound = given[len(values) :]
        try:
            for use, local in zip(self.uses, bound, strict=True):
                use.slots[use.name] = local
            for name, step, reads in zip(
                self.calls, self.steps, self.reads, strict=True
            ):
                values[name] = step(*(values[each] for each in reads))
        finally:
            for use in self.uses:
                use.slots[use.name] = None
        made = values[self.calls[-1]]
        return (made.contiguous() if self.ends_in_view else made,)

    def __call__(
        self, given: Sequence[torch.Tensor], tensors: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """The result. given: the sources. tensors: key -> a parameter or buffer."""
        form = self.form if all(each.numel() for each in given) else self.run
        with span(self.names):
            (made,) = form(*given, *(tensors[use.key] for use in self.uses))
        return made

    @property
    def is_compiled(self) -> bool:
        """Whether the chain was chosen to be compiled."""
        return self.compiled is not None and self.form is self.compiled

    def choose(self, faster: bool) -> None:
        """Take one of the two forms from now on."""
        if not faster:
            self.compiled = None
        self.form = self.compiled or self.run

    def _trial(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The calls one by one, after both forms were measured.

        In processor seconds, with a backward pass where gradients are recorded.
        """
        alike = [
            each.detach().clone().requires_grad_(each.requires_grad) for each in given
        ]
        try:
            self.compiled = compiled(self.traced)
            for form in (self.run, self.compiled, self.compiled):
                _seconds(form, alike)
            pairs = [
                (_seconds(self.run, alike), _seconds(self.compiled, alike))
                for _ in range(TIMES)
            ]
            plain, other = map(statistics.median, zip(*pairs, strict=True))
            self.seconds = plain, other
        except Exception as error:  # of a compiler
            self.failed = f"{type(error).__name__}: {first_line(error)}"
            self.seconds = 0.0, math.inf
        return self.run(*given)


def _seconds(form: Form, given: Sequence[torch.Tensor]) -> float:
    trained = [each for each in given if each.requires_grad]
    device = given[0].device
    _wait(device)
    begin = time.process_time() if device.type == "cpu" else time.perf_counter()
    (made,) = form(*given)
    if made.requires_grad:
        torch.autograd.grad(made, trained, torch.ones_like(made), allow_unused=True)
    _wait(device)
    end = time.process_time() if device.type == "cpu" else time.perf_counter()
    return end - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Chains:
    """The chains of one mode, by their last calls, and the schedule with them."""

    def __init__(self, of: dict[str, Chain], schedule: Schedule) -> None:
        self.of, self.schedule, self.decided = of, schedule, not of

    def decide(self, ranks: Ranks) -> None:
        """Let chains be compiled that take less time of all ranks. All call this.

        Once, behind the first pass.
        """
        if self.decided:
            return
        told = ranks.gathered([each.seconds for each in self.of.values()])
        for chain, pairs in zip(self.of.values(), zip(*told, strict=True), strict=True):
            plain, other = (sum(each) for each in zip(*pairs, strict=True))
            chain.choose(other < FASTER * plain)
        self.decided = True
        taken = sum(chain.is_compiled for chain in self.of.values())
        if ranks.reports:
            failed = next((each.failed for each in self.of.values() if each.failed), "")
            what = f"{taken} of {len(self.of)} chains of local steps are compiled"
            LOG.info("synth: %s%s", what, failed and f" (not all can be: {failed})")


class LocalChains:
    """The chains of a network, by mode. The first pass of a mode measures them."""

    def __init__(self) -> None:
        self.known: dict[Any, Chains] = {}
        self.forms = StepForms()

    def found(
        self, graph: StepGraph, mode: tuple[bool, bool], device: torch.device
    ) -> Chains:
        """Those of a pass. mode: whether it trains, and records gradients."""
        key = mode, self.forms.of(graph), autocast_dtype(device)
        if key not in self.known:
            if len(self.known) >= MOST:
                self.known.pop(next(iter(self.known)))
            self.known[key] = chains_of(graph, *mode)
        return self.known[key]


def chains_of(graph: StepGraph, training: bool, grads: bool) -> Chains:
    """The chains of a mode. Calls in regions of checkpoints stay alone."""
    mode = training if grads else None
    scheduled = graph.schedules[mode]
    readers = Counter(name for part in scheduled for name in {*part.sources})
    readers.update(graph.outputs)
    groups: dict[str, list[Scheduled]] = {}
    for part in scheduled:
        if isinstance(part, Region) or not _is_local(graph, part, grads):
            continue
        own = [part]
        for name in part.sources:
            if readers[name] == 1 and name in groups:
                own = [*groups.pop(name), *own]
        groups[part.name] = own
    chains = {
        name: Chain(graph, calls) for name, calls in groups.items() if len(calls) > 1
    }
    within = {name for each in chains.values() for name in each.calls[:-1]}
    calls = [
        (name, chains[name].sources if name in chains else sources)
        for name, sources in graph.calls
        if name not in within
    ]
    return Chains(chains, graph.scheduled(calls, mode))


def _is_local(graph: StepGraph, part: Scheduled, grads: bool) -> bool:
    """Whether a call only computes from what this rank holds, the same in each pass."""
    name, step = part.name, graph.steps[part.name]
    if name not in graph.plain or name in graph.rings or name in graph.expressions:
        return False
    if step.autocast or (grads and name in graph.detached):
        return False
    if not all(use.here for use in graph.uses[name]):
        return False
    return _computes_alone(step, grads)


def _computes_alone(step: Step, grads: bool) -> bool:
    if type(step) is Pulled:
        return step.is_local and step.rule.combined is None
    if type(step) is not OnShards:
        return False
    module = step.module
    if isinstance(module, BatchNorm):
        frozen = module.running_mean is not None or "running_mean" in module.has
        return frozen and not (module.training or module.local or grads)
    draws = Drawing, Draws, nn.RReLU
    return not any(isinstance(each, draws) for each in module.modules())
