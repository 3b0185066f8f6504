"""A process that is no rank reaches the store: what it reads, and what its values do."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from synth.launch.launcher import started
from synth.runtime.grid.heartbeats import Heartbeats, Sign, sign_of
from synth.runtime.grid.launched_job import MOST_WORDS, plain
from synth.runtime.grid.liveness import Watch
from synth.runtime.grid.seals import SECRET, sealed, unsealed

HERE = Path(__file__).parent
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
ESCAPE = "\x1b[2J" + "stranger " * 20_000


def test_a_value_is_believed_only_with_the_secret_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "a" * 64)
    told = sealed("key", "words and\nlines").encode()
    assert unsealed("key", told) == "words and\nlines"
    assert unsealed("other key", told) is None
    assert unsealed("key", told + b"!") is None
    assert b"a" * 64 not in told
    monkeypatch.setenv(SECRET, "b" * 64)
    assert unsealed("key", told) is None
    for junk in (b"", b" ", b"words", b"\xff\xfe \x00", b"0" * 64 + b" words"):
        assert unsealed("key", junk) is None


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[1, "a", 2, 3, 4, 5, 6, 7]', "[" * 100_000])
def test_what_is_no_heartbeat_is_none(text: str) -> None:
    assert sign_of(text) is None


def _beating(monkeypatch: pytest.MonkeyPatch) -> Heartbeats:
    monkeypatch.setenv(SECRET, "a" * 64)
    beats = Heartbeats(0, 2, "rank {}".format, False, 8.0, "job")
    beats.store, beats.met = dist.HashStore(), True
    beats.sign()
    return beats


def test_a_forged_fault_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = _beating(monkeypatch)
    beats.store.set(beats.first_key, "rank 1: failed")
    beats.look()
    assert beats.failure_at == 0
    beats.store.set(beats.first_key, sealed(beats.first_key, "rank 1: failed"))
    beats.look()
    assert beats.first_fault == "rank 1: failed"


def test_a_forged_heartbeat_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = _beating(monkeypatch)
    true = Sign(7, "here", "rank 1", 3, "step 3", "host", 99, "12")
    beats.store.set(beats.key(1), sealed(beats.key(1), json.dumps(true)))
    assert beats.signs()[1] == true
    beats.store.set(beats.key(1), json.dumps([0, "done", "rank 1", 0, "", "host", 1, "1"]))
    assert beats.signs()[1] == true


def test_what_a_stranger_wrote_does_not_refuse_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = _beating(monkeypatch)
    beats.store.set(f"joined as {beats.key(0)}", "another process")
    assert beats.is_first()
    second = Heartbeats(0, 2, "rank {}".format, False, 8.0, "job")
    second.store = beats.store
    assert not second.is_first()


def test_last_words_are_one_printable_line_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(0, 2, "rank {}".format, False, 8.0, "job")
    watch.first_fault = ESCAPE
    said = watch.told("another rank has failed")
    assert said.isprintable()
    assert "\\x1b[2J" in said
    assert len(said) < MOST_WORDS + 100
    assert plain("a\tb\u202e") == "a\\tb\\u202e"


def stranger(port: int, folder: Path) -> None:
    """Read all keys, write over those that can end a job, and delete what is there."""
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=20), wait_for_workers=False
    )
    told, end = set[str](), time.monotonic() + 4
    while time.monotonic() < end:
        keys = store.list_keys()
        told |= set(keys)
        for key in (each for each in keys if "sign of" in each or "first fault" in each):
            told.add(store.get(key).decode() if store.check([key]) else "")
            store.set(key, json.dumps([0, "done", ESCAPE, 10**9, ESCAPE, "", 1, "1"]))
            store.set(f"first fault in {key.partition(' in ')[2]}", f"rank 1: {ESCAPE}")
        for key in (each for each in keys if "sign of" in each):
            store.delete_key(key)
        time.sleep(0.3)
    (folder / "told").write_text("\n".join(told))
    (folder / "done").touch()


def _attack(folder: Path) -> None:
    (folder / "ready").touch()  # torch is loaded
    end = time.monotonic() + 300
    while not (folder / "port").exists() and time.monotonic() < end:
        time.sleep(0.1)
    stranger(int((folder / "port").read_text()), folder)


@pytest.mark.ranks
def test_a_stranger_of_this_machine_ends_no_run_and_one_of_another_reaches_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    other = multiprocessing.get_context("spawn").Process(target=_attack, args=(tmp_path,), daemon=True)
    other.start()
    while not (tmp_path / "ready").exists():  # ranks that wait for longer than their timeout end
        assert other.is_alive()
        time.sleep(0.1)
    ended = started(
        [str(HERE / "stranger_ranks.py"), str(tmp_path)], 2, [], 500, {"CUDA_VISIBLE_DEVICES": ""}
    )
    other.join(300)
    assert ended.code == 0, ended.output
    assert "stranger" not in ended.output
    assert "sign of" in (tmp_path / "told").read_text()
    for rank in range(2):
        assert set((tmp_path / f"listens-{rank}").read_text().split()) <= LOOPBACK
