"""Memory that is used again is never that of somebody who still needs it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
import torch

from synth.launch.run import KEEP_FREED
from synth.runtime.comm.buffer_pool import Room
from synth.runtime.kernels.winograd import winograd


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    Room.free.clear()
    yield
    Room.free.clear()


def places(*tensors: torch.Tensor) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def test_what_is_in_use_is_not_given_again() -> None:
    like = torch.zeros(1)
    one, other = Room.take(like, 3, 4), Room.take(like, 12)
    assert len(places(one, other)) == 2
    Room.leave(one)
    third = Room.take(like, 2, 5)
    assert places(third) == places(one)
    assert places(Room.take(like, 1)).isdisjoint(places(other, third))


def test_the_smallest_that_fits_and_room_only_grows() -> None:
    like = torch.zeros(1)
    small, large = Room.take(like, 10), Room.take(like, 100)
    where = places(small), places(large)
    Room.leave(small.view(2, 5).mT, large)  # views of it will do
    assert places(Room.take(like, 9)) == where[0]
    held = Room.take(like, 1000)  # in place of the 100, not beside it
    Room.leave(held)
    assert [len(flat) for flat in Room.free[like.dtype, like.device]] == [1000]


def test_each_dtype_has_its_own() -> None:
    one = Room.take(torch.zeros(1), 8)
    Room.leave(one)
    other = Room.take(torch.zeros(1, dtype=torch.float64), 4)
    assert other.dtype == torch.float64
    assert places(one).isdisjoint(places(other))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_in_any_mode_and_after_it(mode: type) -> None:
    inputs, ker = torch.randn(2, 3, 7, 7), torch.randn(4, 3, 3, 3)
    right = torch.nn.functional.conv2d(inputs, ker, padding=1)
    for _ in range(2):
        with mode():
            first = winograd(inputs, ker, [1, 1])
        second = winograd(2 * inputs, ker, [1, 1])
        assert torch.allclose(first, right, atol=1e-4)  # not overwritten by the second
        assert torch.allclose(second, 2 * right, atol=2e-4)
    taken = Room.take(inputs, 5)
    assert not taken.is_inference()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize("kept", [False, True])
def test_freed_memory_is_kept_when_asked_for(kept: bool) -> None:
    """Buffers of 64 MB: fresh pages each time, or the same ones."""
    text = """
        import resource
        import torch
        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(16_000_000)
        before = faults()
        for i in range(8):
            torch.ones(16_000_000 - 1000 * i)
        print(faults() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(text)]
    environment = os.environ | (KEEP_FREED if kept else {})
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    pages = 16_000_000 * 4 // os.sysconf("SC_PAGE_SIZE")
    assert int(ran.stdout) < 2 * pages if kept else int(ran.stdout) > 7 * pages
