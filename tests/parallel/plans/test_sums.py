"""A sum lies as an operand of which the planner knows the layout; the ranks have it there, too."""

from __future__ import annotations

import pytest
import torch
from rank_pool import RankPool, pool_of
from sum_models import MODELS, SHAPE, Couplings, Joined

import synth
from synth.network.file import parse_network
from synth.parallel.front_end.trace_model import trace_model

NAMES = [[*MODELS][i : i + 6] for i in range(0, len(MODELS), 6)]


ranks = pool_of(__file__, "sum_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.parametrize("axes", ["hw", "bwck"])
@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
@pytest.mark.one_in(14)
def test_sums_in_both_orders_are_those_of_one_process(names: list[str], axes: str, ranks: RankPool) -> None:
    for found in ranks.call("compared", names, axes):
        for name, (error, received, planned) in found.items():
            assert error < 1e-10, name
            assert received == planned, name


@pytest.mark.parametrize("word", ["add", "mul", "sub", "where"])
@pytest.mark.parametrize("unknown", ["input", "slice", "halves"])
def test_a_sum_lies_as_the_operand_that_is_planned(word: str, unknown: str) -> None:
    """In both orders, in the network of a model and in its file: so all that reads the sum has an edge."""
    for order in ((unknown, "layer"), ("layer", unknown)):
        traced = trace_model(Joined(word, *order), SHAPE)
        for network in (traced.network, parse_network(traced.file_text(), "net.yaml")):
            first = next(each.name for each in network.nodes.values() if each.kind in ("add", "mul"))
            assert {part.node for part in network.parts[first]} == {"inner"}
            assert ("inner", "outer") in {(edge.source, edge.target) for edge in network.edges}


def test_words_do_not_depend_on_the_order_of_operands() -> None:
    """Of halves of the input, to which results of layers are added in turn."""
    torch.manual_seed(0)
    plans = [synth.plan_model(Couplings(turned), SHAPE, 4, axes="hw") for turned in (False, True)]
    assert plans[0].cost == plans[1].cost
    assert plans[0].words.step == plans[1].words.step


def test_halves_of_an_input_lie_where_the_first_layer_reads_them() -> None:
    """So a rank receives the words of layers and between them, and no others."""
    torch.manual_seed(0)
    plan = synth.plan_model(Couplings(False), SHAPE, 4, axes="w")
    (biases,) = set(plan.words.sums)  # which are no words of layers
    assert plan.cost == plan.words.most - biases
