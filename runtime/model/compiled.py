"""torch.compile leaves networks and partitioned tensors alone.

What the ranks exchange cannot stand in a graph of one process. A network with whole
outputs is one operator of the graph (`runtime.compiled`). Where another one is called,
or an operation on a partitioned tensor, Dynamo breaks its graph and runs that as it is.
It compiles the rest.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import torch

from synth.runtime.compiled.forward import Fields
from synth.runtime.compiled.operator import Entry, register
from synth.runtime.kernels.autocast import autocast_dtype
from synth.runtime.model.planned_words import inputs_behind
from synth.runtime.model.step_graph import StepGraph
from synth.runtime.tensor.partitioned import PartitionedIntegers, PartitionedTensor
from synth.runtime.tracing.outputs import Structure

# all that runs, but for `runtime.compiled`
RUNTIME = (
    *("comm", "grid", "kernels", "layers", "model", "operators", "program", "rules"),
    *("tensor", "tracing"),
)
PLAIN = ("base", "network", "parallel")
Function = TypeVar("Function", bound=Callable[..., Any])
_VERSIONS = itertools.count()
WHY = (
    "a network of synth.parallelize exchanges words between ranks, so torch.compile"
    " runs it as it is; compile without fullgraph=True, or parallelize it with"
    " outputs='whole' and call it with the values and in the mode of its plan"
)


@cache
def leave_alone() -> None:
    """Let torch.compile pass over synth's code and over partitioned tensors.

    Once in a process: Dynamo makes its rules anew for each part.
    """
    from torch._dynamo import config, trace_rules

    for part in (*PLAIN, *(f"runtime.{each}" for each in RUNTIME)):
        trace_rules.add(f"synth.{part}")
    kinds = PartitionedTensor, PartitionedIntegers
    config.nontraceable_tensor_subclasses.update(kinds)


def as_it_is(function: Function, reason: str = WHY) -> Function:
    """A function in which Dynamo compiles nothing. reason: that it gives."""
    disable: Any = torch.compiler.disable
    kept: Function = disable(function, reason=reason)
    return kept


def entry_of(network: Any) -> Entry:
    """By which compiled code calls a network."""
    register()
    mine: Any = weakref.ref(network)

    def run(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        low = autocast_dtype(given[0].device)
        other = mine()._programs.calls[0].refused(mine())
        if other:
            raise RuntimeError(
                f"code was compiled for a network in another mode, and {other}; call"
                " train() or eval() of the whole network before it is compiled"
            )
        found, promised = mine(), shapes([tuple(each.shape) for each in given], low)
        named = found._entry.call.named(given)
        made = found._pass((), named, compiled=True)
        outs = Structure(made).tensors
        now = [(tuple(each.shape), each.dtype) for each in outs]
        if now != promised:
            raise RuntimeError(
                f"the network gives {_in_words(now)}, but code was compiled for"
                f" {_in_words(promised)}, which it gave before it was changed; call"
                " this again, or the network itself after a change, and parallelize a"
                " model that has the dtype in which it runs"
            )
        return outs

    def shapes(
        given: Sequence[tuple[int, ...]], low: torch.dtype | None
    ) -> list[tuple[tuple[int, ...], Any]]:
        program = mine()._programs.under(low).known(given)
        expected = program.first_pass.expected
        dtypes = program.lowered.get(low) if low else None
        if low and dtypes is None:
            raise ValueError(
                f"a compiled network was not called under autocast to {low} yet; call"
                " the network once under it before it is compiled"
            )
        dtypes = dtypes or [expected[each].dtype for each in program.outputs]
        places = program.output_partitions.values()
        return [(tuple(p.shape), d) for p, d in zip(places, dtypes, strict=False)]

    def behind(given: Sequence[tuple[int, ...]]) -> dict[int, set[int]]:
        return inputs_behind(mine()._programs.calls[0].known(given))

    return Entry(run, shapes, behind)


def _in_words(outs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{shape} of {dtype}" for shape, dtype in outs)


def renew(entry: Entry, program: StepGraph, whole: bool, training: bool) -> None:
    """Note how a network is called, which was planned in a mode."""
    entry.waiting.clear()  # their graphs would keep what was replaced
    entry.version = f"{next(_VERSIONS)}"
    entry.form, entry.inference = None, program.inference
    entry.training = training if program.modes else None
    call = program.arguments.form
    fits = call is not None and call.names == tuple(program.inputs)
    if fits and whole and not program.states.argument:
        entry.call = call
        places = [torch.empty(0) for _ in program.outputs]
        with suppress(KeyError):  # another kind of object, or a constant
            numbers = {id(each): number for number, each in enumerate(places)}
            entry.form = _numbered(program.structure.filled(places), numbers)


def _numbered(given: Any, numbers: Mapping[int, int]) -> Any:
    """Outputs, with a number in the place of each. Raises `KeyError` for others."""
    if type(given) in (tuple, list):
        return type(given)(_numbered(each, numbers) for each in given)
    if type(given) is dict:
        return {key: _numbered(each, numbers) for key, each in given.items()}
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        fields = {
            each.name: getattr(given, each.name) for each in dataclasses.fields(given)
        }
        fields = {key: each for key, each in fields.items() if each is not None}
        return Fields(type(given), _numbered(fields, numbers))
    return None if given is None else numbers[id(given)]
