"""Models with a call that torch may refuse by its words: it does where the last sample is of zeros."""

from __future__ import annotations

from collections.abc import Callable

import torch
from called import Called
from torch.nn import functional

Map = Callable[[torch.Tensor], torch.Tensor]


def of_whole_numbers(call: Map) -> Map:
    """What a call makes of the whole numbers of a map, as words of that."""
    return lambda h: call(h.detach().round().long()).to(h.dtype)


def diagonal(h: torch.Tensor) -> torch.Tensor:
    """A matrix for each sample, which is singular where it has zeros."""
    return torch.eye(8, dtype=h.dtype) * h.detach().round()


def nan_for_zeros(h: torch.Tensor) -> torch.Tensor:
    """A map with NaN in the place of zeros."""
    return h / (h.detach().round() != 0).to(h.dtype) * 0 + h


# ranks compute them from their own words, and end them together
DIVIDED: dict[str, Map] = {
    "floor_divide": of_whole_numbers(lambda n: (n + 3) // n),
    "floor_divide of a number": of_whole_numbers(lambda n: 7 // n),
    "floor_divide in place": of_whole_numbers(lambda n: (n + 3).floor_divide_(n)),
    "remainder": of_whole_numbers(lambda n: (n + 3) % n),
    "remainder of a number": of_whole_numbers(lambda n: 7 % n),
    "fmod": of_whole_numbers(lambda n: torch.fmod(n + 3, n)),
    "div": of_whole_numbers(lambda n: torch.div(n + 3, n, rounding_mode="trunc")),
    "by no number": of_whole_numbers(lambda n: n.where(n > 0, 0) // n),
    "nuclear norm": lambda h: torch.linalg.norm(nan_for_zeros(h), "nuc", (1, 2), True),
    "spectral norm": lambda h: torch.linalg.norm(nan_for_zeros(h), 2, (1, 2), True),
    "rows by turns": of_whole_numbers(lambda n: torch.stack([7 // n[row] for row in range(4)])),
    "matrices by turns": lambda h: torch.stack(
        [torch.linalg.inv_ex(diagonal(h)[row], check_errors=True)[0] for row in range(4)]
    ),
}
# every rank computes them from the whole
WHOLE: dict[str, Map] = {
    "inverse": lambda h: torch.linalg.inv(diagonal(h)),
    "one_hot": of_whole_numbers(lambda n: functional.one_hot(n[:, :, 0] - 1, 8)),
    "embedding": lambda h: functional.embedding(h.detach().round().long()[:, :, 0] - 1, h[0]),
    "indices": lambda h: h[0][h.detach().round().long()[:, :, 0] * 20 - 20],
    "gather": lambda h: h.gather(2, h.detach().round().long() - 1),
    "scatter": lambda h: torch.zeros_like(h).scatter(2, h.detach().round().long() - 1, h),
    "binary_cross_entropy": lambda h: functional.binary_cross_entropy(
        h.sigmoid(), 2 - h.detach().round(), reduction="none"
    ),
    "poisson": lambda h: torch.poisson(h.detach().round() * 1e-9 - (h.detach().round() == 0).to(h.dtype)),
    "an assertion": lambda h: (torch._assert_async((h.detach().round() != 0).all()), h)[1],  # type: ignore[func-returns-value]
}


def model_of(call: Map) -> Called:
    """The call between two convolutions, of a map of ones: of zeros for samples of -1."""
    model = Called(lambda m, h, g: h + m.last(h * call(h)), last=torch.nn.Conv1d(8, 8, 3, padding=1)).double()
    with torch.no_grad():
        model.conv.weight.zero_()[:, :, 1] = 0.5
        model.conv.bias.fill_(1)  # type: ignore[union-attr]
    return model


def batch_of(bad: bool) -> torch.Tensor:
    """Samples of small numbers; the last one, of which one rank has words, of -1."""
    batch = torch.rand(4, 2, 8, dtype=torch.float64) * 0.2
    batch[-1] -= bad * (1 + batch[-1])
    return batch
