"""The memory in which gradients of several parameters are summed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from synth.runtime.comm.gradient_buckets import Bucket, Buckets, Shared

PARTS = [torch.arange(6.0).reshape(2, 3), torch.arange(4.0)]


def place(values: torch.Tensor) -> int:
    return values.untyped_storage().data_ptr()


def test_memory_is_used_again_once_no_gradient_lies_in_it() -> None:
    bucket = Bucket(None)
    flat = bucket.joined(PARTS, keep=True)
    first, gradient = place(flat), flat[2:4].view(1, 2).detach()
    del flat
    held = bucket.joined([2 * each for each in PARTS], keep=True)
    assert place(held) != first
    assert gradient.tolist() == [[2.0, 3.0]]
    second = place(held)
    del held, gradient
    again = bucket.joined([3 * each for each in PARTS], keep=True)
    assert place(again) == second
    assert again.tolist() == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 0.0, 3.0, 6.0, 9.0]


def test_memory_is_made_anew_for_other_words_and_dtypes() -> None:
    bucket = Bucket(None)
    bucket.joined(PARTS, keep=True)
    assert bucket.joined(PARTS[:1], keep=True).tolist() == list(range(6))
    halves = bucket.joined([PARTS[0].double()], keep=True)
    assert halves.dtype == torch.float64


def test_memory_is_kept_only_where_that_is_asked_for() -> None:
    bucket = Bucket(None)
    bucket.joined(PARTS)
    assert bucket.flat is None


def test_a_parameter_that_fills_a_bucket_has_its_own() -> None:
    """The small ones before and behind it share a message, which is complete with the last of them."""
    groups: Any = SimpleNamespace(ranks=SimpleNamespace(replica_count=1), of=lambda *args, **more: None)
    words = {"a": 10, "b": 100, "c": 10, "d": 25, "e": 3}
    shared = [Shared(name, (0, 1), each, torch.float32, name) for name, each in words.items()]
    made = Buckets(shared, groups, size=100).buckets
    assert [[each.key for each in bucket.shared] for bucket in made] == [["d"], ["b"], ["e", "c", "a"]]
    assert [bucket.step for bucket in made] == ["d", "b", "a"]
    each = Buckets(shared, groups, size=0).buckets
    assert [bucket.shared[0].key for bucket in each] == ["e", "d", "c", "b", "a"]
    (one,) = Buckets(shared, groups).buckets
    assert [each.key for each in one.shared] == ["e", "d", "c", "b", "a"]
