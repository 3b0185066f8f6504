"""What the ranks of the tests of the automatic comparison do."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import synth
from synth.parallel.self_check import automatic
from synth.runtime.layers.steps.dropout import Dropout
from synth.runtime.model.self_check import verdict

SHAPE = (8, 4, 16, 16)


class Drops(nn.Module):
    """A convolution and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the input's extents."""
        return self.drop(self.conv(x))


class Talks(Drops):
    """Asks the other ranks for something, but not while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same."""
        if not x.is_meta:
            dist.all_reduce(torch.ones(()))
        return super().forward(x)


def planned(
    check: Any = "auto", said: str | None = None, wrong: bool = False, talks: bool = False
) -> dict[str, Any]:
    """A network with a comparison: its error or sum, what this rank printed, calls that it compared.

    said: the variable of the environment. wrong: whether the dropout of rank 0 keeps every word.
    """
    torch.manual_seed(0)
    model, printed, found = (Talks if talks else Drops)().train(), io.StringIO(), dict[str, Any]()
    compared = mock.Mock(side_effect=verdict.verdict)
    with contextlib.ExitStack() as inside:
        inside.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("SYNTH_CHECK", None)
        if said is not None:
            os.environ["SYNTH_CHECK"] = said
        inside.enter_context(contextlib.redirect_stderr(printed))
        inside.enter_context(mock.patch.object(verdict, "verdict", compared))
        if wrong and dist.get_rank() == 0:
            inside.enter_context(mock.patch.object(Dropout, "_kept", _all_kept))
        inside.enter_context(mock.patch.object(automatic, "SECONDS", 100.0))  # the machine may be busy
        try:
            net = synth.parallelize(model, SHAPE, check=check)
            found["sum"] = float(net.eval()(torch.ones(SHAPE)).full_tensor().sum())
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"
    found["generator"] = hash(tuple(torch.get_rng_state().tolist()))
    total = torch.ones(())
    dist.all_reduce(total)  # the ranks go on together
    return {**found, "printed": printed.getvalue(), "compared": compared.call_count, "ranks": int(total)}


def inference() -> dict[str, Any]:
    """A network that only infers, likewise."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), mock.patch.dict(os.environ, SYNTH_CHECK="always"):
        synth.parallelize(Drops().eval(), SHAPE, mode="inference")
    return {"printed": printed.getvalue()}


def _all_kept(self: Dropout, device: torch.device) -> torch.Tensor:
    return torch.ones([high - low for low, high in self.box], dtype=torch.bool, device=device)
