"""Whole networks on real ranks: ten steps with the losses and weights of one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ranks import Outcome, run_ranks

DIFFERENCE = 3e-3  # of losses and weights after ten steps, relative to values above 1
PROGRAM = "from network_ranks import main\n\nmain()\n"
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
dist.destroy_process_group()
"""


def told(folder: Path, function: str, argument: str, ranks: int = 4) -> Outcome:
    """Ranks ran a function of `network_ranks` to its end."""
    outcome = run_ranks(PROGRAM, ranks, folder, function, argument, str(folder))
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    return outcome


@pytest.mark.ranks
@pytest.mark.parametrize(
    "plans",
    ["free data spatial channel", pytest.param("filter hybrid rows_channels mixed", marks=pytest.mark.slow)],
)
def test_residual_trains_as_torch(plans: str, tmp_path: Path) -> None:
    differences = told(tmp_path, "trains_as_torch", f"residual {plans}").facts
    assert [list(each) for each in differences] == [plans.split()] * 4
    assert max(max(each.values()) for each in differences) < DIFFERENCE


@pytest.mark.ranks
def test_ranks_idle_in_some_layers_train_as_torch(tmp_path: Path) -> None:
    differences = told(tmp_path, "trains_as_torch", "residual idle", ranks=5).facts
    assert max(each["idle"] for each in differences) < DIFFERENCE


@pytest.mark.ranks
def test_ranks_with_other_numbers_of_groups_make_one(tmp_path: Path) -> None:
    assert told(tmp_path, "groups", "", ranks=3).facts == [
        {"0 1": 2, "0 1 2": 3, "0 2": 2},
        {"0 1": 2, "1 2": 2, "0 1 2": 3},
        {"1 2": 2, "0 1 2": 3, "0 2": 2},
    ]


@pytest.mark.ranks
@pytest.mark.parametrize("layout", ["samples", "channels", "overlapping", "idle"])
def test_batch_normalization_is_that_of_the_whole(layout: str, tmp_path: Path) -> None:
    told(tmp_path, "norms", layout)


@pytest.mark.ranks
def test_volumes_train_as_torch(tmp_path: Path) -> None:
    differences = told(tmp_path, "trains_as_torch", "cosmo volume").facts
    assert max(each["volume"] for each in differences) < DIFFERENCE


@pytest.mark.ranks
def test_odd_layers_train_as_torch(tmp_path: Path) -> None:
    outcome = told(tmp_path, "trains_as_torch", "odd free rows_channels")
    assert "norm: gathered, every rank computes it" in outcome.output[0]


@pytest.mark.ranks
def test_the_example_of_the_documentation_trains_as_torch(tmp_path: Path) -> None:
    text = Path("docs/training.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (example,) = (each for each in blocks if "import synth" in each)  # others are fragments
    outcome = run_ranks(example + ALONE, 4, tmp_path)
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)


@pytest.mark.ranks
def test_a_loss_of_shares_adds_up(tmp_path: Path) -> None:
    differences = told(tmp_path, "sharded_loss", "residual").facts
    for each in differences:  # the layers that have biases
        assert {"stem.bias", "head.bias", "b.short.bias"} <= set(each)
        assert max(each.values()) < DIFFERENCE


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("a.two", r"found: layer a\.two: dKer is not finite on rank 2 \(\w=[^)]*\)\n"),
        ("b.norm1", r"found: layer b\.norm1: dOut is not finite on rank 2\n"),
    ],
)
def test_nan_in_a_gradient_is_named(layer: str, said: str, tmp_path: Path) -> None:
    outcome = told(tmp_path, "nan_is_named", f"residual {layer}")
    for output in outcome.output:
        assert re.search(said, output), output


@pytest.mark.ranks
def test_refusals_name_the_layer(tmp_path: Path) -> None:
    outcome = told(tmp_path, "refusals", "odd")
    for said in (
        "norm (norm) cannot be computed on shards",
        "plan names the layer nothing, which the model does not have",
        "strategy is 'best'; it must be one of data, spatial",
        "the model is asked for 3 ranks, but 4 run; start as many",
    ):
        assert f"refused: {said}" in outcome.output[0]
