"""Two networks in one process, on real ranks: they share no state."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import RankPool, pool_of

import synth.runtime

ranks = pool_of(__file__, "context_ranks.py", 4)


def assert_same_steps(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Every step has the same bits."""
    for mine, right in zip(found["values"], expected["values"], strict=True):
        assert mine.keys() == right.keys()
        for name, values in right.items():
            np.testing.assert_array_equal(mine[name], values, err_msg=name)


@pytest.mark.ranks
def test_networks_that_train_in_turn_have_the_values_and_words_of_a_run_alone(ranks: RankPool) -> None:
    alone = ranks.call("trained_alone", 3)
    for (networks, shared), expected in zip(ranks.call("trained_in_turn"), alone, strict=True):
        for found, right in zip(networks, expected, strict=True):
            assert_same_steps(found, right)
            assert found["words"] == right["words"]
        assert shared == 0


@pytest.mark.ranks
def test_a_prefetch_stays_pending_while_another_network_trains(ranks: RankPool) -> None:
    alone = ranks.call("trained_alone", 1)
    for networks, expected in zip(ranks.call("trained_while_a_prefetch_is_pending"), alone, strict=True):
        for found, right in zip(networks, expected, strict=True):
            assert_same_steps(found, right)


@pytest.mark.ranks
def test_only_the_network_that_is_asked_to_times_its_kernels(ranks: RankPool) -> None:
    for timed, of_other, share_a_tuner in ranks.call("tuned_kernels"):
        assert timed > 0
        assert of_other == 0
        assert share_a_tuner


@pytest.mark.ranks
def test_a_layer_takes_the_group_of_the_job_where_it_has_all_ranks(ranks: RankPool) -> None:
    """Except for another timeout, which bounds every wait in the group."""
    for same, with_another_timeout, of_half in ranks.call("groups_of_all_ranks"):
        assert same
        assert not with_another_timeout
        assert not of_half


def test_no_module_of_the_runtime_has_mutable_state() -> None:
    """No container is assigned in the body of a class, and none but constants in that of a module."""
    folder = Path(synth.runtime.__file__).parent
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
        for node in (node for body in bodies for node in body):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                constant = (
                    isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_")
                )
                if _mutable(node.value) and not constant:
                    found.append(f"{path.name}: {ast.unparse(target)}")
        found += [f"{path.name}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
    assert not found


def _mutable(value: ast.expr) -> bool:
    """Whether an expression makes a container that its module could fill."""
    if isinstance(value, ast.Call):
        made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        return isinstance(made, ast.Name) and made.id in ("dict", "list", "set", "defaultdict")
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
