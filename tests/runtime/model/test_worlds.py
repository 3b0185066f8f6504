"""Several worlds in one process: ranks that were idle in one make the same groups in the next."""

from __future__ import annotations

import datetime
import gc
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest
from ranks import free_port, run_forked

WORLDS = [  # the groups that are made in each world, in order
    [(0, 1, 2), (0, 1)],
    [(0, 1, 2, 3), (1, 2, 3)],
    [(2, 3), (0, 1, 2, 3)],
]


def rank_main(rank: int, folder: str, ports: list[int]) -> None:
    """Be one rank of all worlds; a wait that does not end raises after 30 s."""
    import torch
    import torch.distributed as dist

    from synth.runtime.comm.process_groups import ProcessGroups

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    for port, groups in zip(ports, WORLDS, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
        made = ProcessGroups()
        for ranks in groups:
            if rank in ranks:
                one = torch.ones(1)
                dist.all_reduce(one, group=made.of(ranks))
                assert int(one) == len(ranks)
        dist.barrier()
        made.clear()
        dist.destroy_process_group()
    Path(folder, f"done-{rank}").touch()


@pytest.mark.ranks
def test_idle_ranks_make_the_same_groups_in_the_next_world(tmp_path: Path) -> None:
    ports = [free_port() for _ in WORLDS]
    codes = run_forked(rank_main, [(rank, str(tmp_path), ports) for rank in range(4)], 100)
    assert codes == [0] * 4
    assert len(list(tmp_path.glob("done-*"))) == 4


def absent_main(rank: int, folder: str, port: int) -> None:
    """Rank 1 never makes the group that rank 0 makes."""
    import torch.distributed as dist

    from synth.runtime.comm.process_groups import ProcessGroups

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=12))
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        with pytest.raises(
            RuntimeError, match=r"rank 1 did not come to create the group of the ranks \[0, 1\]"
        ):
            ProcessGroups().of((0, 1))
        Path(folder, "raised").touch()
        store.set("over", "")
    else:
        store.wait(["over"], datetime.timedelta(seconds=60))


@pytest.mark.ranks
@pytest.mark.slow
def test_a_member_that_does_not_come_is_named(tmp_path: Path) -> None:
    port = free_port()
    run_forked(absent_main, [(rank, str(tmp_path), port) for rank in range(2)], 60)
    assert (tmp_path / "raised").exists()


def looked_at_main(seconds: float) -> None:
    """Call functions while another thread looks where this one is; each collection lets threads run."""
    from synth.runtime.model.checks.training_watch import whereabouts

    main, stop, looks = threading.get_ident(), time.monotonic() + seconds, []

    def interrupt(_phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() != main:
            time.sleep(1e-4)

    def look() -> None:
        while time.monotonic() < stop:
            looks.append(whereabouts(main))

    def deep(calls: int) -> int:
        return calls and deep(calls - 1) + len([calls])

    gc.callbacks.append(interrupt)
    gc.set_threshold(1)
    threading.Thread(target=look, daemon=True).start()
    while time.monotonic() < stop:
        deep(200)
    assert looks
    assert all(where.startswith("test_worlds.py:") for _, where in looks)
    os._exit(7)


def test_frames_of_a_running_thread_are_read_with_the_collector_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from synth.runtime.model.checks.training_watch import whereabouts

    seen = []
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or {})
    assert whereabouts(0) == (False, "")
    assert seen == [False]
    assert gc.isenabled()


def test_a_thread_that_returns_while_it_is_looked_at_is_no_fault() -> None:
    assert run_forked(looked_at_main, [(1.5,)], 60) == [7]


def test_the_line_of_the_user_is_told_instead_of_that_of_an_installed_package(tmp_path: Path) -> None:
    from synth.runtime.model.checks.training_watch import user_line

    file = tmp_path / "site-packages" / "loaders.py"
    file.parent.mkdir()
    file.write_text("def call(function):\n    return function()\n")
    call = runpy.run_path(str(file))["call"]
    assert call(lambda: user_line(sys._getframe(1))).startswith("test_worlds.py:")
    alone = eval("call(lambda: look(frame(1)))", {"call": call, "look": _alone, "frame": sys._getframe})
    assert alone == "loaders.py:2"


def _alone(frame: FrameType | None) -> str:
    """What is told of a frame whose callers are of no file."""
    from synth.runtime.model.checks.training_watch import user_line

    called = SimpleNamespace(f_code=frame.f_code, f_lineno=frame.f_lineno, f_back=None) if frame else None
    return user_line(called)  # type: ignore[arg-type]
