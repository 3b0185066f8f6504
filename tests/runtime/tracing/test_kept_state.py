"""What a forward keeps from one call to the next: followed where nobody reads it, else refused by name."""

from __future__ import annotations

import math
import re
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from synth.runtime.tracing.facts import tensors_within
from synth.runtime.tracing.trace import traced

SEEN: dict[str, int] = {"n": 0}
MAPS: list[torch.Tensor] = []
MARKS: list[int] = []
STEPS = 0


class Keeping(nn.Module):
    """A convolution whose forward is given."""

    calls = 0
    conv: nn.Module

    def __init__(self, forward: Callable[..., torch.Tensor], **attributes: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.does = [forward]
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does[0](self, self.conv(x))


class Holder:
    """A cache of the user's own class."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def update(self, y: torch.Tensor) -> torch.Tensor:
        self.last = y if self.last is None else self.last + y
        return self.last


HOLDER = types.SimpleNamespace(count=0)


def threshold(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.steps += 1
    return y * 2 if self.steps > 1000 else y


def counts_in_a_dict(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.state["n"] += 1
    return y.relu() if self.state["n"] >= 500 else y


def rounds(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.steps += 1
    return y * (1 + math.floor(self.steps / 100))


def every_fourth(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.steps = (self.steps + 1) % 4
    return y * 2 if self.steps == 3 else y


def truth(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.steps += 1
    return y if self.steps % 50 else y * 2


def length(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.marks.append(1)
    return y * 2 if len(self.marks) > 5 else y


def sums_a_list(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.kept.append(y.detach())
    return y + sum(self.kept)


def state_in_a_dict(self: Any, y: torch.Tensor) -> torch.Tensor:
    made = y + self.state["h"] if "h" in self.state else y
    self.state["h"] = y.detach()
    return made


def state_in_a_namespace(self: Any, y: torch.Tensor) -> torch.Tensor:
    made = y if self.space.h is None else y + self.space.h
    self.space.h = y.detach()
    return made


def state_in_a_queue(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.queue.append(y.detach())
    first: torch.Tensor = self.queue[0]
    return y + first


def state_in_an_object(self: Any, y: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = self.holder.update(y)
    return made


def replaces_a_constant(self: Any, y: torch.Tensor) -> torch.Tensor:
    made, self.scale = y * self.scale, torch.full((), 3.0)
    return made


def counts_in_a_tensor(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.scale = self.scale.to(y.device) + 1
    return y * self.scale


def rounds_a_tensor(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.scale = self.scale.to(torch.int64)
    return y * self.scale


REFUSED = [
    (replaces_a_constant, {"scale": torch.full((), 2.0)}, "scale"),
    (counts_in_a_tensor, {"scale": torch.full((), 2.0)}, "scale"),
    (rounds_a_tensor, {"scale": torch.full((), 2.5)}, "scale"),
    (threshold, {"steps": 0}, "steps"),
    (counts_in_a_dict, {"state": {"n": 0}}, "state"),
    (rounds, {"steps": 0}, "steps"),
    (every_fourth, {"steps": 0}, "steps"),
    (truth, {"steps": 0.0}, "steps"),
    (length, {"marks": []}, "marks"),
    (sums_a_list, {"kept": []}, "kept[0]"),
    (state_in_a_dict, {"state": {}}, "state['h']"),
    (state_in_a_namespace, {"space": types.SimpleNamespace(h=None)}, "space.h"),
    (state_in_a_queue, {"queue": deque(maxlen=2)}, "queue[0]"),
    (state_in_an_object, {"holder": Holder()}, "holder.last"),
]


@pytest.mark.parametrize(
    ("forward", "attributes", "name"), REFUSED, ids=[each[0].__name__ for each in REFUSED]
)
def test_state_that_a_later_call_reads_is_refused_by_name(
    forward: Callable[..., torch.Tensor], attributes: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=f"^forward keeps {re.escape(name)} from one call to the next"):
        traced(Keeping(forward, **attributes), (2, 3, 8, 8), torch.float32)


def logs(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.steps += 1
    if self.steps % 100 == 50:
        self.logged = self.steps
    return y


def guards(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.steps += 1
    if self.steps < 0:
        raise ValueError("so many steps")
    return y


def collects(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.kept.append(y)
    self.named["conv"] = y
    return y


def begins_anew(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.kept.clear()
    self.kept.append(y.mean())
    self.named = {"mean": y.mean()}
    made: torch.Tensor = y + sum(self.kept) + self.named["mean"]
    return made


def remembers_by_shape(self: Any, y: torch.Tensor) -> torch.Tensor:
    if y.shape not in self.named:
        self.named[y.shape] = torch.linspace(0, 1, y.shape[-1])
    made: torch.Tensor = y * self.named[y.shape]
    return made


def moves_to_the_device(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.grid = self.grid.to(device=y.device)
    return y + self.grid


def looks_at_a_shape(self: Any, y: torch.Tensor) -> torch.Tensor:
    if self.grid.shape != (*y.shape, 1):
        self.grid = torch.linspace(0, 1, y.shape[-1]).to(y)
    return y + self.grid


FOLLOWED = [logs, guards, collects, begins_anew, remembers_by_shape, moves_to_the_device, looks_at_a_shape]


@pytest.mark.parametrize("forward", FOLLOWED)
def test_state_that_changes_no_call_is_followed(forward: Callable[..., torch.Tensor]) -> None:
    model = Keeping(forward, steps=0, logged=0, kept=[], named={}, grid=torch.linspace(0, 1, 8))
    assert "conv" in [node.target for node in traced(model, (2, 3, 8, 8), torch.float32).nodes]


class Global(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN["n"] += 1
        return self.does[0](self, self.conv(x)) * min(1.0, SEEN["n"] / 1000)


class OfItsClass(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return self.conv(x) * min(1.0, self.calls / 1000)


class Above(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global STEPS
        STEPS += 1
        return self.conv(x) * 2 if STEPS > 5000 else self.conv(x)


def counted(x: torch.Tensor) -> torch.Tensor:
    HOLDER.count += 1
    return x * 2 if HOLDER.count > 5000 else x


class Elsewhere(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return counted(self.conv(x))


def remembers(x: torch.Tensor, seen: dict[str, int] = {"n": 0}) -> torch.Tensor:  # noqa: B006
    seen["n"] += 1
    return x * 2 if seen["n"] > 5000 else x


class Defaults(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return remembers(self.conv(x))


class Before(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        MAPS.append(y)
        return y + MAPS[-2] if len(MAPS) > 1 else y


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Global, "SEEN"),
        (OfItsClass, "OfItsClass.calls"),
        (Above, "STEPS"),
        (Elsewhere, "HOLDER.count"),
        (Defaults, r"remembers\(seen\)"),
        (Before, "a tensor that it computes"),
    ],
)
def test_state_outside_of_modules_is_refused_likewise(model: type[Keeping], name: str) -> None:
    MAPS.clear()
    with pytest.raises(ValueError, match=f"^forward keeps {name} from one call to the next"):
        traced(model(lambda self, y: y), (2, 3, 8, 8), torch.float32)


class Marking(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Marking.calls += 1
        MARKS.append(1)
        return self.conv(x)


def test_marks_outside_of_modules_that_nobody_reads_are_followed() -> None:
    assert traced(Marking(lambda self, y: y), (2, 3, 8, 8), torch.float32).nodes
    assert (Marking.calls, MARKS) == (0, [])  # they are as before


class Tries(Keeping):
    """Goes on with another call where the first one fails."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            y = self.conv(x[:, :2])
        except RuntimeError:
            y = self.conv(x)
        try:
            return y.view(-1, 7)
        except RuntimeError:
            return y.tanh()


def test_a_call_that_fails_is_no_call() -> None:
    graph = traced(Tries(lambda self, y: y), (2, 3, 8, 8), torch.float32)
    assert [node.name for node in graph.nodes] == ["x", "conv", "tanh", "output"]


def test_tensors_are_looked_for_in_objects_of_users_alone() -> None:
    """A library that is loaded by its first use would be loaded, or fail."""

    class Lazy(types.ModuleType):
        @property
        def __dict__(self) -> Any:
            raise ImportError("looked at")

    holder, inside = Holder(), torch.ones(2)
    holder.last = {"space": types.SimpleNamespace(h=[inside]), "library": Lazy("library"), "torch": torch}
    assert [each is inside for each in tensors_within(holder)] == [True]


def test_layers_read_no_attributes_of_the_model() -> None:
    """Another attribute of a model is no change of what it computes."""
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
    graph = traced(model, (2, 3, 4, 4), torch.float32)
    (output,) = graph.find_nodes(op="output")
    assert not output.meta["attributes"].is_read("0", "label")
    assert not output.meta["attributes"].is_read("", "label")
