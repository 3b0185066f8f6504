"""Ranks that were given other things are all told so; copies that differ are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "consistency_ranks.py", 4)


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("dtype", "model", "3.weight is (4, 6, 1, 1) of torch.float64 on cpu, there it is (4, 6, 1, 1) of"),
        ("width", "model", "module 0 is Conv2d(4, 6, kernel_size=(5, 5)"),
        ("mode", "model", "the mode of module  is evaluation, there it is training"),
        ("frozen", "model", "0.weight is (6, 4, 3, 3) of torch.float32 on cpu, not trained, there it is"),
        ("input", "model", "the input is (8, 4, 8, 8), there it is (4, 4, 8, 8)"),
        ("plan", "plan", "it is n: 4, there it is h: 4"),
        ("option", "options", "bucket_bytes is 0, there it is None"),
        ("torch", "version", "torch is 1.0, there it is "),
        ("code", "version", "synth is 0.0.9, sources 0, there it is "),
    ],
)
def test_a_difference_is_told_to_all(
    what: str, kind: str, text: str, ranks: RankPool, tmp_path: Path
) -> None:
    told = ranks.call("said", what, str(tmp_path), seconds=60)
    assert len(set(told)) == 1
    assert told[0].startswith(f"ValueError: rank 2 has another {kind} than rank 0: {text}")
    assert told[0].endswith(f"; give all ranks the same {kind}")


@pytest.mark.parametrize(
    ("what", "text"),
    [("missing file", "InputError: "), ("file", "another plan than rank 0")],
)
@pytest.mark.one_in(2)
def test_a_rank_with_another_plan_file_is_named(
    what: str, text: str, ranks: RankPool, tmp_path: Path
) -> None:
    (tmp_path / "old.json").write_text('{"schema": "synth-network-plan-0"}')
    told = ranks.call("said", what, str(tmp_path), seconds=60)
    assert len(set(told)) == 1
    assert told[0].startswith("ValueError: rank 2 ")
    assert text in told[0]


def test_a_rank_that_fails_in_tracing_is_named(ranks: RankPool, tmp_path: Path) -> None:
    told = ranks.call("said", "tracing", str(tmp_path), seconds=60)
    assert len(set(told)) == 1
    assert told[0].startswith("ValueError: rank 2 cannot make the network, other ranks can: ")
    assert "no such branch" in told[0]


def test_what_all_raise_is_raised_as_it_is(ranks: RankPool, tmp_path: Path) -> None:
    for text in ranks.call("said", "all fail", str(tmp_path), seconds=60):
        assert text == "UsageError: plan names the layer nothing, which the model does not have"


def test_no_difference(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.call("said", "", str(tmp_path), seconds=60) == [""] * 4


@pytest.mark.parametrize(
    ("what", "name", "first"),
    [
        ("bias", "0.bias", 1),
        ("statistics", "1.running_var", 1),
        ("count", "1.num_batches_tracked", 1),
    ],
)
def test_a_copy_that_differs_is_named(what: str, name: str, first: int, ranks: RankPool) -> None:
    told = ranks.call("replicas", what, seconds=60)
    assert len(set(told)) == 1
    assert told[0].startswith(f"{name} has other words on rank 2 than on rank {first}, in the region ")


def test_equal_copies(ranks: RankPool) -> None:
    assert ranks.call("replicas", "", seconds=60) == [""] * 4


@pytest.mark.parametrize("plan", [{"k": 4}, {"c": 2, "h": 2}, {"h": 4}], ids=str)
def test_gradients_that_one_rank_keeps(plan: dict[str, int], ranks: RankPool) -> None:
    assert max(ranks.call("kept_gradients", plan)) < 1e-6
