"""State that one call of a network gives and the next call takes, where it lies.

An argument of `forward` is the state, and what `forward` gives last is the next one.
The first graph that takes a state says where each of its tensors lies: where it is
computed. All graphs of a network take it there and leave it there, so nothing moves
between calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.layers.steps.step import Step
from synth.runtime.operators.call import node_shape
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.inputs import Arguments
from synth.runtime.tracing.outputs import Structure

Shape = tuple[int, ...]
ALONE = (
    "take a tensor, or several in a list or dict, and give it as the last of a tuple"
)


class Pair(NamedTuple):
    """A tensor of the state. name: in it, "" for a single one. taken, given: nodes.

    place: of `given` among the outputs.
    """

    name: str
    taken: fx.Node
    given: fx.Node
    place: int


class Stamp(NamedTuple):
    """Which call gave a tensor of a state. owner: the network."""

    owner: object
    call: int
    name: str


class States:
    """Where the state of a network lies.

    argument: of `forward`; "" where there is none. layouts: name and shape of a tensor
    of the state -> where it lies.
    """

    def __init__(self, argument: str = "") -> None:
        self.argument = argument
        self.layouts: dict[tuple[str, Shape], Layout] = {}

    def taken(self, names: Sequence[str]) -> dict[str, str]:
        """Name in the state -> that of the input."""
        own = self.argument
        if not own:
            return {}
        found = {n: n for n in names if n == own or n.startswith(f"{own}.")}
        return {name[len(own) + 1 :]: name for name in found}

    def given(self, structure: Structure) -> dict[str, int]:
        """Name in the state that a call gives -> its place among the outputs.

        Raises `ValueError` where nothing is given beside the state.
        """
        if not self.argument:
            return {}
        last = structure.last
        if last is None:
            raise ValueError(
                f"state is {self.argument!r}, but forward gives nothing beside it;"
                f" {ALONE}"
            )
        begin = f"output.{last}"
        return {
            name[len(begin) + 1 :]: place
            for place, name in enumerate(structure.names)
            if name == begin or name.startswith(f"{begin}.")
        }

    def pairs(self, arguments: Arguments, graph: fx.Graph) -> list[Pair]:
        """The tensors of a state that a graph takes and gives, of one shape.

        Raises `ValueError` for a state of which it takes other parts than it gives.
        """
        if not self.argument:
            return []
        if self.argument not in arguments.signature.parameters:
            names = ", ".join(arguments.signature.parameters)
            raise ValueError(
                f"state is {self.argument!r}, but the arguments of forward are {names};"
                " give the name of one of them"
            )
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        nodes = dict(zip(arguments.names, inputs, strict=True))
        (end,) = (node for node in graph.nodes if node.op == "output")
        outs: Any = end.args[0]
        taken = self.taken(arguments.names)
        given = self.given(end.meta["structure"])
        if taken.keys() - given.keys():
            there, here = (_names(self.argument, each) for each in (taken, given))
            raise ValueError(
                f"forward takes the state {there} and gives {here} in the end; {ALONE}"
            )
        found = []
        for name, source in taken.items():
            pair = Pair(name, nodes[source], outs[given[name]], given[name])
            if node_shape(pair.taken) == node_shape(pair.given):
                found.append(pair)
        return found

    def known(self, pairs: Sequence[Pair]) -> dict[str, Layout]:
        """Node of an input -> where a state lies that graphs made before."""
        found = {each.taken.name: self.layouts.get(_key(each)) for each in pairs}
        return {name: layout for name, layout in found.items() if layout is not None}

    def learn(self, pairs: Sequence[Pair], layouts: Mapping[str, Layout]) -> None:
        """Note where a graph takes the state, if none was noted."""
        for each in pairs:
            self.layouts.setdefault(_key(each), layouts[each.taken.name])

    # -- what calls are given ----------------------------------------------------------

    def stamps(
        self, arguments: Arguments, args: Any, kwargs: Any, owner: object
    ) -> list[int]:
        """The calls that gave the state of a call, in the order of its tensors.

        owner: the network that is called. Raises `ValueError` for a state of another
        network, of several calls, or with its tensors in other places.
        """
        try:
            bound = arguments.signature.bind(*args, **kwargs).arguments
        except TypeError:  # which is said later
            return []
        state, own = bound.get(self.argument), self.argument
        pairs, _ = _pytree.tree_flatten_with_path({own: state})
        calls = []
        for keys, leaf in pairs:
            stamp: Stamp | None = getattr(leaf, "_stamp", None)
            if not isinstance(leaf, torch.Tensor):
                continue
            calls.append(0 if stamp is None else stamp.call)
            if stamp is None:
                continue
            path = ".".join(str(getattr(k, "key", getattr(k, "idx", ""))) for k in keys)
            where = path[len(own) + 1 :]
            if stamp.owner is not owner:
                raise ValueError(
                    f"{path} is a state that another network gave; give what this one"
                    " gave last in this stream, or None or whole tensors to begin one"
                )
            if stamp.name != where:
                raise ValueError(
                    f"{path} is {_name(own, stamp.name)} of the state that the network"
                    " gave; give the tensors of a state in their order"
                )
        if len({each for each in calls if each}) > 1:
            raise ValueError(
                f"the tensors of {own} are of different calls, {sorted({*calls} - {0})}"
                " of this network; give the state of one stream, as one call gave it"
            )
        return calls

    def require_shapes(
        self,
        given: Mapping[str, torch.Tensor],
        planned: Mapping[str, Shape],
        kept: Sequence[str],
    ) -> None:
        """Raise `ValueError` for a whole state of another shape beside the same chunk.

        kept: the tensors of the state whose shapes stay from call to call.
        """
        taken = set(self.taken([*planned]).values())
        others = planned.keys() - taken
        if any(tuple(given[name].shape) != planned[name] for name in others):
            return
        for name in taken & {_name(self.argument, each) for each in kept}:
            shape = tuple(given[name].shape)
            if shape != planned[name] and getattr(given[name], "_stamp", None) is None:
                raise ValueError(
                    f"{name} is a state of {shape}, but the network is planned for one"
                    f" of {planned[name]}; give what it gave last in this stream, or"
                    " one of that shape to begin one"
                )

    def blamed(
        self, error: ValueError, given: Mapping[str, torch.Tensor]
    ) -> ValueError:
        """An error of planning, which says that it may be the state that does not fit.

        given: the inputs by name.
        """
        own = self.taken([*given]).values()
        if not any(getattr(given[name], "_stamp", None) for name in own):
            return error
        shapes = ", ".join(f"{n} of {tuple(t.shape)}" for n, t in given.items())
        return ValueError(
            f"a state of this network does not fit what it is given with, {shapes}:"
            f" {error}"
        )


def alone(words: torch.Tensor) -> torch.Tensor:
    """The same words in memory of their own, not in that of a larger tensor.

    A state outlives the call, and what it is a part of should not.
    """
    room = words.untyped_storage().nbytes()
    return words.clone() if room > words.nbytes else words


def stamped(made: torch.Tensor, owner: object, call: int, name: str) -> torch.Tensor:
    """The same tensor of a state, noted as that of a call."""
    if isinstance(made, PartitionedTensor):
        made._stamp = Stamp(owner, call, name)
    return made


class Left(Step):
    """A tensor of the state, moved to where the next call takes it."""

    def __init__(self, source: Layout, target: Layout, count: Count) -> None:
        super().__init__()
        self.source, self.layout, self.count = source, target, count

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the next call."""
        return redistribute(shard, self.source, self.layout, self.count)

    def reads_inputs(self, trained: bool) -> bool:
        """No value is read again."""
        return False

    def exchanges(self) -> list[Exchange]:
        """Those of the move."""
        return moved(self.source, self.layout)


def _key(pair: Pair) -> tuple[str, Shape]:
    return pair.name, node_shape(pair.taken)


def _name(argument: str, name: str) -> str:
    return f"{argument}.{name}" if name else argument


def _names(argument: str, names: Mapping[str, Any]) -> str:
    return ", ".join(_name(argument, each) for each in names) or "no tensor"
