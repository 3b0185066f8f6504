"""Parallel input: what ranks read together is every word once, and each reads its own box alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cases import CASES, GAPS, GROUPED, POINT, SMALL, VOLUME, _plan
from rank_pool import RankPool

import synth
from synth.base.errors import InputError, UsageError
from synth.layer.axes import PerAxis
from synth.layer.intervals import volume
from synth.parallel.input.samples import Samples, open_samples
from synth.parallel.input.selection import of_plan
from synth.planning.plan import Plan
from synth.runtime.grid.scatter_gather import shard_of

PLANS = {
    "data": CASES["data"],
    "spatial": _plan(SMALL, PerAxis(h=2, w=4)),
    "channels": _plan(SMALL, PerAxis(b=2, c=2, k=2)),
    "strided": _plan(POINT, PerAxis(h=2, w=2, k=2)),
    "gaps": _plan(GAPS, PerAxis(h=4, k=2)),
    "grouped": _plan(GROUPED, PerAxis(g=2, h=2, k=2)),
    "volume": _plan(VOLUME, PerAxis(d=2, h=2, k=2)),
}


def written(folder: Path, kind: str, values: np.ndarray) -> Samples:
    """The values in a file of some kind, opened."""
    file = folder / f"samples.{kind}"
    if kind == "npy":
        np.save(file, values)
        return open_samples(file)
    if kind == "raw":
        values.tofile(file)
        return open_samples(file, shape=values.shape, dtype=str(values.dtype))
    chunks = (1, *(max(1, n // 2) for n in values.shape[1:]))
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        sizes = {"shape": values.shape, "dtype": values.dtype, "chunks": chunks}
        zarr.open_group(file, mode="w").create_array("group/x", **sizes)[...] = values
        return open_samples(file, dataset="group/x")
    h5py = pytest.importorskip("h5py")
    with h5py.File(file, "w") as made:
        made.create_dataset("group/x", data=values, chunks=chunks)
    return open_samples(file, dataset="group/x")


def user_share(plan: Plan, whole: torch.Tensor, rank: int, halo: bool) -> torch.Tensor:
    """A rank's part of a batch by the runtime's own means."""
    d, layer = plan.distribution, plan.layer
    at = d.at(rank)
    box = d.carried("In", at) if halo else d.owned("In", at)
    n = plan.nest.extents
    windows = [plan.nest.windows[axis] for axis in layer.spatial_axes]
    shaped = whole.reshape(layer.input[0], n.g, n.c, *layer.input[2:])
    spatial = box[6 - len(layer.spatial_axes) :]
    return shard_of(shaped, (*box[:3], *spatial), windows).flatten(1, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["npy", "raw", "h5", "zarr"])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.one_in(6)
def test_a_rank_reads_the_box_that_it_owns(kind: str, name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    batch, *rest = plan.layer.input
    values = np.random.default_rng(0).random((2 * batch + 1, *rest), dtype=np.float32)
    samples = written(tmp_path, kind, values)
    order = [2 * batch - i for i in range(2 * batch + 1)]
    total = 0
    for halo in (False, True):
        for rank in plan.distribution.ranks:
            samples.bytes_read = 0
            shares = list(synth.feed(plan, samples, rank=rank, halo=halo, order=order))
            assert len(shares) == 2
            for step, share in enumerate(shares):
                whole = torch.from_numpy(values[order[step * batch : (step + 1) * batch]])
                assert torch.equal(share, user_share(plan, whole, rank, halo))
            d = plan.distribution
            box = d.carried("In", d.at(rank)) if halo else d.owned("In", d.at(rank))
            assert samples.bytes_read == 2 * 4 * volume(box)
            total += 0 if halo else samples.bytes_read
    assert total == 2 * 4 * plan.nest.words["In"]


def test_of_a_huge_file_only_the_own_part_is_touched(tmp_path: Path) -> None:
    """64 GiB that nobody could hold: a sparse file."""
    layer = synth.Layer.conv3d((1, 16, 1024, 1024, 1024), 4, 3, padding=1, name="huge")
    plan = _plan(layer, PerAxis(d=128, h=128))
    file = tmp_path / "huge.raw"
    with open(file, "wb") as made:
        made.truncate(4 * 16 * 1024**3)
    with open(file, "r+b") as made:
        made.seek(4 * (1024**2 * 8 + 1024 * 8))  # channel 0, d = 8, h = 8
        made.write(np.float32(7).tobytes())
    (share,) = synth.feed(plan, file, shape=layer.input, dtype="float32", rank=129)
    assert share.shape == (1, 16, 8, 8, 1024)
    assert share[0, 0, 0, 0, 0] == 7
    assert share.sum() == 7


def test_only_the_chunks_of_the_own_box_are_read(tmp_path: Path) -> None:
    """All other chunks of the zarr array are no chunks."""
    zarr = pytest.importorskip("zarr")
    plan = _plan(SMALL, PerAxis(h=2, w=4))
    values = np.random.default_rng(0).random(plan.layer.input, dtype=np.float32)
    file = tmp_path / "x.zarr"
    sizes = {"shape": values.shape, "dtype": values.dtype}
    zarr.create_array(file, **sizes, chunks=(1, 16, 4, 2))[...] = values
    chunks = [path for path in file.rglob("*") if path.is_file() and path.name != "zarr.json"]
    own = [path for path in chunks if path.parts[-2:] == ("1", "2")]  # of rows and columns
    assert len(own) == len(chunks) // 8 == len(values)
    for path in set(chunks) - set(own):
        path.write_bytes(b"spoiled")
    (share,) = synth.feed(plan, file, rank=6)
    assert torch.equal(share, torch.from_numpy(values[:, :, 4:, 4:6]))
    with pytest.raises(Exception, match=r".+"):
        list(synth.feed(plan, file, rank=5))


def test_every_plan_of_the_tests_can_be_fed() -> None:
    for plan in CASES.values():
        if plan.layer.spatial_axes and not plan.classes:  # whose samples no file has
            words = sum(int(np.prod(of_plan(plan, rank).shape)) for rank in plan.distribution.ranks)
            assert words == plan.nest.words["Out" if plan.layer.transposed else "In"]


def test_wrong_files_and_arguments(tmp_path: Path) -> None:
    plan, file = PLANS["data"], tmp_path / "x.npy"
    with pytest.raises(InputError, match="no such file"):
        open_samples(file)
    file.write_text("no numbers")
    with pytest.raises(InputError, match=r"must be an \.npy file"):
        open_samples(file)
    with pytest.raises(InputError, match="must be an"):
        open_samples(file, shape=(4, 4), dtype="float32")
    with pytest.raises(UsageError, match="give shape and dtype of a raw file"):
        open_samples(file, shape=(4, 4))
    np.save(file, np.zeros((9, 16, 8, 7), np.float32))
    with pytest.raises(InputError, match=r"samples are \(16, 8, 7\), but \(16, 8, 8\) are planned"):
        synth.feed(plan, file)
    np.save(file, np.zeros((3, 16, 8, 8), np.float32))
    with pytest.raises(InputError, match="3 samples fill no batch of 4"):
        synth.feed(plan, file)
    with pytest.raises(UsageError, match="is a matrix product"):
        synth.feed(CASES["matrix_2d"], file)
    np.save(file, np.zeros((5, 16, 8, 8), np.float32))
    with pytest.raises(InputError, match="there is no sample 5 of 5"):
        list(synth.feed(plan, file, rank=3, order=iter([2, 3, 4, 5])))
    with pytest.raises(UsageError, match="samples are 3; give a file, an array"):
        synth.feed(plan, 3)
    (tmp_path / "no.zarr").mkdir()
    with pytest.raises((InputError, UsageError), match=r"zarr"):
        open_samples(tmp_path / "no.zarr")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w"):
        pass
    with pytest.raises(InputError, match="dataset y cannot be read"):
        open_samples(tmp_path / "x.h5", dataset="y")


def test_rank_0_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.parallel.input.feed.PROGRESS_SECONDS", -1.0)
    np.save(tmp_path / "x.npy", np.zeros((4, 16, 8, 8), np.float32))
    list(synth.feed(_plan(SMALL, PerAxis()), tmp_path / "x.npy"))
    assert "batch 0: 4 of 4 samples, 16 KiB in all" in capsys.readouterr().err


@pytest.mark.ranks
def test_a_network_is_fed_in_parallel(tmp_path: Path) -> None:
    with RankPool(Path(__file__).with_name("input_ranks.py"), 4, tmp_path) as ranks:
        ranks.call("fed", "residual", str(tmp_path))
