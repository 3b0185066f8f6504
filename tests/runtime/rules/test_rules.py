"""Rules of operators on random layouts of six ranks, beside the operator on the whole; no rank is started.

Each rank gets what its rule reads of the operands. The boxes that it computes, and the gradients that return
to the owners, are those of one process.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from simulated_ranks import RANKS, Applied, Two, compare, random_layout, read, rule_of
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from synth.runtime.grid.boxes import within
from synth.runtime.operators.table import Operators
from synth.runtime.rules.access import aligned, read_box
from synth.runtime.rules.rule import is_trainable
from synth.runtime.rules.shuffles import shuffle
from synth.runtime.tracing.trace import traced

LAYOUTS, SHAPE = 6, (4, 8, 6, 6)
CASES: dict[str, Two] = {
    "relu": lambda x, y: functional.relu(x),
    "comparison": lambda x, y: torch.where(x > y, x, y * 2),
    "broadcast": lambda x, y: x * y[:, :, :1, :1] + y[0, 0],
    "max pooling": lambda x, y: functional.max_pool2d(x, 3, 2, 1),
    "max pooling, dilated": lambda x, y: functional.max_pool2d(x, 2, 2, 0, 2),
    "average": lambda x, y: functional.avg_pool2d(x, 3, 2, 1),
    "average without zeros": lambda x, y: functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "norm of windows": lambda x, y: functional.lp_pool2d(x, 4, 3, 2),
    "norm of windows, sequences": lambda x, y: functional.lp_pool1d(x[..., 0], 2, 2),
    "norm of windows, volumes": lambda x, y: functional.lp_pool3d(x[:, None], 2.0, (3, 2, 2), 1),
    "norm of windows, their maximum": lambda x, y: functional.lp_pool3d(x[:, None], math.inf, 2),
    "response norm": lambda x, y: functional.local_response_norm(x, 4, 0.5),
    "response norm over more channels than there are": lambda x, y: functional.local_response_norm(x, 19),
    "nearest": lambda x, y: functional.interpolate(x, scale_factor=2),
    "nearest, uneven": lambda x, y: functional.interpolate(x, size=(13, 9), mode="nearest-exact"),
    "bilinear": lambda x, y: functional.interpolate(x, size=(13, 9), mode="bilinear"),
    "permute": lambda x, y: x.permute(0, 2, 3, 1),
    "cat": lambda x, y: torch.cat([x, y, x], 2),
    "cat with itself": lambda x, y: torch.cat([x, x], 1),
    "flatten": lambda x, y: x.flatten(1),
    "view": lambda x, y: x.view(4, 2, 4, 6, 6),
    "softmax": lambda x, y: x.softmax(1),
    "pixel shuffle": lambda x, y: functional.pixel_shuffle(x, 2),
    "pixel unshuffle": lambda x, y: functional.pixel_unshuffle(x, 3),
    "pixel shuffle of one sample": lambda x, y: functional.pixel_shuffle(x[0], 2),
    "pixel unshuffle of frames": lambda x, y: functional.pixel_unshuffle(x[:, None] * y[:, None], 2),
    "shuffle of volumes": lambda x, y: shuffle(x.reshape(4, 8, 2, 3, 6), (2, 1, 2), (2, 0, 1), False),
    "unshuffle of sequences": lambda x, y: shuffle(x[..., 0], (3,), (0,), True),
    "zeros around": lambda x, y: functional.pad(x, (1, 2, -1, 3), value=2.5),
    "reflected": lambda x, y: functional.pad(x, (1, 2, 1, 1), mode="reflect"),
    "circular": lambda x, y: functional.pad(x, (1, 2, 1, 1), mode="circular"),
    "slices": lambda x, y: x[:, 1:5, ::2, -1],
    "new dimension": lambda x, y: x[:, None, 2:4],
    "roll": lambda x, y: x.roll((1, 2), (2, 3)),
    "flip": lambda x, y: x.flip((0, 3)),
    "repeat": lambda x, y: x.repeat(1, 1, 2, 1),
    "expand": lambda x, y: x[:, :1].expand(-1, 5, -1, -1),
    "part": lambda x, y: x.chunk(3, 1)[1],
    "broadcast to a larger shape": lambda x, y: x[:, :, :, :1] * y[:, :, 2:3],
    "equal words": lambda x, y: torch.where(x.round() == y.round(), x, y),
    "Fourier": lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 9) * 2, 9)[..., :6],
    "triangle": lambda x, y: x.tril(1) + y.triu(),
    "matmul": lambda x, y: x @ y.transpose(2, 3),
    "matmul with itself": lambda x, y: x @ x,
    "matmul of few words": lambda x, y: x[:1, :1, :1] @ y[:1, :1, :, :2],
    "kernel of few words": lambda x, y: functional.conv2d(x[:1, :, :1, :1], y[:, :, :1, :1]),
    "attention": lambda x, y: functional.scaled_dot_product_attention(x, y, y),
    "einsum": lambda x, y: torch.einsum("bchw,bdhw->bcd", x, y),
    "windows of maps": lambda x, y: functional.unfold(x, (3, 2), padding=1),
    "windows of maps, steps": lambda x, y: functional.unfold(x, 3, (2, 1), (3, 0), (2, 3)),
    "windows as patches": lambda x, y: functional.unfold(x, 3, stride=3),
    "windows over one row": lambda x, y: functional.unfold(x[:, :, :1], 1, padding=4),
    "maps of windows": lambda x, y: functional.fold(x.reshape(4, 8, 36), (7, 7), 2),
    "maps of windows, steps": lambda x, y: functional.fold(
        x.reshape(4, 72, 4), (8, 6), 3, dilation=(1, 2), padding=1, stride=(5, 2)
    ),
    "maps of windows of few rows": lambda x, y: functional.fold(
        x.reshape(4, 72, 4), (10, 4), 2, stride=(8, 2)
    ),
    "windows along height": lambda x, y: x.unfold(2, 3, 2),
    "windows along channels": lambda x, y: x.unfold(1, 5, 1),
    "linear, weights": lambda x, y: functional.linear(x, y[0, 0, :5], y[0, 0, 0, :5]),
    "kernel": lambda x, y: functional.conv2d(x, y[..., :3, :3], y[0, :4, 0, 0], padding=1),
    "kernel, steps": lambda x, y: functional.conv2d(
        x, y[..., :2, :3], stride=2, padding=(0, 2), dilation=(3, 2)
    ),
    "kernel, same extents": lambda x, y: functional.conv2d(x, y[..., :3, :3], padding="same", dilation=2),
    "kernel of zeros alone": lambda x, y: functional.conv2d(x, y[..., :1, :1], y[0, :4, 0, 0], padding=7),
    "kernel of a sample": lambda x, y: functional.conv2d(
        x.reshape(1, 32, 6, 6), y[:, :, :3].reshape(8, 8, 3, 3), y[0, :, 0, 0], padding=1, groups=4
    ),
    "kernel of a channel": lambda x, y: functional.conv2d(
        x, y[:3, :, :3, :3].reshape(24, 1, 3, 3), padding=1, groups=8
    ),
    "kernel of a sample and a channel": lambda x, y: functional.conv2d(
        x.reshape(1, 32, 6, 6), y[..., :3, :3].reshape(32, 1, 3, 3), padding=1, groups=32
    ),
    "kernel of an image": lambda x, y: functional.conv2d(x, y[..., 1:5, 1:5]),
    "kernel, sequences": lambda x, y: functional.conv1d(x[..., 0], y[..., :3, 0], padding=2, dilation=2),
    "kernel, volumes": lambda x, y: functional.conv3d(x[:, None], y[:3, None, :3, :3, :3], padding=1),
    "transposed kernel": lambda x, y: functional.conv_transpose2d(
        x, y[..., :3, :3].transpose(0, 1), y[0, :4, 0, 0], stride=2, padding=1, output_padding=1
    ),
    "transposed kernel of a sample": lambda x, y: functional.conv_transpose2d(
        x.reshape(1, 32, 6, 6),
        y[:, :, :3].reshape(32, 2, 3, 3),
        y[0, :, 0, 0],
        stride=2,
        dilation=2,
        groups=4,
    ),
    "transposed kernel of a channel": lambda x, y: functional.conv_transpose2d(
        x, y[:3, :, :3, :3].reshape(8, 3, 3, 3), padding=1, groups=8
    ),
    "transposed kernel, sequences": lambda x, y: functional.conv_transpose1d(
        x[..., 0], y[0, :, :3, :2], stride=3
    ),
}

# names of NumPy for dimensions, which torch takes, and operands by name in another order
NAMED: dict[str, Two] = {
    "sort": lambda x, y: torch.sort(x, axis=1, descending=True)[0],
    "places of a sort": lambda x, y: x.argsort(axis=0) * y,
    "top": lambda x, y: x.topk(3, axis=2)[0],
    "mode": lambda x, y: x.mode(axis=1)[0],
    "least but one": lambda x, y: x.kthvalue(2, axis=2, keepdims=True)[0],
    "cat": lambda x, y: torch.cat([x, y], axis=1),
    "unbind": lambda x, y: x[:, :4].unbind(axis=1)[1],
    "chunk": lambda x, y: x[:, :4].chunk(2, axis=1)[1],
    "select": lambda x, y: x[:, :4].select(axis=1, index=2),
    "narrow": lambda x, y: x.narrow(axis=1, start=2, length=3),
    "squeeze": lambda x, y: x[:1, :1].squeeze(axis=1),
    "softmax": lambda x, y: x.softmax(axis=1),
    "Fourier": lambda x, y: torch.fft.fft(x, axis=1).abs(),
    "shift": lambda x, y: torch.roll(x=x, shifts=1, dims=1),
    "product": lambda x, y: torch.prod(x, axis=2, keepdims=True),
    "likeness": lambda x, y: functional.cosine_similarity(x2=y, x1=x, axis=2),
    "matmul": lambda x, y: torch.matmul(other=y, input=x),
    "matmul of names of NumPy": lambda x, y: torch.matmul(x2=y, x1=x),
    "batches": lambda x, y: torch.bmm(mat2=y[0], input=x[0]),
    "mm": lambda x, y: torch.mm(mat2=y[0, 0], input=x[0, 0]),
    "distances": lambda x, y: torch.cdist(x2=y[:, :, :2], x1=x),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(2)
def test_boxes_and_gradients_are_those_of_the_whole(name: str) -> None:
    compare_calls(CASES[name], name)


@pytest.mark.parametrize("name", NAMED)
def test_arguments_by_name_are_those_by_place(name: str) -> None:
    compare_calls(NAMED[name], name)


def compare_calls(function: Two, name: str) -> None:
    """Every call that a function makes, in some layouts."""
    draws = random.Random(name)
    graph = traced(Applied(function), [SHAPE, SHAPE], torch.float64)
    operators = Operators({}, {})
    calls = [operators.call(node) for node in graph.nodes if node.op.startswith("call")]
    assert calls
    for call in calls:
        for _ in range(LAYOUTS):
            sources = {each: random_layout(draws, tuple(each.meta["value"].shape)) for each in call.inputs}
            compare(call, operators, sources, random_operands(call))


def random_operands(call: Any) -> list[torch.Tensor]:
    """Numbers of the shapes of its operands."""
    generator = torch.Generator().manual_seed(0)
    values = [each.meta["value"] for each in call.inputs]
    wholes = [
        torch.randn(each.shape, generator=generator, dtype=torch.promote_types(each.dtype, torch.float64))
        for each in values
    ]
    if not all(map(is_trainable, values)):
        wholes[0] = wholes[0] > 0  # of `where`
    return wholes


@pytest.mark.parametrize("name", CASES)
def test_ranks_without_words_have_the_dtype_of_the_others(name: str) -> None:
    draws, model = random.Random(name), Applied(CASES[name])
    graph, operators = traced(model, [SHAPE, SHAPE], torch.float32), Operators({}, {})
    for call in (operators.call(node) for node in graph.nodes if node.op.startswith("call")):
        values = [each.meta["value"] for each in call.inputs]
        sources = {each: random_layout(draws, tuple(each.meta["value"].shape)) for each in call.inputs}
        for low in (torch.float32, torch.bfloat16):
            dtypes = [low if each.dtype == torch.float32 else each.dtype for each in values]
            wholes = [torch.ones(each.shape, dtype=dtype) for each, dtype in zip(values, dtypes, strict=True)]
            with torch.autocast("cpu", torch.bfloat16):
                wanted = call.filled(in_place=False)(*wholes).dtype
                for me in range(RANKS):
                    rule = rule_of(call, operators, sources, me)
                    made = rule.call(*(read(each, wholes[each.place], me) for each in rule.operands))
                    assert made.dtype == wanted, (me, low, rule.out.boxes)


def test_a_maximum_of_windows_takes_bfloat16() -> None:
    """torch has no other norm of windows of volumes for it."""
    model, whole = Applied(CASES["norm of windows, their maximum"]), torch.randn(SHAPE).bfloat16()[:, None]
    graph, operators = traced(model, [SHAPE, SHAPE], torch.bfloat16), Operators({}, {})
    call = operators.call(next(node for node in graph.nodes if "lp_pool3d" in node.name))
    sources = {each: random_layout(random.Random(0), tuple(whole.shape)) for each in call.inputs}
    for me in range(RANKS):
        rule = rule_of(call, operators, sources, me)
        made = rule.call(*(read(each, whole, me) for each in rule.operands))
        wanted = functional.lp_pool3d(whole, math.inf, 2)
        assert torch.equal(made, wanted[within(rule.out.mine, tuple((0, n) for n in wanted.shape))])


def test_attention_of_maps_never_makes_the_whole_matrix() -> None:
    """Their channels lie apart, of which torch has no blockwise kernel."""
    model = Applied(CASES["attention"])
    graph, operators = traced(model, [SHAPE, SHAPE], torch.float32), Operators({}, {})
    (call,) = (operators.call(node) for node in graph.nodes if node.op.startswith("call"))
    sources = {each: random_layout(random.Random(0), SHAPE) for each in call.inputs}
    apart = torch.randn(SHAPE).mT
    for me in range(RANKS):
        rule = rule_of(call, operators, sources, me)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):  # raises where it cannot be taken
            rule.call(*(read(each, apart, me) for each in rule.operands))


def test_a_rank_without_words_has_none_of_operands_that_are_broadcast() -> None:
    """Where the result has one row, too, nothing is broadcast."""
    shapes, out, idle = [(4, 8, 1, 1), (1, 1, 6)], (4, 8, 1, 6), ((0, 0),) * 4
    boxes = [read_box(aligned(each, out), idle) for each in shapes]
    read = torch.broadcast_shapes(*(tuple(high - low for low, high in box) for box in boxes))
    assert read == (0, 0, 0, 0)
