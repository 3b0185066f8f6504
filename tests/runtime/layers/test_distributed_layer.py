"""Drop-in modules on real ranks: values as torch's own layers, words as planned, state across grids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import CASES
from rank_pool import RankPools
from ranks import run_ranks

from synth.base.errors import UsageError
from synth.codegen.module import distributed_conv, imported
from synth.codegen.render import render

ONE_WRONG_SHARD = """
import torch.distributed as dist
from layer_ranks import one_wrong_shard

dist.init_process_group("gloo")
one_wrong_shard("training_data")
"""


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(Path(__file__).with_name("layer_ranks.py"), tmp_path_factory.mktemp("ranks")) as pools:
        yield pools


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
@pytest.mark.one_in(6)
def test_steps_give_the_values_of_torch_and_move_the_planned_words(name: str, ranks_of: RankPools) -> None:
    """Three SGD steps: outputs, gradients and weights; received words of every rank."""
    plan = CASES[name]
    for rank, facts in enumerate(ranks_of(plan.used_procs).call("steps_as_torch", name)):
        assert facts["difference"] < 2e-4
        assert facts["words"] == 3 * plan.received.at(plan.distribution.at(rank))["total"]


@pytest.mark.ranks
def test_state_moves_between_grids(ranks_of: RankPools) -> None:
    assert ranks_of(8).call("moved_state", "training_3d", "training_3d_b") == [True] * 8


@pytest.mark.ranks
def test_the_state_of_another_layer_or_plan_is_refused(ranks_of: RankPools) -> None:
    for layer, plan in ranks_of(8).call("refusals_of_state", "training_3d", "training_3d_b", "training_line"):
        assert "the state is not of layer line: it has {'weight': (5, 7, 3, 3)" in layer
        assert "the state holds shards of {'layer': 'uneven'" in plan


@pytest.mark.ranks
def test_nan_is_named_on_every_rank(ranks_of: RankPools) -> None:
    for said in ranks_of(4).call("report_of_nan", "training_data"):
        assert "layer small: dOut is not finite on rank 1 (b=1)" in said


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "training_first",
            "uneven: In asks for a gradient, but the plan makes that of Ker alone; plan gradients of both"
            " (`input_gradient=True` of a network)",
        ),
        (
            "training_frozen",
            "matrix: Ker asks for a gradient, but the plan makes that of In alone; plan gradients of both",
        ),
        ("training_up_first", "up: In asks for a gradient, but the plan makes that of Ker alone"),
    ],
)
def test_a_gradient_that_is_not_planned_is_refused(name: str, sentence: str, ranks_of: RankPools) -> None:
    for said in ranks_of(8).call("refusal_of_a_gradient", name):
        assert sentence in said


@pytest.mark.ranks
def test_dtensors_at_the_boundary(ranks_of: RankPools) -> None:
    """DTensors go in and come out where their placements say who owns what."""
    found = ranks_of(8).call("dtensors", "training_nothing_saved")
    for each in found:
        assert each["difference"] < 2e-4
        assert each["out"] == each["gradient"] == "DTensor"
    assert "gives rank 0 the box ((0, 4), (0, 16), (0, 8), (0, 8)) of In" in found[0]["refused"]


@pytest.mark.ranks
def test_a_shard_of_another_shape_is_refused(ranks_of: RankPools) -> None:
    found = ranks_of(4).call("refusal_of_a_shape", "training_data")
    said = "small: rank 1 (b=1) owns In of shape (1, 16, 8, 8) and torch.float32, but was given (1, 1)"
    assert said in found[1]


@pytest.mark.ranks
def test_one_wrong_shard_ends_all_ranks(tmp_path: Path) -> None:
    outcome = run_ranks(ONE_WRONG_SHARD, 4, tmp_path)
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
