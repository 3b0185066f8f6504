"""Whole networks on real ranks: ten steps with the losses and weights of one process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool, RankPools
from ranks import run_ranks

pytestmark = pytest.mark.ranks

ROUNDING = 1e-9  # of float64, after ten steps, relative to the largest value of a tensor
ALONE = """
total = loss.detach()
torch.manual_seed(0)
parts = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1)
alone = nn.Sequential(*parts)
optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
torch.manual_seed(1)
for step in range(3):
    images, targets = torch.randn(8, 3, 16, 16), torch.randn(8, 2, 16, 16)
    loss = nn.functional.mse_loss(alone(images), targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
    optimizer.step()
torch.testing.assert_close(total, loss.detach())
for key, values in alone.state_dict().items():
    torch.testing.assert_close(state[key], values)
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(
        Path(__file__).with_name("network_module_ranks.py"), tmp_path_factory.mktemp("ranks")
    ) as pools:
        yield pools


@pytest.fixture
def ranks(ranks_of: RankPools) -> RankPool:
    return ranks_of(4)


SLOW_PLANS = ("filter", "hybrid", "rows_channels", "mixed")


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        *(("residual", plan) for plan in ("free", "data", "spatial", "channel")),
        *(pytest.param("residual", plan, marks=pytest.mark.slow) for plan in SLOW_PLANS),
        ("cosmo", "volume"),
        ("odd", "free"),
        ("odd", "rows_channels"),
    ],
)
@pytest.mark.one_in(7)
def test_ten_steps_equal_those_of_one_process(model: str, plan: str, ranks: RankPool) -> None:
    """Losses, weights, and outputs in evaluation."""
    assert max(ranks.call("difference_after_training", model, plan)) < ROUNDING


@pytest.mark.slow
def test_ranks_that_are_idle_in_some_layers(ranks_of: RankPools) -> None:
    assert max(ranks_of(5).call("difference_after_training", "residual", "idle")) < ROUNDING


def test_a_layer_that_cannot_be_cut_is_announced(ranks: RankPool) -> None:
    ranks.call("difference_after_training", "odd", "free")
    assert "norm: gathered, every rank computes it" in Path(ranks.folder, "log-0").read_text()


def test_ranks_in_different_groups_make_them_without_waiting(
    ranks_of: RankPools,
) -> None:
    """torch's `new_group` is called by all ranks; these groups are made by their members alone."""
    assert ranks_of(3).call("sums_over_groups", (0, 1), (1, 2), (0, 1, 2), (0, 2)) == [
        {(0, 1): 2, (0, 1, 2): 3, (0, 2): 2},
        {(0, 1): 2, (1, 2): 2, (0, 1, 2): 3},
        {(1, 2): 2, (0, 1, 2): 3, (0, 2): 2},
    ]


def test_the_example_of_the_documentation_equals_one_process(tmp_path: Path) -> None:
    text = Path("docs/training.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (example,) = (each for each in blocks if "import synth" in each)  # others are fragments
    outcome = run_ranks(example + ALONE, 4, tmp_path)
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)


def test_the_sum_of_a_partitioned_output_counts_every_word_once(ranks: RankPool) -> None:
    for differences in ranks.call("differences_of_bias_gradients", "residual"):
        assert {"stem.bias", "head.bias", "b.short.bias"} <= set(differences)
        assert max(differences.values()) < 1e-3  # float32


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("a.two", r"layer a\.two: dKer is not finite on rank 2 \(\w=[^)]*\)"),
        ("b.norm1", r"layer b\.norm1: dOut is not finite on rank 2"),
    ],
)
@pytest.mark.one_in(2)
def test_nan_in_a_gradient_is_named_on_every_rank(layer: str, said: str, ranks: RankPool) -> None:
    for found in ranks.call("report_of_nan", "residual", layer):
        assert re.fullmatch(said, found), found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"refuse": True}, "norm (norm) cannot be computed on shards"),
        ({"plan": {"nothing": "data"}}, "plan names the layer nothing, which the model does not have"),
        ({"plan": "best"}, "strategy is 'best'; it must be one of data, spatial"),
        ({"procs": 3}, "the model is asked for 3 ranks, but 4 run; start as many"),
    ],
    ids=lambda each: "" if isinstance(each, str) else str(each),
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str, ranks: RankPool) -> None:
    for found in ranks.call("refusal", "odd", arguments):
        assert said in found
