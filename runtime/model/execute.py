"""Runs the calls of a network; a value is freed after its last reader.

Calls that the model makes inside `torch.utils.checkpoint` run inside it here, too: the
values of such a region are freed, and computed again when the backward pass needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import (
    _StopRecomputationError,
    checkpoint,
    set_checkpoint_early_stop,
)

from synth.runtime.layers.steps.draws import Drawing
from synth.runtime.tracing.open_regions import UNSET, Checkpoint, early_stop


class Again(NamedTuple):
    """Calls that are computed again. past: those that torch would not compute again."""

    names: frozenset[str]
    past: frozenset[str]


Calls = Sequence[tuple[str, tuple[str, ...]]]
# computes a call from its name and the values that it reads; the last argument has all
# calls that are computed again, None where this is the first time
Run = Callable[[str, list[torch.Tensor], Again | None], torch.Tensor]


class Scheduled(NamedTuple):
    """A call: its node, the nodes that it reads, those that nobody reads later.

    saves: what the call of the model does if its result has a gradient: it changes its
    buffers and then saves a tensor (True), or the other way round (False), or saves
    nothing (None).
    """

    name: str
    sources: tuple[str, ...]
    last: tuple[str, ...]
    saves: bool | None


class Region(NamedTuple):
    """The calls of a checkpoint.

    sources: the values from outside that they read. outputs: those of their values that
    others read. last: of the sources, those that nobody reads later. names: all calls.
    checkpoint: of the model.
    """

    parts: Schedule
    sources: tuple[str, ...]
    outputs: tuple[str, ...]
    last: tuple[str, ...]
    names: frozenset[str]
    checkpoint: Checkpoint


Schedule = tuple[Scheduled | Region, ...]


def schedule(
    calls: Calls,
    outputs: Sequence[str],
    regions: Mapping[str, tuple[Checkpoint, ...]] | None = None,
    saving: Mapping[str, bool] = MappingProxyType({}),
) -> Schedule:
    """The calls with the values that each of them reads last.

    calls: (node, the nodes that it reads), in order. outputs: the nodes to keep.
    regions: node -> the checkpoints that it is in, the outermost first.
    saving: nodes of calls in them that save a tensor; see `Scheduled`.
    The result of a call that nobody reads is in its own `last`.
    """
    within = regions or {}
    scheduled = list[Scheduled | Region]()
    read = set(outputs)
    groups = [
        (place, list(each))
        for place, each in groupby(calls, lambda call: within.get(call[0], ())[:1])
    ]
    for place, group in reversed(groups):
        if place:
            scheduled.append(_region(group, read, within, saving))
            read.update(scheduled[-1].sources)
            continue
        for name, sources in reversed(group):
            names = dict.fromkeys((*sources, name))
            last = tuple(each for each in names if each not in read)
            scheduled.append(Scheduled(name, sources, last, saving.get(name)))
            read.update(sources)
    return tuple(reversed(scheduled))


def _region(
    calls: Calls,
    read: set[str],
    regions: Mapping[str, tuple[Checkpoint, ...]],
    saving: Mapping[str, bool],
) -> Region:
    """The calls of one region, of which others read `read` later."""
    names = frozenset(name for name, _ in calls)
    sources = dict.fromkeys(
        each for _, given in calls for each in given if each not in names
    )
    outputs = tuple(name for name, _ in calls if name in read)
    inner = {name: regions[name][1:] for name in names}
    last = tuple(each for each in sources if each not in read)
    parts = schedule(calls, outputs, inner, saving)
    checkpoint = regions[calls[0][0]][0]
    return Region(parts, tuple(sources), outputs, last, names, checkpoint)


def execute(
    scheduled: Schedule,
    values: dict[str, torch.Tensor],
    run: Run,
    steps: Mapping[str, nn.Module],
    again: Again | None = None,
) -> int | None:
    """Compute the calls in order; `values` then has those to keep.

    values: node -> tensor, of the inputs at first. steps: node -> its step.
    again: the calls that are computed again, see `Run`.

    Returns how many parts torch would compute again: up to that which saves last. None
    where nothing saves.
    Autograd keeps what a backward pass needs; nothing else outlives its last reader.
    """
    needed: int | None = None
    for place, part in enumerate(scheduled):
        given = [values[each] for each in part.sources]
        for each in part.last:
            values.pop(each, None)
        if isinstance(part, Region):
            made = _checkpointed(part, given, run, steps, again)
            values.update(zip(part.outputs, made, strict=True))
            needed = place if part.checkpoint.saves else needed
        else:
            result = run(part.name, given, again)
            if part.name not in part.last:
                values[part.name] = result
            if part.saves is not None and result.requires_grad:
                needed = place + part.saves
            del result
        given.clear()
    return needed


def _checkpointed(
    region: Region,
    given: list[torch.Tensor],
    run: Run,
    steps: Mapping[str, nn.Module],
    outer: Again | None,
) -> tuple[torch.Tensor, ...]:
    """The outputs of a region, whose other values are freed and computed again.

    outer: the calls that are computed again where the region is part of them.

    Every rank computes the whole region again when its backward pass begins, so that
    all ranks make the same collectives in the same order. What torch would not compute
    again changes no buffers then.
    """
    seeds = {each: each.seed for each in _drawing(region, steps)}
    around, own, replay = early_stop(), region.checkpoint, None
    stops = own.stops if own.sure or around is None else around

    def body(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal replay
        again = replay or outer
        values = dict(zip(region.sources, tensors, strict=True))
        with _seeded(seeds if replay else {}), _early_stop_set(around):
            needed = execute(region.parts, values, run, steps, again)
        if replay is None:
            all_again = needed is not None and not stops
            past = () if all_again else region.parts[needed or 0 :]
            replay = Again(region.names, _names(past))
        made = {each: values.pop(each) for each in region.outputs}
        return tuple(map(_ended, made.values()))

    if not torch.is_grad_enabled():
        return body(*given)
    with set_checkpoint_early_stop(False):
        made: tuple[torch.Tensor, ...] = checkpoint(body, *given, use_reentrant=False)
    return made


def _early_stop_set(stops: bool | None) -> AbstractContextManager[None]:
    """What is set around checkpoints in here, as the user has it."""
    made: AbstractContextManager[None] = set_checkpoint_early_stop(
        UNSET if stops is None else stops
    )
    return made


def _names(parts: Schedule) -> frozenset[str]:
    """The calls of some parts."""
    named = (p.names if isinstance(p, Region) else {p.name} for p in parts)
    return frozenset().union(*named)


def behind_last_save(scheduled: Schedule) -> frozenset[str]:
    """The calls behind the last one of a pass that saves a tensor.

    torch would not compute them again for a user's checkpoint around the pass, if
    nothing behind it saves one. Calls outside of the model's regions are known by name.
    """
    for place, part in reversed([*enumerate(scheduled)]):
        if isinstance(part, Region) and part.checkpoint.saves:
            return _names(scheduled[place:])
        if isinstance(part, Scheduled) and part.saves is not None:
            return _names(scheduled[place + part.saves :])
    return _names(scheduled)


@contextmanager
def unless_stopped(buffers: Iterable[torch.Tensor]) -> Iterator[None]:
    """Buffers stay as they are if a user's checkpoint ends to compute again in here.

    It computes again in a backward pass.
    """
    again = torch._C._current_graph_task_id() != -1
    words = [(own, own.detach().clone()) for own in buffers] if again else []
    try:
        yield
    except _StopRecomputationError:
        for own, before in words:
            own.data.copy_(before)
        raise


def _drawing(region: Region, steps: Mapping[str, nn.Module]) -> Iterator[Drawing]:
    """The modules of a region that draw random numbers, as dropout does."""
    for name in sorted(region.names):
        for module in steps[name].modules():
            if isinstance(module, Drawing):
                yield module


@contextmanager
def _seeded(seeds: Mapping[Drawing, int]) -> Iterator[None]:
    """Let modules draw from the seeds of an earlier pass."""
    now = {each: each.seed for each in seeds}
    for each, seed in seeds.items():
        each.seed = seed
    try:
        yield
    finally:
        for each, seed in now.items():
            each.seed = seed


def _ended(made: torch.Tensor) -> torch.Tensor:
    """An output of a region. What only others use gets no gradient through this one."""
    if not made.requires_grad:
        return made
    ended: torch.Tensor = RegionEnd.apply(made)  # type: ignore[no-untyped-call]
    return ended


class RegionEnd(torch.autograd.Function):
    """An output of a region. Its backward pass lets the region be computed again.

    Those of a region are the first of it to run backward. Each saves a tensor on every
    rank, also where layers save nothing because the rank owns no words there.
    """

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor) -> torch.Tensor:
        """The same values."""
        ctx.save_for_backward(made.new_empty(0))
        return made.view_as(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The same gradient."""
        _ = ctx.saved_tensors  # computes the region again
        return gradient
