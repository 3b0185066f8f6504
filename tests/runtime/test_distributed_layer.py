"""Drop-in modules on real ranks: values as torch's own layers, words as planned, state across grids."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES
from ranks import Outcome, run_ranks

from synth.base.errors import UsageError
from synth.codegen.module import distributed_conv, imported
from synth.codegen.render import render

PROGRAM = "from layer_ranks import main\n\nmain()\n"


def told(folder: Path, function: str, argument: str, size: int) -> Outcome:
    """All ranks ran a function of `layer_ranks` to its end."""
    outcome = run_ranks(PROGRAM, size, folder, function, argument, str(folder))
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    return outcome


@pytest.mark.ranks
@pytest.mark.parametrize(
    "name",
    [
        "training_data",
        "training_3d",
        "training_nothing_saved",
        "training_tiles",
        "training_volume",
        "training_line",
        "training_matrix",
        "training_grouped",
        "training_up",
        "training_apart",
        "training_first",
        "training_frozen",
        "training_up_first",
        "training_up_frozen",
        "training_classes_input_rows",
        "training_up_classes",
    ],
)
def test_steps_give_the_values_of_torch_and_move_the_planned_words(name: str, tmp_path: Path) -> None:
    """Three SGD steps: outputs, gradients and weights; received words of every rank."""
    plan = CASES[name]
    outcome = told(tmp_path, "steps_as_torch", name, plan.used_procs)
    assert len(outcome.facts) == plan.used_procs
    for rank, facts in enumerate(outcome.facts):
        assert facts["difference"] < 2e-4
        assert facts["words"] == 3 * plan.received.at(plan.distribution.at(rank))["total"]


@pytest.mark.ranks
def test_state_moves_between_grids(tmp_path: Path) -> None:
    outcome = told(tmp_path, "state_moves", "training_3d training_3d_b training_line", 8)
    assert "the state is not of layer line: it has {'weight': (5, 7, 3, 3)" in outcome.output[0]
    assert "the state holds shards of {'layer': 'uneven'" in outcome.output[0]


@pytest.mark.ranks
def test_nan_is_named(tmp_path: Path) -> None:
    outcome = told(tmp_path, "nan_is_named", "training_data", 4)
    for line in outcome.output:
        assert "found: layer small: dOut is not finite on rank 1 (b=1)" in line


@pytest.mark.ranks
def test_a_gradient_that_is_not_planned_is_refused(tmp_path: Path) -> None:
    outcome = told(tmp_path, "one_gradient", "training_first training_frozen training_up_first", 8)
    for output in outcome.output:
        for said in (
            "uneven: In asks for a gradient, but the plan makes that of Ker alone; plan gradients of both"
            " (`input_gradient=True` of a network)",
            "matrix: Ker asks for a gradient, but the plan makes that of In alone; plan gradients of both",
            "up: In asks for a gradient, but the plan makes that of Ker alone",
        ):
            assert said in output


@pytest.mark.ranks
def test_dtensors_at_the_boundary(tmp_path: Path) -> None:
    outcome = told(tmp_path, "dtensors", "training_nothing_saved", 8)
    assert "gives rank 0 the box ((0, 4), (0, 16), (0, 8), (0, 8)) of In" in outcome.output[0]


@pytest.mark.ranks
def test_a_wrong_share_is_refused(tmp_path: Path) -> None:
    outcome = told(tmp_path, "wrong_inputs", "training_data", 4)
    said = "small: rank 1 (b=1) owns In of shape (1, 16, 8, 8) and torch.float32, but was given (1, 1)"
    assert said in outcome.output[1]


@pytest.mark.ranks
def test_one_wrong_share_ends_all_ranks(tmp_path: Path) -> None:
    outcome = run_ranks(PROGRAM, 4, tmp_path, "one_wrong_share", "training_data", str(tmp_path))
    assert 0 not in outcome.codes
    assert "small: rank 1 (b=1) owns In of shape (1, 16, 8, 8) and torch.float32" in outcome.output[1]
    assert not any("went on" in output for output in outcome.output)


@pytest.mark.parametrize("standalone", [False, True])
def test_a_module_text_defines_a_layer(standalone: bool) -> None:
    module = imported(render(CASES["training_3d"], standalone, module=True), f"emitted_{standalone}")
    assert callable(module.layer)
    assert not hasattr(module, "main")


def test_a_module_needs_a_training_plan() -> None:
    with pytest.raises(
        UsageError, match="a module needs a training plan, but this one is of the forward pass"
    ):
        distributed_conv(CASES["data"])
