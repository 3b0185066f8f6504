"""Checkpoints with digests: a changed file is named before a value is changed, on ranks and without."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from rank_pool import RankPool, pool_of
from state_ranks import load, made, state_of, steps

import synth

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _state() -> dict[str, object]:
    torch.manual_seed(0)
    return {"model": {"weight": torch.randn(64, 64), "bias": torch.randn(64)}, "epoch": 3}


def _blank() -> dict[str, object]:
    return {"model": {"weight": torch.zeros(64, 64), "bias": torch.zeros(64)}, "epoch": 0}


def _shard(folder: Path) -> Path:
    return max(folder.glob("*.distcp"), key=lambda file: file.stat().st_size)


def flip(file: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    synth.save_checkpoint(_state(), tmp_path)
    state = _blank()
    synth.load_checkpoint(state, tmp_path)
    assert torch.equal(state["model"]["weight"], _state()["model"]["weight"])
    assert state["epoch"] == 3
    plain = _blank()
    dcp.load(plain, checkpoint_id=str(tmp_path), no_dist=True)  # torch reads it, too
    assert torch.equal(plain["model"]["bias"], _state()["model"]["bias"])


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6])
def test_one_flipped_bit_of_a_shard_is_named(part: float, tmp_path: Path) -> None:
    synth.save_checkpoint(_state(), tmp_path)
    shard, state = _shard(tmp_path), _blank()
    flip(shard, int(part * shard.stat().st_size))
    said = (
        rf"^{re.escape(str(shard))}: \d+ bytes at \d+ \([\w.]+\) are not what was saved, as rank 0 reads it;"
    )
    with pytest.raises(RuntimeError, match=said) as caught:
        synth.load_checkpoint(state, tmp_path)
    assert "\n" not in str(caught.value)
    assert not state["model"]["weight"].any()
    assert not state["model"]["bias"].any()


def test_every_word_that_torch_would_load_changed_is_refused(tmp_path: Path) -> None:
    """At each place where a flipped bit is loaded by torch without a word, the digest differs."""
    synth.save_checkpoint(_state(), tmp_path)
    shard = _shard(tmp_path)
    size, silent = shard.stat().st_size, 0
    for at in range(size // 64, size, size // 16):
        flip(shard, at)
        with pytest.raises(RuntimeError, match="are not what was saved"):
            synth.load_checkpoint(_blank(), tmp_path)
        state = _blank()
        try:
            dcp.load(state, checkpoint_id=str(tmp_path), no_dist=True)
            silent += not torch.equal(state["model"]["weight"], _state()["model"]["weight"])
        except BaseException:
            pass
        flip(shard, at)
    assert silent > 4


def test_a_changed_list_of_pieces_is_not_unpickled(tmp_path: Path) -> None:
    synth.save_checkpoint(_state(), tmp_path)
    metadata = tmp_path / ".metadata"
    metadata.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    with pytest.raises(RuntimeError, match=r"\.metadata: .* are not what was saved"):
        synth.load_checkpoint(_blank(), tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("how", ["cut", "empty", "gone", "digests", "junk", "no pieces"])
def test_a_file_that_is_not_whole_is_named(how: str, tmp_path: Path) -> None:
    synth.save_checkpoint(_state(), tmp_path)
    shard = _shard(tmp_path)
    beside = shard.with_name(f"{shard.name}.sha256")
    data = {"cut": shard.read_bytes()[:-900], "empty": b""}
    if how in data:
        shard.write_bytes(data[how])
    elif how == "gone":
        shard.unlink()
    else:
        beside.write_bytes({"digests": b"{}", "junk": b"\xff[", "no pieces": b"[1, 2]"}[how])
    with pytest.raises(RuntimeError, match=re.escape(shard.name)) as caught:
        synth.load_checkpoint(_blank(), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_digests_is_read_and_said_to_have_none(tmp_path: Path) -> None:
    dcp.save(_state(), checkpoint_id=str(tmp_path), no_dist=True)
    state = _blank()
    with pytest.warns(UserWarning, match="carries no digest"):
        synth.load_checkpoint(state, tmp_path)
    assert torch.equal(state["model"]["weight"], _state()["model"]["weight"])


def test_without_the_check_nothing_is_compared(tmp_path: Path) -> None:
    synth.save_checkpoint(_state(), tmp_path)
    for file in tmp_path.glob("*.sha256"):
        file.write_text("{}")
    state = _blank()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        synth.load_checkpoint(state, tmp_path, check=False)
    assert torch.equal(state["model"]["bias"], _state()["model"]["bias"])


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises((RuntimeError, dcp.api.CheckpointException), match="metadata"):
        synth.load_checkpoint(_blank(), tmp_path / "none")


ranks = pool_of(__file__, "state_ranks.py", 4)


@pytest.mark.ranks
def test_all_ranks_refuse_a_file_that_one_of_them_reads(ranks: RankPool, tmp_path: Path) -> None:
    ranks.call("saves_with_digests", str(tmp_path))
    assert all(said == "" for said, _ in ranks.call("reads_with_digests", "channels", str(tmp_path)))
    model, optimizer = made(1)
    load(model, optimizer, str(tmp_path), no_dist=True)
    steps(model, optimizer, 2, 1)
    for shard in sorted(tmp_path.glob("*.distcp"))[::3]:  # the first and the last of four
        flip(shard, shard.stat().st_size // 2)
        found = ranks.call("reads_with_digests", "channels", str(tmp_path))
        assert len({said for said, _ in found}) == 1
        assert re.search(rf"{shard.name}: .* as rank [0-3] reads it", found[0][0])
        assert all(kept for _, kept in found)
        flip(shard, shard.stat().st_size // 2)
    assert not any(kept for _, kept in ranks.call("reads_with_digests", "free", str(tmp_path)))
    state = state_of(*made(2))
    synth.load_checkpoint(state, tmp_path)  # one process reads what ranks saved
