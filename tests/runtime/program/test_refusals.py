"""A program that refuses to start says why once, before a launcher can end the rank that says it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import synth
from synth.runtime.grid.rank_tree import Said, StoreTree
from synth.runtime.program import world


def test_other_ranks_wait_until_rank_0_has_spoken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(world.time, "sleep", waited.append)
    with pytest.raises(SystemExit) as ended:
        world.refuse(1, "why")
    assert (ended.value.code, waited, capsys.readouterr().err) == (2, [world.WAIT_FOR_WORD], "")
    with pytest.raises(SystemExit) as ended:
        world.refuse(0, "why")
    assert (ended.value.code, len(waited), capsys.readouterr().err) == (2, 1, "why\n")


TORCH = str(torch.__version__)


class Store(dict[str, str]):
    """A store of torch in which rank 1 runs another plan; what was printed before each entry is kept."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__()
        StoreTree(self, "plan", 1, 2, 9.0).up([("other", 1), (TORCH, 1), False], max)
        self.capsys, self.said = capsys, dict[str, str]()

    def set(self, key: str, value: str) -> None:
        self[key] = value
        if hasattr(self, "said"):
            self.said[key] = self.capsys.readouterr().err

    def get(self, key: str, default: Any = None) -> Any:
        return self[key].encode()

    def delete_key(self, key: str) -> None:
        del self[key]

    def add(self, key: str, count: int) -> int:
        return 2  # the other rank is through

    def wait(self, keys: list[str], limit: Any = None) -> None:
        pass


def test_another_plan_is_named_before_a_rank_can_end(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(capsys)
    with pytest.raises(SystemExit) as ended:
        world.agree(store, 0, 2, "mine", False, 9.0)
    assert ended.value.code == 2
    assert store.said["plan/down 1"] == (
        "rank 1 runs another plan than rank 0; start all ranks with one program\n"
    )


@pytest.mark.parametrize(
    ("plans", "versions", "said"),
    [
        (("a", 0), ("torch 2.13.0", 0), ""),
        (
            ("a", 0, 3, "b"),
            ("torch 2.13.0", 0),
            "rank 3 runs another plan than rank 0; start all ranks with one program",
        ),
        (
            ("a", 0),
            ("torch 2.13.0", 0, 2, "torch 2.5.1"),
            "rank 2 has torch 2.5.1, but rank 0 has torch 2.13.0; install one version for all ranks",
        ),
    ],
)
def test_another_plan_and_another_torch_are_named(plans: Any, versions: Any, said: str) -> None:
    assert world.difference(Said(*plans), Said(*versions)) == said


def test_versions_of_torch_and_synth_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.versions() == f"torch {TORCH} and synth {synth.__version__}"
    monkeypatch.setattr(synth, "__version__", "0.0.9", raising=False)
    assert world.versions() == f"torch {TORCH} and synth 0.0.9"
    monkeypatch.delitem(sys.modules, "synth")  # as in a standalone program
    assert world.versions() == f"torch {TORCH}"
