"""The buffer pool never hands out memory that is in use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from synth.launch.run import KEEP_FREED
from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.kernels.winograd import winograd


def places(*tensors: torch.Tensor) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def test_what_is_in_use_is_not_given_again() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    one, other = pool.take(like, 3, 4), pool.take(like, 12)
    assert len(places(one, other)) == 2
    pool.release(one)
    third = pool.take(like, 2, 5)
    assert places(third) == places(one)
    assert places(pool.take(like, 1)).isdisjoint(places(other, third))


def test_the_smallest_buffer_that_fits_and_the_pool_only_grows() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    small, large = pool.take(like, 10), pool.take(like, 100)
    where = places(small), places(large)
    pool.release(small.view(2, 5).mT, large)  # views of it will do
    assert places(pool.take(like, 9)) == where[0]
    held = pool.take(like, 1000)  # in place of the 100, not beside it
    pool.release(held)
    assert [len(flat) for flat in pool.free[like.dtype, like.device]] == [1000]


def test_each_dtype_has_its_own() -> None:
    pool = BufferPool()
    one = pool.take(torch.zeros(1), 8)
    pool.release(one)
    other = pool.take(torch.zeros(1, dtype=torch.float64), 4)
    assert other.dtype == torch.float64
    assert places(one).isdisjoint(places(other))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_in_any_mode_and_after_it(mode: type) -> None:
    pool = BufferPool()
    inputs, ker = torch.randn(2, 3, 7, 7), torch.randn(4, 3, 3, 3)
    right = torch.nn.functional.conv2d(inputs, ker, padding=1)
    for _ in range(2):
        with mode():
            first = winograd(inputs, ker, [1, 1], pool)
        second = winograd(2 * inputs, ker, [1, 1], pool)
        assert torch.allclose(first, right, atol=1e-4)  # not overwritten by the second
        assert torch.allclose(second, 2 * right, atol=2e-4)
    taken = pool.take(inputs, 5)
    assert not taken.is_inference()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.one_in(2)
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
