"""What is decided about GPUs, without one: which backend carries what, and what ranks share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from synth.runtime.comm import process_groups
from synth.runtime.comm.agreement import Agreement
from synth.runtime.comm.collectives import native
from synth.runtime.comm.layout import replicated
from synth.runtime.comm.process_groups import ProcessGroups, backend_of, connect, through_host
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.layers.steps.dropout import Dropout
from synth.runtime.program.benchmark import memory

ON_GPU: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda"))
ON_HOST: Any = SimpleNamespace(is_cuda=False, device=torch.device("cpu"))
BOTH = "cpu:gloo,cuda:nccl"  # what torch makes of no backend at all, where there is a GPU


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The backends of every group, as torch tells them."""
    monkeypatch.setattr(dist.distributed_c10d, "get_backend_config", lambda group: request.param)
    return str(request.param)


@pytest.mark.parametrize(
    ("config", "host", "gpu"),
    [
        ("cpu:gloo,cuda:gloo", "gloo", "gloo"),
        (BOTH, "gloo", "nccl"),
        ("cuda:nccl", "", "nccl"),
        ("gloo", "gloo", "gloo"),
    ],
    indirect=["config"],
)
def test_each_kind_of_device_has_its_backend(config: str, host: str, gpu: str) -> None:
    assert (backend_of(None, "cpu"), backend_of(None, "cuda")) == (host, gpu)
    group: Any = SimpleNamespace(handle=None)
    assert through_host(ON_GPU) == (gpu != "nccl")
    assert not through_host(ON_HOST)
    assert native(ON_GPU, group) == (gpu == "nccl")
    assert not native(ON_HOST, group)


@pytest.mark.parametrize(
    ("config", "device"),
    [("cpu:gloo,cuda:gloo", "cpu"), (BOTH, "cpu"), ("cuda:nccl", "cuda")],
    indirect=["config"],
)
def test_ranks_agree_through_the_host_where_they_can(config: str, device: str) -> None:
    groups: Any = SimpleNamespace(of=lambda *_, **__: None)
    assert Agreement((0, 1), groups).device == torch.device(device)


def test_one_rank_compares_nothing_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fingerprint would wait for the GPU in every pass."""
    groups: Any = SimpleNamespace(of=lambda *_, **__: None)
    monkeypatch.setattr(dist.distributed_c10d, "get_backend_config", lambda group: BOTH)
    alone = Agreement((0,), groups)
    alone.note("batch", torch.ones(3))
    assert alone.noted == []


@pytest.mark.parametrize("config", [BOTH, "cpu:gloo,cuda:gloo"], indirect=True)
def test_members_of_a_new_group_of_nccl_connect_at_once(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[Any] = []
    monkeypatch.setattr(dist, "all_reduce", lambda values, group: reduced.append(group))
    connect("the group", "cpu")
    assert reduced == ["the group"] * ("nccl" in config)


def test_groups_connect_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []
    monkeypatch.setattr(process_groups, "connect", connected.append)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        made = ProcessGroups().of([0])
        assert connected == [made]
    finally:
        dist.destroy_process_group()


def test_ranks_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80))
    found = [memory(torch.device("cuda"), local) for local in (1, 2, 3, 4)]
    assert found == [80, 80, 40, 40]


def test_dropout_draws_where_the_values_are() -> None:
    """On a GPU: a mask of the host would be sent there in every pass."""
    drop = Dropout(0.5, replicated((4, 6), AbsentRanks.numbered(1)))
    assert drop(torch.ones(4, 6, device="meta")).device.type == "meta"
    assert drop._kept(torch.device("meta")).device.type == "meta"
