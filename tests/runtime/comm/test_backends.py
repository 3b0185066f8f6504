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
from synth.runtime.comm.process_groups import ProcessGroups, connect
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.grid.transport import (
    GLOO,
    NCCL,
    Transport,
    default_backend,
    near,
    through_host,
    transport_of,
)
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
        ("cpu:gloo,cuda:gloo", "cpu", "cpu"),
        (BOTH, "cpu", "cuda"),
        ("cuda:nccl", "cuda", "cuda"),
        ("gloo", "cpu", "cpu"),
        ("mpi", "cpu", "cpu"),  # has no row
    ],
    indirect=["config"],
)
def test_messages_are_sent_from_where_a_backend_sends(config: str, host: str, gpu: str) -> None:
    group: Any = SimpleNamespace(handle=None)
    assert (near(ON_HOST.device, None).type, near(ON_GPU.device, None).type) == (host, gpu)
    assert through_host(ON_GPU, None) == (gpu == "cpu")
    assert native(ON_GPU, group) == (transport_of(None, ON_GPU.device) is NCCL) == ("nccl" in config)


def test_programs_send_from_the_memory_in_which_they_compute() -> None:
    assert (default_backend("cpu"), default_backend("cuda")) == ("gloo", "nccl")


@pytest.mark.parametrize("name", ["bool", "int16", "uint32", "float8_e4m3fn", "float32", "complex64"])
def test_words_travel_in_a_dtype_that_is_carried(name: str) -> None:
    """As the same memory: what arrives in it has the first dtype."""
    words = torch.tensor([0, 1, 1, 0]).to(getattr(torch, name))
    sent = GLOO.carried(words)
    assert sent.data_ptr() == words.data_ptr()
    assert sent.shape == words.shape
    assert sent.dtype in (GLOO.dtypes or ()) or sent.is_complex()
    assert (sent is words) == (name in ("float32", "complex64"))
    assert Transport().carried(words) is words


@pytest.mark.parametrize(
    ("config", "device"),
    [("cpu:gloo,cuda:gloo", "cpu"), (BOTH, "cpu"), ("cuda:nccl", "cuda")],
    indirect=["config"],
)
def test_ranks_agree_through_the_host_where_they_can(config: str, device: str) -> None:
    groups: Any = SimpleNamespace(of_networks=lambda: None)
    assert Agreement((0, 1), groups).device == torch.device(device)


def test_one_rank_compares_nothing_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fingerprint would wait for the GPU in every pass."""
    groups: Any = SimpleNamespace(of_networks=lambda: None)
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
