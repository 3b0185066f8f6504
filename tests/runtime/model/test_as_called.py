"""A step that loses what its call is given, or makes something else than was traced, is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from synth.runtime.comm.layout import even
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.model.checks.as_called import Expected, FirstPass, require_handed
from synth.runtime.operators.call import Call
from synth.runtime.operators.step_choice import hold
from synth.runtime.operators.table import Operators
from synth.runtime.rules.pointwise import pointwise
from synth.runtime.tracing.trace import traced

RANKS = AbsentRanks.numbered(2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, y, self.scale)


def addcmul() -> Call:
    model = Model()
    graph = traced(model, ((6, 4), (6, 4)), torch.float32)
    (node,) = (each for each in graph.nodes if each.op == "call_function")
    return Operators({"": model}, dict(model.named_parameters())).call(node)


def nothing(words: int) -> None:
    """Count nothing."""


def step_of(call: Call, inputs: int = 2, held: bool = True) -> Pulled:
    whole = even((4,), RANKS)
    params = hold(call, {"scale": whole}, nothing) if held else None
    rule = pointwise([even((6, 4), RANKS)] * inputs, call.filled())
    return Pulled(rule, nothing, params)


def test_a_step_with_all_arguments() -> None:
    call = addcmul()
    step = step_of(call)
    require_handed(call, step, step.held_tensors())
    assert list(call.entries().values()) == ["scale"]


def test_a_lost_argument_is_named() -> None:
    call = addcmul()
    for step, name in ((step_of(call, held=False), "scale"), (step_of(call, inputs=1), "y")):
        with pytest.raises(
            ValueError, match=rf"addcmul \(test_as_called.py:\d+\): the step takes no {name};"
        ):
            require_handed(call, step, step.held_tensors())


def test_a_tensor_of_another_call_is_named() -> None:
    call = addcmul()
    step = step_of(call)
    step.module = ReplicatedParams({"weight": torch.ones(4)}, {"weight": even((4,), RANKS)}, nothing)
    with pytest.raises(ValueError, match="takes no scale"):
        require_handed(call, step, step.held_tensors())
    with pytest.raises(ValueError, match="takes a strange weight"):
        require_handed(call, step, {**step_of(call).held_tensors(), **step.held_tensors()})


def test_keys_are_whole_names() -> None:
    keys = [Call.state_key(name) for name in ("w", "part.w", "part_w", "part.part.w")]
    assert len(set(keys)) == 4
    assert not any("." in key for key in keys)


def passed(made: torch.Tensor, shard: torch.Tensor, first: Any = None) -> Any:
    call = addcmul()
    step = step_of(call)
    first = first or FirstPass({"addcmul": Expected.of(call, step)}, [torch.float32], RANKS)
    with first.looking([shard], (True, True)) as look:
        if look is not None:
            look.see("addcmul", step, made)
    return first


def test_a_result_as_it_was_traced_is_looked_at_once() -> None:
    shard, right = torch.ones(3, 4), torch.ones(3, 4)
    first = passed(right, shard)
    assert passed(right[:1], shard, first) is first  # a later pass


@pytest.mark.parametrize("made", [torch.ones(3, 4).double(), torch.ones(4, 3), torch.ones(3, 4) > 0])
def test_a_result_of_another_shape_or_dtype_is_named(made: torch.Tensor) -> None:
    said = r"addcmul \(test_as_called.py:\d+\) gives \(3, 4\) of torch.float32, but a rank computed"
    with pytest.raises(ValueError, match=said):
        passed(made, torch.ones(3, 4))


def test_other_dtypes_follow_from_those_of_the_input() -> None:
    passed(torch.ones(3, 4).double(), torch.ones(3, 4).double())
    with torch.autocast("cpu", torch.bfloat16):
        passed(torch.ones(3, 4).bfloat16(), torch.ones(3, 4))
    with pytest.raises(ValueError, match="but a rank computed"):
        passed(torch.ones(4).double(), torch.ones(3, 4).double())


def fails(look: Any, step: Pulled) -> None:
    """See a result of another shape, and fail as the next call does."""
    look.see("addcmul", step, torch.ones(2))
    raise RuntimeError("shapes do not fit")


def test_what_fails_behind_such_a_result_is_told_as_its_cause() -> None:
    call = addcmul()
    step = step_of(call)
    first = FirstPass({"addcmul": Expected.of(call, step)}, [torch.float32], RANKS)
    found = pytest.raises(ValueError, match="but a rank computed")
    with found, first.looking([torch.ones(3, 4)], (True, True)) as look:
        fails(look, step)


def test_words_that_no_rank_computes_are_counted() -> None:
    call = addcmul()
    step = step_of(call)
    boxes = [box if rank else ((0, 0), (0, 0)) for rank, box in enumerate(step.layout.boxes)]
    step.layout = step.layout.with_boxes((6, 4), boxes)
    with pytest.raises(ValueError, match=r"gives 24 words, but its ranks would compute 12;"):
        Expected.of(call, step)
