"""torch's attention layer as the calls that it consists of: the values are torch's own."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional

from synth.runtime.tracing.composed import composed

PLAIN = functional.multi_head_attention_forward
MASKS: dict[str, Any] = {
    "no mask": {},
    "booleans": {"attn_mask": torch.ones(5, 7, dtype=torch.bool).triu(3)},
    "numbers": {"attn_mask": torch.linspace(-2, 1, 35).reshape(5, 7).double()},
    "of each head": {"attn_mask": torch.linspace(-2, 1, 210).reshape(6, 5, 7).double()},
    "padding": {"key_padding_mask": torch.arange(7).expand(3, 7) > torch.tensor([[6], [2], [4]])},
    "both": {
        "attn_mask": torch.ones(5, 7, dtype=torch.bool).triu(5),
        "key_padding_mask": torch.arange(7).expand(3, 7) > torch.tensor([[6], [2], [4]]),
    },
}


def layer(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    made = nn.MultiheadAttention(8, 2, **options).double()
    for values in made.parameters():
        nn.init.normal_(values, std=0.5)
    return made


def apart(made: nn.MultiheadAttention, *given: torch.Tensor, **options: Any) -> float:
    """The largest difference of what the layer gives, weights of the heads included."""
    calls = composed(PLAIN)
    assert calls is not None
    right = made(*given, **options)
    with patch.object(functional, "multi_head_attention_forward", calls):
        found = made(*given, **options)
    pairs = [(a, b) for a, b in zip(right, found, strict=True) if a is not None or b is not None]
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("mask", MASKS)
def test_values_are_those_of_torch(mask: str) -> None:
    for first, weights, wide in itertools.product((True, False), (True, False), (None, 5)):
        made = layer(batch_first=first, kdim=wide, vdim=wide, bias=wide is None)
        x, y = torch.randn(3, 5, 8).double(), torch.randn(3, 7, wide or 8).double()
        x, y = (x, y) if first else (x.transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous())
        options = {**MASKS[mask], "need_weights": weights, "average_attn_weights": wide is None}
        assert apart(made, x, y, y, **options) < 1e-12


def test_rows_that_attend_to_themselves() -> None:
    made, x = layer(batch_first=True), torch.randn(3, 5, 8).double()
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for options in ({}, {"attn_mask": causal, "is_causal": True}, {"attn_mask": causal}):
        for weights in (True, False):
            assert apart(made, x, x, x, need_weights=weights, **options) < 1e-12


def test_dropout_is_that_of_torch_where_weights_are_asked_for() -> None:
    made, x = layer(batch_first=True, dropout=0.5), torch.randn(3, 5, 8).double()
    assert apart(made.eval(), x, x, x, need_weights=False) < 1e-12
    made.train()
    calls: Any = composed(PLAIN)
    torch.manual_seed(1)
    right = made(x, x, x)[0]
    torch.manual_seed(1)
    with patch.object(functional, "multi_head_attention_forward", calls):
        found = made(x, x, x)[0]
    assert float((right - found).detach().abs().max()) < 1e-12


def test_other_arguments_and_functions_stay_one_call() -> None:
    made: Any = layer(add_bias_kv=True)
    x = torch.randn(5, 3, 8).double()
    calls: Any = composed(PLAIN)
    out = made.out_proj
    given = (8, 2, made.in_proj_weight, made.in_proj_bias, made.bias_k, made.bias_v, False, 0.0)
    assert calls(x, x, x, *given, out.weight, out.bias) is NotImplemented
    assert composed(functional.linear) is None
