"""Random numbers of the model that are those of the network.

A network draws dropout and noise in its own way. To compare values, the model's calls
that draw give what the network drew. A mask must be one that the call could have drawn;
else the model keeps its own, and the two differ.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from synth.runtime.layers.steps.draws import Drawing, Draws
from synth.runtime.model.network import Network

SIGMAS = 6.0  # of the share of words that a mask keeps


class Drawn:
    """Which steps of a network drew in its last pass, and from what seeds.

    As a context it looks at the steps of a network while that runs.
    """

    def __init__(self, network: Network) -> None:
        self.steps = network.program.steps
        self.parts: dict[str, list[Drawing]] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> Drawn:
        for name, step in self.steps.items():
            parts = [each for each in step.modules() if isinstance(each, Drawing)]
            if parts:
                self._look_at(name, step, parts)
        return self

    def _look_at(self, name: str, step: nn.Module, parts: list[Drawing]) -> None:
        def leave(*_: Any) -> None:
            self.parts[name] = [each for each in parts if each.draws_now]

        self._hooks.append(step.register_forward_hook(leave))

    def __exit__(self, *fault: object) -> None:
        for each in self._hooks:
            each.remove()

    def seeded(
        self, name: str | None, device: torch.device
    ) -> AbstractContextManager[Any]:
        """A context in which torch draws what a gathered call drew."""
        for part in self.parts.get(name or "", ()):
            if isinstance(part, Draws):
                return part.alike(device)
        return nullcontext()

    def masked(
        self, name: str | None, call: Callable[[torch.Tensor], Any], given: Any
    ) -> torch.Tensor | None:
        """What a dropout gives for a tensor with the network's mask; None for others.

        call: the model's own dropout, of one tensor.
        """
        for part in self.parts.get(name or "", ()):
            if isinstance(part, Draws) or not isinstance(given, torch.Tensor):
                continue
            ones = torch.ones_like(given, requires_grad=False)
            with torch.no_grad():
                own = call(ones.clone())
                kept, base = part(ones), part(torch.zeros_like(ones))
            if kept.shape == own.shape and could_be(kept, own):
                made: torch.Tensor = base + given * (kept - base)
                return made
        return None


def could_be(mask: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two masks may be of one dropout: the same scale, whole channels alike.

    Shares of kept words may differ by what is likely for so many draws.
    """
    if mask.numel() == 0:
        return True
    apart = [_channels(each) for each in (mask, other)]
    draws, shares, tops = mask.numel(), [], []
    if all(each is not None for each in apart):
        draws = mask.shape[0] * mask.shape[1]
    for each in (mask, other):
        top = each.max()
        tops.append(float(top))
        shares.append(float((each == top).double().mean()))
    few = min(shares) * draws <= 1  # all may be dropped, so the scale is not seen
    spread = SIGMAS * (0.5 / draws) ** 0.5 + 1 / draws
    scales = few or abs(tops[0] - tops[1]) <= 1e-6 * abs(tops[1])
    sure = mask.dim() < 3 or draws < 32 or (apart[0] is None) == (apart[1] is None)
    return scales and abs(shares[0] - shares[1]) <= spread and sure


def _channels(mask: torch.Tensor) -> torch.Tensor | None:
    """The words of channels, where each channel is kept or dropped as a whole."""
    if mask.dim() < 3 or mask[0, 0].numel() == 1:
        return None
    flat = mask.flatten(2)
    return flat[..., 0] if bool((flat == flat[..., :1]).all()) else None
