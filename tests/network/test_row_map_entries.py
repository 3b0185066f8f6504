"""Row maps, asymmetric zeros and padding modes in network files."""

from __future__ import annotations

import itertools
import json

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from synth.base.errors import InputError
from synth.network.file import parse_network
from synth.network.graph import Network
from synth.network.json_schema import network_file_schema
from synth.network.plan.plan_json import parse_network_plan, to_json
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.network.row_map_entries import rows_of_run, runs
from synth.network.row_maps import CONSTANT
from synth.network.write import network_text

HEAD = "network: small\ninput: [4, 3, 8, 10]\nlayers:\n"
SCHEMA = jsonschema.Draft202012Validator(network_file_schema())


def network(*lines: str) -> Network:
    """The network of some layers; its file is valid, and reads as it is written."""
    text = HEAD + "".join(f"  - {line}\n" for line in lines)
    SCHEMA.validate(yaml.safe_load(text))
    found = parse_network(text, "net.yaml")
    assert parse_network(network_text(found), "net.yaml").nodes == found.nodes
    return found


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(0, 2), st.integers(0, 2))
def test_runs_are_the_rows(rows: list[int], before: int, after: int) -> None:
    rows = [CONSTANT] * before + rows + [CONSTANT] * after
    found = [rows_of_run(run) for run in runs(rows)]
    assert list(itertools.chain.from_iterable(found)) == rows
    assert len(found) <= len(rows)


def test_rows_of_a_file() -> None:
    found = network("reindex: {rows: [[2, 7, 1], [2, 0, 8], [3, -1, 2], [3, 9, 10, -1]]}")
    node = found.nodes["reindex1"]
    assert node.shape == (4, 3, 9, 12)
    assert node.maps[2].rows == (7, *range(8))
    assert node.maps[3].rows == (-1, -1, *range(9, -1, -1))
    picked = network("reindex: {rows: [[2, 3, 1]], dims: [0, 1, 3]}").nodes["reindex1"]
    assert (picked.shape, picked.dims) == ((4, 3, 10), (0, 1, 3))


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("reindex: {rows: 3}", "rows is 3; list runs as [dimension, first row, number, step]"),
        ("reindex: {rows: [[2, 3]]}", "a run is a list; write [dimension, first row, number, step]"),
        ("reindex: {rows: [[4, 0, 1]]}", "dimension 4 is none of the input's 4; count from 0"),
        ("reindex: {rows: [[2, 0, 0]]}", "a run has 0 rows; use 1 to 1048576"),
        (
            "reindex: {rows: [[2, 6, 3]]}",
            "rows 6 to 8 are not all in the 8 rows of dimension 2; use",
        ),
        (
            "reindex: {rows: [[2, 0, 1], [2, -1, 1], [2, 1, 1]]}",
            "only the ends of dimension 2 may read",
        ),
        (
            "reindex: {rows: [[2, 0, 1]], dims: [0, 5]}",
            "dims is [0, 5]; use -1 or one of 4 dimensions",
        ),
        (
            "conv2d: {out_channels: 2, kernel: 3, padding: 1, padding_mode: round}",
            "padding_mode is round; write one of zeros, circular, reflect, replicate",
        ),
        (
            "conv2d: {out_channels: 2, kernel: 3, padding: 8, padding_mode: reflect}",
            "padding 8 is more than reflect of 8 rows allows; use at most 7",
        ),
        ("pool: {kernel: 2, padding: [[1, 0], 0]}", "an entry of padding is a list; write an integer"),
    ],
)
def test_faults_are_named(layer: str, said: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_network(f"{HEAD}  - {layer}\n", "net.yaml")
    assert said in str(fault.value)
    assert str(fault.value).startswith("net.yaml:4:")


def test_zeros_of_a_convolution_may_differ() -> None:
    nodes = network(
        "conv2d: {out_channels: 4, kernel: 3, padding: [[2, 0], 1]}",
        "conv2d: {out_channels: 4, kernel: [2, 4], padding: same, padding_mode: zeros}",
    ).nodes
    assert [node.shape for node in nodes.values()] == [(4, 4, 8, 10)] * 2
    assert [node.layer.padding for node in nodes.values() if node.layer] == [((2, 0), 1), ((0, 1), (1, 2))]


def test_a_circular_convolution_is_planned_with_the_rows_that_wrap() -> None:
    found = network(
        "{name: one, conv2d: {out_channels: 8, kernel: 3, padding: 1}}",
        "{name: two, conv2d: {out_channels: 8, kernel: 3, padding: [[2, 0], 1], padding_mode: circular}}",
    )
    assert [node.kind for node in found.nodes.values()] == ["conv2d", "reindex", "conv2d"]
    assert found.nodes["two.pad"].shape == (4, 8, 10, 12)
    assert found.nodes["two"].shape == (4, 8, 8, 10)
    plan = plan_network(found, NetworkRequest(4, axes="h"))
    words = {(edge.source, edge.target): count for edge, count in plan.edge_words.items() if edge.moves_rows}
    assert words == {("one", "one"): 2 * 10 * 8 * 4}  # the last two rows of all samples, to the first process
    assert parse_network_plan(json.dumps(to_json(plan)), "plan.json")
