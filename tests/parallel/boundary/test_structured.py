"""Several inputs and outputs, by position and by name, on four real ranks: as in one process."""

from __future__ import annotations

import pytest
import torch
from rank_pool import RankPool, pool_of
from torch import nn

from synth.runtime.tracing.inputs import Arguments, Inputs
from synth.runtime.tracing.outputs import Structure

ranks = pool_of(__file__, "structured_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.parametrize("plan", [None, "spatial", "filter"])
@pytest.mark.parametrize("name", ["by name", "by position", "both", "nested", "outputs"])
@pytest.mark.one_in(12)
def test_two_steps(name: str, plan: str | None, ranks: RankPool) -> None:
    for found in ranks.call("trained", name, plan):
        assert found["error"] < 1e-12
        ours, theirs = found["kinds"]
        assert ours == theirs


@pytest.mark.ranks
def test_partitioned_inputs(ranks: RankPool) -> None:
    for found in ranks.call("placed"):
        assert found["error"] < 1e-12
        assert found["refused"] == (
            "a batch of (2, 4, 8, 8) may be sample or output.sample, which lie differently;"
            " add like='sample' or like='output.sample'"
        )


@pytest.mark.ranks
def test_other_arguments_are_refused(ranks: RankPool) -> None:
    said = [
        "scale is a ndarray of (1,), but the network is planned for 1.0; give what changes as a tensor",
        "timestep is of torch.float32, but the network is planned for torch.int64",
        "timestep is 3, but the network is planned for a tensor of (2,) of torch.int64",
        "words is a ndarray of (2, 5, 6), but the network is planned for None; give what changes as a tensor",
        "Denoiser has no graph for an input of ((1, 3, 8, 8), (2,) of torch.int64",
        "forward of Denoiser does not take the input (2, 4, 8, 8): missing a required argument: 'timestep'",
        "forward of Denoiser does not take the input (sample=(2, 4, 8, 8), time=(2,) of torch.int64):",
        "the input is 3; give the shape of the whole batch, or for several inputs a tuple",
        "Denoiser has no graph for an input of (sample=(2, 4, 8, 8), timestep=3): ",
    ]
    for found in ranks.call("refused"):
        for sentence, expected in zip(found, said, strict=True):
            assert expected in sentence


@pytest.mark.ranks
def test_changes_in_place_that_another_output_shows_are_refused(ranks: RankPool) -> None:
    for found in ranks.call("changed_outputs"):
        assert found.pop("own") == ""
        for said in found.values():
            assert "in the model, an input or another output has memory of it; compute a new tensor" in said


@pytest.mark.ranks
def test_every_input_is_compared(ranks: RankPool) -> None:
    for sentence in ranks.call("other_times"):
        assert sentence.startswith("forward pass 1: rank 2 was given another batch as timestep than")


class Takes(nn.Module):
    """Takes anything."""

    def forward(self, x, *more, mask=None, **others):  # type: ignore[no-untyped-def]
        return x


def test_arguments() -> None:
    given = Inputs((2, 3), (4,), mask={"a": (1, 1), "b": None}, other=torch.ones(2, dtype=torch.bool))
    arguments = Arguments(Takes(), given)
    assert arguments.names == ("x", "more.0", "mask.a", "others.other")
    args, kwargs = arguments.filled(arguments.tensors(torch.float64))
    assert [each.shape for each in args] == [(2, 3), (4,)]
    assert kwargs["mask"]["b"] is None
    assert kwargs["other"].dtype == torch.bool
    assert arguments.read(args, kwargs)[3] is kwargs["other"]
    with pytest.raises(ValueError, match=r"^mask is not given, but|^mask.a is None, but"):
        arguments.read(args, {"other": kwargs["other"]})
    assert str(Inputs.of([2, 3])) == "(2, 3)"
    assert str(Inputs.of(((2, 3), None))) == "((2, 3), None)"


class Own(dict):  # type: ignore[type-arg]
    """A class of dicts that torch does not know."""


def test_structures() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    for given, names in (
        (x, ["output"]),
        ((x, [y, 3]), ["output.0", "output.1.0"]),
        (Own(a=x, b={"c": y}), ["output.a", "output.b.c"]),
        ([x, x], ["output.0", "output.1"]),
    ):
        found = Structure(given)
        assert found.names == names
        made = found.without_tensors().filled(found.tensors)
        assert type(made) is type(given)
        assert str(made) == str(given)
