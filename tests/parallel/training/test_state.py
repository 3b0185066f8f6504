"""Checkpoints of a network on four real ranks: read with other plans, on other ranks, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp
from rank_pool import RankPool, pool_of
from state_ranks import flat, load, made, state_of, steps, wholes

pytestmark = [pytest.mark.ranks, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]
ALL = (0, 1, 2, 3)


ranks = pool_of(__file__, "state_ranks.py", 4)


def same(one: Any, other: Any, within: float = 0.0) -> None:
    """Two states have the same keys and values."""
    left, right = flat(one), flat(other)
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(value, right[key], within, within, err_msg=key)
        else:
            assert value == right[key], key


@pytest.mark.parametrize(
    ("plan", "other"),
    [
        ("samples", "channels"),
        ("space", "filters"),
        ("channels", "mixed"),
        ("filters", "free"),
        ("mixed", "space"),
    ],
)
@pytest.mark.one_in(6)
def test_a_run_goes_on_with_another_plan(plan: str, other: str, ranks: RankPool, tmp_path: Path) -> None:
    saved, end = ranks.call("trains_and_saves", plan, str(tmp_path))[0]
    loaded, again = ranks.call("resumes", other, str(tmp_path), ALL)[0]
    same(saved, loaded)
    same(end, again, 2e-4)
    model, optimizer = made(1)
    load(model, optimizer, str(tmp_path), no_dist=True)
    same(saved, wholes(state_of(model, optimizer)))
    steps(model, optimizer, 2, 2)
    same(end, wholes(state_of(model, optimizer)), 2e-4)


@pytest.mark.slow
def test_a_killed_run_resumes_with_equal_weights(ranks: RankPool, tmp_path: Path) -> None:
    saved, end = ranks.call("trains_and_saves", "mixed", str(tmp_path))[0]
    ranks.stop()
    loaded, again = ranks.call("resumes", "mixed", str(tmp_path), ALL)[0]
    same(saved, loaded)
    same(end, again)


@pytest.mark.parametrize("plan", ["space", "filters", "channels"])
@pytest.mark.one_in(3)
def test_two_ranks_go_on(plan: str, ranks: RankPool, tmp_path: Path) -> None:
    saved, end = ranks.call("trains_and_saves", plan, str(tmp_path))[0]
    results = ranks.call("resumes", "free", str(tmp_path), (1, 3))
    loaded, again = results[1]
    same(saved, loaded)
    same(end, again, 2e-4)


def test_ranks_load_what_one_process_saved(ranks: RankPool, tmp_path: Path) -> None:
    model, optimizer = made(0)
    steps(model, optimizer, 0, 2)
    state = state_of(model, optimizer)
    dcp.save(state, checkpoint_id=str(tmp_path), no_dist=True)
    saved = wholes(state)
    loaded, end = ranks.call("resumes", "channels", str(tmp_path), ALL)[0]
    same(saved, loaded)
    steps(model, optimizer, 2, 2)
    same(end, wholes(state_of(model, optimizer)), 2e-4)


def test_a_checkpoint_of_another_model_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    ranks.call("trains_and_saves", "space", str(tmp_path))
    for said, kept in ranks.call("refused", "shape", str(tmp_path)):
        assert "Size mismatch" in said[0]
        assert kept
    for said, kept in ranks.call("refused", "keys", str(tmp_path)):
        assert "Missing key in checkpoint state_dict: model.other.weight" in said[0]
        assert kept


def test_wholes_of_torch(ranks: RankPool) -> None:
    for result in ranks.call("whole_state", "mixed"):
        for text in result["said"]:
            assert "full_tensor()" in text
        same(result["wanted"], result["found"])
        same(result["wanted"]["model"], result["plain"])
