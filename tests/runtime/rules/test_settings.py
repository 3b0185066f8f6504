"""Functions with all their settings, beside torch: what is recorded, and how ranks divide each call of it.

No rank is started. Calls that ranks gather, or that they combine, are compared as recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, cycle, product
from math import inf
from typing import Any

import pytest
import torch
from simulated_ranks import Applied, compare, random_layout, step_of
from torch import fx
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.operators.table import Operators
from synth.runtime.tracing.trace import traced

Made = Callable[[torch.Tensor, torch.Tensor], Any]
Options = dict[str, Sequence[Any]]
ROWS, MAPS = (4, 6, 5), (2, 3, 7, 6)
DIMS = 0, -2, (1,), (0, -1), (2, 1), (0, 1, 2), (), None
WIDE = {"dtype": [torch.float32]}
KEPT: Options = {"dim": DIMS, "keepdim": [True]}
ONE: Options = {"dim": [0, 1, -1], "axis": [0, 2, -2], "keepdim": [True], "keepdims": [True]}
ALONG: Options = {"dim": [0, 1, -1], "axis": [0, -2]}
POOLS: Options = {"stride": [1, (3, 2)], "padding": [1, (1, 0)], "ceil_mode": [True]}
BOTH = {"align_corners": [True], "antialias": [True]}
SIZES: Options = {"size": [4, (9, 3)], "scale_factor": [2, 1.7, 0.4, (0.5, 3.0)]}
HOMES = {
    "": (torch, torch.Tensor, functional),
    "linalg": (torch.linalg,),
    "fft": (torch.fft,),
    "functional": (functional,),
}
# kinds of calls that ranks make together
TOGETHER = "reduction", "groupnorm", "layernorm", "instancenorm", "gathered"
# name -> by place before the settings, the settings, and of which shape
TABLE: dict[str, tuple[Sequence[tuple[Any, ...]], Options, tuple[int, ...]]] = {
    **dict.fromkeys(("sum", "mean", "nansum", "nanmean", "prod"), ([()], KEPT | WIDE, ROWS)),
    **dict.fromkeys(("amax", "amin", "logsumexp", "any", "all", "count_nonzero"), ([()], KEPT, ROWS)),
    **dict.fromkeys(("argmax", "argmin", "max", "min", "median", "nanmedian", "mode"), ([()], ONE, ROWS)),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), ([()], KEPT | {"correction": [0, 2.5]}, ROWS)),
    "norm": ([()], KEPT | {"p": [0, 1, 2.5, inf, -1, "fro"]}, ROWS),
    "linalg.vector_norm": ([()], KEPT | {"ord": [0, 1, 2.5, inf, -1]}, ROWS),
    "aminmax": ([()], {"dim": [0, -1], "keepdim": [True]}, ROWS),
    **dict.fromkeys(("cumsum", "cumprod"), ([()], ALONG | WIDE, ROWS)),
    **dict.fromkeys(("cummax", "cummin", "logcumsumexp", "unbind"), ([()], ALONG, ROWS)),
    **dict.fromkeys(("sort", "argsort"), ([()], ALONG | {"descending": [True], "stable": [True]}, ROWS)),
    "topk": ([(2,), (1,)], ALONG | {"largest": [False]}, ROWS),
    "kthvalue": ([(2,), (4,)], ONE, ROWS),
    "diff": ([(), (2,)], ALONG, ROWS),
    **dict.fromkeys(("chunk", "tensor_split"), ([(3,), (9,)], ALONG, ROWS)),
    "split": ([(2,), (5,)], {"dim": [0, 1, -1]}, ROWS),
    "roll": ([(3,), (-7,), ((1, 2),)], {"dims": [0, -1, (0, 2), (1, -3)]}, ROWS),
    "rot90": ([(k,) for k in (-1, 0, 2, 3)], {"dims": [(0, 2), (-1, 1)]}, ROWS),
    "flip": ([(0,), ((1, -1),), (0, 1)], {}, ROWS),
    "unfold": ([(d, n, s) for d in (0, 1, -1) for n in (1, 3) for s in (1, 2)], {}, ROWS),
    "narrow": ([(1, 2, 3), (-1, -3, 2), (0, 0, 0)], {}, ROWS),
    "select": ([(0, -1), (-1, 2), (1, 0)], {}, ROWS),
    "repeat_interleave": ([(2,), (3,)], {"dim": [0, -1]}, ROWS),
    "tile": ([((2,),), (1, 3, 2), ((2, 1, 1, 2),)], {}, ROWS),
    **dict.fromkeys(("tril", "triu"), ([()], {"diagonal": [1, -2, 9]}, ROWS)),
    "diagonal": ([()], {"offset": [1, -2], "dim1": [2, -3], "dim2": [-2]}, ROWS),
    **dict.fromkeys(("softmax", "log_softmax"), ([(0,), (1,), (-1,)], WIDE, ROWS)),
    "normalize": ([()], {"p": [1, 3, inf], "dim": [0, 1, -1, (0, 2)], "eps": [2.0]}, ROWS),
    "glu": ([()], {"dim": [0, -2]}, ROWS),
    **dict.fromkeys(
        ("fft.fft", "fft.rfft", "fft.irfft", "fft.ihfft"),
        ([()], {"dim": [0, 1, -1], "axis": [1], "n": [4, 9], "norm": ["ortho"]}, ROWS),
    ),
    "fft.fftn": ([()], {"dim": [0, (0, -1), (2, 1)], "norm": ["forward"]}, ROWS),
    "pad": ([((1, 2),), ((0, -2, 3, 1),), ((1, 1, 0, 2, -1, 1),)], {"value": [-1.5]}, MAPS),
    "pad of rows": ([((2, 1), mode) for mode in ("reflect", "replicate", "circular")], {}, ROWS),
    "avg_pool2d": ([(2,), ((3, 2),)], POOLS | {"count_include_pad": [False], "divisor_override": [5]}, MAPS),
    "max_pool2d": ([(2,), ((3, 2),)], POOLS | {"dilation": [2], "return_indices": [True]}, MAPS),
    "lp_pool2d": ([(p, k) for p in (1, 4.0, inf) for k in (2, (3, 2))], {"ceil_mode": [True]}, MAPS),
    "adaptive_avg_pool2d": ([(1,), (3,), ((None, 2),), ((9, 1),)], {}, MAPS),
    "adaptive_max_pool2d": ([(1,), (3,), ((None, 2),)], {"return_indices": [True]}, MAPS),
    "interpolate": ([()], SIZES | {"mode": ["nearest-exact", "area"]}, MAPS),
    "interpolate between": ([()], SIZES | {"mode": ["bilinear", "bicubic"]} | BOTH, MAPS),
    "functional.unfold": ([((3, 2),)], {"dilation": [2], "padding": [1, (2, 0)], "stride": [(1, 2)]}, MAPS),
    "local_response_norm": ([(2,), (3,)], {"alpha": [0.5], "beta": [0.3], "k": [2.0]}, MAPS),
    "group_norm": ([(1,), (3,)], {"eps": [0.5]}, MAPS),
    "layer_norm": ([((6,),), ((7, 6),), ((3, 7, 6),)], {"eps": [0.5]}, MAPS),
    "rms_norm": ([((6,),), ((7, 6),)], {"eps": [0.5]}, MAPS),
    "instance_norm": ([()], {"eps": [0.5]}, MAPS),
    "pixel_unshuffle": ([(1,), (3,)], {}, (2, 3, 6, 9)),
}
# of two tensors, and with the tensor by name
OTHERS: dict[str, Made] = {
    **{
        f"einsum {text}": lambda x, y, text=text: torch.einsum(text, x, y)  # type: ignore[misc]
        for text in ("bij,bkj->bik", "bij,bkj->ki", "bij,ckj->bkc", "bij,bij->", "...j,...j->...", "bij,bij")
    },
    "einsum of vectors": lambda x, y: torch.einsum("a,b,c->abc", x[0, 0], y[0, :, 0], x[:, 0, 0]),
    "einsum of three": lambda x, y: torch.einsum("bij,j,i->b", x, y[0, 0], y[0, :, 0]),
    "matmul of a vector": lambda x, y: x @ y[0, 0],
    "vector matmul": lambda x, y: x[0, :, 0] @ y,
    "matmul of a matrix": lambda x, y: x @ y[0].mT,
    "outer": lambda x, y: torch.outer(x[0, 0], y[:, 0, 0]),
    "kron": lambda x, y: torch.kron(x[0], y[0, :2, :3]),
    "tensordot": lambda x, y: torch.tensordot(x, y, dims=([2, 0], [2, 0])),
    "inner": lambda x, y: torch.inner(x, y[0]),
    "baddbmm": lambda x, y: torch.baddbmm(x[0, :, :1], x, y.mT, beta=0.5, alpha=2),
    "addmm": lambda x, y: torch.addmm(x[0, 0, 0], x[0], y[0].T, beta=2, alpha=3),
    "bilinear": lambda x, y: functional.bilinear(x[:, 0], y[:, 0], x[:, :5, :].transpose(1, 2)[:3, :5, :5]),
    **{
        f"cdist {p}": lambda x, y, p=p: torch.cdist(x, y, p)  # type: ignore[misc]
        for p in (0.0, 1.0, 2.0, 3.0, inf)
    },
    "sum by name": lambda x, y: torch.sum(input=x) * torch.amax(input=y),
    "deviation by name": lambda x, y: torch.std(input=x, dim=1),
    "norm by name": lambda x, y: torch.linalg.vector_norm(x=x),
    "nanmean by name": lambda x, y: torch.nanmean(input=x, dim=()),
    "words in memory by name": lambda x, y: torch.as_strided(input=x.mT, size=(2, 3), stride=(1, 2)),
    "gather": lambda x, y: x.gather(-2, y.argsort(1)[:, :2]),
    "take_along_dim": lambda x, y: x.take_along_dim(y.argsort(0), 0),
    "scatter": lambda x, y: x.scatter(-1, y.argsort(-1), y),
}
FUNCTIONS = (*TABLE, *OTHERS)


def chosen(options: Options) -> Iterator[dict[str, Any]]:
    """No setting, each setting, and each two."""
    yield {}
    for count in (1, 2):
        for names in combinations(options, count):
            for values in product(*map(options.__getitem__, names)):
                yield dict(zip(names, values, strict=True))


def calls_of(name: str) -> Iterator[tuple[str, Made, tuple[int, ...]]]:
    """The calls of a function: their text, the calls, and the shape of their operands."""
    if name in OTHERS:
        yield name, OTHERS[name], ROWS
        return
    places, options, shape = TABLE[name]
    home, _, word = name.partition(" ")[0].rpartition(".")
    homes = HOMES[home]
    functions = {id(f): f for each in homes if (f := getattr(each, word, None)) is not None}
    turns = cycle(functions.values())
    for (args, kwargs), function in zip(product(places, chosen(options)), turns, strict=False):
        text = f"{function.__qualname__}{args} {kwargs}"
        yield text, lambda x, _, f=function, a=args, k=kwargs: f(x, *a, **k), shape  # type: ignore[misc]


def tensors(made: Any) -> list[torch.Tensor]:
    """Of results of any nesting."""
    if isinstance(made, torch.Tensor):
        return [made]
    return [one for each in made for one in tensors(each)] if isinstance(made, tuple | list) else []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_settings_are_those_of_torch(name: str) -> None:
    compared = 0
    for text, function, shape in calls_of(name):
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        try:
            wanted = tensors(function(x, y))
        except (TypeError, RuntimeError, ValueError, IndexError, NotImplementedError):
            continue  # which torch refuses
        compared += 1
        try:
            compare_settings(function, [x, y], wanted, random.Random(text))
        except Exception as error:
            error.add_note(text)
            raise
    assert compared


def compare_settings(
    function: Made, given: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], draws: random.Random
) -> None:
    """What is recorded gives the same, and each of its calls in a random layout."""
    graph = traced(Applied(function), [each.shape for each in given], torch.float64)
    operators, values, inputs = Operators({}, {}), dict[fx.Node, Any](), iter(given)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        if node.op != "call_function":
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        made = values[node] = node.target(*args, **kwargs)
        known = node.meta["value"]
        assert (known.shape, known.dtype) == (made.shape, made.dtype)
        compare_divided(operators.call(node), operators, values, draws)
    outputs = fx.node.map_arg(graph.output_node().args, values.__getitem__)
    for one, other in zip(tensors(outputs), wanted, strict=True):
        torch.testing.assert_close(one, other)


def compare_divided(
    call: Any, operators: Operators, values: dict[fx.Node, Any], draws: random.Random
) -> None:
    """A call in a random layout, if ranks compute it from own words alone."""
    if not call.inputs or operators.operator(call).kind in TOGETHER:
        return
    sources = {each: random_layout(draws, tuple(values[each].shape)) for each in call.inputs}
    step = step_of(call, operators, sources, 0)
    if isinstance(step, Pulled) and step.rule.combined is None:
        compare(call, operators, sources, [values[each].detach().clone() for each in call.inputs])


@pytest.mark.parametrize("text", ["bij,bkj->ki", "bij,bkj->bk", "bij,j,i->b", "ij,jk,kl->il", "bij,ij->b"])
def test_multiply_adds_of_an_einsum_are_those_that_torch_counts(text: str) -> None:
    extents = dict(zip("bijkl", (4, 6, 5, 3, 2), strict=True))
    shapes = [tuple(map(extents.__getitem__, each)) for each in text.partition("->")[0].split(",")]
    graph = traced(Applied(lambda *given: torch.einsum(text, *given)), shapes, torch.float64)
    (node,) = (node for node in graph.nodes if node.op == "call_function")
    operators = Operators({}, {})
    form = operators.operator(operators.call(node)).form
    with FlopCounterMode(display=False) as counter:
        torch.einsum(text, *map(torch.ones, shapes))
    assert counter.get_total_flops() == 2 * form.multiply_adds
