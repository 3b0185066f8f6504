"""The calls of a network: their order, and when their values are freed."""

from __future__ import annotations

import weakref

import torch

from synth.runtime.grid.allocation_counter import allocated
from synth.runtime.model.execute import execute, schedule

CALLS = (
    ("a", ("x",)),
    ("b", ("a",)),
    ("unread", ("b",)),
    ("c", ("b",)),
    ("d", ("c", "a")),
    ("e", ("d", "d")),
)


def test_a_value_lives_until_its_last_reader() -> None:
    made: dict[str, weakref.ref[torch.Tensor]] = {}
    alive: dict[str, set[str]] = {}

    def run(name: str, given: list[torch.Tensor], again: object) -> torch.Tensor:
        alive[name] = {each for each, ref in made.items() if ref() is not None}
        result = sum(given) + torch.ones(4)
        made[name] = weakref.ref(result)
        return result

    values = {"x": torch.zeros(4)}
    execute(schedule(CALLS, ["e"]), values, run, {})
    assert list(values) == ["e"]
    assert torch.equal(values["e"], torch.full((4,), 11.0))  # every call adds 1 to the sum of what it reads
    assert alive == {
        "a": set(),
        "b": {"a"},
        "unread": {"a", "b"},
        "c": {"a", "b"},
        "d": {"a", "c"},
        "e": {"d"},
    }


def test_an_input_may_be_an_output() -> None:
    values = {"x": torch.ones(3)}
    execute(schedule(CALLS[:1], ["x", "a"]), values, lambda name, given, again: given[0] + 1, {})
    assert {name: float(each[0]) for name, each in values.items()} == {"x": 1.0, "a": 2.0}


def test_a_chain_holds_two_values_at_most() -> None:
    calls = tuple((str(place), (str(place - 1),)) for place in range(1, 30))
    scheduled, size = schedule(calls, ["29"]), 4 * 10_000

    def forward() -> None:
        execute(scheduled, {"0": torch.zeros(10_000)}, lambda name, given, again: given[0] + 1, {})

    with torch.no_grad():
        found = allocated(forward)
    assert 2 * size <= found.peak < 2.01 * size
    assert found.end == 0
