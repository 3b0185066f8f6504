"""Row maps: what a rank owns of a result and reads for it, and that calls of torch are these maps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from synth.runtime.grid.boxes import cut
from synth.runtime.grid.row_maps import CONSTANT, RowMap, inside, owned_rows, padded_rows, rows_read
from synth.runtime.operators.call import Call
from synth.runtime.operators.one_tensor import MovedRows, moved_rows
from synth.runtime.tracing.trace import traced

MODES = ["constant", "circular", "reflect", "replicate"]


@st.composite
def row_maps(draw: st.DrawFn) -> RowMap:
    """Any rows, sorted ones as often as others, between constant ones."""
    size = draw(st.integers(1, 12))
    rows = draw(st.lists(st.integers(0, size - 1), max_size=16))
    rows = draw(st.sampled_from([rows, sorted(rows), sorted(rows)[::-1], list(range(size))]))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return RowMap(size, [CONSTANT] * before + rows + [CONSTANT] * after)


@given(row_maps(), st.integers(1, 5))
def test_every_row_of_a_result_has_one_owner(row_map: RowMap, parts: int) -> None:
    blocks = [cut((0, row_map.size), parts, part) for part in range(parts)]
    owned = [range(*owned_rows(row_map, block)) for block in blocks]
    assert sorted(row for rows in owned for row in rows) == list(range(len(row_map.rows)))


@given(row_maps(), st.data())
def test_rows_read_are_those_of_the_map(row_map: RowMap, data: st.DataObject) -> None:
    ends = st.integers(0, len(row_map.rows))
    low, high = sorted((data.draw(ends), data.draw(ends)))
    read = rows_read(row_map, (low, high))
    assert all(one < other for one, other in pairwise(read))
    assert set(read) == {row_map.rows[row] for row in range(low, high)} - {CONSTANT}
    first, last = sorted((data.draw(st.integers(0, row_map.size)), data.draw(st.integers(0, row_map.size))))
    assert list(read[inside(read, (first, last))]) == [row for row in read if first <= row < last]


@given(st.integers(1, 12), st.data())
def test_rows_that_rise_stay_where_they_are(size: int, data: st.DataObject) -> None:
    """Then a rank reads only rows that it owns."""
    rows = sorted(data.draw(st.lists(st.integers(0, size - 1), min_size=1)))
    for row_map in (RowMap(size, rows), RowMap(size, rows[::-1])):
        for part in range(3):
            own = cut((0, size), 3, part)
            read = rows_read(row_map, owned_rows(row_map, own))
            assert all(own[0] <= row < own[1] for row in read)


def test_few_rows_of_a_shift_move() -> None:
    wrapped = RowMap(12, padded_rows(12, 1, 2, "circular"))
    read = [rows_read(wrapped, owned_rows(wrapped, cut((0, 12), 3, part))) for part in range(3)]
    assert read == [(0, 1, 2, 3, 11), (4, 5, 6, 7), (0, 1, 8, 9, 10, 11)]
    rolled = RowMap(6, [4, 5, 0, 1, 2, 3])
    assert [owned_rows(rolled, cut((0, 6), 2, part)) for part in range(2)] == [(0, 3), (3, 6)]


@given(st.integers(2, 9), st.integers(-3, 8), st.integers(-3, 8), st.sampled_from(MODES))
def test_padded_rows_are_those_of_torch(size: int, before: int, after: int, mode: str) -> None:
    kept = size + min(0, before) + min(0, after)  # negative numbers crop
    assume(kept > 0)
    most = {"constant": 99, "replicate": 99, "circular": kept, "reflect": size - 1}[mode]
    before, after = min(before, most), min(after, most)
    row = torch.arange(float(size)).reshape(1, 1, -1)
    value = {"value": -1} if mode == "constant" else {}
    assert padded_rows(size, before, after, mode) == (
        functional.pad(row, (before, after), mode, **value).flatten().tolist()  # type: ignore[arg-type]
    )


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


def computed(moved: MovedRows, x: torch.Tensor) -> torch.Tensor:
    """What row maps say that a call gives."""
    for dim, each in enumerate(moved.maps):
        at = torch.tensor(each.rows)
        shape = [-1 if other == dim else 1 for other in range(x.dim())]
        picked = x.index_select(dim, at.clamp(min=0))
        x = torch.where((at == CONSTANT).reshape(shape), moved.value, picked)
    return x.reshape(moved.shape)


CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a part of chunk": lambda x: x.chunk(2, 1)[1],
    "a part of split": lambda x: torch.split(x, [1, 3, 2], dim=1)[2],
    "a part of split by size": lambda x: x.split(4, -1)[1],
    "a part of tensor_split": lambda x: x.tensor_split(4, 2)[2],
    "a part of tensor_split at rows": lambda x: torch.tensor_split(x, indices=(1, 3), dim=1)[1],
    "a part of unbind": lambda x: x.unbind(1)[3],
    "narrow": lambda x: x.narrow(2, 1, 3),
    "select": lambda x: x.select(1, -2),
    "a slice": lambda x: x[:, 1:-1],
    "slices with steps": lambda x: x[..., ::2, 1::3],
    "an index and a new dimension": lambda x: x[:, None, 2, :, -1],
    "an ellipsis": lambda x: x[1, ..., None],
    "roll": lambda x: torch.roll(x, shifts=(-2, 3), dims=(2, 3)),
    "flip": lambda x: x.flip(1, 3),
    "flip of a list": lambda x: torch.flip(x, [2]),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=-1),
    "unsqueeze": lambda x: x.unsqueeze(-2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "pad": lambda x: functional.pad(x, (1, 2), value=3.0),
    "pad that crops": lambda x: functional.pad(x, (-1, 2, 1, -2)),
    "pad of channels": lambda x: functional.pad(x, (0, 0, 0, 0, 1, 2)),
    "circular pad": lambda x: functional.pad(x, (1, 1, 2, 0), mode="circular"),
    "ZeroPad2d": nn.ZeroPad2d((1, 0, 2, 3)),
    "ConstantPad2d": nn.ConstantPad2d(2, 0.5),
    "ReflectionPad2d": nn.ReflectionPad2d((1, 0, 2, 3)),
    "ReplicationPad2d": nn.ReplicationPad2d(3),
    "CircularPad2d": nn.CircularPad2d((1, 0, 2, 3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_torch_are_row_maps(name: str) -> None:
    x = torch.arange(2 * 6 * 5 * 7.0).reshape(2, 6, 5, 7)
    call = CALLS[name]
    model = call if isinstance(call, nn.Module) else Function(call)
    graph = traced(nn.Sequential(model), tuple(x.shape), x.dtype)
    modules = dict(nn.Sequential(model).named_modules())
    moved = {}
    for node in graph.nodes:
        if node.op.startswith("call"):
            found = moved_rows(Call.of(node, modules, {}))
            assert found is not None, node.name
            (source,) = node.all_input_nodes
            moved[node] = computed(found, moved.get(source, x))
        elif node.op == "output":
            (last,) = node.all_input_nodes
            assert torch.equal(moved[last], call(x))


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "roll of all words": lambda x: x.roll(3),
    "copies in a new dimension": lambda x: x.expand(3, -1, -1, -1, -1),
    "view": lambda x: x.view(2, -1),
    "cumsum": lambda x: x.cumsum(1),
    "a sum of two": lambda x: functional.pad(x, (1, 1)) + x[:, :, :, :1],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_are_no_row_maps(name: str) -> None:
    graph = traced(Function(OTHERS[name]), (2, 6, 5, 7), torch.float32)
    *_, last, output = graph.nodes
    assert output.op == "output"
    assert moved_rows(Call.of(last, {}, {})) is None
