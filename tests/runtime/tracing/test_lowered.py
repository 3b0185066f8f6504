"""Traces under autocast say the dtypes that calls have on a device under it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from precision_models import MODELS, Regions
from torch import fx, nn

from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.trace import traced

SHAPES = {
    **{name: shape for name, (_, shape) in MODELS.items()},
    "regions": (2, 4, 8, 8),
    "calls": (2, 4, 6, 6),
}


class Calls(nn.Module):
    """Functions of each list of autocast, attention, and what depends on dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.attend = nn.Conv2d(4, 4, 3, padding=1), nn.MultiheadAttention(4, 2, batch_first=True)
        self.layer, self.cell = nn.LayerNorm(4), nn.GRUCell(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x)
        rows = y.flatten(2).transpose(1, 2)
        scores = (rows @ rows.mT).masked_fill(rows.mean(-1, keepdim=True) > 0, torch.finfo(rows.dtype).min)
        more = nn.functional.scaled_dot_product_attention(rows, rows, self.layer(rows).to(rows.dtype))
        attended, _ = self.attend(rows, rows, rows, need_weights=False)
        power = torch.cat([y, x]).pow(2).to(y.dtype) + torch.zeros_like(y).repeat(2, 1, 1, 1)
        held = y.clone()
        held[:, 1:] = 0.5
        with torch.autocast(x.device.type, enabled=False):
            plain = torch.einsum("bnc,bmc->bnm", rows.double(), rows.double()).exp()
        plain = plain + torch.fft.rfft(rows, dim=1).abs().mean()
        return scores.softmax(-1), more, attended, power, held, plain, self.cell(rows[:, 0]), held.norm(dim=1)


class Values(fx.Interpreter):
    """Notes the dtype that each call has where it is computed, and the one that was traced."""

    def run_node(self, n: fx.Node) -> Any:
        regions = n.meta.get("autocast", ())
        inner = regions[-1] if regions else None
        context = torch.autocast("cpu", inner.dtype, inner.enabled) if inner else torch.no_grad()
        with context:
            made = super().run_node(n)
        if isinstance(made, torch.Tensor) and n.op != "placeholder":
            self.pairs.append((n.name, n.meta["value"].dtype, made.dtype))
        return made

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.module.get_submodule(str(target))(*args, **kwargs)


@pytest.mark.parametrize("low", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_dtypes_are_those_of_the_device(name: str, low: torch.dtype | None) -> None:
    own: dict[str, type[nn.Module]] = {"regions": Regions, "calls": Calls}
    model = own[name]() if name in own else MODELS[name][0]()
    batch = torch.randn(SHAPES[name])
    with torch.autocast("cpu", low, enabled=low is not None):
        called = Inputs.called((batch,), {})
    graph = traced(model, called, torch.float32, "cpu")
    run = Values(model, graph=graph)
    run.pairs = []
    with torch.autocast("cpu", low, enabled=low is not None):
        run.run(batch)
    assert len(run.pairs) > 3
    assert [each for each in run.pairs if each[1] != each[2]] == []
    wide = {each[2] for each in run.pairs} - {torch.bool}
    assert low is None or low in wide


def test_what_torch_refuses_under_autocast_is_refused() -> None:
    class Mixed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.dot(super().forward(x)[0], x[0])  # which autocast does not cast

    with torch.autocast("cpu", torch.bfloat16):
        called = Inputs.called((torch.randn(2, 4),), {})
        with pytest.raises(RuntimeError, match="dtype"):
            Mixed(4, 4)(torch.randn(2, 4))
    with pytest.raises(ValueError, match=r"no graph.*dtype"):
        traced(Mixed(4, 4), called, torch.float32, "cpu")


def test_models_without_memory_are_traced_for_their_own_device() -> None:
    model = Regions().to("meta")
    graph = traced(model, SHAPES["regions"], torch.float32)
    assert [node.name for node in graph.nodes if node.op == "call_module"] == ["one", "two", "three"]
