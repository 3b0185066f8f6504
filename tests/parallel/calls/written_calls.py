"""Models that write into a map by an index: slices, every so many rows, places, and truth values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from called import Called

Index = Callable[[Any, torch.Tensor], Any]
PLACES = torch.tensor([5, 0, -2])


def into(index: Index, given: Callable[[Any, torch.Tensor], Any], m: Any, h: Any, g: Any) -> Any:
    """h with what is given at an index, both of the model and g."""
    out = h * 1
    out[index(m, g)] = given(m, g)
    return out


def write(index: Index, given: Callable[[Any, torch.Tensor], Any], **parts: Any) -> Callable[[], Called]:
    return lambda: Called(partial(into, index, given), **parts)


def part(*shape: slice | int) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    """What a slice of g has."""
    return lambda m, g: g[shape]


def woven(m: Any, h: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(4, 8, 16, dtype=h.dtype, device=h.device)
    out[..., ::2], out[..., 1::2] = h + g, h - g
    return out


def doubled(m: Any, h: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    out = h[:1] * 1
    out[0] *= 2  # by a view of all words
    return out * g


def counted(m: Any, h: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    whole = (h * 9).long()
    whole[g > 0] = 2.7  # type: ignore[assignment]  # of which integers keep 2
    return whole


def every(start: int | None, end: int | None, step: int) -> slice:
    return slice(start, end, step)


ALL = slice(None)
# h and g are (4, 8, 8)
WRITES: dict[str, Callable[[], Called]] = {
    "every second channel": write(lambda m, g: (ALL, every(None, None, 2)), part(ALL, slice(4))),
    "every third row from the second on": write(lambda m, g: (..., every(1, None, 3)), part(..., slice(3))),
    "some of every second row": write(lambda m, g: (..., every(1, 6, 2)), part(..., slice(3))),
    "every second sample and row": write(
        lambda m, g: (every(None, None, 2), 3, every(0, 7, 3)), part(slice(2), 0, slice(3))
    ),
    "a number in every second row": write(lambda m, g: (..., every(None, None, 2)), lambda m, g: 2),
    "rows by turns": lambda: Called(woven),
    "places of samples": write(lambda m, g: m.p % 4, lambda m, g: g[:3], p=PLACES),
    "places of channels": write(lambda m, g: (ALL, m.p), part(ALL, slice(3)), p=PLACES),
    "places of rows, and a slice": write(
        lambda m, g: (slice(1, 3), ..., m.p), part(slice(2), ALL, slice(3)), p=PLACES
    ),
    "places of rows of one channel": write(lambda m, g: (ALL, 2, m.p), part(ALL, 0, slice(3)), p=PLACES),
    "places by pairs": write(lambda m, g: (m.p % 4, m.p), part(slice(3), 0), p=PLACES),
    "places as a list": write(lambda m, g: (ALL, [1, 6, 4]), part(ALL, slice(3))),
    "places that are computed": write(
        lambda m, g: (torch.arange(4, device=g.device), g[:, 0].argmax(1)), lambda m, g: 1.5
    ),
    "truth values of samples": write(lambda m, g: m.t, lambda m, g: 0.5, t=torch.arange(4) > 1),
    "truth values of channels": write(lambda m, g: (ALL, m.t), lambda m, g: 0.5, t=torch.arange(8) % 3 > 1),
    "truth values of words, with a parameter": write(
        lambda m, g: g > 0, lambda m, g: m.w, w=torch.nn.Parameter(torch.tensor(0.7))
    ),
    "the only sample, doubled in place": lambda: Called(doubled),
    "a number of another dtype": lambda: Called(counted),
}
