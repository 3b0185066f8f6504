"""A program that refuses to start says why once, before a launcher can end the rank that says it."""

from __future__ import annotations

from typing import Any

import pytest

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


class Store(dict[str, str]):
    """A store of torch in which rank 1 runs another plan; what was printed before each entry is kept."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__({"plan of rank 1": "other 0"})
        self.capsys, self.said = capsys, {}

    def set(self, key: str, value: str) -> None:
        self[key], self.said[key] = value, self.capsys.readouterr().err

    def get(self, key: str, default: Any = None) -> Any:
        return self[key].encode()

    def wait(self, keys: list[str]) -> None:
        pass


def test_another_plan_is_named_before_a_rank_can_end(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(capsys)
    with pytest.raises(SystemExit) as ended:
        world.agree(store, 0, 2, "mine", gpu=False)
    assert ended.value.code == 2
    assert store.said["agreed"] == (
        "rank 1 runs another plan than rank 0; start all ranks with one program\n"
    )
