"""torch's attention layers as the calls that they consist of, which ranks divide.

`torch.nn.MultiheadAttention` makes one call of torch. As one call, every rank would
compute it from gathered values. Its projections are linear layers, which are planned,
and its heads are computed as those of any other attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@contextmanager
def masks_as_given() -> Iterator[None]:
    """Let torch's transformers use a mask as it is, without a look at its values.

    They look whether a mask is causal, to call a faster kernel of the same numbers.
    """
    place: Any = nn.modules.transformer
    original = place._detect_is_causal_mask
    place._detect_is_causal_mask = lambda mask, is_causal=None, size=None: (
        is_causal is True
    )
    try:
        yield
    finally:
        place._detect_is_causal_mask = original


def may_nest(
    encoder: nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> bool:
    """Whether an encoder may leave padded rows out, which it then gives as zeros.

    It does in evaluation without gradients, if no row follows a padded one.
    """
    nests = getattr(encoder, "use_nested_tensor", False)
    return bool(nests) and src_key_padding_mask is not None and mask is None


def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: torch.Tensor | None,
    in_proj_bias: torch.Tensor | None,
    bias_k: torch.Tensor | None,
    bias_v: torch.Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    training: bool = True,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: torch.Tensor | None = None,
    k_proj_weight: torch.Tensor | None = None,
    v_proj_weight: torch.Tensor | None = None,
    static_k: torch.Tensor | None = None,
    static_v: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """`torch.nn.functional.multi_head_attention_forward`, call by call.

    query, key, value: (rows, samples, channels).
    """
    others = (bias_k, bias_v, static_k, static_v)
    if query.dim() != 3 or add_zero_attn or any(each is not None for each in others):
        return NotImplemented
    first = query.stride(0) <= query.stride(1)  # the user's tensors have samples first
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    parts = _projected(
        (query, key, value),
        separate if use_separate_proj_weight else in_proj_weight,
        in_proj_bias,
        first,
    )
    q, k, v = (_heads(each, num_heads) for each in parts)
    alone = key_padding_mask is None and not need_weights and not dropout_p
    causal = is_causal and alone  # then torch does not read the mask
    mask = None if causal else _merged_mask(q, attn_mask, key_padding_mask)
    if need_weights or dropout_p:
        scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        if dropout_p:
            weights = functional.dropout(weights, dropout_p, training)
        out = weights @ v
    else:
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal
        )
    out = out.transpose(1, 2).flatten(2)
    out = functional.linear(
        out if first else out.transpose(0, 1), out_proj_weight, out_proj_bias
    )
    out = out.transpose(0, 1) if first else out
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _projected(
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    weight: Any,
    bias: torch.Tensor | None,
    first: bool,
) -> list[torch.Tensor]:
    """Query, key and value as (samples, rows, channels)."""
    query, key, value = given
    if isinstance(weight, torch.Tensor) and query is key is value:
        made = _projection(query, weight, bias, first)
        return list(made.chunk(3, -1))
    weights = weight.chunk(3) if isinstance(weight, torch.Tensor) else weight
    biases = [None] * 3 if bias is None else bias.chunk(3)
    trios = zip(given, weights, biases, strict=True)
    return [_projection(*each, first) for each in trios]


def _projection(
    rows: torch.Tensor, weight: Any, bias: torch.Tensor | None, first: bool
) -> torch.Tensor:
    """A linear layer on (rows, samples, channels), with samples first."""
    if first:  # as the user's tensor has it, so that no dimensions are exchanged
        return functional.linear(rows.transpose(0, 1), weight, bias)
    return functional.linear(rows, weight, bias).transpose(0, 1)


def _heads(values: torch.Tensor, heads: int) -> torch.Tensor:
    """(samples, rows, channels) as (samples, heads, rows, channels of a head)."""
    samples, rows, channels = values.shape
    apart = values.reshape(samples, rows, heads, channels // heads)
    return apart.transpose(1, 2)


def _merged_mask(
    q: torch.Tensor,
    mask: torch.Tensor | None,
    padding: torch.Tensor | None,
) -> torch.Tensor | None:
    """What is added to the scores of (samples, heads, rows, other rows)."""
    if mask is not None:
        mask = _floats(mask, q)
        if mask.dim() == 3:
            several = mask.shape[0] > 1  # one for each sample and head
            mask = (
                mask.reshape(*q.shape[:2], *mask.shape[1:]) if several else mask[None]
            )
    if padding is None:
        return mask
    padding = _floats(padding, q)[:, None, None]
    return padding if mask is None else mask + padding


def _floats(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Minus infinity where a mask of booleans is true."""
    if mask.dtype != torch.bool:
        return mask
    nothing = torch.zeros(mask.shape, dtype=like.dtype, device=mask.device)
    return nothing.masked_fill(mask, -math.inf)
