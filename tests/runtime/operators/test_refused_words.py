"""What ranks compute from their own words is refused by torch for no words, or they end it together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from synth.runtime.operators.one_tensor import ALONG, RESHAPES
from synth.runtime.operators.products import RULES as PRODUCTS
from synth.runtime.operators.refused_words import DIVISIONS, NORMS, TURNED, may_refuse
from synth.runtime.operators.table import FUNCTIONS, Operators
from synth.runtime.rules.pointwise import LOSSES, UNTAGGED, is_pointwise
from synth.runtime.rules.row_calls import FUNCTIONS as ROWS
from synth.runtime.rules.scans import SCANS
from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.trace import traced

HOMES = torch, torch.Tensor, functional, torch.special, torch.linalg, torch.fft, torch.ops.aten
BAD = 0, -7, 1000, nan, inf
DTYPES = torch.float32, torch.int64, torch.complex64
# divided only where the indices are rows of a sort and the like, or are no tensors
BY_INDEX = {"gather", "take_along_dim", "__getitem__"}
# of shapes that a square matrix has not
OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "conv1d": lambda x: functional.conv1d(x[None], x[:, :, None]),
    "conv_transpose2d": lambda x: functional.conv_transpose2d(x[None, None], x[None, None]),
    "scaled_dot_product_attention": lambda x: functional.scaled_dot_product_attention(
        x, x, x, is_causal=True
    ),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "cosine_similarity": lambda x: functional.cosine_similarity(x, x, dim=0),
    "cdist": lambda x: torch.cdist(x, x),
    "lstm": lambda x: nn.LSTM(3, 3)(x),
    "cross_entropy": lambda x: functional.cross_entropy(x, x, reduction="none"),
    "rms_norm": lambda x: functional.rms_norm(x, (3,)),
    "interpolate": lambda x: functional.interpolate(x[None], 5, mode="linear"),
    "max_pool1d": lambda x: functional.max_pool1d(x, 2),
    "adaptive_max_pool1d": lambda x: functional.adaptive_max_pool1d(x, 2),
    "group_norm": lambda x: functional.group_norm(x[None], 3),
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
}


class Of(nn.Module):
    """A call of whole numbers."""

    def __init__(self, call: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.call = [call]

    def forward(self, x: torch.Tensor) -> Any:
        return self.call[0](x.long())


def divided_names() -> set[str]:
    """The functions that ranks compute from their own words, in some form."""
    tables = UNTAGGED, LOSSES, ALONG, PRODUCTS, ROWS, SCANS, FUNCTIONS, RESHAPES
    known = {name for each in tables for name in each}
    every = {each.name.removeprefix("aten::") for each in torch._C._jit_get_all_schemas()}
    found = known | {name for name in every if "::" not in name and is_pointwise(name)}
    return {name if name.startswith("__") else name.rstrip("_") for name in found}


def forms(name: str) -> Iterator[tuple[Callable[..., Any], int, tuple[Any, ...], dict[str, Any]]]:
    """What a name may stand for: a function, its number of tensors, what follows them, and options."""
    short = name.removeprefix("linalg_").removeprefix("fft_")
    found = {id(f): f for home in HOMES for each in (name, short) if callable(f := getattr(home, each, None))}
    reduced: list[dict[str, Any]] = [{"reduction": "none"}] if name in LOSSES else []
    rounded: list[dict[str, Any]] = [{"rounding_mode": "trunc"}] if name in ("div", "divide") else []
    for function in found.values():
        for tensors, named in product((1, 2, 3), [{}, *reduced, *rounded]):
            yield function, tensors, (), named
        for behind in ((1,), (0, 1), ("nuc",), (2, (0, 1)), ("nuc", (0, 1))):
            yield function, 1, behind, {}


def is_refused(call: Callable[[torch.Tensor], Any], dtype: torch.dtype, places: int) -> bool:
    """Whether a call takes ones, and refuses some other words of the same shapes."""
    try:
        call(torch.ones(places, 3, 3, dtype=dtype))
    except Exception:  # it is no such call
        return False
    for place, value in product(range(places), BAD):
        given = torch.ones(places, 3, 3, dtype=dtype)
        with suppress(RuntimeError, OverflowError, ValueError):  # no such integer
            given[place, 0] = value
        try:
            call(given)
        except Exception:
            return True
    return False


def refusing(name: str) -> bool:
    for (function, tensors, behind, named), dtype in product(forms(name), DTYPES):

        def call(given: torch.Tensor, f: Any = function, more: Any = (behind, named)) -> Any:
            return f(*given.unbind(), *more[0], **more[1])

        if is_refused(call, dtype, tensors):
            return True
    return False


@pytest.mark.filterwarnings("ignore")
def test_all_that_torch_refuses_by_its_words_is_known() -> None:
    names = divided_names()
    assert len(names) > 300
    found = {name for name in names if refusing(name)}
    assert found - BY_INDEX == DIVISIONS | TURNED | NORMS.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_refused_for_no_words(name: str) -> None:
    call = OTHERS[name]
    call(torch.ones(3, 3))
    assert not is_refused(lambda given: call(given[0]), torch.float32, 1)


@pytest.mark.parametrize(
    ("call", "may"),
    [
        (lambda x: x // x, True),
        (lambda x: x // 2, False),
        (lambda x: x // 0, True),
        (lambda x: 2 // x, True),
        (lambda x: x.float() / x, False),
        (lambda x: torch.div(other=x, input=x, rounding_mode="floor"), True),
        (lambda x: torch.remainder(x.float(), x), False),
        (lambda x: torch.linalg.norm(x.float(), dim=(0, 1)), False),
        (lambda x: torch.linalg.norm(x.float(), 2, (0, 1)), True),
        (lambda x: torch.linalg.norm(x.float(), ord="nuc", dim=(0, 1)), True),
        (lambda x: x.float().norm(2, (0, 1)), False),
        (lambda x: torch.linalg.norm(x.float(), dim=1), False),
        (lambda x: x.float().norm(dim=1), False),
    ],
)
def test_calls_that_may_be_refused(call: Callable[[Any], Any], may: bool) -> None:
    model = Of(call)
    graph = traced(model, Inputs((4, 6)), torch.float32)
    operators = Operators({}, {})
    calls = [operators.call(node) for node in graph.nodes if node.op == "call_function"]
    assert any(map(may_refuse, calls)) == may
