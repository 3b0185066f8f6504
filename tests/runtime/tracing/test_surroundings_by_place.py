"""What methods of a model read outside of it is told apart, whichever of them is looked at first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from synth.runtime.model.methods import with_method
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.surroundings import outside


def hooked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator with a variable of its own for each method, as pipelines have one."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any) -> Any:
        return method(self, *args)

    return wrapper


def called(name: str) -> Callable[..., Any]:
    """A method with a decorator."""

    def method(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    method.__name__ = name
    return hooked(method)


class Coder(nn.Module):
    """Methods with one decorator."""

    @hooked
    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @hooked
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.z(self.y(self.x(self.w(self.v(self.u(x))))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x))

    u, v, w, x, y, z = map(called, "uvwxyz")


def test_another_method_changes_no_place_of_the_first() -> None:
    """What stands in the place of `forward` seemed to be changed by the first call of another method."""
    model = Coder()
    decode, encode = (Attributes(outside(with_method(model, name))) for name in ("decode", "encode"))
    before = {name: place.owner for name, place in decode.outside.items()}
    decode.take(encode)
    assert {name: place.owner for name, place in decode.outside.items() if name in before} == before
    assert not decode.take(encode)
    assert before.keys() == encode.outside.keys() == outside(model).keys()


def test_two_places_of_one_name_are_both_followed() -> None:
    def scaled(by: int) -> nn.Module:
        class Scaled(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * by

        return Scaled()

    two, three = (Attributes(outside(scaled(by))) for by in (2, 3))
    assert two.take(three)
    assert not two.take(three)
    assert {name: place.get() for name, place in two.outside.items()} == {"by": 2, "by'": 3}


def test_places_are_numbered_in_one_order() -> None:
    """Ranks have other hashes of words."""
    held = [place.get() for place in outside(Coder()).values()]
    assert [each.__name__ for each in held] == ["encode", "z", "y", "x", "w", "v", "u", "decode"]
