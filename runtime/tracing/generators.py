"""Generators of the user, from which calls in `forward` draw random numbers.

A model may be given a `torch.Generator`, or have one as an attribute. Every rank then
draws the whole result of a call from its own, so that values, and what the generator
gives later, are those of one process. Generators must be alike on all ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from synth.runtime.tracing.unsupported import in_user_code


class GivenGenerator:
    """Stands for a generator among the arguments of a traced call.

    argument: of `forward` that is this generator. module, name: whose attribute it is,
    where it is no argument. now: that of the pass, from which calls draw.
    """

    def __init__(self, argument: str, module: str = "", name: str = "") -> None:
        self.place = argument, module, name
        self.now: torch.Generator | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenGenerator) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)

    def __str__(self) -> str:
        argument, module, name = self.place
        return argument or f"{module}.{name}".lstrip(".")

    def __repr__(self) -> str:  # graphs are compared by their constants in words
        return f"the generator {self}"

    def found(
        self, arguments: Mapping[str, Any], modules: Mapping[str, nn.Module]
    ) -> torch.Generator:
        """The generator of a pass.

        arguments: its arguments by their names. modules: of the network.
        """
        argument, module, name = self.place
        made = arguments[argument] if argument else getattr(modules[module], name)
        assert isinstance(made, torch.Generator), self
        return made


class Generators:
    """The generators that a model has in a traced run.

    model: that runs. values: name -> argument.
    """

    def __init__(self, model: nn.Module, values: Mapping[str, Any]) -> None:
        self.known = {
            id(each): (place, each, state_of(each))
            for place, each in generators_of(model, values)
        }

    def place(self, generator: torch.Generator, again: bool) -> GivenGenerator:
        """What stands for a generator from which forward draws.

        again: whether the call is in a checkpoint, which computes it again.
        Raises `ValueError` there, and for one that a pass could not find again.
        """
        if id(generator) not in self.known:
            raise ValueError(
                "forward draws from a torch.Generator that is no argument and no"
                " attribute of a module, so the ranks cannot follow it; give it to"
                f" forward, or set it on the module{in_user_code()}"
            )
        place = self.known[id(generator)][0]
        if again:
            raise ValueError(
                f"forward draws from the generator {place} inside of"
                " torch.utils.checkpoint, which would draw other numbers when it"
                f" computes again; draw outside of it{in_user_code()}"
            )
        return place

    def require_unchanged(self) -> None:
        """Raise `ValueError` where the run has set the state of a generator."""
        for place, generator, before in self.known.values():
            if state_of(generator) != before:
                raise ValueError(
                    f"forward sets the state of the generator {place}, which the ranks"
                    " would not do; seed it before the call"
                )


def generators_of(
    model: nn.Module, values: Mapping[str, Any]
) -> list[tuple[GivenGenerator, torch.Generator]]:
    """Those among arguments, by their names, and attributes of modules."""
    found = [(GivenGenerator(name), each) for name, each in values.items()]
    for name, module in model.named_modules():
        # a look from here is no read of the model's
        own = object.__getattribute__(module, "__dict__").items()
        found += [(GivenGenerator("", name, key), each) for key, each in own]
    return [(at, each) for at, each in found if isinstance(each, torch.Generator)]


def state_of(generator: torch.Generator) -> int:
    """A digest of a generator's state."""
    return zlib.crc32(generator.get_state().cpu().numpy().tobytes())


def generators_in(given: Any) -> list[GivenGenerator]:
    """Those among the arguments of a traced call."""
    leaves = _pytree.tree_leaves(given)
    return [each for each in leaves if isinstance(each, GivenGenerator)]


def with_generators(given: Any) -> Any:
    """Arguments with the generators of the pass in their places."""
    return _pytree.tree_map_only(GivenGenerator, lambda each: each.now, given)
