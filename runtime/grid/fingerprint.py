"""Fingerprints: a few numbers by which ranks see that they hold the same words.

A tensor is read once. Its fingerprint is the sum of its words with weights of random
sign and size, which depend on the place alone (a projection as of Johnson and
Lindenstrauss, 1984). Words that differ by d, in the 2-norm, change it by about d.
Integers have a sum of 64 bits with odd weights instead, which tells any one word that
differs.

Floating-point numbers may differ by rounding, where ranks are machines of different
kinds. So first the bits of fingerprints are compared; where these differ, the sums.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache, lru_cache
from typing import NamedTuple

import torch

WIDTH = 1024  # words that one row of weights multiplies
ROUNDING = 1e-6  # of the norm of all words; at least two units in the last place
RECORD = struct.Struct("<qqdd")
Number = bool | int | float | complex


class Fingerprint(NamedTuple):
    """What is compared of one tensor, or of some numbers.

    form: of shape and dtype, or of the kinds of numbers. exact: of integers, and of the
    places of NaN and infinity. value, size: the weighted sum, the norm of all words.
    rounding: by how much of the norm the sums may differ.
    """

    form: int
    exact: int
    value: float
    size: float
    rounding: float

    def packed(self) -> bytes:
        """What must be the same, bit by bit, where no rounding differs."""
        return RECORD.pack(self.form, self.exact, self.value, self.size)

    def is_like(self, other: Fingerprint) -> bool:
        """Whether two ranks hold the same words, but for rounding."""
        if (self.form, self.exact) != (other.form, other.exact):
            return False
        allowed = self.rounding * max(self.size, other.size)
        return abs(self.value - other.value) <= allowed


class OfTensor(NamedTuple):
    """The fingerprint of a tensor, which a GPU may still be computing.

    words: exact, value and size, as integers of 64 bits.
    """

    form: int
    words: torch.Tensor
    rounding: float


def of_tensor(values: torch.Tensor) -> OfTensor | Fingerprint:
    """The fingerprint of a tensor."""
    values, kind = values.detach(), values.device.type
    form, rounding = _form(values.shape, values.dtype)
    if kind == "cpu" and rounding and values.numel() == 1:
        word = values.item()
        if isinstance(word, float) and math.isfinite(word):
            return Fingerprint(form, 0, word, abs(word), rounding)
    if values.is_meta:
        return OfTensor(form, torch.zeros(3, dtype=torch.int64), rounding)
    if values.layout != torch.strided:
        values = values.to_dense()
    for dim, step in enumerate(values.stride()):
        if step == 0:  # one word stands for many
            values = values.narrow(dim, 0, min(1, values.shape[dim]))
    lower = torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if lower else nullcontext():
        return OfTensor(form, _words(values.reshape(-1)), rounding)


@lru_cache(2**10, typed=True)  # those of an optimizer are the same for each parameter
def of_numbers(*numbers: Number) -> Fingerprint:
    """The fingerprint of numbers of Python."""
    whole = [each for each in numbers if isinstance(each, int)]
    parts = [complex(each) for each in numbers if not isinstance(each, int)]
    reals = [part for each in parts for part in (each.real, each.imag)]
    finite = [each if math.isfinite(each) else 0.0 for each in reals]
    odd = [repr(each) for each in reals if not math.isfinite(each)]
    weights = _factor_list()
    value = sum(each * weights[at % WIDTH] for at, each in enumerate(finite))
    form = zlib.crc32(repr([type(each).__name__ for each in numbers]).encode())
    exact = zlib.crc32(repr((whole, odd)).encode())
    return Fingerprint(form, exact, value, math.hypot(*finite), ROUNDING)


def read(given: Iterable[OfTensor | Fingerprint]) -> list[Fingerprint]:
    """The fingerprints, once they are computed. A GPU is waited for once."""
    listed = list(given)
    words = [each.words for each in listed if isinstance(each, OfTensor)]
    by_device: dict[torch.device, list[int]] = {}
    for place, each in enumerate(words):
        by_device.setdefault(each.device, []).append(place)
    told = [b""] * len(words)
    for places in by_device.values():
        rows = torch.stack([words[place] for place in places]).cpu().numpy()
        for place, row in zip(places, rows, strict=True):
            told[place] = row.tobytes()
    rest = iter(told)
    found = []
    for one in listed:
        if isinstance(one, OfTensor):
            exact, value, size = struct.unpack("=qdd", next(rest))
            one = Fingerprint(one.form, exact, value, size, one.rounding)
        found.append(one)
    return found


def joint(named: Iterable[tuple[str, Fingerprint]]) -> bytes:
    """Eight bytes for fingerprints and what they are of, in their order."""
    packed = b"".join(what.encode() + each.packed() for what, each in named)
    return hashlib.blake2b(packed, digest_size=8).digest()


# -- tensors ---------------------------------------------------------------------------


@lru_cache(2**10)
def _form(shape: torch.Size, dtype: torch.dtype) -> tuple[int, float]:
    """A number for shape and dtype, and by how much of the norm words are rounded."""
    floats = dtype.is_floating_point or dtype.is_complex
    rounding = max(ROUNDING, 2 * torch.finfo(dtype).eps) if floats else 0.0
    return zlib.crc32(repr((tuple(shape), dtype)).encode()), rounding


def _words(flat: torch.Tensor) -> torch.Tensor:
    """Exact, value and size of words in a row, as integers of 64 bits."""
    if flat.device.type == "mps":  # which has no numbers of 64 bits
        flat = flat.cpu()
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    flat = flat.resolve_neg()
    if not flat.is_floating_point() or flat.element_size() == 1:
        exact = _exact(flat)
        return torch.stack([exact, torch.zeros_like(exact), torch.zeros_like(exact)])
    sums = _sums(flat.float() if flat.element_size() == 2 else flat)
    exact = torch.zeros((), dtype=torch.int64, device=flat.device)
    # the sums on a GPU are not looked at here, which would wait for it
    if flat.device.type != "cpu" or not math.isfinite(float(sums.sum())):
        finite = flat.isfinite()
        odd = torch.where(finite, 0, flat.nan_to_num(nan=3, posinf=1, neginf=2))
        exact = _exact(odd.to(torch.int8))
        sums = _sums(torch.where(finite, flat, 0).double())
    return torch.cat([exact.reshape(1), sums.view(torch.int64)])


def _sums(flat: torch.Tensor) -> torch.Tensor:
    """The weighted sum of words, and their norm; of many, that of sums of rows."""
    level, few = 0, flat.numel() <= 64 * WIDTH
    norm = torch.linalg.vector_norm(flat).double() if few else None
    while flat.numel() > WIDTH:
        weights = _factors(level, flat.dtype, flat.device)
        whole = flat.numel() // WIDTH * WIDTH
        rows = torch.mv(flat[:whole].view(-1, WIDTH), weights)
        rest = flat[whole:]
        if rest.numel():
            rows = torch.cat(
                [rows, torch.dot(rest, weights[: rest.numel()]).reshape(1)]
            )
        flat, level = rows.double(), level + 1
        norm = torch.linalg.vector_norm(flat) if norm is None else norm
    weights = _factors(level, flat.dtype, flat.device)[: flat.numel()]
    assert norm is not None
    return torch.stack([torch.dot(flat, weights).double(), norm])


def _exact(flat: torch.Tensor) -> torch.Tensor:
    """A sum of words, eight bytes each, with odd weights, without what is carried."""
    if flat.stride() != (1,):  # one word alone is contiguous with any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    words = flat.view(torch.uint8)
    whole = words.numel() // 8 * 8
    parts = [words[whole:].to(torch.int64)]
    if whole:
        at = words[:whole]
        at = at if at.storage_offset() % 8 == 0 else at.clone()
        parts.append(at.view(torch.int64))
    flat, level = torch.cat(parts) if parts[0].numel() else parts[-1], 0
    while flat.numel() > 1:
        weights, rest = _weights(level, flat.device), flat.numel() % WIDTH
        whole = flat.numel() - rest
        table = flat[:whole].view(-1, WIDTH)
        on_host = table.device.type == "cpu"  # libraries of GPUs multiply no integers
        rows = torch.mv(table, weights) if on_host else (table * weights).sum(1)
        if rest:
            rows = torch.cat([rows, (flat[whole:] * weights[:rest]).sum().reshape(1)])
        flat, level = rows, level + 1
    return flat.sum()


@cache
def _factors(level: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Weights of a row: of both signs, sizes from 0.5 on, mean square 1."""
    drawn = _weights(level, torch.device("cpu"))
    sizes = 0.5 + 0.927 * ((drawn >> 8) & 0xFFFF).double() / 2**16
    return torch.where(drawn > 0, sizes, -sizes).to(device, dtype)


@cache
def _factor_list() -> list[float]:
    """The weights of the first level, as numbers of Python."""
    listed: list[float] = _factors(0, torch.float64, torch.device("cpu")).tolist()
    return listed


@cache
def _weights(level: int, device: torch.device) -> torch.Tensor:
    """Odd integers of 64 bits, by the hashes of their places: the same on all ranks."""
    text = b"".join(
        hashlib.blake2b(f"{level} {place}".encode(), digest_size=8).digest()
        for place in range(WIDTH)
    )
    return (torch.frombuffer(bytearray(text), dtype=torch.int64) | 1).to(device)
