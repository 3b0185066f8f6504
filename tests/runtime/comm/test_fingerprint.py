"""Fingerprints by which ranks see that they were given other words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from synth.runtime.grid.fingerprint import Fingerprint, Number, joint, of_numbers, of_tensor, read

SIZES = [1, 7, 1024, 1025, 70_000, 1_100_000]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
EXACT = [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool]


def fingerprint(values: torch.Tensor) -> Fingerprint:
    (found,) = read([of_tensor(values)])
    return found


@pytest.mark.parametrize("words", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_words_that_differ_by_more_than_rounding_have_another_fingerprint(
    words: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(words)
    values = torch.randn(words, dtype=torch.float64).to(dtype)
    one = fingerprint(values)
    assert one.packed() == fingerprint(values.clone()).packed()
    assert one.size == pytest.approx(float(values.double().norm()), rel=0.2)
    for place in {0, words // 2, words - 1}:
        other = values.clone()
        other[place] += 8 * one.rounding * one.size
        assert not one.is_like(fingerprint(other)), place
    order = values.roll(1)
    assert words == 1 or not one.is_like(fingerprint(order))


@pytest.mark.parametrize("words", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_makes_no_other_fingerprint(words: int, dtype: torch.dtype) -> None:
    torch.manual_seed(words)
    values = torch.randn(words, dtype=torch.float64).to(dtype)
    one, eps = fingerprint(values), torch.finfo(dtype).eps
    noise = (torch.rand(words, dtype=torch.float64) - 0.5) * min(eps, 1e-7)
    assert one.is_like(fingerprint((values.double() * (1 + noise)).to(dtype)))
    assert one.is_like(fingerprint((values.double() * (1 + 1e-8)).to(dtype)))


@pytest.mark.parametrize("words", SIZES)
@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_one_other_integer_is_seen(words: int, dtype: torch.dtype) -> None:
    torch.manual_seed(words)
    values = torch.randint(0, 2, (words,)).to(dtype)
    one = fingerprint(values)
    assert one.is_like(fingerprint(values.clone()))
    for place in {0, words // 2, words - 1}:
        other = values.clone()
        other[place] = 1 - int(other[place])
        assert not one.is_like(fingerprint(other)), place


def test_places_of_nan_and_infinity_count() -> None:
    values = torch.arange(3000.0)
    values[5] = math.nan
    one = fingerprint(values)
    assert one.is_like(fingerprint(values.clone()))
    for place, word in ((6, math.nan), (5, math.inf), (7, 8.0)):
        other = values.clone()
        other[place] = word
        assert not one.is_like(fingerprint(other)), place
    up, down = (fingerprint(torch.full((3,), each)) for each in (math.inf, -math.inf))
    assert not up.is_like(down)


def test_shape_dtype_and_memory() -> None:
    values = torch.randn(6, 8)
    one = fingerprint(values)
    assert not one.is_like(fingerprint(values.reshape(8, 6)))
    assert not one.is_like(fingerprint(values.double()))
    assert one.is_like(fingerprint(values.t().contiguous().t()))
    assert fingerprint(torch.ones(()).expand(3, 5)).is_like(fingerprint(torch.ones(()).expand(3, 5)))
    assert not fingerprint(torch.ones(3).expand(5, 3)).is_like(fingerprint(torch.zeros(3).expand(5, 3)))
    with torch.autocast("cpu"):
        assert one.packed() == fingerprint(values).packed()
    one_of_two = torch.tensor([[7, 5]])[:, 0]  # contiguous, with a stride of two words
    assert fingerprint(one_of_two).is_like(fingerprint(torch.tensor([7])))
    empty = fingerprint(torch.zeros(0, 3))
    assert empty.is_like(fingerprint(torch.zeros(0, 3)))
    assert not empty.is_like(fingerprint(torch.zeros(3, 0)))
    turned = torch.tensor([1 + 2j, 3 - 1j])
    assert not fingerprint(turned).is_like(fingerprint(turned.conj()))
    assert fingerprint(turned.conj()).is_like(fingerprint(turned.conj().clone()))
    assert fingerprint(torch.eye(3).to_sparse()).size == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], [2]),
        ([1], [1.0]),
        ([0.5, 2.0], [2.0, 0.5]),
        ([1j], [-1j]),
        ([math.nan], [math.inf]),
        ([1, 2], [1]),
    ],
    ids=str,
)
def test_other_numbers(one: Sequence[Number], other: Sequence[Number]) -> None:
    assert of_numbers(*one).is_like(of_numbers(*list(one)))
    assert not of_numbers(*one).is_like(of_numbers(*other))
    assert joint([("a", of_numbers(*one))]) != joint([("a", of_numbers(*other))])


def test_rounded_numbers() -> None:
    assert of_numbers(0.1 + 0.2).is_like(of_numbers(0.3))
    assert joint([("a", of_numbers(0.1 + 0.2))]) != joint([("a", of_numbers(0.3))])
    assert joint([("a", of_numbers(1))]) != joint([("b", of_numbers(1))])
